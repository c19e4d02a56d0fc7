"""What a cut of one log syncs, in two jobs for a thread: one before it, one behind it.

INV-CTJ1  before: all that the log holds is synced in its own files, and then the checkpoint says what it says after the cut (INV-K4). Nothing is
          gone yet: after a crash the log is as it was, and a cut of a log that has changed since does it once more
INV-CTJ2  behind: what is gone is durably gone. Until then nothing is appended, as after a crash old batches could stand behind new ones: who appends, cuts again,
          or closes meanwhile makes it durable first, by itself (`LogContent.unsettled`)
INV-CTJ3  the checkpoint is lowered beforehand within the open segment only, as it is when its thread has come to it: a cut may never come,
          and what a checkpoint names must be there
          1. It is lowered into a full segment. 2. The takeover is given up. 3. Retention deletes that segment, or cleaning puts another in its
          place. 4. The next start finds the checkpoint's segment missing, and refuses the log.

In between the log is cut in one step of the event loop, which waits for no disk. As with every job: fixed on the loop, run in a thread under
`FileSync.lock`, taken in on the loop, and void once the log was cut again, or closed.
Not here: that step (`parts.trimmer`), who waits for the jobs (`partitions.trimming`).
"""

from dataclasses import dataclass
from pathlib import Path

from region_broker.log.indexes.checked_file import Checkpoint, JournalMark
from region_broker.log.indexes.producer_snapshots import remove_outside
from region_broker.log.journal.sync_job import FileSync, SyncJob, remove_recovery_checkpoint
from region_broker.log.segment import Segment
from region_broker.ports.disk import Disk


@dataclass(slots=True, eq=False)
class LoweringJob:
    """What comes before a cut (INV-CTJ1). `sync`: of what is not in the log's own files; `checkpoint`: None where it is left to the cut."""

    files: FileSync
    generation: int
    sync: SyncJob | None
    checkpoint: Checkpoint | None
    fence: JournalMark
    end_offset: int
    error: OSError | None = None
    is_done: bool = False

    def run(self) -> None:
        """Do it. Never called twice."""
        if self.sync is not None:
            self.error = self.sync.run()
        if self.error is None and self.checkpoint is not None:
            self.error = self.files.lower(self.generation, self.checkpoint, self.fence)
        self.is_done = True


@dataclass(slots=True, eq=False)
class CutEnd:
    """What is left to be synced of a cut at `end_offset`, in `segment`, which is the last one then. Called under `FileSync.lock`."""

    disk: Disk
    folder: Path
    segment: Segment
    start_offset: int
    end_offset: int
    is_durable: bool = False

    def settle(self) -> None:
        """Make it durable, once: what comes behind it is none of it. Raises OSError."""
        if self.is_durable:
            return
        assert self.segment.file is not None
        self.segment.file.fdatasync()
        remove_outside(self.disk, self.folder, self.start_offset, self.end_offset)
        remove_recovery_checkpoint(self.disk, self.segment)
        self.disk.fsync_dir(self.folder)
        self.is_durable = True


@dataclass(slots=True, eq=False)
class SettlingJob:
    """What comes behind a cut (INV-CTJ2)."""

    files: FileSync
    generation: int
    end: CutEnd
    error: OSError | None = None
    is_done: bool = False

    def run(self) -> None:
        """Do it. Never called twice."""
        self.error = self.files.settle_cut(self.generation, self.end.settle)
        self.is_done = True
