"""What goes from the two ends of one log: cutting its end off, deleting old segments, giving up all.

Nothing is taken off before what follows from it is durable: the checkpoint lowered before bytes go, the state kept at
the first offset that stays, the log start noted before segments go. Whatever changes the files holds the lock of
`FileSync`, voids or outlives the jobs begun before, and interrupts a cleaning under way.

INV-TRM1  what a cut has to read of the log, the newest snapshot and its open segment from there on, can be read before it, in pieces: a log
          of small batches, or of many producers, takes up to seconds, in which a node that is cut at a takeover would answer nobody, and be fenced
INV-TRM2  a cut whose state cannot be told, as what lies below it is damaged, changes nothing: a log that was cut, and has the state of before,
          would judge producers by batches that are gone
INV-TRM3  the syncs of a cut can be made in threads: what comes before it by `begin_lowering`, what comes behind it where it `settles` later. A
          cut that finds anything changed since makes those itself, as one without them does

Not here: how far anything may go (`partitions.trimming`), holes (`cleaning`).
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from idempotency.partition_state import PartitionState
from idempotency.pieces import Pieces
from region_broker.log.cleaning.state import CleaningState
from region_broker.log.failures import LogError, PartitionFailed
from region_broker.log.indexes.checked_file import Checkpoint, JournalMark
from region_broker.log.indexes.checkpoint_file import CHECKPOINT_NAME
from region_broker.log.indexes.leader_epochs import EPOCHS_NAME, LeaderEpochs
from region_broker.log.indexes.producer_snapshots import remove_outside
from region_broker.log.journal.cut_job import CutEnd, LoweringJob, SettlingJob
from region_broker.log.parts.content import LogContent
from region_broker.log.parts.durability import LogDurability
from region_broker.log.parts.settling import begin_settling, finish_settling
from region_broker.log.replay import keep_state_at, rebuild_state, state_in_pieces
from region_broker.log.segment import (
    DeletionBudget,
    Segment,
    expired_count,
    remove_segment_files,
)
from region_broker.log.segment_list import SegmentList

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _StateBelow:
    """What all below `offset` comes to, read while the log was in this generation: it was not cut since."""

    offset: int
    generation: int
    state: PartitionState


class LogTrimmer:
    """Takes away from a log. Belongs to the event loop."""

    def __init__(
        self,
        content: LogContent,
        durability: LogDurability,
        cleaning: CleaningState,
        journal_mark: Callable[[], JournalMark],
    ) -> None:
        """Take away from `content`; `journal_mark` names the last block of the journal."""
        self._content = content
        self._durability = durability
        self._files = durability.files
        self._cleaning = cleaning
        self._journal_mark = journal_mark
        self._prepared: _StateBelow | None = None
        self._lowered: tuple[Checkpoint, int] | None = None
        """What the checkpoint was lowered to for a cut, and where the log ended then; None once it was cut."""

    @contextmanager
    def _changing(self, work: str, *, voids: bool) -> Iterator[None]:
        """Hold the lock; the log stops if the disk fails. `voids`: jobs begun before are void."""
        content = self._content
        with self._files.lock:
            if voids:
                self._files.void()
                content.unsettled = None
            try:
                self._cleaning.interrupt()
                yield
            except OSError as error:
                content.fail(f"{work} failed: {error}")
                raise PartitionFailed(content.failed) from error

    # -- the end ---------------------------------------------------------------------------------

    def prepare_cut(self, offset: int) -> Pieces[None]:
        """Read in pieces what a `truncate_to` this offset needs, so that it takes no longer than its syncs (INV-TRM1).

        The log may grow, be trimmed and serve meanwhile. What cannot be read now is read by the cut, which says what is wrong.
        """
        content, generation = self._content, self._files.generation
        segments = tuple(content.segments.segments)
        try:
            state = yield from state_in_pieces(content.folder, segments, offset)
        except (OSError, LogError) as error:
            logger.info("%s: what a cut at %d needs is read once more: %s", content.folder, offset, error)  # fmt: skip
            return
        self._prepared = _StateBelow(offset, generation, state)

    def _state_below(self, offset: int) -> PartitionState:
        prepared, self._prepared = self._prepared, None
        generation = self._files.generation
        if prepared is not None and (prepared.offset, prepared.generation) == (offset, generation):
            return prepared.state
        content = self._content
        return rebuild_state(content.folder, content.segments.segments, offset)

    def begin_lowering(self, offset: int) -> LoweringJob | None:
        """Return what comes before a cut at `offset`, for a thread; None where nothing does. Nothing is cut off by it (INV-CTJ1).

        Raises NotABatchBoundary, LogDamaged, PartitionFailed, or OSError of the disk.
        """
        content = self._content
        content.check_running()
        segment, position = content.segments.boundary(offset)
        below = self._below(segment, position, offset)
        if offset == content.end_offset or self._is_lowered(below):
            return None
        if self._durability.pending_seals:
            return None  # a group commit seals, and closes files that a job of ours would sync
        if self._durability.durable_offset < content.end_offset:
            return None  # what is to go into the journal yet would go behind the fence (INV-K4)
        return LoweringJob(
            files=self._files,
            generation=self._files.generation,
            sync=self._durability.begin_last_sync(),
            # INV-CTJ3: only sealed segments are deleted, or cleaned, and none is sealed before the checkpoint is past it.
            checkpoint=below if segment is content.active else None,
            fence=self._journal_mark(),
            end_offset=content.end_offset,
        )

    def finish_lowering(self, job: LoweringJob) -> None:
        """Take in what came of it; the log stops if the disk failed."""
        content = self._content
        if not job.is_done or job.generation != self._files.generation:
            return
        if job.error is not None:
            content.fail(f"preparing the cut of {content.folder} failed: {job.error}")
            return
        if job.sync is not None:
            self._durability.finish_sync(job.sync, None)
        self._lowered = None if job.checkpoint is None else (job.checkpoint, job.end_offset)

    def _below(self, segment: Segment, position: int, offset: int) -> Checkpoint:
        return replace(self._durability.checkpoint_now(), synced_offset=offset,
                       segment_base=segment.base_offset, segment_bytes=position)  # fmt: skip

    def _is_lowered(self, checkpoint: Checkpoint) -> bool:
        """Return whether the checkpoint says so since a lowering, and nothing was appended since: no journal block behind the fence holds
        anything of this log."""
        file, lowered = self._files.checkpoint, (checkpoint, self._content.end_offset)
        return self._lowered == lowered and file is not None and file.says(checkpoint)

    def truncate_to(self, offset: int, *, settles: bool = True) -> None:
        """Cut off everything from `offset`, a batch boundary, durably; rebuild the state (C9, T20).

        Without `settles` it is durable once `begin_settling` is done, which comes next. Raises NotABatchBoundary, LogDamaged or
        PartitionFailed. After a crash in the middle the log is the old or the cut one, or between: call it again.
        """
        content = self._content
        content.check_running()
        segment, position = content.segments.boundary(offset)
        self._durability.sync_now()
        if offset == content.end_offset:
            return
        state = self._state_below(offset)  # INV-TRM2
        with self._changing(f"cutting {content.folder} at {offset}", voids=True):
            self._cut(segment, position, offset, settles=settles)
        content.epochs.truncate_end(offset)
        content.state = state
        content.state.forget_aborted_below(segment.base_offset)
        if settles:
            content.listener.on_read(self._durability)
        content.listener.on_stable()

    def _cut(self, segment: Segment, position: int, offset: int, *, settles: bool) -> None:
        content, checkpoint = self._content, self._files.checkpoint
        assert checkpoint is not None
        # The checkpoint first: it must never claim bytes that are gone, and it says that what the
        # journal holds of this log is void (INV-K4): all of it that stays was synced by `truncate_to`.
        below = self._below(segment, position, offset)
        if not self._is_lowered(below):
            checkpoint.lower(below, self._journal_mark())
        self._lowered = None
        kept = content.segments.slot(offset) + 1
        dropped = content.segments.keep(0, kept)[::-1]
        for removed in dropped:
            if removed.file is not None:
                removed.file.close()
        bases = [removed.base_offset for removed in dropped]
        remove_segment_files(content.folder, content.cache, bases)
        segment.cut(position, offset)
        self._reopen_as_active(segment)
        assert segment.file is not None
        segment.file.truncate(position)
        end = CutEnd(content.disk, content.folder, segment, content.start_offset, offset)
        if settles:
            end.settle()
        content.active = segment
        content.end_offset = offset
        content.unsettled = None if settles else end
        self._durability.cut_at(offset)

    def begin_settling(self) -> SettlingJob | None:
        """Return what makes the last cut durable, for a thread; None where it is (INV-CTJ2)."""
        return begin_settling(self._content, self._files)

    def finish_settling(self, job: SettlingJob) -> None:
        """Take in what came of it; the log stops if the disk failed."""
        if finish_settling(self._content, job):
            self._content.listener.on_read(self._durability)

    def _reopen_as_active(self, segment: Segment) -> None:
        if segment.file is not None:
            return
        disk, folder = self._content.disk, self._content.folder
        self._content.cache.forget(segment.path)
        segment.file = disk.open(segment.path)
        keep = {segment.path.name, segment.path.with_suffix(".snapshot").name}
        for name in disk.list_dir(folder):
            if name.startswith(segment.path.stem) and name not in keep:
                disk.remove(folder / name)

    # -- the start -------------------------------------------------------------------------------

    def apply_retention(
        self, *, now_ms: int, hold_offset: int, budget: DeletionBudget | None = None
    ) -> int:
        """Delete the oldest sealed segments by age and size, as many as `budget` allows, none that holds `hold_offset` or more.

        Returns how many were deleted. Raises PartitionFailed.
        """
        content = self._content
        content.check_running()
        segments = content.segments.segments
        sealed_end = next(s.base_offset for s in segments if s.file is not None)
        hold_offset = min(hold_offset, sealed_end)

        def expired(count_max: int | None) -> int:
            return expired_count(segments, content.config, now_ms=now_ms, hold_offset=hold_offset, count_max=count_max)  # fmt: skip

        count = expired(None if budget is None else max(0, budget.left))
        with self._granted(count, budget) as deleted:
            by_age = segments[:deleted] if content.config.retention_ms >= 0 else ()
            for segment in by_age:
                segment.index()  # its times by the CRC: what is deleted is gone
            surely = expired(deleted) if by_age else deleted
            self._delete_oldest(surely)
        return surely

    @contextmanager
    def _granted(self, count: int, budget: DeletionBudget | None) -> Iterator[int]:
        """Take of a budget for the oldest segments, and yield for how many it is enough; nothing is taken where they cannot be deleted."""
        if budget is None:
            yield count
            return
        before = budget.left
        try:
            yield budget.granted(self._content.segments.segments[:count])
        except BaseException:
            budget.left = before
            raise

    def delete_segments_below(self, offset: int, budget: DeletionBudget | None = None) -> int:
        """Delete the sealed segments that lie wholly below `offset` (mirror, T14), as many as `budget` allows; return how many."""
        self._content.check_running()
        segments = self._content.segments.segments
        kept = (s for s in segments if s.next_offset > offset or s.file is not None)
        count = segments.index(next(kept))  # the active one at the latest
        with self._granted(count, budget) as granted:
            self._delete_oldest(granted)
        return granted

    def _delete_oldest(self, count: int) -> None:
        if count == 0:
            return
        content = self._content
        with self._changing(f"deleting old segments of {content.folder}", voids=False):
            segments = content.segments
            self._keep_state(segments.bases[count])
            deleted = segments.keep(count, len(segments.segments))
            assert all(segment.file is None for segment in deleted)
            assert self._files.checkpoint is not None
            self._files.checkpoint.note_log_start(content.start_offset)
            bases = [segment.base_offset for segment in deleted]
            remove_segment_files(content.folder, content.cache, bases)
            remove_outside(content.disk, content.folder, content.start_offset, content.end_offset)
            content.disk.fsync_dir(content.folder)
        content.epochs.truncate_start(content.start_offset)
        content.state.forget_aborted_below(content.start_offset)

    def _keep_state(self, offset: int) -> None:
        """Keep the state at what will be the log's start: what is deleted can not be replayed any more.

        The cleaner keeps that at its end, and none below: the log is never cut there, and a start begins there or behind.
        """
        content, cleaned_below = self._content, self._cleaning.mark.cleaned_here_below
        if offset < cleaned_below <= content.open_segment.base_offset:
            offset = cleaned_below
        keep_state_at(content.folder, content.segments.segments, offset)

    # -- all of it -------------------------------------------------------------------------------

    def start_at(self, offset: int) -> None:
        """Give up all records and go on, empty, at `offset` (a mirror that is seeded again, T14)."""
        content = self._content
        content.check_running()
        with self._changing(f"starting {content.folder} again at {offset}", voids=True):
            self._empty_and_start_at(offset)
        content.listener.on_stable()

    def _empty_and_start_at(self, offset: int) -> None:
        content = self._content
        disk, folder = content.disk, content.folder
        self._lowered = None
        self._cleaning.forget()
        self._durability.close_files()
        fence = self._journal_mark()
        emptied = Checkpoint(synced_offset=offset, segment_base=offset, segment_bytes=0,
                             log_start_offset=offset, fence=fence)  # fmt: skip
        disk.write_file_atomic(folder / CHECKPOINT_NAME, emptied.file_content())
        remove_segment_files(folder, content.cache, content.segments.bases)
        remove_outside(disk, folder, offset, offset - 1)
        if disk.exists(folder / EPOCHS_NAME):
            disk.remove(folder / EPOCHS_NAME)
        active = content.active = Segment.create(folder, content.cache, content.config, offset)
        disk.fsync_dir(folder)
        content.segments = SegmentList(folder, content.cache, [active])
        content.state, content.epochs = PartitionState(), LeaderEpochs()
        content.end_offset = offset
        self._durability.emptied_at(offset)
        self._durability.open_checkpoint(fence, clean=False)
