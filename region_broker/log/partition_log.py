"""The log of one partition: a folder of segments, the state that their replay gives, and what of it is durable.

INV-PL1  offsets are contiguous from `log_start_offset` to `log_end_offset`, but for holes below `cleaning.holes_below`;
        bytes once written never change, except that `truncate_to` cuts the end off
INV-PL2  synced_offset <= stable_offset <= log_end_offset; under `flush.policy=commit` stable is synced
INV-PL6  what is synced but not in the log's own files is in the journal, behind the fence of its checkpoint
INV-PL3  state == replay(log) after every call
INV-PL4  after the first failed write or sync the log takes nothing more and says why in `failed`; nothing is retried
INV-PL5  a segment is sealed once it, its index, its aborted index, the state at its end and a checkpoint past it
        are durable; only then is it handed to the seal callback, and only sealed segments are ever deleted

Appending is synchronous (into the page cache); making durable is in two steps around a thread: `begin_sync` on the
loop, `SyncJob.run` in the thread, `finish_sync` on the loop (`group_commit`). A small job's bytes go into the node's
journal instead (`finish_journaled`); the log's own files are then synced later (`begin_file_sync`). `FileSync.lock`
keeps jobs apart from each other, from cutting, deleting and closing; it is the only lock.
Not here: judging a client's batch, roles, waiters (`partitions.partition`).
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Final

from idempotency.partition_state import AbortedTxn, PartitionState
from idempotency.record_batch import FRONT_BYTES, BatchHeader, Buffer, MarkerFacts, stamped_front
from region_broker.log.cleaning.state import CleaningState
from region_broker.log.failures import PartitionFailed
from region_broker.log.journal.tail import LogTail
from region_broker.log.log_config import FlushPolicy
from region_broker.log.log_setup import LogSetup
from region_broker.log.recovery.opening import RecoveredLog, recover
from region_broker.log.replay import aborted_with_marker_in, keep_state_at, rebuild_state
from region_broker.log.segment import (
    ReadSlice,
    Room,
    Segment,
    expired_count,
    remove_segment_files,
)
from region_broker.log.segment_list import SegmentList
from region_broker.log.side_files.aborted_index import encode_aborted
from region_broker.log.side_files.checked_file import Checkpoint
from region_broker.log.side_files.checkpoint_file import CHECKPOINT_NAME
from region_broker.log.side_files.leader_epochs import EPOCHS_NAME, LeaderEpochs
from region_broker.log.side_files.producer_snapshots import remove_between, remove_outside
from region_broker.log.sync_job import (
    BookmarkJob,
    BookmarkOutcome,
    FileSync,
    Seal,
    SyncJob,
    draft_bookmark,
    remove_bookmark,
    write_bookmark,
)
from region_broker.ports.disk import NO_DESCRIPTORS

logger: Final = logging.getLogger(__name__)


class PartitionLog:
    """See the module's head. All methods but `run_sync` belong to the event loop."""

    def __init__(self, setup: LogSetup, recovered: RecoveredLog) -> None:
        """Use `PartitionLog.open`."""
        self.folder = setup.folder
        self.config = setup.config
        self.listener = setup.listener
        self.state = recovered.state
        self.epochs = recovered.epochs
        self.failed: str | None = None
        self.recovered_clean = recovered.clean
        self._cache = setup.cache
        self._disk = setup.cache.disk
        self._policy = setup.flush_policy
        self.wall_ms = setup.wall_ms
        self._list = SegmentList(setup.folder, setup.cache, recovered.segments)
        self._active = recovered.segments[-1] if recovered.segments else None
        self.log_end_offset = self._active.next_offset if self._active is not None else 0
        self.synced_offset = self.log_end_offset
        self._file_offset = self.log_end_offset
        """All below is synced in the log's own files."""
        self._tail = LogTail(setup.log_id)
        self._journal_mark = setup.journal_mark
        self._closed = False
        self._given_up = False
        self._folder_version = 0  # grows with each new name in the folder
        self._pending_seals: list[Seal] = []
        self._sealed: list[Path] = []
        self._files = FileSync(self._disk, self.folder, setup.config.cached_tail_bytes)
        self._bookmarked_bytes = recovered.bookmarked_bytes
        self.cleaning = CleaningState(self._disk, setup.folder, recovered.mark)

    @classmethod
    def open(cls, setup: LogSetup) -> "PartitionLog":
        """Open or create the log; raises LogDamaged, or OSError of the disk."""
        recovered = recover(setup.folder, setup.cache, setup.config, setup.journal_mark())
        log = cls(setup, recovered)
        log._files.open_checkpoint(recovered.fence, log._file_offset, clean=recovered.settled)
        log.listener.on_grown(log, log.unread_bytes)
        return log

    @classmethod
    def broken(cls, setup: LogSetup, reason: str) -> "PartitionLog":
        """Return a log that could not be opened: empty, failed, and touching nothing on disk."""
        nothing = RecoveredLog(
            segments=[], state=PartitionState(), epochs=LeaderEpochs(), clean=False
        )
        log = cls(setup, nothing)
        log.failed = reason
        return log

    # -- where it is -----------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        """The first offset that is still there."""
        return self._list.bases[0] if self._list.bases else 0

    @property
    def generation(self) -> int:
        """Grows with each cut and with closing: what was begun before is void."""
        return self._files.generation

    @property
    def stable_offset(self) -> int:
        """Up to here appends may be acknowledged under the node's flush policy."""
        return self.synced_offset if self._policy is FlushPolicy.COMMIT else self.log_end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._list.segments)

    @property
    def unread_bytes(self) -> int:
        """Bytes of the open segment behind its bookmark: what a start after a crash reads."""
        if self.failed is not None or self._closed or self._active is None:
            return 0
        return self._active.size_bytes - self._bookmarked_bytes

    @property
    def has_pending_seals(self) -> bool:
        """Whether a full segment waits for its seal."""
        return bool(self._pending_seals)

    @property
    def segments(self) -> SegmentList:
        """The segments (read access; `cleaning` replaces sealed ones)."""
        return self._list

    def sealed_paths(self) -> list[Path]:
        """Return the paths of the sealed segments, oldest first."""
        return [segment.path for segment in self._list.segments if segment.file is None]

    # -- appending -------------------------------------------------------------------------------

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        leader_epoch: int,
        marker: MarkerFacts | None = None,
    ) -> BatchHeader:
        """Stamp base offset and leader epoch and write one batch that was judged fresh; return its header.

        Raises PartitionFailed; then the log has stopped.
        """
        stamped = header.stamped(base_offset=self.log_end_offset, leader_epoch=leader_epoch)
        front, rest = stamped_front(stamped), memoryview(batch)[FRONT_BYTES:]
        self._write(header.size_bytes, stamped.last_offset, front, rest)
        self._applied(stamped, marker)
        self._appended()
        return stamped

    def append_verbatim(
        self, data: Buffer, batches: list[tuple[BatchHeader, MarkerFacts | None]]
    ) -> None:
        """Write checked whole batches that continue the log, offsets and epochs as they are (mirror).

        Raises PartitionFailed; then the log has stopped.
        """
        assert batches
        first, last = batches[0][0], batches[-1][0]
        assert self.log_end_offset <= first.base_offset, (first.base_offset, self.log_end_offset)
        self._write(len(data), last.last_offset, data)
        for header, marker in batches:
            self._applied(header, marker)
        self._appended()

    def _write(self, size_bytes: int, last_offset: int, *buffers: Buffer) -> None:
        self.check_running()
        try:
            active = self._room_for(size_bytes, last_offset)
            assert active.file is not None
            active.file.pwrite(active.size_bytes, *buffers)
        except OSError as error:
            self.fail(f"writing to {self.folder} failed: {error}")
            raise PartitionFailed(self.failed) from error
        self._tail.add(active.base_offset, active.size_bytes, buffers)

    def _applied(self, header: BatchHeader, marker: MarkerFacts | None) -> None:
        assert self._active is not None
        assert header.base_offset >= self.log_end_offset, (header.base_offset, self.log_end_offset)
        if header.leader_epoch > self.epochs.latest:
            self.epochs.note(header.leader_epoch, header.base_offset)
        self._active.note_batch(header)
        self.state.apply(header, marker)
        self.log_end_offset = header.next_offset

    def _appended(self) -> None:
        self.listener.on_dirty(self)
        if self._policy is not FlushPolicy.COMMIT:
            self.listener.on_stable()

    def _room_for(self, size_bytes: int, last_offset: int) -> Segment:
        active = self._active
        assert active is not None
        now_ms = self.wall_ms()
        room = active.room_for(size_bytes, last_offset, now_ms, self.config)
        if room is Room.YES:
            return active
        try:
            fresh = self._roll(active)
        except OSError as error:
            if room is Room.NO or error.errno not in NO_DESCRIPTORS:
                raise
            active.put_roll_off(error)
            return active
        fresh.first_appended_wall_ms = now_ms
        return fresh

    def _roll(self, full: Segment) -> Segment:
        assert full.live_index is not None
        start, end = full.base_offset, full.next_offset
        fresh = Segment.create(self.folder, self._cache, self.config, end)
        self._pending_seals.append(
            Seal(
                segment=full,
                index=full.live_index.encode(full.summary()),
                aborted=encode_aborted(aborted_with_marker_in(self.state, start, end)),
                snapshot=self.state.encode(),
                epochs=self.epochs.encode(),
            )
        )
        self._folder_version += 1
        self._list.add(fresh)
        self._active = fresh
        self._bookmarked_bytes = 0
        return fresh

    def check_running(self) -> None:
        """Raise PartitionFailed if the log has stopped."""
        if self.failed is not None:
            raise PartitionFailed(self.failed)
        if self._closed:
            raise PartitionFailed(f"{self.folder} is closed")

    def fail(self, reason: str) -> None:
        """Stop for good, loudly. Later calls change nothing."""
        if self.failed is None:
            self.failed = (
                f"{reason}; the partition takes and serves nothing until the node restarts"
            )
            logger.error("partition stopped: %s", self.failed)
            self.listener.on_stable()

    # -- making durable --------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """Return what is to be made durable now; None if nothing is."""
        if self.synced_offset == self.log_end_offset and not self._pending_seals:
            return None
        return self._begin(tuple(self._pending_seals), journal=True)

    def begin_file_sync(self) -> SyncJob | None:
        """Return what brings the log's own files up to the journal; None if a group commit does that anyway."""
        return None if self._pending_seals else self._begin((), journal=False)

    def _begin(self, seals: tuple[Seal, ...], *, journal: bool) -> SyncJob | None:
        active = self._active
        if self.failed is not None or self._closed or active is None:
            return None
        files = [seal.segment.file for seal in seals] + [active.file]
        piece = None
        if journal:
            self._list.remember(self.log_end_offset, active, active.size_bytes)
            piece = self._tail.take(self.log_end_offset)
        if seals or self._folder_version > self._files.folder_synced:
            piece = None
        return SyncJob(
            log=self,
            generation=self.generation,
            files=tuple(file for file in files if file is not None),
            folder_version=self._folder_version,
            seals=seals,
            checkpoint=self._checkpoint_now(),
            size_bytes=active.take_unsynced_bytes() if journal else 0,
            piece=piece,
        )

    def begin_bookmark(self) -> BookmarkJob | None:
        """Return what puts a bookmark at the log's end (INV-BKM1); None while a seal is under way, or after the end."""
        active = self._active
        if self.failed is not None or self._closed or active is None or self._pending_seals:
            return None
        draft = draft_bookmark(active, self.state, self.epochs)
        return self._files.bookmark_job(active, draft, self._checkpoint_now())

    def finish_bookmark(self, job: BookmarkJob, outcome: BookmarkOutcome) -> None:
        """Take the outcome in."""
        if job.generation != self.generation or self.failed is not None:
            return
        if outcome.error is not None:
            self.fail(f"syncing {self.folder} for its bookmark failed: {outcome.error}")
            return
        self._file_offset = max(self._file_offset, job.checkpoint.synced_offset)
        self._stable_at(job.checkpoint.synced_offset)
        active = self._active
        if outcome.is_put and active is not None and active.base_offset == job.draft.segment_base:
            self._bookmarked_bytes = job.checkpoint.segment_bytes

    def run_sync(self, job: SyncJob) -> OSError | None:
        """Do the job's I/O, in a thread; return the error."""
        return self._files.run(job)

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Take the outcome of a job in."""
        if job.generation != self.generation or self.failed is not None:
            return
        if error is not None:
            self.fail(f"syncing {self.folder} failed: {error}")
            return
        self._file_offset = max(self._file_offset, job.checkpoint.synced_offset)
        self._files.folder_synced = max(self._files.folder_synced, job.folder_version)
        self._pending_seals = [seal for seal in self._pending_seals if seal not in job.seals]
        for seal in job.seals:
            segment = seal.segment
            if segment.file is not None:
                segment.file.close()
            segment.file = segment.live_index = None
        self._sealed.extend(seal.segment.path for seal in job.seals)
        if job.seals:
            self.state.forget_aborted_below(job.seals[-1].segment.next_offset)
        self._synced(job)

    def finish_journaled(self, job: SyncJob, error: OSError | None) -> None:
        """Take in that the job's piece is in the journal, or is not: then the log stops."""
        if job.generation != self.generation or self.failed is not None:
            return
        if error is not None:
            self.fail(f"writing what {self.folder} got into the journal failed: {error}")
            return
        self._synced(job)

    def _synced(self, job: SyncJob) -> None:
        self.listener.on_grown(self, job.size_bytes)
        self._stable_at(job.checkpoint.synced_offset)

    def _stable_at(self, offset: int) -> None:
        self.synced_offset = max(self.synced_offset, offset)
        if self._policy is FlushPolicy.COMMIT:
            self.listener.on_stable()

    def in_file(self, generation: int, offset: int) -> bool:
        """Whether what a generation had below `offset` is synced in the log's own files, or given up."""
        if generation != self.generation:
            return self.failed is None or self._given_up  # cut or closed, and synced before that
        return self._file_offset >= offset

    def _checkpoint_now(self, *, clean: bool = False) -> Checkpoint:
        assert self._active is not None
        return Checkpoint(
            synced_offset=self.log_end_offset,
            segment_base=self._active.base_offset,
            segment_bytes=self._active.size_bytes,
            log_start_offset=self.log_start_offset,
            clean=clean,
        )

    def take_sealed(self) -> list[Path]:
        """Return the segments sealed since the last call: for the seal callback."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def sync_now(self) -> None:
        """Make all durable in the log's own files, on the caller's thread. Raises PartitionFailed."""
        self.check_running()
        if self._file_offset < self.log_end_offset or self._pending_seals:
            job = self._begin(tuple(self._pending_seals), journal=False)
            if job is not None:
                self.finish_sync(job, job.run())
        self.check_running()

    def close(self) -> None:
        """Close for good; cleanly, unless the log has failed: then the next start recovers it."""
        if self._closed:
            return
        if self.failed is None and self._active is not None:
            try:
                self.sync_now()
                with self._files.lock:
                    self.cleaning.interrupt()
                    self._write_clean_state()
            except OSError as error:
                self.fail(f"closing {self.folder} failed: {error}")
            except PartitionFailed:
                logger.warning("%s is not closed cleanly", self.folder)
        with self._files.lock:
            self._closed = True
            self._files.void()
            self._close_files()

    def give_up(self) -> None:
        """Note that the folder of this closed log is durably gone: nobody needs what the journal has of it."""
        assert self._closed
        self._given_up = True

    def _write_clean_state(self) -> None:
        assert self._active is not None
        assert self._files.checkpoint is not None
        if self._files.checkpoint.clean:  # nothing came since the last time
            return
        write_bookmark(self._disk, self._active, self.state, self.epochs)
        kept = [*self._list.bases, self.log_end_offset, self.cleaning.holes_below]
        remove_between(self._disk, self.folder, kept)
        self._files.checkpoint.force(self._checkpoint_now(clean=True))

    def _close_files(self) -> None:
        for segment in self._list.segments:
            self._cache.forget(segment.path)
            if segment.file is not None:
                segment.file.close()
        if self._files.checkpoint is not None:
            self._files.checkpoint.close()

    # -- reading ---------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit: int, *, wait: bool = True
    ) -> ReadSlice | None:
        """Return whole batches, see `SegmentList.read`."""
        return self._list.read(offset, max_bytes, limit, wait=wait)

    def bytes_between(self, start: int, end: int, enough: int, *, wait: bool = True) -> int:
        """Return the bytes of [start, end), both batch boundaries; may stop counting at `enough`."""
        return self._list.bytes_between(start, end, enough, wait=wait)

    def aborted_in(
        self, start: int, end: int, bound: int, *, wait: bool = True
    ) -> list[AbortedTxn]:
        """Return the aborted transactions that touch [start, end), markers below `bound` (C38)."""
        found = set(self.state.aborted_in(start, end, bound))
        found.update(self._list.aborted_in_sealed(start, end, bound, wait=wait))
        return sorted(found, key=lambda txn: txn.first_offset)

    # -- cutting and deleting --------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut off everything from `offset`, a batch boundary, durably; rebuild the state (C9, T20).

        Raises NotABatchBoundary, LogDamaged or PartitionFailed. After a crash in the middle the log is the
        old or the cut one, or between: call it again.
        """
        self.check_running()
        segment, position = self._list.boundary(offset)
        self.sync_now()
        if offset == self.log_end_offset:
            return
        with self._files.lock:
            self._files.void()
            try:
                self.cleaning.interrupt()
                self._cut(segment, position, offset)
            except OSError as error:
                self.fail(f"cutting {self.folder} at {offset} failed: {error}")
                raise PartitionFailed(self.failed) from error
        self.epochs.truncate_end(offset)
        self.state = rebuild_state(self.folder, self._list.segments, offset)
        self.state.forget_aborted_below(segment.base_offset)
        self.listener.on_grown(self, self.unread_bytes)
        self.listener.on_stable()

    def _cut(self, segment: Segment, position: int, offset: int) -> None:
        assert self._files.checkpoint is not None
        lowered = replace(self._checkpoint_now(), synced_offset=offset,
                          segment_base=segment.base_offset, segment_bytes=position)  # fmt: skip
        # The checkpoint first: it must never claim bytes that are gone (INV-K2), and it says that what the
        # journal holds of this log is void (INV-K4): all of it that stays was synced by `truncate_to`.
        self._files.checkpoint.lower(lowered, self._journal_mark())
        kept = self._list.slot(offset) + 1
        for removed in reversed(self._list.keep(0, kept)):
            if removed.file is not None:
                removed.file.close()
            remove_segment_files(self.folder, self._cache, removed.base_offset)
        segment.cut(position, offset)
        self._reopen_as_active(segment)
        assert segment.file is not None
        segment.file.truncate(position)
        segment.file.fdatasync()
        remove_outside(self._disk, self.folder, self.log_start_offset, offset)
        remove_bookmark(self._disk, segment)
        self._disk.fsync_dir(self.folder)
        self._active = segment
        self._bookmarked_bytes = 0
        self._tail.clear()
        self.log_end_offset = self.synced_offset = self._file_offset = offset

    def _reopen_as_active(self, segment: Segment) -> None:
        if segment.file is not None:
            return
        self._cache.forget(segment.path)
        segment.file = self._disk.open(segment.path)
        keep = {segment.path.name, segment.path.with_suffix(".snapshot").name}
        for name in self._disk.list_dir(self.folder):
            if name.startswith(segment.path.stem) and name not in keep:
                self._disk.remove(self.folder / name)

    def apply_retention(self, *, now_ms: int, hold_offset: int) -> int:
        """Delete the oldest sealed segments by age and size, none that holds `hold_offset` or more.

        Returns how many were deleted. Raises PartitionFailed.
        """
        self.check_running()
        sealed_end = next(s.base_offset for s in self._list.segments if s.file is not None)
        count = expired_count(
            self._list.segments,
            self.config,
            now_ms=now_ms,
            hold_offset=min(hold_offset, sealed_end),
        )
        self._delete_oldest(count)
        return count

    def delete_segments_below(self, offset: int) -> int:
        """Delete the sealed segments that lie wholly below `offset` (mirror, T14); return how many."""
        self.check_running()
        kept = (s for s in self._list.segments if s.next_offset > offset or s.file is not None)
        count = self._list.segments.index(next(kept))  # the active one at the latest
        self._delete_oldest(count)
        return count

    def _delete_oldest(self, count: int) -> None:
        if count == 0:
            return
        try:
            with self._files.lock:
                self.cleaning.interrupt()
                # What is deleted can not be replayed any more.
                keep_state_at(self.folder, self._list.segments, self._list.bases[count])
                deleted = self._list.keep(count, len(self._list.segments))
                assert all(segment.file is None for segment in deleted)
                assert self._files.checkpoint is not None
                self._files.checkpoint.note_log_start(self.log_start_offset)
                for segment in deleted:
                    remove_segment_files(self.folder, self._cache, segment.base_offset)
                remove_outside(self._disk, self.folder, self.log_start_offset, self.log_end_offset)
                self._disk.fsync_dir(self.folder)
        except OSError as error:
            self.fail(f"deleting old segments of {self.folder} failed: {error}")
            raise PartitionFailed(self.failed) from error
        self.epochs.truncate_start(self.log_start_offset)
        self.state.forget_aborted_below(self.log_start_offset)

    def start_at(self, offset: int) -> None:
        """Give up all records and go on, empty, at `offset` (a mirror that is seeded again, T14)."""
        self.check_running()
        with self._files.lock:
            self._files.void()
            try:
                self._restart_at(offset)
            except OSError as error:
                self.fail(f"starting {self.folder} again at {offset} failed: {error}")
                raise PartitionFailed(self.failed) from error
        self.listener.on_stable()

    def _restart_at(self, offset: int) -> None:
        self.cleaning.interrupt()
        self.cleaning.forget()
        self._close_files()
        fence = self._journal_mark()
        emptied = Checkpoint(synced_offset=offset, segment_base=offset, segment_bytes=0,
                             log_start_offset=offset, fence=fence)  # fmt: skip
        self._disk.write_file_atomic(self.folder / CHECKPOINT_NAME, emptied.file_content())
        for segment in self._list.segments:
            remove_segment_files(self.folder, self._cache, segment.base_offset)
        remove_outside(self._disk, self.folder, offset, offset - 1)
        if self._disk.exists(self.folder / EPOCHS_NAME):
            self._disk.remove(self.folder / EPOCHS_NAME)
        self._active = Segment.create(self.folder, self._cache, self.config, offset)
        self._bookmarked_bytes = 0
        self._disk.fsync_dir(self.folder)
        self._list = SegmentList(self.folder, self._cache, [self._active])
        self._pending_seals.clear()
        self._sealed.clear()
        self._tail.clear()
        self.state, self.epochs = PartitionState(), LeaderEpochs()
        self.log_end_offset = self.synced_offset = self._file_offset = offset
        self._files.open_checkpoint(fence, offset, clean=False)
