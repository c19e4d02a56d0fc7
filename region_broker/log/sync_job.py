"""What is to be made durable for one log, fixed on the event loop and done in a thread.

Not here: when (`group_commit`), what comes of it (`PartitionLog.finish_sync`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from region_broker.log.disk import Disk, DiskFile
from region_broker.log.recovery import EPOCHS_NAME
from region_broker.log.segment import ABORTED_SUFFIX, Segment
from region_broker.log.side_files.checked_file import Checkpoint
from region_broker.log.side_files.producer_snapshots import write_snapshot


class SyncTarget(Protocol):
    """The log that a job belongs to; `PartitionLog` is one."""

    def run_sync(self, job: "SyncJob") -> OSError | None:
        """Do the job's I/O, in a thread; return the error."""
        ...

    def finish_sync(self, job: "SyncJob", error: OSError | None) -> None:
        """Take the outcome in, on the loop."""
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
    """One log's share of a group commit; fixed on the loop, run in a thread."""

    log: "SyncTarget"
    generation: int
    files: tuple[DiskFile, ...]
    folder_version: int
    seals: tuple[Seal, ...]
    checkpoint: Checkpoint
    size_bytes: int = 0

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
