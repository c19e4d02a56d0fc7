"""What is to be made durable for one log, fixed on the event loop and done in a thread.

INV-LF2  after the first error every later job of the log ends with it (INV-DK3)
INV-LF4  memory is given back only of what is synced, of the open segment of a log that is written in bulk, and in steps
A log's files are worked on under its `FileSync.lock`; a job of an older generation does nothing. What is written for a
recovery checkpoint is written without the lock: only the sync of what is left, and the rename, hold up a group commit.

INV-BKD5  what is written without the lock has names that nobody else writes to, and is gone once it is not put in its place: for want of
          room, or as the log was cut, sealed, closed, or settled for the next start meanwhile

Not here: when (`group_commit`), what comes of it (`parts.durability`).
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from idempotency.partition_state import PartitionState
from idempotency.pieces import Pieces, drained
from idempotency.snapshot_draft import SnapshotDraft
from region_broker.log.file_names import ABORTED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from region_broker.log.indexes.checked_file import Checkpoint, JournalMark
from region_broker.log.indexes.checkpoint_file import CheckpointFile
from region_broker.log.indexes.leader_epochs import EPOCHS_NAME, LeaderEpochs
from region_broker.log.indexes.producer_snapshots import (
    remove_inside,
    remove_older_inside,
    write_snapshot,
)
from region_broker.log.indexes.recovery_checkpoint import (
    RECOVERY_CHECKPOINT_SUFFIX,
    RecoveryCheckpointDraft,
)
from region_broker.log.journal.blocks import Piece
from region_broker.log.segment import Segment
from region_broker.ports.disk import TEMPORARY_SUFFIX, Disk, DiskFile

logger: Final = logging.getLogger(__name__)

DROP_STEP_BYTES: Final = 8 << 20
BULK_BYTES_MIN: Final = 256 * 1024
"""A log that gets as much as this between two syncs is written in bulk."""


class SyncTarget(Protocol):
    """The log that a job belongs to: its `LogDurability`."""

    @property
    def generation(self) -> int:
        """Grows with each cut and with closing: jobs begun before are void."""
        ...

    def in_file(self, generation: int, offset: int) -> bool:
        """Whether all below `offset` of that generation is synced in the log's own files, or given up."""
        ...

    def begin_file_sync(self) -> "SyncJob | None":
        """Return what brings the log's own files up to the journal; None if a group commit does that."""
        ...

    def run_sync(self, job: "SyncJob") -> OSError | None:
        """Do the job's I/O, in a thread; return the error."""
        ...

    def finish_sync(self, job: "SyncJob", error: OSError | None) -> None:
        """Take the outcome in, on the loop."""
        ...

    def finish_journaled(self, job: "SyncJob", error: OSError | None) -> None:
        """Take in, on the loop, that the job's piece is in the journal, or why not."""
        ...

    def take_sealed(self) -> list[Path]:
        """Return the segments sealed since the last call."""
        ...


class DirtyLog(Protocol):
    """A log that has something to make durable: its `LogDurability`."""

    @property
    def pending_seals(self) -> int:
        """How many full segments wait for their seals."""
        ...

    def begin_sync(self) -> "SyncJob | None":
        """Return what is to be made durable now; None if nothing is."""
        ...


class RecoveryCheckpointTarget(Protocol):
    """The log that a recovery checkpoint is put into: its `LogDurability`."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of the open segment behind its recovery checkpoint: what a start after a crash reads."""
        ...

    def begin_recovery_checkpoint(self) -> "Pieces[RecoveryCheckpointJob | None]":
        """Return what puts a recovery checkpoint at the log's end as of then; None if that is not the time for one."""
        ...

    def finish_recovery_checkpoint(
        self, job: "RecoveryCheckpointJob", outcome: "RecoveryCheckpointOutcome"
    ) -> None:
        """Take the outcome in."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Seal:
    """What has to be durable beside a full segment before it counts as sealed."""

    segment: Segment
    index: bytes
    aborted: bytes
    snapshot: bytes
    epochs: bytes


@dataclass(frozen=True, slots=True)
class SyncJob:
    """One log's share of a group commit; fixed on the loop, run in a thread.

    `piece`: all that is new, small enough for the journal; then the job need not be run.
    """

    log: "SyncTarget"
    generation: int
    files: tuple[DiskFile, ...]
    folder_version: int
    seals: tuple[Seal, ...]
    checkpoint: Checkpoint
    size_bytes: int = 0
    piece: Piece | None = None

    def start_writeback(self) -> None:
        """Let the disk begin; saves time when several jobs are run one after the other."""
        for file in self.files:
            file.start_writeback()

    def run(self) -> OSError | None:
        """Sync; return the error instead of raising it. Never called twice."""
        return self.log.run_sync(self)


class RecoveryCheckpointOutcome(NamedTuple):
    """What came of one: the error that stops the log, or else whether it is in its place."""

    error: OSError | None
    is_put: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RecoveryCheckpointJob:
    """A recovery checkpoint of the open segment on its way: fixed on the loop, run in a thread."""

    files: "FileSync"
    generation: int
    file: DiskFile
    path: Path
    draft: RecoveryCheckpointDraft
    checkpoint: Checkpoint
    batch_count: int

    @property
    def size_bytes(self) -> int:
        """About how large its file is, and the snapshot beside it (INV-BKD3)."""
        state_bytes = self.draft.state.size_bytes
        return self.draft.size_with(state_bytes) + state_bytes

    @property
    def snapshot_path(self) -> Path:
        """Where the state is put once more, for cuts: this very offset names it."""
        return self.path.with_name(file_name(self.draft.summary.next_offset, SNAPSHOT_SUFFIX))

    def run(self) -> RecoveryCheckpointOutcome:
        """Do it. Never called twice."""
        return self.files.recovery_checkpoint(self)


def write_seal(disk: Disk, folder: Path, seal: Seal) -> None:
    """Write all that belongs to a full segment; its own bytes are synced already."""
    segment = seal.segment
    disk.write_file_atomic(segment.index_path(), seal.index)
    disk.write_file_atomic(segment.path.with_suffix(ABORTED_SUFFIX), seal.aborted)
    write_snapshot(disk, folder, segment.next_offset, seal.snapshot)
    disk.write_file_atomic(folder / EPOCHS_NAME, seal.epochs)


def draft_recovery_checkpoint(
    active: Segment, state: SnapshotDraft, epochs: LeaderEpochs
) -> RecoveryCheckpointDraft:
    """Return what a recovery checkpoint at the end of the open segment says; `state` is that of this step."""
    assert active.live_index is not None
    return RecoveryCheckpointDraft(
        segment_base=active.base_offset,
        index=active.live_index.copy(),
        summary=active.summary(),
        state=state,
        epochs=epochs.encode(),
    )


def write_recovery_checkpoint(
    disk: Disk, active: Segment, state: PartitionState, epochs: LeaderEpochs
) -> None:
    """Write the recovery checkpoint of a log that is closed: its bytes are synced; the next start reads none of
    them."""
    assert active.file is not None
    draft = draft_recovery_checkpoint(active, drained(state.draft_in_pieces()), epochs)
    path = active.path.with_suffix(RECOVERY_CHECKPOINT_SUFFIX)
    disk.write_file_atomic(path, draft.encode(draft.proof(active.file), draft.state.encode()))


def remove_recovery_checkpoint(disk: Disk, segment: Segment) -> None:
    """Remove the recovery checkpoint of a segment, if it has one; durable after `fsync_dir`."""
    path = segment.path.with_suffix(RECOVERY_CHECKPOINT_SUFFIX)
    if disk.exists(path):
        disk.remove(path)


def _temporary(path: Path) -> Path:
    """Return a name that no whole file on its way to `path` has, as a seal or a clean stop write them."""
    return path.with_suffix(f".job{path.suffix}{TEMPORARY_SUFFIX}")


class FileSync:
    """A log's own files on their way to stable storage: the blocking part, for any thread."""

    def __init__(self, disk: Disk, folder: Path, cached_tail_bytes: int = 0) -> None:
        """Take the log's folder; `checkpoint` is set when it is open."""
        self.lock = threading.Lock()
        self.generation = 0
        self.folder_synced = 0
        self.checkpoint: CheckpointFile | None = None
        self.sealed_below = 0
        self._disk = disk
        self._folder = folder
        self._error: OSError | None = None
        self._cached_tail_bytes = cached_tail_bytes
        self._dropped = (-1, 0)
        """Base of the open segment, and below which of its bytes memory was given back."""

    def run(self, job: SyncJob) -> OSError | None:
        """Do the job's I/O; return the error. After one, no later job may succeed."""
        with self.lock:
            if job.generation != self.generation:
                return None  # cut or closed meanwhile: the files may be gone
            if self._error is None:
                self._error = self._run(job)
            return self._error

    def lower(self, generation: int, checkpoint: Checkpoint, fence: JournalMark) -> OSError | None:
        """Let the checkpoint of a log that is about to be cut say `checkpoint` (INV-CTJ1), unless that segment was sealed meanwhile
        (INV-CTJ3); return the error."""

        def lower() -> None:
            assert self.checkpoint is not None
            if checkpoint.segment_base >= self.sealed_below:
                self.checkpoint.lower(checkpoint, fence)

        return self._guarded(generation, lower)

    def settle_cut(self, generation: int, settle: Callable[[], None]) -> OSError | None:
        """Do the last syncs of a cut (INV-CTJ2); return the error."""
        return self._guarded(generation, settle)

    def _guarded(self, generation: int, work: Callable[[], None]) -> OSError | None:
        with self.lock:
            if generation != self.generation:
                return None
            if self._error is None:
                try:
                    work()
                except OSError as error:
                    self._error = error
            return self._error

    def leave(self) -> None:
        """Make void what was begun, and wait for nobody: the files stay open, and are written to by `run_last` only."""
        self.generation += 1

    def run_last(self, job: SyncJob) -> OSError | None:
        """Do the last job of a log that was left (INV-LVG1), of whatever generation; return the error."""
        with self.lock:
            if self._error is None:
                self._error = self._run(job)
            return self._error

    def open_checkpoint(self, fence: JournalMark, offset: int, *, clean: bool) -> None:
        """Open the checkpoint file, which says `offset`; OSError of the disk."""
        self.checkpoint = CheckpointFile(self._disk, self._folder, fence, offset, clean=clean)

    def void(self) -> None:
        """Make void what was begun: the log is cut or closed. The lock is held."""
        self.generation += 1
        self.sealed_below = 0

    def _run(self, job: SyncJob) -> OSError | None:
        assert self.checkpoint is not None
        if not job.seals and self.checkpoint.covers(job.checkpoint.synced_offset):
            return None  # done by a job that began later; the segment may be closed by now
        try:
            for file in job.files:
                file.fdatasync()
            if job.folder_version > self.folder_synced:
                self._disk.fsync_dir(self._folder)
            for seal in job.seals:
                write_seal(self._disk, self._folder, seal)
                remove_recovery_checkpoint(self._disk, seal.segment)
                self.sealed_below = seal.segment.next_offset
            if job.seals:
                sealed = [seal.segment.base_offset for seal in job.seals]
                remove_inside(self._disk, self._folder, [*sealed, self.sealed_below])
            self.checkpoint.write(job.checkpoint)
            if job.seals:
                self.checkpoint.settle()
            if job.size_bytes >= BULK_BYTES_MIN:
                self._drop_behind(job)
        except OSError as error:
            return error
        return None

    def _drop_behind(self, job: SyncJob) -> None:
        """Let the memory go that lies behind the end of what is written in bulk (INV-LF4)."""
        base, end = job.checkpoint.segment_base, job.checkpoint.segment_bytes
        end -= self._cached_tail_bytes
        if self._cached_tail_bytes == 0 or end <= 0:
            return
        dropped_base, dropped = self._dropped
        if dropped_base != base:
            dropped = max(end - DROP_STEP_BYTES, 0)  # of what was written before, nothing is known
        if end - dropped >= DROP_STEP_BYTES:
            job.files[-1].drop_cached(dropped, end - dropped)
            dropped = end
        self._dropped = (base, dropped)

    def recovery_checkpoint_job(
        self, active: Segment, draft: RecoveryCheckpointDraft, checkpoint: Checkpoint
    ) -> RecoveryCheckpointJob:
        """Return the work that puts `draft` into its place; `checkpoint` covers what it speaks of."""
        assert active.file is not None
        return RecoveryCheckpointJob(
            files=self,
            generation=self.generation,
            file=active.file,
            path=active.path.with_suffix(RECOVERY_CHECKPOINT_SUFFIX),
            draft=draft,
            checkpoint=checkpoint,
            batch_count=active.batch_count,
        )

    def recovery_checkpoint(self, job: RecoveryCheckpointJob) -> RecoveryCheckpointOutcome:
        """Put a recovery checkpoint in its place.

        What was cut, closed or sealed meanwhile gets none, and neither does what cannot be written beside the log.
        """
        proof = self._synced_and_proved(job)
        if not isinstance(proof, int):
            return RecoveryCheckpointOutcome(proof)
        try:
            state = job.draft.state.encode()
            self._write(_temporary(job.path), job.draft.encode(proof, state))
            self._write(_temporary(job.snapshot_path), state)
        except OSError as error:
            logger.warning(
                "%s: no recovery checkpoint is written, a start reads more: %s", job.path, error
            )
            self._remove_half_done(job)
            return RecoveryCheckpointOutcome(None)
        return self._put(job)

    def _synced_and_proved(self, job: RecoveryCheckpointJob) -> int | OSError | None:
        with self.lock:
            if self._is_void(job):
                return self._error
            assert self.checkpoint is not None
            try:
                job.file.fdatasync()
                self._disk.fsync_dir(self._folder)
                self.checkpoint.write(job.checkpoint)
                self.checkpoint.sync()
                return job.draft.proof(job.file)
            except OSError as error:
                self._error = error
                return error

    def _write(self, path: Path, data: bytes) -> None:
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            file.pwrite(0, data)
            file.fdatasync()
        finally:
            file.close()

    def _put(self, job: RecoveryCheckpointJob) -> RecoveryCheckpointOutcome:
        with self.lock:
            assert self.checkpoint is not None
            if self._is_void(job) or self.checkpoint.clean:
                self._remove_half_done(job)
                return RecoveryCheckpointOutcome(self._error)
            try:
                for path in (job.snapshot_path, job.path):
                    self._disk.rename(_temporary(path), path)
                remove_older_inside(self._disk, self._folder, job.draft.segment_base)
                self._disk.fsync_dir(self._folder)
            except OSError as error:
                self._error = error
            return RecoveryCheckpointOutcome(self._error, self._error is None)

    def _remove_half_done(self, job: RecoveryCheckpointJob) -> None:
        """Remove what was written beside the log, and is not to be put in its place (INV-BKD5)."""
        for path in (job.snapshot_path, job.path):
            try:
                if self._disk.exists(_temporary(path)):
                    self._disk.remove(_temporary(path))
            except OSError as error:
                logger.warning("%s stays until the next start: %s", _temporary(path), error)

    def _is_void(self, job: RecoveryCheckpointJob) -> bool:
        return (
            job.generation != self.generation
            or self._error is not None
            or job.draft.segment_base < self.sealed_below
        )
