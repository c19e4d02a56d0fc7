"""What goes from a log's two ends: below its start by order or by age, above a cut for good.

INV-PT7  the log start never moves back but by a cut below it, or to the primary's, where an order that raised it was
        given above a cut (T14), or to that of the node that leads the region; it is durable before anybody is told who counts on that (INV-NST1)

A disk that fails on the way stops the partition. Not here: who may order it, and who is told (`partition`).
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from idempotency.identity import TopicPartition
from region_broker.log.failures import PartitionFailed
from region_broker.log.indexes.log_start import LogStart
from region_broker.log.partition_log import PartitionLog
from region_broker.log.segment import DeletionBudget
from region_broker.partitions.noted_starts import NotedStarts
from region_broker.ports.unbroken import to_its_end
from region_broker.wire.cooperative_yield import run_yielding


class Hold(NamedTuple):
    """What others may need of a log: all from `offset` on, and what orders have deleted from `ordered_offset` on (T14)."""

    offset: int
    ordered_offset: int


class Trimming:
    """Of one log, and of the file that says where it starts. Every method raises PartitionFailed."""

    __slots__ = ("_log", "_noted", "_start", "leader_keeps_from", "tp")

    def __init__(
        self, tp: TopicPartition, log: PartitionLog, start: LogStart, noted: NotedStarts
    ) -> None:
        """Trim `log` of `tp`; `noted` has starts made durable that are noted."""
        self.tp = tp
        self.leader_keeps_from: int | None = None
        """Of a copy inside the region: from where its leader keeps this log's bytes, at the least (INV-RFN8); None where no leader holds
        anything back."""
        self._noted = noted
        self._log = log
        self._start = start

    @property
    def is_copy(self) -> bool:
        """Whether the log was copied last from the node that leads this region; not where it leads, or mirrors another region itself."""
        return self.leader_keeps_from is not None

    @contextmanager
    def stops_on_disk_errors(self, work: str) -> Iterator[None]:
        """Stop the partition if the disk fails at `work`, also while it looks for what to do; on the event loop."""
        try:
            yield
        except OSError as error:
            self._log.fail(f"{work} of {self.tp} failed: {error}")
            raise PartitionFailed(self._log.failed) from error

    def note_start(self, offset: int, then: Callable[[], None] | None = None) -> None:
        """Delete all below `offset`, and have that made durable; `then` is called when it is (INV-NST1)."""
        self._start.note(offset)
        self._noted.note(self, then)

    @property
    def start_is_kept(self) -> bool:
        """Whether the log start is durable."""
        return self._start.is_kept

    async def keep_start(self) -> None:
        """Make the log start durable, in a thread."""
        with self.stops_on_disk_errors("moving the log start"):
            await to_its_end(asyncio.to_thread(self._start.keep))

    def keep_start_now(self) -> None:
        """Make the log start durable."""
        with self.stops_on_disk_errors("moving the log start"):
            self._start.keep()

    def leave(self) -> None:
        """Write no more: the log is closed."""
        self._start.is_left = True

    async def raise_start_in_thread(self, offset: int) -> bool:
        """Delete all below `offset`, durably; False, and nothing is deleted, if the log was cut meanwhile."""
        with self.stops_on_disk_errors("moving the log start"):
            return await asyncio.to_thread(self._start.raise_to, offset, self._start.cuts)

    def take_back_start(self, offset: int) -> None:
        """Void orders to delete what is above `offset`, durably."""
        with self.stops_on_disk_errors("moving the log start back"):
            self._start.take_back(offset)

    def _cut_start(self, offset: int) -> None:
        with self.stops_on_disk_errors("moving the log start"):
            self._start.cut(offset)

    async def prepare_cut(self, offset: int) -> None:
        """Read what a `cut` at `offset` needs, giving way to others (INV-TRM1)."""
        if self._log.failed is None and offset < self._log.log_end_offset:
            await run_yielding(self._log.trimmer.prepare_cut(offset))

    async def lower(self, offset: int) -> None:
        """Sync in a thread what comes before a `cut` at `offset` (INV-CTJ1), a former one first; raises what that raises."""
        await self.settle()
        trimmer = self._log.trimmer
        self._check_cut(offset)
        with self.stops_on_disk_errors(f"preparing the cut at {offset}"):
            job = trimmer.begin_lowering(offset)
        if job is not None:
            try:
                await to_its_end(asyncio.to_thread(job.run))
            finally:
                trimmer.finish_lowering(job)
        self._log.check_running()

    async def settle(self) -> None:
        """Return once a `cut` that did not settle is durable (INV-CTJ2), whoever made it."""
        trimmer = self._log.trimmer
        job = trimmer.begin_settling()
        if job is not None:
            try:
                await to_its_end(asyncio.to_thread(job.run))
            finally:
                trimmer.finish_settling(job)
        self._log.check_running()

    def _check_cut(self, offset: int) -> None:
        if self._log.log_start_offset < offset < self._log.log_end_offset:
            self._log.cleaning.check_cut(offset)

    def cut(self, offset: int, *, settles: bool = True) -> None:
        """Cut the log off at `offset`; raises NotABatchBoundary, CutIntoCleaned, LogDamaged. Without `settles`, `settle` comes next."""
        self._check_cut(offset)
        self._cut_start(offset)
        with self.stops_on_disk_errors(f"cutting at {offset}"):
            self._log.trimmer.truncate_to(offset, settles=settles)
            if offset == self._log.log_start_offset:
                self._log.cleaning.forget()

    def start_at(self, offset: int) -> None:
        """Give up all records and go on, empty, at `offset`."""
        self._cut_start(offset)
        self._log.trimmer.start_at(offset)

    def drop_below_start(self, budget: DeletionBudget | None) -> int:
        """Delete segments below the start that is durable, but for those that the leader keeps, as many as `budget` allows; return how many."""
        start, keeps_from = self._start.kept_offset, self.leader_keeps_from
        if keeps_from is not None:
            start = min(start, keeps_from)
        if start <= self._log.log_start_offset:
            return 0
        with self.stops_on_disk_errors("deleting what lies below the log start"):
            return self._log.trimmer.delete_segments_below(start, budget)

    def retain(
        self,
        *,
        now_ms: int,
        stable_offset: int,
        hold: Hold | None,
        budget: DeletionBudget | None = None,
    ) -> int:
        """Delete segments that are too old or too many, and those below the log start, as many as `budget` allows; return how many.

        Nothing that is undecided goes, and nothing that `hold` keeps. Raises LogDamaged, too.
        """
        log = self._log
        end = stable_offset if hold is None else min(hold.offset, stable_offset)
        with self.stops_on_disk_errors("retention"):
            deleted = 0
            if log.config.deletes:
                deleted = log.trimmer.apply_retention(now_ms=now_ms, hold_offset=end, budget=budget)
            start = max(log.log_start_offset, self._start.kept_offset)
            if start > log.log_start_offset:
                held = start if hold is None else min(hold)
                deleted += log.trimmer.delete_segments_below(min(start, held), budget)
        return deleted
