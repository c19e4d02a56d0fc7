"""The form of a sealed batch: a batch as any other for whoever walks a log, with records that only a key opens.

    0   61 bytes  the header: as it was, but for its length, bit 0x4000 of its attributes, and the CRC, which is right for what is stored
    61  1         1, the number of this form
    62  1         how many bytes the name of the key has: n
    63  n         the name of the key, ASCII
        8         which version of it wrapped the data key
        40        the data key, wrapped by that version (RFC 3394)
        12        the nonce
        ...       the records section as the producer sent it, its own codec around it, by AES-256-GCM
        16        the tag

INV-SLB1  what the tag covers beside the records: the log (topic id and partition), all of the header that the CRC covers, and the head.
          Base offset and leader epoch are not among it: whoever leads stamps them when it appends, as they lie outside the CRC
INV-SLB2  opened, a batch is byte for byte what was to be stored before it was sealed, but for offset and leader epoch
INV-SLB3  bytes that were not sealed for this very log are never given out: `SealBroken`, which says nothing of what they hold
Pure. Not here: keys (`data_keys`), when a batch is sealed (`partitions.record_rules`) and opened (`partitions.opening_sealed`).
"""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, Self
from uuid import UUID

from crc32c import crc32c

from idempotency.record_batch import (
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    SEALED_BIT,
    BatchError,
    BatchHeader,
    Buffer,
    iter_headers,
)

FORM: Final = 1
KEY_NAME_BYTES_MAX: Final = 64
VERSION_BYTES: Final = 8
WRAPPED_BYTES: Final = 40
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
_CRC_COVERS_FROM: Final = 21
_NAME_AT: Final = HEADER_BYTES + 2
_AFTER_NAME_BYTES: Final = VERSION_BYTES + WRAPPED_BYTES + NONCE_BYTES
_FRONT: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, crc
_PARTITION: Final = struct.Struct(">i")
_SEALED_HIGH: Final = SEALED_BIT >> 8  # of the first of the two bytes of the attributes
_PURPOSE: Final = b"tidemark sealed batch"


class SealBroken(Exception):
    """A batch says that it is sealed, and no key opens it for this log: it was changed, or belongs elsewhere."""


class LogPlace(NamedTuple):
    """Which log a batch belongs to: what it was sealed for; `bound` is what the tag covers of that."""

    bound: bytes

    @classmethod
    def of(cls, topic_id: UUID, partition: int) -> Self:
        """Return the place of a log."""
        return cls(_PURPOSE + topic_id.bytes + _PARTITION.pack(partition))


class KeyRef(NamedTuple):
    """By what a batch is sealed: a version of a named key, and the data key that it wrapped."""

    name: str
    version: bytes
    wrapped: bytes


class Cipher(Protocol):
    """A data key at work: an `AESGCM`, which only who has keys imports (INV-LEAN3)."""

    def encrypt_into(
        self, nonce: Buffer, data: Buffer, bound: Buffer | None, into: Buffer, /
    ) -> int:
        """Seal `data` into `into`, and return how many bytes that are."""
        ...

    def decrypt_into(
        self, nonce: Buffer, data: Buffer, bound: Buffer | None, into: Buffer, /
    ) -> int:
        """Open `data` into `into`; raises InvalidTag, and may have written there."""
        ...


class SealingKey(NamedTuple):
    """A data key that seals: `nonce` gives each one once (INV-DKY1); `head` is what batches say of it."""

    ref: KeyRef
    cipher: Cipher
    nonce: Callable[[], bytes]
    head: bytes


def head_of(ref: KeyRef) -> bytes:
    """Return what a sealed batch says of its key, from the form up to the nonce."""
    name = ref.name.encode("ascii")
    assert 0 < len(name) <= KEY_NAME_BYTES_MAX, ref.name
    assert len(ref.version) == VERSION_BYTES, ref.version
    assert len(ref.wrapped) == WRAPPED_BYTES, len(ref.wrapped)
    return bytes((FORM, len(name))) + name + ref.version + ref.wrapped


def sealed(batch: Buffer, header: BatchHeader, place: LogPlace, key: SealingKey) -> bytearray:
    """Return a plain batch sealed for the log `place`; `header` is the batch's own."""
    assert not header.is_sealed, "sealed once"
    nonce = key.nonce()
    with memoryview(batch) as given:
        covered = bytearray(given[_CRC_COVERS_FROM:HEADER_BYTES]) + key.head
        covered[0] |= _SEALED_HIGH
        start = _CRC_COVERS_FROM + len(covered) + NONCE_BYTES
        result = bytearray(start + header.size_bytes - HEADER_BYTES + TAG_BYTES)
        result[_CRC_COVERS_FROM:start] = covered + nonce
        with memoryview(result) as view:
            key.cipher.encrypt_into(
                nonce, given[HEADER_BYTES : header.size_bytes], place.bound + covered, view[start:]
            )
            _finish(view, header)
    return result


def _finish(batch: memoryview, header: BatchHeader) -> None:
    """Write what lies before the attributes: place, length, and the CRC of what is there now."""
    _FRONT.pack_into(
        batch, 0, header.base_offset, len(batch) - LENGTH_PREFIX_BYTES, header.leader_epoch, header.magic,
        crc32c(batch[_CRC_COVERS_FROM:]),
    )  # fmt: skip


class _Sealed(NamedTuple):
    """Where the parts of a sealed batch lie, behind its begin."""

    ref: KeyRef
    nonce_at: int
    start: int
    end: int

    @property
    def opened_bytes(self) -> int:
        return HEADER_BYTES + self.end - TAG_BYTES - self.start


def key_ref(batch: Buffer, pos: int, header: BatchHeader) -> KeyRef:
    """Return what the sealed batch at `pos` was sealed by; raises `SealBroken`."""
    return _parts(batch, pos, header).ref


def _parts(batch: Buffer, pos: int, header: BatchHeader) -> _Sealed:
    size_bytes = header.size_bytes
    if size_bytes < _NAME_AT or batch[pos + HEADER_BYTES] != FORM:
        raise SealBroken(
            f"the batch at offset {header.base_offset} is sealed in a form that this version does not know"
        )
    name_bytes = batch[pos + HEADER_BYTES + 1]
    version_at = _NAME_AT + name_bytes
    start = version_at + _AFTER_NAME_BYTES
    if not 0 < name_bytes <= KEY_NAME_BYTES_MAX or start + TAG_BYTES > size_bytes:
        raise SealBroken(f"the sealed batch at offset {header.base_offset} is cut off")
    head = bytes(batch[pos + _NAME_AT : pos + start])
    name, rest = head[:name_bytes], head[name_bytes:]
    if not name.isascii():
        raise SealBroken(f"the sealed batch at offset {header.base_offset} names no key")
    ref = KeyRef(name.decode(), rest[:VERSION_BYTES], rest[VERSION_BYTES:-NONCE_BYTES])
    return _Sealed(ref, start - NONCE_BYTES, start, size_bytes)


FindCipher = Callable[[KeyRef], Cipher]
"""Return what opens batches of a reference; raises what says why that is not to be had."""


def opened(data: Buffer, place: LogPlace, find: FindCipher) -> bytearray:
    """Return whole batches of the log `place`, those that are sealed opened, all others as they are.

    Raises `SealBroken`, and what `find` raises. Nothing is returned unless all of it is sound.
    """
    layout = _layout(data)
    result = bytearray(sum(size for *_, size in layout))
    at = 0
    with memoryview(data) as given, memoryview(result) as view:
        for pos, header, parts, size_bytes in layout:
            into = view[at : at + size_bytes]
            if parts is None:
                into[:] = given[pos : pos + size_bytes]
            else:
                _open_one(given[pos : pos + header.size_bytes], header, parts, (place, find), into)
            at += size_bytes
    return result


def _layout(data: Buffer) -> list[tuple[int, BatchHeader, _Sealed | None, int]]:
    """Return (position, header, where its parts lie, bytes once opened) of each batch."""
    layout: list[tuple[int, BatchHeader, _Sealed | None, int]] = []
    try:
        for pos, header in iter_headers(data):
            if header.is_sealed:
                parts = _parts(data, pos, header)
                layout.append((pos, header, parts, parts.opened_bytes))
            else:
                layout.append((pos, header, None, header.size_bytes))
    except BatchError as error:
        raise SealBroken(str(error)) from error
    return layout


def _open_one(
    batch: memoryview,
    header: BatchHeader,
    parts: _Sealed,
    how: tuple[LogPlace, FindCipher],
    into: memoryview,
) -> None:
    place, find = how
    cipher = find(parts.ref)
    bound = place.bound + batch[_CRC_COVERS_FROM : parts.nonce_at]
    try:
        cipher.decrypt_into(
            batch[parts.nonce_at : parts.start], batch[parts.start :], bound, into[HEADER_BYTES:]
        )
    except _invalid_tag():  # it is looked at only where something was raised
        into[HEADER_BYTES:] = bytes(len(into) - HEADER_BYTES)
        raise SealBroken(
            f"the sealed batch at offset {header.base_offset} is not what was sealed for this log"
        ) from None
    into[_CRC_COVERS_FROM:HEADER_BYTES] = batch[_CRC_COVERS_FROM:HEADER_BYTES]
    into[_CRC_COVERS_FROM] &= ~_SEALED_HIGH
    _finish(into, header)


def _invalid_tag() -> type[Exception]:
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 -- INV-LEAN3

    return InvalidTag
