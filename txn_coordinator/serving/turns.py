"""Giving way: what goes through all transactional ids lets the event loop serve others in between.

INV-TTU1 what a time-out, a load or a takeover does for all transactional ids of a shard gives way after every `TURN_COST` ids, or ten times
         as many partitions of theirs; whoever does it looks again at whether the shard is closed
Not here: markers (`marker_orders`, which hands over so many a turn), replay (`shard_driver`).
"""

import asyncio
from typing import Final

TURN_COST: Final = 100
_PARTITIONS_FOR_ONE: Final = 10
"""So many partitions of a record cost about what one more id does."""


class Turns:
    """Counts the work since others were served."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        """Count from 0."""
        self._done = 0

    async def worked(self, partitions: int) -> None:
        """Count one id whose transaction has so many partitions, and give way if it is time."""
        self._done += 1 + partitions // _PARTITIONS_FOR_ONE
        if self._done >= TURN_COST:
            self._done = 0
            await give_way()


async def give_way() -> None:
    """Let everything else that is ready run once."""
    await asyncio.sleep(0)
