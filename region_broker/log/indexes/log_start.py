"""The log start that an order to delete records left (DeleteRecords), beside the segments.

INV-LOS1  the offset is on disk before it counts; the file is replaced whole, so a crash leaves the old or the new one
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
    """The file of one log. `raise_to` may run in any thread; all else belongs to the event loop."""

    __slots__ = ("_disk", "_lock", "_path", "cuts", "offset")

    def __init__(self, disk: Disk, folder: Path, log_end_offset: int) -> None:
        """Read the file, if there is one; raises OSError."""
        self._disk = disk
        self._path = folder / LOG_START_NAME
        self._lock = threading.Lock()
        self.cuts = 0
        """How often the log was cut."""
        self.offset = read_log_start(disk, folder)
        if self.offset > log_end_offset:
            self._write(log_end_offset)

    @classmethod
    def nowhere(cls, disk: Disk, folder: Path) -> "LogStart":
        """Return that of a log which could not be opened: 0, and nothing is read."""
        start = cls.__new__(cls)
        start._disk, start._path, start._lock = disk, folder / LOG_START_NAME, threading.Lock()
        start.offset = start.cuts = 0
        return start

    def raise_to(self, offset: int, cuts: int) -> bool:
        """Move the start up, durably; a lower one changes nothing. Raises OSError.

        False, and nothing is done, if the log was cut since `cuts` were counted.
        """
        with self._lock:
            if cuts != self.cuts:
                return False
            if offset > self.offset:
                self._write(offset)
            return True

    def cut(self, end_offset: int) -> None:
        """Take orders back that lie beyond a cut, also those under way: none is part of the history that goes on.

        Waits for one that is being written. Raises OSError.
        """
        with self._lock:
            self.cuts += 1
            if self.offset > end_offset:
                self._write(0)

    def take_back(self, offset: int) -> None:
        """Move the start down, durably, for the log of another region starts there; a higher one changes nothing.

        Waits for an order that is being written, and voids one under way. Raises OSError.
        """
        with self._lock:
            self.cuts += 1
            if self.offset > offset:
                self._write(offset)

    def _write(self, offset: int) -> None:
        data = pack_frame(_MAGIC, _VERSION, _OFFSET.pack(offset))
        self._disk.write_file_atomic(self._path, data)
        self.offset = offset


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
