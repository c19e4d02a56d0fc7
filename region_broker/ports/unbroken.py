"""Work that goes to its end although whoever waits for it is cancelled: half of it must not be left.

INV-UB1  once begun it is carried to its end, in a task of its own; a cancelled caller is let go only then
INV-UB2  work that may end sooner, as nobody wants what comes of it any more, is told so when its caller is cancelled
1. A mirror deletes a topic: its quorum commits that. 2. Its link is cancelled for a takeover. 3. The registry has no such topic
any more, its partitions are open. 4. Another topic is to get that name.
Or: 1. A thread puts a tail into quarantine. 2. Its takeover is cancelled, and begun again. 3. Both write the same files.
Whoever stops a node lets the metadata end last: what waits for them ends then, at the latest.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

_log: Final = logging.getLogger("tidemark.metadata")


def _nothing_ends_sooner() -> None:
    """Work of which half must not be left."""


async def to_its_end(
    work: Coroutine[Any, Any, Result], hasten: Callable[[], None] = _nothing_ends_sooner
) -> Result:
    """Return what `work` returns, or raise what it raises; if this is cancelled, then behind its end (INV-UB1).

    What it raised is logged then, as nobody hears of it; a broken assertion is raised all the same. `hasten` tells it to end
    sooner, where it can (INV-UB2).
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            hasten()
    if cancelled is None or task.cancelled():
        return task.result()
    failure = task.exception()
    if isinstance(failure, AssertionError):
        raise failure
    if failure is not None:
        _log.warning("what was begun before it was cancelled came to this: %s", failure)
    raise cancelled
