"""The file of a member's snapshot: where it stands, its bytes, and one CRC over all of it.

INV-RF4  a snapshot has its name only when it is whole and durable: it is written beside the one in force, piece after
         piece, and then renamed
INV-RF5  the member's own snapshot and a leader's that comes in pieces are written beside each other: a member that goes on
         committing while pieces come makes one of its own in between

    magic TMRAFTS1, bytes of the point, the point (msgpack), the snapshot's bytes, their number, CRC-32C of all before it

Numbers are big-endian. Not here: which snapshot counts, what happens to the log (`durable`).
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from region_broker.controller.raft.entries import SnapshotPoint
from region_broker.controller.raft.failures import RaftStoreDamaged
from region_broker.ports.disk import TEMPORARY_SUFFIX, Disk, DiskFile

SNAPSHOT_NAME: Final = "snapshot"
OWN_NAME: Final = f"{SNAPSHOT_NAME}{TEMPORARY_SUFFIX}"
LEADERS_NAME: Final = f"{SNAPSHOT_NAME}.leader{TEMPORARY_SUFFIX}"
"""What the two are called until they are whole (INV-RF5)."""
_MAGIC: Final = b"TMRAFTS1"
_HEAD: Final = struct.Struct(">8sI")
_TAIL: Final = struct.Struct(">QI")
_CHECK_BYTES: Final = 1024 * 1024


class Piece(NamedTuple):
    """Bytes of the snapshot at `point` from `position` on; `last`: there are no more."""

    point: SnapshotPoint
    position: int
    data: bytes
    last: bool


class SnapshotWriter:
    """A snapshot that is being written, from its first byte on. What it raises is OSError; `drop` it then."""

    def __init__(self, disk: Disk, folder: Path, point: SnapshotPoint, name: str) -> None:
        """Begin beside the snapshot in force, as `name`, in place of what was begun under it."""
        self.point = point
        self.have_bytes = 0
        self._disk = disk
        self._folder = folder
        self._path = folder / name
        encoded = msgspec.msgpack.encode(point)
        head = _HEAD.pack(_MAGIC, len(encoded)) + encoded
        self._data_at = len(head)
        self._crc = crc32c(head)
        _remove(disk, self._path)
        self._file = disk.open(self._path, create=True)
        try:
            self._file.pwrite(0, head)
        except OSError:
            self._file.close()
            raise

    def write(self, data: bytes) -> None:
        """Write the next bytes."""
        self._file.pwrite(self._data_at + self.have_bytes, data)
        self._crc = crc32c(data, self._crc)
        self.have_bytes += len(data)

    def finish(self) -> None:
        """Make it durable, still under the name of one that is not finished."""
        end = self._data_at + self.have_bytes
        size = self.have_bytes.to_bytes(8, "big")
        self._file.pwrite(end, _TAIL.pack(self.have_bytes, crc32c(size, self._crc)))
        self._file.fdatasync()
        self._file.close()

    def put_in_place(self) -> None:
        """Give it its name, durably; after an error nobody knows which snapshot a start will find."""
        self._disk.rename(self._path, self._folder / SNAPSHOT_NAME)
        self._disk.fsync_dir(self._folder)

    def drop(self) -> None:
        """Remove what was written."""
        self.close()
        _remove(self._disk, self._path)

    def close(self) -> None:
        """Close the file; a start removes it."""
        self._file.close()


def drop_partial(disk: Disk, folder: Path) -> None:
    """Remove snapshots that were not finished."""
    for name in (OWN_NAME, LEADERS_NAME):
        _remove(disk, folder / name)


def _remove(disk: Disk, path: Path) -> None:
    if disk.exists(path):
        disk.remove(path)


class SnapshotReader:
    """The snapshot in force."""

    def __init__(self, file: DiskFile, point: SnapshotPoint, data_at: int, size_bytes: int) -> None:
        """Read from an open file, which it closes."""
        self.point = point
        self._file = file
        self._data_at = data_at
        self._size_bytes = size_bytes

    def read(self, position: int, size_bytes: int) -> Piece:
        """Return a piece; from the first byte on where `position` is not of this snapshot. Raises OSError."""
        at = position if position <= self._size_bytes else 0
        wanted = min(size_bytes, self._size_bytes - at)
        data = self._file.pread(wanted, self._data_at + at)
        if len(data) != wanted:
            raise OSError(f"the snapshot ends at byte {at + len(data)} of {self._size_bytes}")
        return Piece(self.point, at, data, at + wanted == self._size_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_snapshot(disk: Disk, folder: Path) -> SnapshotReader | None:
    """Return the snapshot in force, all of it checked; None if there is none. Raises RaftStoreDamaged, OSError."""
    path = folder / SNAPSHOT_NAME
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return _checked(file, path)
    except BaseException:
        file.close()
        raise


def _checked(file: DiskFile, path: Path) -> SnapshotReader:
    total = file.size()
    begin = file.pread(_HEAD.size, 0)
    if len(begin) < _HEAD.size or not begin.startswith(_MAGIC):
        raise RaftStoreDamaged(path, 0, "no head of a snapshot")
    point_bytes: int = _HEAD.unpack(begin)[1]
    data_at = _HEAD.size + point_bytes
    tail_at = total - _TAIL.size
    if tail_at < data_at:
        raise RaftStoreDamaged(path, total, "it ends too early")
    size_bytes, crc = _TAIL.unpack(file.pread(_TAIL.size, tail_at))
    found = 0
    for at in range(0, total - 4, _CHECK_BYTES):
        found = crc32c(file.pread(min(_CHECK_BYTES, total - 4 - at), at), found)
    if found != crc or size_bytes != tail_at - data_at:
        raise RaftStoreDamaged(path, tail_at, "its CRC does not match")
    point = msgspec.msgpack.decode(file.pread(point_bytes, _HEAD.size), type=SnapshotPoint)
    return SnapshotReader(file, point, data_at, size_bytes)
