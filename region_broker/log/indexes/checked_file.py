"""Frames for the log's small files, and its checkpoint.

INV-K3  a clean checkpoint also names the last segment and its exact size, so that any later append, and
        any loss, makes it a plain one without another write
INV-K4  a checkpoint written after a cut, or for a log that is made, names the last journal block begun before it: that
        one and all before it are nothing to this log (any more)
A frame is magic, version, length and CRC-32 before its payload; anything else is `FrameError`. A checkpoint never
claims more than was synced: it is written after the fdatasync it speaks of.

INV-K5  a checkpoint is written beside the one in force: a write that fails, or is torn, leaves that one. What must not
        be forgotten (a cut, a seal) is in both places before it counts

The checkpoint is a record of 64 bytes, overwritten in place after each sync of the log's own files without a sync of its
own: after a crash it is older but still true. There are two, in sectors of their own, and the sound one with the higher
serial counts. It is synced when a segment is sealed or gets a recovery checkpoint, when the log is cut and when it is
closed.
Not here: what recovery does with it; writing it (`checkpoint_file`).
"""

import struct
import zlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

_FRAME: Final = struct.Struct(">4sBIQ")
_CHECKPOINT: Final = struct.Struct(">4sBBqqqQQQI")
_CHECKPOINT_BYTES: Final = 64
_CHECKPOINT_VERSION: Final = 2
_SLOT_BYTES: Final = 512
CHECKPOINT_FILE_BYTES: Final = _SLOT_BYTES + _CHECKPOINT_BYTES


class FrameError(ValueError):
    """A small file is damaged or of an unknown version; the text says how."""


def pack_frame(magic: bytes, version: int, payload: bytes) -> bytes:
    """Return `payload` framed; `magic` has four bytes."""
    assert len(magic) == 4
    return _FRAME.pack(magic, version, zlib.crc32(payload), len(payload)) + payload


def frame_bytes(data: bytes) -> int:
    """Return how long the frame at the beginning of `data` says that it is; raises FrameError if that is cut off."""
    if len(data) < _FRAME.size:
        raise FrameError(f"{len(data)} bytes are too short for a frame")
    length: int = _FRAME.unpack_from(data)[3]
    return _FRAME.size + length


def unpack_frame(magic: bytes, version: int, data: bytes) -> bytes:
    """Return the payload; raises FrameError unless magic, version, length and CRC are right."""
    if len(data) < _FRAME.size:
        raise FrameError(f"{len(data)} bytes are too short for a frame")
    found_magic, found_version, crc, length = _FRAME.unpack_from(data)
    if found_magic != magic:
        raise FrameError(f"magic is {found_magic!r}, not {magic!r}")
    if found_version != version:
        raise FrameError(f"version {found_version} is not {version}")
    payload = data[_FRAME.size :]
    if len(payload) != length:
        raise FrameError(f"payload has {len(payload)} bytes, not {length}")
    if zlib.crc32(payload) != crc:
        raise FrameError("CRC does not match")
    return payload


class JournalMark(NamedTuple):
    """A block of the node's journal: the journal's serial (a life of it), and the number in that life."""

    serial: int = 0
    number: int = 0


NO_MARK: Final = JournalMark()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is known synced: all below `synced_offset`, that is `segment_bytes` of segment `segment_base`.

    `fence`: journal blocks up to it hold nothing that counts for this log (INV-K4). `serial`: grows with each writing.
    """

    synced_offset: int
    segment_base: int
    segment_bytes: int
    log_start_offset: int = 0
    clean: bool = False
    fence: JournalMark = NO_MARK
    serial: int = field(default=0, compare=False)

    @property
    def place(self) -> int:
        """Where in the file its record is written: never where the one before it is."""
        return self.serial % 2 * _SLOT_BYTES

    def file_content(self) -> bytes:
        """Return a whole file that says nothing else."""
        record = self.encode()
        return record.ljust(_SLOT_BYTES, b"\0") + record

    def encode(self) -> bytes:
        """Return the 64 bytes of the record."""
        body = _CHECKPOINT.pack(
            b"TMCP",
            _CHECKPOINT_VERSION,
            1 if self.clean else 0,
            self.synced_offset,
            self.segment_base,
            self.log_start_offset,
            self.segment_bytes,
            *self.fence,
            self.serial,
        )
        body = body.ljust(_CHECKPOINT_BYTES - 4, b"\0")
        return body + zlib.crc32(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the newest of a file's two records that is sound; raises FrameError if none is."""
        found, problems = [], []
        for at in (0, _SLOT_BYTES):
            try:
                found.append(cls._decode(data[at : at + _CHECKPOINT_BYTES]))
            except FrameError as error:
                problems.append(str(error))
        if not found:
            raise FrameError("; ".join(problems))
        return max(found, key=lambda checkpoint: checkpoint.serial)

    @classmethod
    def _decode(cls, data: bytes) -> Self:
        if len(data) != _CHECKPOINT_BYTES:
            raise FrameError(f"checkpoint has {len(data)} bytes, not {_CHECKPOINT_BYTES}")
        if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
            raise FrameError("checkpoint CRC does not match")
        magic, version, clean, offset, base, start, size, *fence, serial = _CHECKPOINT.unpack_from(
            data
        )
        if magic != b"TMCP" or version != _CHECKPOINT_VERSION:
            raise FrameError(f"checkpoint is {magic!r} version {version}, not TMCP version 2")
        return cls(
            synced_offset=offset,
            segment_base=base,
            segment_bytes=size,
            log_start_offset=start,
            clean=clean == 1,
            fence=JournalMark(*fence),
            serial=serial,
        )
