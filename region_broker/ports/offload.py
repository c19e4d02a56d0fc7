"""Blocking work that leaves the event loop: `asyncio.to_thread` in a node, at once in a test of one step.

INV-OFL1  what `to_the_end` runs has ended when its caller goes on, also a caller that is cancelled meanwhile, however often: its
          repetition never meets a thread that still writes to the same files
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

_log: Final = logging.getLogger(__name__)

Offload = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs the work; the awaitable ends with it, and raises what it raised."""


async def to_the_end(work: Awaitable[None]) -> None:
    """Return once `work` has ended, which has begun by then; a cancellation meanwhile is raised only after that (INV-OFL1)."""
    cancelled: asyncio.CancelledError | None = None
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(_ended(work), name="to-the-end")
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
    failed = running.result()
    if cancelled is not None and (failed is None or isinstance(failed, Exception)):
        if failed is not None:
            _log.warning("work that nobody waits for any more has failed: %r", failed)
        raise cancelled
    if failed is not None:
        raise failed


async def _ended(work: Awaitable[None]) -> BaseException | None:
    """Return what `work` ended with: a task that fails would cancel the one that waits for it."""
    try:
        await work
    except BaseException as error:  # noqa: BLE001 - it is raised by who waits
        return error
    return None
