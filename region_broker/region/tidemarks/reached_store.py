"""The durable fact {region epoch, k}: which tidemark this region has reached (T16).

INV-RS1  `point` is on stable storage; a torn last record is ignored, the one before it counts
INV-RS2  a failed sync is never repeated on the same file (disk rule): the next save writes a new file
INV-RS3  `save` ends with the write even when it is cancelled, so that `point` is never behind the disk

An append-only file of fixed frames, replaced by a new one when it has grown. About 20 records/s under load.
Not here: which tidemark is reached (`geo_replicator.frontier`).
"""

import asyncio
import struct
from pathlib import Path
from typing import Final, Self

from geo_replicator.lineage import BEFORE_ALL, TidemarkPoint
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame
from region_broker.ports.disk import Disk, DiskFile, sync_as_found

_MAGIC: Final = b"TMRC"
_VERSION: Final = 1
_POINT: Final = struct.Struct(">qq")
_RECORD_BYTES: Final = len(pack_frame(_MAGIC, _VERSION, _POINT.pack(0, 0)))
ROTATE_BYTES: Final = 1024 * 1024
FILE_NAME: Final = "reached"


class ReachedFile:
    """The file in one data folder; `open` it once per process."""

    def __init__(self, disk: Disk, path: Path, point: TidemarkPoint, size_bytes: int) -> None:
        """Use `open`."""
        self._disk = disk
        self._path = path
        self._point = point
        self._size_bytes = size_bytes
        self._file: DiskFile | None = None

    @classmethod
    def open(cls, disk: Disk, folder: Path) -> Self:
        """Read the file in `folder`, which exists; without a file nothing was reached. Raises OSError."""
        path = folder / FILE_NAME
        if not disk.exists(path):
            return cls(disk, path, BEFORE_ALL, 0)
        sync_as_found(disk, path)
        point, size_bytes = _last_point(disk.read_file(path))
        return cls(disk, path, point, size_bytes)

    @property
    def point(self) -> TidemarkPoint:
        """Return the last point that is durable."""
        return self._point

    async def save(self, point: TidemarkPoint) -> None:
        """Return once `point` is durable (INV-RS3); raises OSError, and then `point` is as before."""
        writing = asyncio.get_running_loop().run_in_executor(None, self._write, point)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            if writing.exception() is None:
                self._point = point
            raise
        self._point = point

    def _write(self, point: TidemarkPoint) -> None:
        record = pack_frame(_MAGIC, _VERSION, _POINT.pack(*point))
        if self._file is None or self._size_bytes + _RECORD_BYTES > ROTATE_BYTES:
            self._replace(record)
            return
        file, self._file = self._file, None  # INV-RS2: only a file without errors is used again
        try:
            file.pwrite(self._size_bytes, record)
            file.fdatasync()
        except OSError:
            file.close()
            raise
        self._size_bytes += _RECORD_BYTES
        self._file = file

    def _replace(self, record: bytes) -> None:
        self.close()
        self._disk.write_file_atomic(self._path, record)
        self._size_bytes = len(record)
        self._file = self._disk.open(self._path)

    def close(self) -> None:
        """Close the file; everything saved is durable already."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def _last_point(data: bytes) -> tuple[TidemarkPoint, int]:
    point, end = BEFORE_ALL, 0
    while end + _RECORD_BYTES <= len(data):
        try:
            payload = unpack_frame(_MAGIC, _VERSION, data[end : end + _RECORD_BYTES])
        except FrameError:
            break  # a torn tail: it was never said to be durable
        point, end = TidemarkPoint(*_POINT.unpack(payload)), end + _RECORD_BYTES
    return point, end
