"""Waiting in tests for what has no event of its own: counted in looks, not in seconds.

On a busy machine everything takes longer, looking as well; so a limit in looks says "it does not come" there, too.
"""

import asyncio
from collections.abc import Callable
from typing import Final

LOOKS: Final = 15_000
"""Half a minute at best."""


async def until(
    condition: Callable[[], bool], what: str = "what was waited for", *, looks: int = LOOKS
) -> None:
    """Wait until `condition()`, looked at every 2 ms at best; fails with `what`."""
    for _ in range(looks):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError(f"not within {looks} looks: {what}")
