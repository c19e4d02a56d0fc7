"""Group commit: one sync of the journal for all that was appended since the last one.

What is too much for the journal, or fills a segment, is synced in its log's own files, as everything is without a
journal.

INV-CM1  while a group is synced the next one gathers; a log is in at most one running group
INV-CM2  a log hears of each job once, on the loop, with its own outcome: a bad log file stops one partition, a bad
        journal all that were in that block
INV-CM4  nothing large and nothing with a full segment is synced on the loop, and nothing at all for a while
        after syncs there have become slow: the while doubles each time, so a slow disk is rarely tried
INV-CM5  all files of a group begin to be written out before the first is waited for
A job is never run again after an error.

INV-CM7  a group begins once a few turns of the loop brought nothing new, at the latest after `GATHER_TURNS_MAX`: what
        has arrived in the sockets joins it, and no clock makes a lone request wait
INV-CM8  a group has at most `LOGS_AT_ONCE` logs, those that wait longest; the others are the next groups, and the loop turns in between.
         Each is a whole group, with a sync of its own: nothing of a log lies between its begin and its block while others run
As soon as one half of the journal is full, the files of the logs in it are synced in the background.

Policies: `commit` starts a group as soon as anything is dirty; `interval` each `flush_interval_ms`; `os` syncs only
segments that are full; neither uses the journal. Full segments are handed to `on_sealed` in a thread of its own, so that a slow digest
delays no ack.
Why on the loop: handing a group to threads costs more than the syncs of a fast disk, as each `fdatasync` that
returns there needs the interpreter back from the loop; meanwhile requests gather in the sockets and are served
in the next turn, as one group. Not here: what is synced (`parts.durability`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from idempotency.ports import Clock
from region_broker.log.journal.sync_job import DirtyLog, SyncJob
from region_broker.log.journal.writer import BLOCK_BYTES_MAX, Journal, JournalBlock
from region_broker.log.log_config import FlushPolicy, NodeLogConfig

logger: Final = logging.getLogger(__name__)

SYNC_THREADS: Final = 4
GATHER_TURNS_MAX: Final = 12
LOGS_AT_ONCE: Final = 200
"""Each costs the loop 26 us; an answer to a follower has no more logs either (INV-RSN6)."""
GATHER_QUIET_TURNS: Final = 3
INLINE_MS_MAX: Final = 1.0
INLINE_BYTES_MAX: Final = 256 * 1024
AWAY_MS_MIN: Final = 500
AWAY_MS_MAX: Final = 64_000
_WEIGHT: Final = 1 / 8

SealedCallback = Callable[[Path], None]


class SyncWork(Protocol):
    """One piece of blocking work: a log's `SyncJob`, or a `JournalBlock` for many."""

    @property
    def size_bytes(self) -> int:
        """How much it makes durable."""
        ...

    @property
    def seals(self) -> Sequence[object]:
        """Full segments among it."""
        ...

    def start_writeback(self) -> None:
        """Let the disk begin."""
        ...

    def run(self) -> OSError | None:
        """Do it; return the error instead of raising it. Never called twice."""
        ...


class SyncRunner(Protocol):
    """Where the blocking work runs: threads, or inline in a simulation."""

    async def sync_all(self, jobs: Sequence[SyncWork]) -> list[OSError | None]:
        """Run each job once; return their outcomes in order."""
        ...

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        """Begin background work; the awaitable ends with it."""
        ...

    def close(self) -> None:
        """Wait for what was begun, then stop."""
        ...


class SyncPace:
    """Whether the next group may be synced on the loop; times are handed in, in ms of a monotonic clock.

    Whole milliseconds are fine enough: what a single sync loses by it, the mean does not.
    """

    def __init__(self) -> None:
        """Begin on the loop."""
        self._usual_ms = INLINE_MS_MAX / 2
        self._away_ms = AWAY_MS_MIN
        self._back_at_ms = 0

    def on_loop(self, now_ms: int) -> bool:
        """Return whether syncs on the loop have been quick, or have not been tried for long enough."""
        return now_ms >= self._back_at_ms

    def took(self, started_ms: int, ended_ms: int) -> None:
        """Note how long a group took on the loop."""
        self._usual_ms += (ended_ms - started_ms - self._usual_ms) * _WEIGHT
        if self._usual_ms <= INLINE_MS_MAX:
            return
        if (
            started_ms - self._back_at_ms > self._away_ms
        ):  # it went well for longer than it was away
            self._away_ms = AWAY_MS_MIN
        self._back_at_ms = ended_ms + self._away_ms
        self._away_ms = min(2 * self._away_ms, AWAY_MS_MAX)
        self._usual_ms = INLINE_MS_MAX / 2


class DiskRunner:
    """A `SyncRunner` for a real disk: the loop, threads for groups, and for what nobody waits for."""

    def __init__(self, clock: Clock) -> None:
        """Start no thread before one is needed."""
        self._clock = clock
        self._pace = SyncPace()
        self._sync_pool = ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="log-sync")
        self._background = ThreadPoolExecutor(2, thread_name_prefix="log-later")

    async def sync_all(self, jobs: Sequence[SyncWork]) -> list[OSError | None]:
        """See `SyncRunner`."""
        started_ms = self._clock.monotonic_ms()
        if self._pace.on_loop(started_ms) and _is_small(jobs):
            done = _run(jobs)
            self._pace.took(started_ms, self._clock.monotonic_ms())
            return done
        loop = asyncio.get_running_loop()
        shares = [jobs[start::SYNC_THREADS] for start in range(min(SYNC_THREADS, len(jobs)))]
        outcomes = await asyncio.gather(
            *(loop.run_in_executor(self._sync_pool, _run, share) for share in shares)
        )
        return [outcomes[at % SYNC_THREADS][at // SYNC_THREADS] for at in range(len(jobs))]

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        """See `SyncRunner`."""
        return asyncio.get_running_loop().run_in_executor(self._background, work)

    def close(self) -> None:
        """See `SyncRunner`."""
        self._sync_pool.shutdown()
        self._background.shutdown()


def _is_small(jobs: Sequence[SyncWork]) -> bool:
    return sum(job.size_bytes for job in jobs) <= INLINE_BYTES_MAX and not any(
        job.seals for job in jobs
    )


def _run(jobs: Sequence[SyncWork]) -> list[OSError | None]:
    if len(jobs) > 1:
        for job in jobs:
            job.start_writeback()
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
        self._runner = runner if runner is not None else DiskRunner(clock)
        self._dirty: dict[DirtyLog, None] = {}
        self._wake = asyncio.Event()
        self._journal: Journal | None = None
        self._catching_up = False
        self._marks = 0

    def use(self, journal: Journal) -> None:
        """Write small appends into `journal` from now on."""
        self._journal = journal

    def mark_dirty(self, log: DirtyLog) -> None:
        """Note that a log has something to sync; called after each append."""
        if self.policy is FlushPolicy.OS and not log.pending_seals:
            return
        self._marks += 1
        if log not in self._dirty:
            self._dirty[log] = None
            self._wake.set()

    async def run(self) -> None:
        """Sync group after group until cancelled."""
        due = 0  # so many of those that wait have waited for the interval
        async with asyncio.TaskGroup() as background:
            while True:
                await self._wake.wait()
                await self._gather()
                if self.policy is FlushPolicy.INTERVAL and due <= 0:
                    await self._clock.sleep_ms(self._interval_ms)
                    due = len(self._dirty)
                due -= LOGS_AT_ONCE
                for path in await self.sync_group():
                    background.create_task(self._seal(path))
                if self.journal_lags:
                    background.create_task(self.catch_up())

    async def _gather(self) -> None:
        """Let those append whose requests are here already: no clock, a few turns of the loop (INV-CM7)."""
        quiet_turns = 0
        for _ in range(GATHER_TURNS_MAX):
            before = self._marks
            await asyncio.sleep(0)
            quiet_turns = 0 if self._marks != before else quiet_turns + 1
            if quiet_turns == GATHER_QUIET_TURNS:
                return

    async def sync_group(self) -> list[Path]:
        """Sync what is dirty now, at most `LOGS_AT_ONCE` logs (INV-CM8); return the segments that are sealed by it."""
        logs = list(islice(self._dirty, LOGS_AT_ONCE))
        for log in logs:
            del self._dirty[log]
        if not self._dirty:
            self._wake.clear()
        jobs = [job for job in (log.begin_sync() for log in logs) if job is not None]
        if not jobs:
            return []
        journaled, rest = self._share_out(jobs)
        block = self._begin_block(journaled)
        if block is None:
            journaled, rest = [], jobs
        work: list[SyncWork] = [*rest] if block is None else [block, *rest]
        outcomes = await self._runner.sync_all(work)
        if block is not None:
            self._finish_block(journaled, outcomes.pop(0))
        sealed: list[Path] = []
        for job, error in zip(rest, outcomes, strict=True):
            job.log.finish_sync(job, error)
            sealed.extend(job.log.take_sealed())
        return sealed

    # -- the journal -----------------------------------------------------------------------------

    def _share_out(self, jobs: list[SyncJob]) -> tuple[list[SyncJob], list[SyncJob]]:
        """Return what goes into the journal, and what is synced by itself."""
        if self._journal is None or self.policy is not FlushPolicy.COMMIT:
            return [], jobs
        journaled, rest, room_bytes = [], [], BLOCK_BYTES_MAX
        for job in jobs:
            if job.piece is not None and job.piece.size_bytes <= room_bytes:
                room_bytes -= job.piece.size_bytes
                journaled.append(job)
            else:
                rest.append(job)
        return journaled, rest

    def _begin_block(self, jobs: list[SyncJob]) -> JournalBlock | None:
        if self._journal is None or not jobs:
            return None
        pieces = [job.piece for job in jobs if job.piece is not None]
        return self._journal.begin([job.log for job in jobs], pieces)

    def _finish_block(self, jobs: list[SyncJob], error: OSError | None) -> None:
        assert self._journal is not None
        if error is not None:
            self._journal.stop(f"writing or syncing it failed: {error}")
        for job in jobs:
            job.log.finish_journaled(job, error)

    @property
    def journal_lags(self) -> bool:
        """Whether `catch_up` has something to do and is not running."""
        return self._journal is not None and not self._catching_up and bool(self._journal.lagging())

    async def catch_up(self) -> None:
        """Sync the files of the logs that keep the journal from going on."""
        assert self._journal is not None
        found = [log.begin_file_sync() for log in self._journal.lagging()]
        jobs = [job for job in found if job is not None]
        if not jobs:
            return  # the next group commit does it; or a log has stopped, and its half is kept for the restart
        outcomes: list[OSError | None] = []
        self._catching_up = True
        try:
            await self._runner.start(lambda: outcomes.extend(_run(jobs)))
        finally:
            self._catching_up = False
        for job, error in zip(jobs, outcomes, strict=True):
            job.log.finish_sync(job, error)

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
