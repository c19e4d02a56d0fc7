"""A log's open checkpoint file.

INV-KF2  every checkpoint that is written carries the fence of the last cut (INV-K4)
No checkpoint is overwritten by an older one, but by `lower`.

Called under the log's disk lock. Not here: the record (`checked_file`), what it may claim (`partition_log`).
"""

from dataclasses import replace
from pathlib import Path

from region_broker.log.indexes.checked_file import (
    CHECKPOINT_FILE_BYTES,
    NO_MARK,
    Checkpoint,
    JournalMark,
)
from region_broker.ports.disk import Disk, DiskFile

CHECKPOINT_NAME = "checkpoint"


class CheckpointFile:
    """See the module's head."""

    def __init__(
        self, disk: Disk, folder: Path, fence: JournalMark, written_offset: int, *, clean: bool
    ) -> None:
        """Open the file of `folder`, which says `written_offset`; OSError of the disk."""
        self._file: DiskFile = disk.open(folder / CHECKPOINT_NAME)
        self.clean = clean
        """Whether it says that a start has nothing to read."""
        self._fence = fence
        self._written_offset = written_offset
        self._newest = self._read()

    def _read(self) -> Checkpoint:
        return Checkpoint.decode(self._file.pread(CHECKPOINT_FILE_BYTES, 0))

    def covers(self, offset: int) -> bool:
        """Return whether all below `offset` was synced."""
        return self._written_offset >= offset

    def says(self, checkpoint: Checkpoint) -> bool:
        """Return whether it was written last, with whatever fence."""
        return replace(self._newest, fence=NO_MARK) == replace(checkpoint, fence=NO_MARK)

    def write(self, checkpoint: Checkpoint) -> None:
        """Write, unless what is there says more."""
        if not self.covers(checkpoint.synced_offset + 1):
            self._put(checkpoint)

    def force(self, checkpoint: Checkpoint) -> None:
        """Write and sync."""
        self._put(checkpoint)
        self.sync()

    def settle(self) -> None:
        """Sync what was written last, and write and sync it in the other place: no older one is left (INV-K5)."""
        self.sync()
        self._put(self._newest)
        self.sync()

    def lower(self, checkpoint: Checkpoint, fence: JournalMark) -> None:
        """Write and sync the checkpoint of a log that is about to be cut; journal blocks up to `fence` are void."""
        self._fence = fence
        self._put(checkpoint)
        self.settle()

    def note_log_start(self, log_start_offset: int) -> None:
        """Durably say what is about to be deleted, so that a crash in between leaves no hole."""
        self.force(replace(self._newest, log_start_offset=log_start_offset, clean=False))

    def sync(self) -> None:
        """Make what was written last durable."""
        self._file.fdatasync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, checkpoint: Checkpoint) -> None:
        self.clean = False
        made = replace(checkpoint, fence=self._fence, serial=self._newest.serial + 1)
        self._file.pwrite(made.place, made.encode())
        self._newest = made
        self.clean = made.clean
        self._written_offset = made.synced_offset
