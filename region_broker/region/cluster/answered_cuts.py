"""Logs of a follower that end elsewhere than the leader's, as its answer says: each is cut by itself, a few at a time.

INV-ANC1  the event loop waits for no disk: what is synced before and behind a cut of a log that runs is synced in threads (INV-CTJ1, INV-CTJ2), and others
          have their turn between two logs
          1. A leader of 1,000 partitions is cut off from the others for two seconds, and appends to each. 2. It returns, and hears in one answer where
          to cut all of them. 3. In one step that took it 20 s, in which it gave the quorum no vote, and no client an answer.
          The core is told of a log's answer once its cut is durable: it has the log fetched in that step, and who appends to a log whose cut is not
          durable syncs that in the event loop (INV-CTJ2). Where a session ends within a cut, the next one may come to that
INV-ANC2  a log is cut while the session goes on whose answer cuts it, and in that step the core still judges so. Where the session ends on the way
          nothing was cut, or a whole cut was made, which whoever appends next makes durable first

Not here: where to cut (`replication.following`), the syncs (`log.journal.cut_job`), logs that are cut below HW (`replica_cuts`).
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from region_broker.log.failures import LogError, PartitionFailed
from region_broker.partitions.partition import Partition

LOGS_AT_ONCE: Final = 4
"""As many as a takeover cuts."""


async def cut_one_by_one(
    cuts: Iterable[tuple[Partition, int]],
    cut: Callable[[Partition, int], None],
    told: Callable[[Partition], None],
    stopped: Callable[[Partition], None],
) -> None:
    """Have `cut` called, in a step of its own, for each log that is to be cut at that offset, and `told` once that is durable.

    `cut` does not settle; where it raises LogError, or does not cut, `told` is called as well. `stopped` is called for a log whose
    disk failed.
    """
    waiting = iter(list(cuts))

    async def cut_each() -> None:
        for partition, offset in waiting:
            await partition.trimming.prepare_cut(offset)
            with suppress(LogError):  # the core's cut meets it again, and says what is wrong
                await partition.trimming.lower(offset)
                cut(partition, offset)
            try:
                await partition.trimming.settle()
            except PartitionFailed:  # which was said as it stopped
                stopped(partition)
            else:
                told(partition)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(LOGS_AT_ONCE):
            tasks.create_task(cut_each(), name="log-by-log")
