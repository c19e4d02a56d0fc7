"""The log start that an order to delete records left (DeleteRecords), beside the segments.

INV-LOS1  the file is replaced whole, so a crash leaves the old or the new one. What a client orders is on disk before it counts; what was noted,
          as others have it durably, counts at once, and is on disk when `keep` has returned (INV-NST1)
INV-LOS2  it lies at or below the log's end: a log that lost an unsynced end in a power loss begins at its end
INV-LOS3  an order that was begun before a cut below it is void: it does not come out above the log's end

Bytes below it may still be there: whole segments go later (retention), or never (the active one).
Not here: what retention deleted (the first segment's base).
"""

import logging
import struct
import threading
from pathlib import Path
from typing import Final

from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame
from region_broker.ports.disk import Disk

logger: Final = logging.getLogger(__name__)

LOG_START_NAME: Final = "log-start"
_MAGIC: Final = b"TMLS"
_VERSION: Final = 1
_OFFSET: Final = struct.Struct(">q")


class LogStart:
    """The file of one log. `raise_to` and `keep` may run in any thread; all else belongs to the event loop.

    `offset` counts for readers; `kept_offset` is on disk.
    """

    __slots__ = ("_disk", "_lock", "_moving", "_path", "cuts", "is_left", "kept_offset", "offset")

    def __init__(self, disk: Disk, folder: Path, log_end_offset: int) -> None:
        """Read the file, if there is one; raises OSError."""
        self._disk = disk
        self._path = folder / LOG_START_NAME
        self._lock = threading.Lock()
        self._moving = threading.Lock()
        """Held for a moment, by whoever moves `offset` up: nobody waits for the disk behind it."""
        self.cuts = 0
        """How often the log was cut."""
        self.is_left = False
        """Whether the log was closed: its folder may be another one's by now."""
        self.offset = self.kept_offset = read_log_start(disk, folder)
        if self.offset > log_end_offset:
            self._write(log_end_offset)
            self.offset = log_end_offset

    @classmethod
    def nowhere(cls, disk: Disk, folder: Path) -> "LogStart":
        """Return that of a log which could not be opened: 0, and nothing is read."""
        start = cls.__new__(cls)
        start._disk, start._path, start._lock = disk, folder / LOG_START_NAME, threading.Lock()
        start._moving, start.is_left = threading.Lock(), False
        start.offset = start.kept_offset = start.cuts = 0
        return start

    def note(self, offset: int) -> None:
        """Move the start up, in memory: it is durable after `keep`. Waits for no disk."""
        with self._moving:
            self.offset = max(self.offset, offset)

    @property
    def is_kept(self) -> bool:
        """Whether what counts is on disk."""
        return self.kept_offset >= self.offset or self.is_left

    def keep(self) -> None:
        """Make durable what was noted, if it still counts. Raises OSError."""
        with self._lock:
            offset = self.offset
            if offset > self.kept_offset and not self.is_left:
                self._write(offset)

    def raise_to(self, offset: int, cuts: int) -> bool:
        """Move the start up, durably; a lower one changes nothing. Raises OSError.

        False, and nothing is done, if the log was cut since `cuts` were counted.
        """
        with self._lock:
            if cuts != self.cuts:
                return False
            if offset > self.kept_offset:
                self._write(offset)
            self.note(offset)
            return True

    def cut(self, end_offset: int) -> None:
        """Take orders back that lie beyond a cut, also those under way: none is part of the history that goes on.

        Waits for one that is being written. Raises OSError.
        """
        with self._lock:
            self.cuts += 1
            if self.offset > end_offset:
                self._move_back(0)

    def take_back(self, offset: int) -> None:
        """Move the start down, durably, for the log of another region starts there; a higher one changes nothing.

        Waits for an order that is being written, and voids one under way. Raises OSError.
        """
        with self._lock:
            self.cuts += 1
            if self.offset > offset:
                self._move_back(offset)

    def _move_back(self, offset: int) -> None:
        if self.kept_offset != offset:
            self._write(offset)
        self.offset = offset

    def _write(self, offset: int) -> None:
        data = pack_frame(_MAGIC, _VERSION, _OFFSET.pack(offset))
        self._disk.write_file_atomic(self._path, data)
        self.kept_offset = offset


def read_log_start(disk: Disk, folder: Path) -> int:
    """Return what the file of a log says, 0 if there is none; raises OSError."""
    path = folder / LOG_START_NAME
    if not disk.exists(path):
        return 0
    try:
        (offset,) = _OFFSET.unpack(unpack_frame(_MAGIC, _VERSION, disk.read_file(path)))
    except (FrameError, struct.error) as error:
        logger.warning("%s is ignored, deleted records are back: %s", path, error)
        return 0
    return int(offset)
