"""Frames for the log's small files, and the recovery checkpoint.

INV-K1  a frame is magic, version, length and CRC-32 before its payload; anything else is `FrameError`
INV-K2  a checkpoint never claims more than was synced: it is written after the fdatasync it speaks of
INV-K3  a clean checkpoint also names the last segment and its exact size, so that any later append, and
        any loss, makes it a plain one without another write
INV-K4  a checkpoint written after a cut names the last journal block begun before it: that one and all before
        it are nothing to this log any more

The checkpoint is one record of 64 bytes at position 0, overwritten in place after each sync of the log's own files
without a sync of its own: after a crash it is older but still true. It is synced when a segment is sealed, when
the log is cut and when it is closed.
Not here: what recovery does with it; writing it (`checkpoint_file`).
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

_FRAME: Final = struct.Struct(">4sBIQ")
_CHECKPOINT: Final = struct.Struct(">4sBBqqqQQQ")
_CHECKPOINT_BYTES: Final = 64
_CHECKPOINT_VERSION: Final = 1


class FrameError(ValueError):
    """A small file is damaged or of an unknown version; the text says how."""


def pack_frame(magic: bytes, version: int, payload: bytes) -> bytes:
    """Return `payload` framed; `magic` has four bytes."""
    assert len(magic) == 4
    return _FRAME.pack(magic, version, zlib.crc32(payload), len(payload)) + payload


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

    `fence`: journal blocks up to it hold nothing that counts for this log (INV-K4).
    """

    synced_offset: int
    segment_base: int
    segment_bytes: int
    log_start_offset: int = 0
    clean: bool = False
    fence: JournalMark = NO_MARK

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
        )
        body = body.ljust(_CHECKPOINT_BYTES - 4, b"\0")
        return body + zlib.crc32(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the record back; raises FrameError."""
        if len(data) != _CHECKPOINT_BYTES:
            raise FrameError(f"checkpoint has {len(data)} bytes, not {_CHECKPOINT_BYTES}")
        if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
            raise FrameError("checkpoint CRC does not match")
        magic, version, clean, offset, base, start, size, *fence = _CHECKPOINT.unpack_from(data)
        if magic != b"TMCP" or version != _CHECKPOINT_VERSION:
            raise FrameError(f"checkpoint is {magic!r} version {version}, not TMCP version 1")
        return cls(
            synced_offset=offset,
            segment_base=base,
            segment_bytes=size,
            log_start_offset=start,
            clean=clean == 1,
            fence=JournalMark(*fence),
        )
