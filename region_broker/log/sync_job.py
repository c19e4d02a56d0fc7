"""What is to be made durable for one log, fixed on the event loop and done in a thread.

INV-LF1  a log's files are worked on under its `FileSync.lock`; a job of an older generation does nothing
INV-LF2  after the first error every later job of the log ends with it (INV-DK3)

Not here: when (`group_commit`), what comes of it (`PartitionLog.finish_sync`).
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from region_broker.log.disk import Disk, DiskFile
from region_broker.log.journal.blocks import Piece
from region_broker.log.recovery import EPOCHS_NAME
from region_broker.log.segment import ABORTED_SUFFIX, Segment
from region_broker.log.side_files.checked_file import Checkpoint
from region_broker.log.side_files.checkpoint_file import CheckpointFile
from region_broker.log.side_files.producer_snapshots import write_snapshot


class SyncTarget(Protocol):
    """The log that a job belongs to; `PartitionLog` is one."""

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


def write_seal(disk: Disk, folder: Path, seal: Seal) -> None:
    """Write all that belongs to a full segment; its own bytes are synced already."""
    segment = seal.segment
    disk.write_file_atomic(segment.index_path(), seal.index)
    disk.write_file_atomic(segment.path.with_suffix(ABORTED_SUFFIX), seal.aborted)
    write_snapshot(disk, folder, segment.next_offset, seal.snapshot)
    disk.write_file_atomic(folder / EPOCHS_NAME, seal.epochs)


def write_side_files(disk: Disk, folder: Path, active: Segment, epochs: bytes) -> None:
    """Write index and leader epochs as they are now, so that a clean start reads no segment."""
    assert active.live_index is not None
    disk.write_file_atomic(active.index_path(), active.live_index.encode(active.summary()))
    disk.write_file_atomic(folder / EPOCHS_NAME, epochs)


class FileSync:
    """A log's own files on their way to stable storage: the blocking part, for any thread."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """Take the log's folder; `checkpoint` is set when it is open."""
        self.lock = threading.Lock()
        self.generation = 0
        self.folder_synced = 0
        self.checkpoint: CheckpointFile | None = None
        self._disk = disk
        self._folder = folder
        self._error: OSError | None = None

    def run(self, job: SyncJob) -> OSError | None:
        """Do the job's I/O; return the error. After one, no later job may succeed."""
        with self.lock:
            if job.generation != self.generation:
                return None  # cut or closed meanwhile: the files may be gone
            if self._error is None:
                self._error = self._run(job)
            return self._error

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
            self.checkpoint.write(job.checkpoint)
            if job.seals:
                self.checkpoint.sync()
        except OSError as error:
            return error
        return None
