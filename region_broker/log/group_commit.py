"""Group commit: one sync of each dirty log for all that was appended since the last one.

INV-CM1  while a group is synced the next one gathers; a log is in at most one running group
INV-CM2  a log's `finish_sync` is called once for each job, on the loop, with its own outcome: one bad disk file
        stops one partition
INV-CM3  a job is never run again after an error

Policies: `commit` starts a group as soon as anything is dirty; `interval` each `flush_interval_ms`; `os` syncs only
segments that are full. The threads are the only ones that touch the log's files beside the loop; full segments
are handed to `on_sealed` in a thread of its own, so that a slow digest delays no ack.
Not here: what is synced (`PartitionLog.begin_sync`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from idempotency.ports import Clock
from region_broker.log.log_config import FlushPolicy, NodeLogConfig
from region_broker.log.partition_log import PartitionLog
from region_broker.log.sync_job import SyncJob

logger: Final = logging.getLogger(__name__)

SealedCallback = Callable[[Path], None]


class SyncRunner(Protocol):
    """Where the blocking work runs: threads, or inline in a simulation."""

    async def sync_all(self, jobs: Sequence[SyncJob]) -> list[OSError | None]:
        """Run each job once; return their outcomes in order."""
        ...

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        """Begin background work; the awaitable ends with it."""
        ...

    def close(self) -> None:
        """Wait for what was begun, then stop."""
        ...


class ThreadRunner:
    """Jobs spread over a few threads; background work, one piece at a time, in another."""

    def __init__(self, thread_count: int) -> None:
        """Use `thread_count` (>= 1) threads for syncs."""
        self._threads = thread_count
        self._sync_pool = ThreadPoolExecutor(thread_count, thread_name_prefix="log-sync")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="log-seal")

    async def sync_all(self, jobs: Sequence[SyncJob]) -> list[OSError | None]:
        """See `SyncRunner`: job i runs in thread i mod n, so a group wakes at most n threads."""
        loop = asyncio.get_running_loop()
        shares = [jobs[start :: self._threads] for start in range(min(self._threads, len(jobs)))]
        outcomes = await asyncio.gather(
            *(loop.run_in_executor(self._sync_pool, _run_share, share) for share in shares)
        )
        return [outcomes[at % self._threads][at // self._threads] for at in range(len(jobs))]

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        """See `SyncRunner`."""
        return asyncio.get_running_loop().run_in_executor(self._background, work)

    def close(self) -> None:
        """See `SyncRunner`."""
        self._sync_pool.shutdown()
        self._background.shutdown()


def _run_share(jobs: Sequence[SyncJob]) -> list[OSError | None]:
    return [job.run() for job in jobs]


class GroupCommit:
    """One per node; `run` is its task."""

    def __init__(
        self,
        config: NodeLogConfig,
        clock: Clock,
        *,
        on_sealed: SealedCallback | None = None,
        runner: SyncRunner | None = None,
    ) -> None:
        """Gather from now on; nothing is synced before `run`. `on_sealed` is called in a thread."""
        self.policy = config.flush_policy
        self.on_sealed = on_sealed
        self._interval_ms = config.flush_interval_ms
        self._clock = clock
        self._runner = runner if runner is not None else ThreadRunner(config.sync_threads)
        self._dirty: dict[PartitionLog, None] = {}
        self._wake = asyncio.Event()

    def mark_dirty(self, log: PartitionLog) -> None:
        """Note that a log has something to sync; called after each append."""
        if self.policy is FlushPolicy.OS and not log.has_pending_seals:
            return
        if log not in self._dirty:
            self._dirty[log] = None
            self._wake.set()

    async def run(self) -> None:
        """Sync group after group until cancelled."""
        async with asyncio.TaskGroup() as background:
            while True:
                await self._wake.wait()
                if self.policy is FlushPolicy.INTERVAL:
                    await self._clock.sleep_ms(self._interval_ms)
                for path in await self.sync_group():
                    background.create_task(self._seal(path))

    async def sync_group(self) -> list[Path]:
        """Sync all that is dirty now; return the segments that are sealed by it."""
        self._wake.clear()
        logs, self._dirty = self._dirty, {}
        jobs = [job for job in (log.begin_sync() for log in logs) if job is not None]
        if not jobs:
            return []
        sealed: list[Path] = []
        outcomes = await self._runner.sync_all(jobs)
        for job, error in zip(jobs, outcomes, strict=True):
            job.log.finish_sync(job, error)
            sealed.extend(job.log.take_sealed())
        return sealed

    async def _seal(self, path: Path) -> None:
        callback = self.on_sealed
        if callback is None:
            return
        try:
            await self._runner.start(lambda: callback(path))
        except OSError as error:
            # The segment itself is durable; a digest that is missing is made by the next scrub.
            logger.warning("no digest was written for %s: %s", path, error)

    def close(self) -> None:
        """Stop the threads; `run` must have ended."""
        self._runner.close()
