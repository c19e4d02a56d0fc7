"""Closing many logs beside the event loop: a node that stops goes on answering the others of its region meanwhile.

INV-CLG1  the loop waits for no disk: threads sync a few logs at a time, and let the next start believe them; then, on the loop,
          those are closed
INV-CLG2  only a log that is synced whole is settled for the next start; what came after that is synced as it is closed
A log that cannot be settled stops, and is recovered by the next start; the others go on. All who write must have ended, and so must
`GroupCommit.run`.
Not here: what a start believes (`log.parts.durability`), who stops before (`node.node`).
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from region_broker.log.journal.sync_job import SyncJob
from region_broker.partitions.partition import Partition
from region_broker.ports.offload import Offload

LOGS_AT_ONCE: Final = 16
"""Closed in one step of the loop, well below a millisecond."""
THREADS: Final = 4
REASON: Final = "the node stops"


async def close_aside(
    partitions: Iterable[Partition], offload: Offload = asyncio.to_thread
) -> None:
    """Close all cleanly. Doing it twice changes nothing; cancelled, it leaves the rest open."""
    left = [partition for partition in partitions if not partition.log.content.closed]
    shares = [left[start::THREADS] for start in range(THREADS)]
    async with asyncio.TaskGroup() as tasks:
        for share in shares:
            if share:
                tasks.create_task(_close_share(share, offload), name="closing")


async def _close_share(share: Sequence[Partition], offload: Offload) -> None:
    for start in range(0, len(share), LOGS_AT_ONCE):
        some = share[start : start + LOGS_AT_ONCE]
        await _sync(some, offload)
        await _settle(some, offload)
        for partition in some:
            partition.close(REASON)


async def _sync(some: Sequence[Partition], offload: Offload) -> None:
    begun = [partition.log.durability.begin_last_sync() for partition in some]
    jobs = [job for job in begun if job is not None]
    if not jobs:
        return
    outcomes: list[tuple[SyncJob, OSError | None]] = []
    await offload(lambda: outcomes.extend((job, job.run()) for job in jobs))
    for job, error in outcomes:
        job.log.finish_sync(job, error)


async def _settle(some: Sequence[Partition], offload: Offload) -> None:
    failed: list[tuple[Partition, OSError]] = []

    def settle() -> None:
        for partition in some:
            try:
                partition.log.settle()
            except OSError as error:
                failed.append((partition, error))

    await offload(settle)
    for partition, error in failed:
        partition.stop(f"closing {partition.log.folder} failed: {error}")
