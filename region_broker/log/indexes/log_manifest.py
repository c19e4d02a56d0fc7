"""Which logs a node has: the file `manifest` beside them, so that one that is gone is missed (T36).

INV-MF1  a log is named from when it was made, before anything in it is acknowledged, until before it is removed
INV-MF3  an entry that cannot be read costs nothing but itself: the log that it named is not missed if it goes
INV-MF4  it says one thing after the other: who says something in a thread is waited for by who has something else to say. What it says
         is looked at without waiting, and who has nothing to say does not wait, either
A log that is named and not there, or whose folder lacks checkpoint and segments, which each log has from its making on,
was lost: it stays named as that, also when an empty one was made in its place, until whoever decides who acts has taken
note.

Fixed frames, appended and synced, rewritten at each start.
Not here: what a lost log means for who acts (`region.failover.steps`).
"""

import logging
import struct
import threading
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final
from uuid import UUID

from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame
from region_broker.ports.disk import Disk, DiskFile

_MAGIC: Final = b"TMMF"
_VERSION: Final = 1
_ENTRY: Final = struct.Struct(">B16sI")
_FRAME_BYTES: Final = len(pack_frame(_MAGIC, _VERSION, _ENTRY.pack(0, bytes(16), 0)))
FILE_NAME: Final = "manifest"

Key = tuple[UUID, int]
logger: Final = logging.getLogger(__name__)


class LogEntry(IntEnum):
    """What the manifest says of a log."""

    MADE = 1
    REMOVED = 2
    LOST = 3


class LogManifest:
    """The manifest of one folder of logs. `note` may be called in any thread; what it said counts from its end on."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """Read it, if it is there; raises OSError."""
        self._disk = disk
        self._path = folder / FILE_NAME
        self._entries: dict[Key, LogEntry] = {}
        self._lost: set[Key] = set()  # asked for with every fetch of a mirror
        self._file: DiskFile | None = None
        self._end_bytes = 0
        self._writing = threading.Lock()
        if disk.exists(self._path):
            self._read(disk.read_file(self._path))
        self._rewrite()

    def _read(self, data: bytes) -> None:
        for at in range(0, len(data) - _FRAME_BYTES + 1, _FRAME_BYTES):
            try:
                entry, topic_id, number = _ENTRY.unpack(
                    unpack_frame(_MAGIC, _VERSION, data[at : at + _FRAME_BYTES])
                )
                self._note((UUID(bytes=topic_id), number), LogEntry(entry))
            except (FrameError, ValueError) as error:
                logger.warning("%s: an entry at byte %d is not readable: %s", self._path, at, error)

    def _note(self, key: Key, entry: LogEntry) -> None:
        if entry is LogEntry.REMOVED:
            self._entries.pop(key, None)
        else:
            self._entries[key] = entry
        if entry is LogEntry.LOST:
            self._lost.add(key)
        else:
            self._lost.discard(key)

    def _rewrite(self) -> None:
        content = b"".join(_frame(key, entry) for key, entry in sorted(self._entries.items()))
        self._disk.write_file_atomic(self._path, content)
        self._file = self._disk.open(self._path)
        self._end_bytes = len(content)

    def of(self, key: Key) -> LogEntry:
        """Return what it says of a log, REMOVED of one that it does not name."""
        return self._entries.get(key, LogEntry.REMOVED)

    def named(self, entry: LogEntry) -> list[Key]:
        """Return the logs of which it says that, in order."""
        # Copied first, which is one step: a thread may say something meanwhile (INV-MF4).
        return sorted(key for key, said in list(self._entries.items()) if said is entry)

    def lost(self) -> list[Key]:
        """Return the logs that were lost, in order."""
        return sorted(self._lost.copy())

    def note(self, keys: Iterable[Key], entry: LogEntry) -> None:
        """Say so of these logs, durably; raises OSError, and then nothing was said."""
        named = list(keys)
        if named:
            with self._writing:
                self._write([key for key in named if self.of(key) is not entry], entry)

    def _write(self, news: Sequence[Key], entry: LogEntry) -> None:
        if not news:
            return
        frames = b"".join(_frame(key, entry) for key in news)
        if self._file is None:  # a failed sync is never repeated on the same file
            self._rewrite()
        file, self._file = self._file, None
        assert file is not None
        try:
            file.pwrite(self._end_bytes, frames)
            file.fdatasync()
        except OSError:
            file.close()
            raise
        self._file = file
        self._end_bytes += len(frames)
        for key in news:
            self._note(key, entry)

    def close(self) -> None:
        """Close the file; all that was said is durable."""
        with self._writing:
            if self._file is not None:
                file, self._file = self._file, None
                file.close()


def _frame(key: Key, entry: LogEntry) -> bytes:
    return pack_frame(_MAGIC, _VERSION, _ENTRY.pack(entry, key[0].bytes, key[1]))
