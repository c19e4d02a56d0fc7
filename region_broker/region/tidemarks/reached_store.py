"""The durable fact {region epoch, k}: which tidemark this region has reached, and how much of it was shown (T16).

INV-RS1  `point` and `whole` are on stable storage; a torn last record is ignored, the one before it counts; one that is
         damaged behind which there are others hides none of them: each was synced before the next was written
INV-RS2  a failed sync is never repeated on the same file (disk rule): the next save writes a new file
INV-RS3  `save` ends with the write even when it is cancelled, so that `point` is never behind the disk

An append-only file of frames, replaced by a new one when it has grown. Up to 50 records/s under load; the last one
counts ([ADR 41](docs/adr/0041-ends-beside-the-reached-tidemark.md)):

    region epoch q | number q | unlisted logs B | n I | n times: topic id 16 bytes, partition i, whole end q

Version 1 ended before `unlisted`; it is read.
Not here: which tidemark is reached (`geo_replicator.frontier`), what the ends mean (`geo_replicator.whole_ends`).
"""

import asyncio
import logging
import struct
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.whole_ends import AS_FORGOTTEN, NOTHING_WHOLE, Unlisted, WholeEnds
from region_broker.log.indexes.checked_file import (
    FrameError,
    frame_bytes,
    pack_frame,
    unpack_frame,
)
from region_broker.ports.disk import Disk, DiskFile, sync_as_found

_MAGIC: Final = b"TMRC"
_VERSION: Final = 2
_POINT_ALONE_VERSION: Final = 1
_POINT: Final = struct.Struct(">qq")
_ENDS: Final = struct.Struct(">BI")
_END: Final = struct.Struct(">16siq")
_HEAD_BYTES: Final = len(pack_frame(_MAGIC, _VERSION, b""))
ROTATE_BYTES: Final = 1024 * 1024
FILE_NAME: Final = "reached"
_log: Final = logging.getLogger("tidemark.mirror")


class ReachedFile:
    """The file in one data folder; `open` it once per process."""

    def __init__(
        self, disk: Disk, path: Path, point: TidemarkPoint, whole: WholeEnds, size_bytes: int
    ) -> None:
        """Use `open`."""
        self._disk = disk
        self._path = path
        self._point = point
        self._whole = whole
        self._size_bytes = size_bytes
        self._file: DiskFile | None = None
        self._one_by_one = asyncio.Lock()

    @classmethod
    def open(cls, disk: Disk, folder: Path) -> Self:
        """Read the file in `folder`, which exists; without a file nothing was reached. Raises OSError."""
        path = folder / FILE_NAME
        if not disk.exists(path):
            return cls(disk, path, BEFORE_ALL, NOTHING_WHOLE, 0)
        sync_as_found(disk, path)
        return cls(disk, path, *_last_record(disk.read_file(path)))

    @property
    def point(self) -> TidemarkPoint:
        """Return the last point that is durable."""
        return self._point

    @property
    def whole(self) -> WholeEnds:
        """Return the ends of the whole cut at `point`, as they are durable."""
        return self._whole

    async def save(self, point: TidemarkPoint, whole: WholeEnds) -> None:
        """Return once both are durable (INV-RS3), in the order of the calls; raises OSError, and then both are as before."""
        async with self._one_by_one:
            await self._save(point, whole)

    async def forget_whole(self) -> None:
        """Return once it is durable that nothing is known to be whole at `point`, whatever is being saved; raises OSError."""
        async with self._one_by_one:
            if self._whole != NOTHING_WHOLE:
                await self._save(self._point, NOTHING_WHOLE)

    async def _save(self, point: TidemarkPoint, whole: WholeEnds) -> None:
        writing = asyncio.get_running_loop().run_in_executor(None, self._write, point, whole)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            if writing.exception() is None:
                self._point, self._whole = point, whole
            raise
        self._point, self._whole = point, whole

    def _write(self, point: TidemarkPoint, whole: WholeEnds) -> None:
        record = pack_frame(_MAGIC, _VERSION, _packed(point, whole))
        if self._file is None or self._size_bytes + len(record) > ROTATE_BYTES:
            self._replace(record)
            return
        file, self._file = self._file, None  # INV-RS2: only a file without errors is used again
        try:
            file.pwrite(self._size_bytes, record)
            file.fdatasync()
        except OSError:
            file.close()
            raise
        self._size_bytes += len(record)
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


def _packed(point: TidemarkPoint, whole: WholeEnds) -> bytes:
    packed = bytearray(_POINT.pack(*point))
    packed += _ENDS.pack(whole.unlisted, len(whole.listed))
    for key, end in whole.listed.items():
        packed += _END.pack(key.topic_id.bytes, key.partition, end)
    return bytes(packed)


def _last_record(data: bytes) -> tuple[TidemarkPoint, WholeEnds, int]:
    """Return what the last whole record says, and where it ends."""
    point, whole, end = BEFORE_ALL, NOTHING_WHOLE, 0
    at = 0
    while at >= 0:
        try:
            size_bytes = frame_bytes(data[at : at + _HEAD_BYTES])
            point, whole = _unpacked(data[at : at + size_bytes])
        except FrameError:
            at = data.find(
                _MAGIC, at + 1
            )  # none behind a torn tail: it was never said to be durable
            continue
        if at > end:
            _log.error(
                "bytes %d to %d of the file `reached` are damaged: what follows counts", end, at
            )
        at = end = at + size_bytes
    return point, whole, end


def _unpacked(frame: bytes) -> tuple[TidemarkPoint, WholeEnds]:
    try:
        payload = unpack_frame(_MAGIC, _VERSION, frame)
    except FrameError:
        return TidemarkPoint(
            *_POINT.unpack(unpack_frame(_MAGIC, _POINT_ALONE_VERSION, frame))
        ), AS_FORGOTTEN
    unlisted, count = _ENDS.unpack_from(payload, _POINT.size)
    ends = payload[_POINT.size + _ENDS.size :]
    listed = {
        LogKey(UUID(bytes=topic_id), partition): end
        for topic_id, partition, end in _END.iter_unpack(ends)
    }
    if len(listed) != count:
        raise FrameError(f"{count} ends are announced, {len(listed)} are there")
    return TidemarkPoint(*_POINT.unpack_from(payload)), WholeEnds(Unlisted(unlisted), listed)
