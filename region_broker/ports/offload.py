"""Blocking work that leaves the event loop: `asyncio.to_thread` in a node, at once in a test of one step."""

from collections.abc import Awaitable, Callable

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs the work; the awaitable ends with it, and raises what it raised."""
