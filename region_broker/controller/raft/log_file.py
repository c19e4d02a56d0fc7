"""The file of a member's log: a head that says whose it is, then frames, each one write that was synced by itself.

INV-RF1  no frame is written before the one in front of it is synced, unless the file has no name yet: so at most the last
         one can be torn
INV-RF2  a bad frame with nothing sound behind it is torn, and ends the file; with a sound frame behind it what was synced
         is damaged, and the file is refused
INV-RF3  a frame's seal covers the member and the place in the file: bytes of a payload, or of another file, are no frame
Frames begin at multiples of `ALIGN_BYTES`, so no sector's border runs through a frame's head: it is there or it is not.
Zeros follow the last frame: room that is taken before it is needed (`durable`).

    head     magic TMRAFT01, node id, CRC-32C, incarnation (16 bytes), padding to 48 bytes
    frame    magic TMRF, bytes of the payload, seal, CRC-32C of the payload, payload, zeros to the next multiple

Numbers are big-endian. Not here: what the payload says, and when it is written (`durable`).
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from region_broker.controller.raft.entries import Member
from region_broker.controller.raft.failures import RaftStoreDamaged

ALIGN_BYTES: Final = 16
FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
_FILE_MAGIC: Final = b"TMRAFT01"
_FRAME_MAGIC: Final = b"TMRF"
_HEAD: Final = struct.Struct(">8siI16s16x")
_FRAME: Final = struct.Struct(">4sIII")
_SEALED: Final = struct.Struct(">i16sQI")
HEAD_BYTES: Final = _HEAD.size
FRAME_HEAD_BYTES: Final = _FRAME.size

assert HEAD_BYTES % ALIGN_BYTES == 0
assert FRAME_HEAD_BYTES == ALIGN_BYTES, "a frame's head would cross a sector's border"


class Frames(NamedTuple):
    """What a file holds: the payloads, each with the place of its frame, and where the next one goes."""

    payloads: list[tuple[int, bytes]]
    end: int


def encode_head(member: Member) -> bytes:
    """Return the head of a member's file."""
    return _pack_head(member, crc32c(_pack_head(member, 0)))


def _pack_head(member: Member, crc: int) -> bytes:
    return _HEAD.pack(_FILE_MAGIC, member.node_id, crc, member.incarnation.bytes)


def decode_head(data: bytes, path: Path) -> Member:
    """Return whose file begins with `data`; raises RaftStoreDamaged. The head is durable before the file has its name."""
    if len(data) < HEAD_BYTES:
        raise RaftStoreDamaged(path, 0, f"it has {len(data)} bytes, and a head has {HEAD_BYTES}")
    magic, node_id, crc, incarnation = _HEAD.unpack_from(data)
    if magic != _FILE_MAGIC:
        raise RaftStoreDamaged(path, 0, f"it begins with {magic!r}, not {_FILE_MAGIC!r}")
    member = Member(node_id, UUID(bytes=incarnation))
    if crc32c(_pack_head(member, 0)) != crc:
        raise RaftStoreDamaged(path, 0, "its head has a wrong CRC")
    return member


def frame_bytes(payload_bytes: int) -> int:
    """Return how much of the file a payload of that size takes."""
    return FRAME_HEAD_BYTES + payload_bytes + -payload_bytes % ALIGN_BYTES


def encode_frame(member: Member, position: int, payload: bytes) -> bytes:
    """Return the frame that holds `payload` at `position`."""
    size_bytes = len(payload)
    assert position % ALIGN_BYTES == 0, position
    assert 0 < size_bytes <= FRAME_BYTES_MAX, size_bytes
    seal = _seal(member, position, size_bytes)
    head = _FRAME.pack(_FRAME_MAGIC, size_bytes, seal, crc32c(payload))
    return b"".join((head, payload, bytes(-size_bytes % ALIGN_BYTES)))


def _seal(member: Member, position: int, size_bytes: int) -> int:
    sealed = _SEALED.pack(member.node_id, member.incarnation.bytes, position, size_bytes)
    seal: int = crc32c(sealed)
    return seal


def read_frames(member: Member, data: bytes, path: Path) -> Frames:
    """Return all frames of a whole file behind its head; raises RaftStoreDamaged (INV-RF2)."""
    payloads: list[tuple[int, bytes]] = []
    position = HEAD_BYTES
    while (payload := _frame_at(member, data, position)) is not None:
        payloads.append((position, payload))
        position += frame_bytes(len(payload))
    behind = _sound_frame_behind(member, data, position)
    if behind is not None:
        raise RaftStoreDamaged(
            path, position, f"a damaged frame in front of the sound one at byte {behind}"
        )
    return Frames(payloads, position)


def _frame_at(member: Member, data: bytes, position: int) -> bytes | None:
    """Return the payload of the sound frame at `position`, None if there is none."""
    if position + FRAME_HEAD_BYTES > len(data):
        return None
    magic, size_bytes, seal, crc = _FRAME.unpack_from(data, position)
    if magic != _FRAME_MAGIC or seal != _seal(member, position, size_bytes):
        return None
    begin = position + FRAME_HEAD_BYTES
    payload = data[begin : begin + size_bytes]
    return payload if len(payload) == size_bytes and crc32c(payload) == crc else None


def _sound_frame_behind(member: Member, data: bytes, position: int) -> int | None:
    """Return where the next sound frame begins behind `position`, None if there is none."""
    at = data.find(_FRAME_MAGIC, position + 1)
    while at >= 0:
        if at % ALIGN_BYTES == 0 and _frame_at(member, data, at) is not None:
            return at
        at = data.find(_FRAME_MAGIC, at + 1)
    return None
