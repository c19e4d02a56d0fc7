"""The files that hold images of a ledger shard, in the shard's own folder.

INV-LIF1  a file is put in its place after all that it speaks of is durable in the ledger; it names the batch that ends
          where it ends, by leader epoch and CRC: a ledger that holds another batch there, or none, has another history
INV-LIF2  it is a shortcut only: one that is damaged, of another version or of another ledger counts as none, and may be
          removed at any time
INV-LIF3  `KEPT` of them are kept, those at the highest ends that were reached in a row: a cut seldom goes below both

Content: a frame (`TMLI`) of a head, then for each row its offset, leader epoch, sizes of key and value, key, value.
The version changes with the layout, and when replay takes a kind of key that it left out before (INV-LIM2).
Not here: which rows (`txn_coordinator.image`), when (`ledgers.images`).
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from idempotency.identity import LeaderEpoch
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame
from region_broker.ports.disk import Disk
from txn_coordinator.image import LedgerRow
from txn_coordinator.ports import LedgerPosition

KEPT: Final = 2
_MAGIC: Final = b"TMLI"
_VERSION: Final = 2
_HEAD: Final = struct.Struct(">16siqqiIQ")
_ROW: Final = struct.Struct(">qiii")
_PREFIX: Final = "ledger-"
_SUFFIX: Final = ".image"
_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHead:
    """What an image is of: a shard's rows in [start, end), and the batch that ends there."""

    topic_id: UUID
    shard: int
    start_offset: int
    end_offset: int
    leader_epoch: LeaderEpoch
    batch_crc: int


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One file, read."""

    head: ImageHead
    rows: list[LedgerRow]

    def encode(self) -> bytes:
        """Return its content."""
        head = self.head
        parts = [
            _HEAD.pack(
                head.topic_id.bytes, head.shard, head.start_offset, head.end_offset,
                head.leader_epoch, head.batch_crc, len(self.rows),
            )
        ]  # fmt: skip
        for position, key, value in self.rows:
            assert value is not None, "an image holds no tombstone"
            parts += (
                _ROW.pack(position.offset, position.leader_epoch, len(key), len(value)),
                key,
                value,
            )
        return pack_frame(_MAGIC, _VERSION, b"".join(parts))

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a file's content; raises FrameError."""
        payload = unpack_frame(_MAGIC, _VERSION, data)
        try:
            topic_id, shard, start, end, leader_epoch, crc, count = _HEAD.unpack_from(payload)
            rows: list[LedgerRow] = []
            at = _HEAD.size
            for _ in range(count):
                offset, row_epoch, key_bytes, value_bytes = _ROW.unpack_from(payload, at)
                key_end = at + _ROW.size + key_bytes
                value_end = key_end + value_bytes
                rows.append(
                    (
                        LedgerPosition(row_epoch, offset),
                        payload[at + _ROW.size : key_end],
                        payload[key_end:value_end],
                    )
                )
                at = value_end
        except struct.error as error:
            raise FrameError(f"image ends early: {error}") from error
        if at != len(payload):
            raise FrameError(f"image of {len(payload)} bytes does not end at {at}")
        head = ImageHead(
            topic_id=UUID(bytes=topic_id),
            shard=shard,
            start_offset=start,
            end_offset=end,
            leader_epoch=leader_epoch,
            batch_crc=crc,
        )
        return cls(head, rows)


def image_path(folder: Path, end_offset: int) -> Path:
    """Return where the image that ends at `end_offset` lies."""
    return folder / f"{_PREFIX}{end_offset:0{_DIGITS}}{_SUFFIX}"


def image_ends(disk: Disk, folder: Path) -> list[int]:
    """Return the ends of the images in a shard's folder, highest first; raises OSError."""
    ends = []
    for name in disk.list_dir(folder):
        digits = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        if name == f"{_PREFIX}{digits}{_SUFFIX}" and len(digits) == _DIGITS and digits.isdecimal():
            ends.append(int(digits))
    return sorted(ends, reverse=True)


def write_image(disk: Disk, folder: Path, head: ImageHead, rows: Iterable[LedgerRow]) -> int:
    """Write an image durably, then remove all but `KEPT`; return its size in bytes.

    Images that end further on are of a history that was cut: the ledger has reached no more than this end.
    Raises OSError, and whatever `rows` raises; the images that were there are still there then.
    """
    data = ImageFile(head, list(rows)).encode()
    disk.write_file_atomic(image_path(folder, head.end_offset), data)
    ends = image_ends(disk, folder)
    kept = [end for end in ends if end <= head.end_offset][:KEPT]
    for end in ends:
        if end not in kept:
            disk.remove(image_path(folder, end))
    return len(data)
