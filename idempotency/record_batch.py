"""The record batch v2 header and the control batch: the layout that log, wire, link and scanner share.

INV-B1  Bytes behind the leader epoch never change once written; `stamped_front` holds only base offset, length and
        leader epoch, which the CRC does not cover.
INV-B2  A marker batch holds one control record and takes exactly one offset (C34, B12).

Not here: records inside a data batch, compression (`region_broker.records.batches`).
Source: Kafka clients DefaultRecordBatch.java, DefaultRecord.java, EndTransactionMarker.java (KIP-98).
"""

import struct
from collections.abc import Iterator
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

from idempotency.decision import DECISION_HEADER, DecisionError, DecisionId
from idempotency.identity import (
    NO_LEADER_EPOCH,
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
)

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PLACE: Final = struct.Struct(">qii")
_PLACE_AND_CRC: Final = struct.Struct(">qiixIhi")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")
_CONTROL_KEY: Final = struct.Struct(">hh")
_END_TXN_MARKER: Final = struct.Struct(">hi")

HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
MAGIC: Final = 2
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_CRC_COVERS_FROM: Final = 21
_BATCH_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
SEALED_BIT: Final = 0x4000
"""The records section is sealed: a bit that Kafka leaves unused (`region_broker.security.sealing`, ADR 61)."""

_MARKER_VERSION: Final = 0
_REMEMBERED_FRONTS_MAX: Final = 64
_SEQUENCE_MASK: Final = 2**31 - 1

assert _HEADER.size == HEADER_BYTES
FRONT_BYTES: Final = _PLACE.size
assert FRONT_BYTES == _MAGIC_AT
assert _CRC_COVERS_FROM + _AFTER_CRC.size == HEADER_BYTES


class BatchFault(Enum):
    """Why bytes are not a batch."""

    SHORT = "short"
    LENGTH = "length"
    MAGIC = "magic"
    MARKER = "marker"


class BatchError(ValueError):
    """Bytes that are not a record batch v2; `reason` says which rule they break."""

    def __init__(self, reason: BatchFault, message: str) -> None:
        """Keep the machine-readable `reason` beside the text."""
        super().__init__(message)
        self.reason: Final = reason


class BatchHeader(NamedTuple):
    """The 61 bytes in front of a batch's records, in wire order.

    `batch_length` counts the bytes behind the length field; timestamps are ms since the Unix epoch.
    """

    base_offset: int
    batch_length: int
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: SequenceNumber
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_PREFIX_BYTES + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the batch's last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch is a marker, not data."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_sealed(self) -> bool:
        """Whether the records are sealed: what is said of them holds once they are opened."""
        return self.attributes & SEALED_BIT != 0

    @property
    def codec(self) -> int:
        """Compression codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def last_sequence(self) -> SequenceNumber:
        """Sequence of the last record, wrapping 2**31 - 1 to 0; -1 without a sequence."""
        if self.base_sequence < 0:
            return self.base_sequence
        return SequenceNumber((self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK)

    def stamped(self, *, base_offset: int, leader_epoch: LeaderEpoch) -> "BatchHeader":
        """Return the header as `stamp` leaves it in the bytes."""
        return _header((base_offset, self.batch_length, leader_epoch, *self[3:]))


class ControlType(IntEnum):
    """What a marker says, with Kafka's numbers."""

    ABORT = 0
    COMMIT = 1


class MarkerFacts(msgspec.Struct, frozen=True):
    """All that a marker batch says; `decision` is None for markers of software without T6."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    control_type: ControlType
    coordinator_epoch: CoordinatorEpoch
    decision: DecisionId | None
    timestamp_ms: int


def _header(fields: tuple[int, ...]) -> BatchHeader:
    # `_make` without its check of the count: that is half of what reading a header takes.
    return tuple.__new__(BatchHeader, fields)


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Return the header of the batch that starts at `pos`; its records may be missing.

    Raises:
        BatchError: fewer than 61 bytes, a magic other than 2, or an impossible length.
    """
    available = len(buf) - pos
    if available > _MAGIC_AT and buf[pos + _MAGIC_AT] != MAGIC:
        raise BatchError(
            BatchFault.MAGIC,
            f"message format {buf[pos + _MAGIC_AT]} is not supported, only record batches v2: "
            "use a client of Kafka protocol 0.11 or later",
        )
    if available < HEADER_BYTES:
        raise BatchError(
            BatchFault.SHORT, f"a batch header has {HEADER_BYTES} bytes, got {available}"
        )
    header = _header(_HEADER.unpack_from(buf, pos))
    if header.batch_length < _BATCH_LENGTH_MIN:
        raise BatchError(
            BatchFault.LENGTH,
            f"batch length {header.batch_length} is below the header's own {_BATCH_LENGTH_MIN}",
        )
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise BatchError(
            BatchFault.LENGTH,
            f"negative count: last offset delta {header.last_offset_delta}, "
            f"records {header.record_count}",
        )
    return header


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch; stop at an incomplete tail.

    Raises:
        BatchError: a whole header with a wrong magic or an impossible length.
    """
    pos = 0
    end = len(buf)
    while end - pos >= HEADER_BYTES:
        header = read_header(buf, pos)
        next_pos = pos + LENGTH_PREFIX_BYTES + header.batch_length
        if next_pos > end:
            return
        yield pos, header
        pos = next_pos


def crc_ok(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    """Return whether the whole batch at `pos` has the CRC32C that its header promises."""
    end = pos + header.size_bytes
    if end > len(buf):
        return False
    return crc32c(memoryview(buf)[pos + _CRC_COVERS_FROM : end]) == header.crc


class LookedOver(NamedTuple):
    """What `look_over` found: so many sound bytes of so many batches, where offsets go on, the bits of all attributes, and whether a bad batch
    comes next; if none does, and bytes are left, these were not looked at.
    """

    sound_bytes: int
    batch_count: int
    next_offset: int
    seen: int
    is_bad: bool


def look_over(
    buf: Buffer,
    offset: int,
    *,
    leader_epoch: LeaderEpoch | None = None,
    gap_below: int = 0,
    batches_max: int | None = None,
) -> LookedOver:
    """Return how far `buf` is what was written, and what it is; at most `batches_max` batches are looked at, 1.6 us each.

    The first batch must hold or follow `offset`, the others continue it, with gaps only below `gap_below`; all are
    of `leader_epoch`, if given: offsets and leader epoch are not under the CRC. For reads that leave the node.
    """
    pos, end, view = 0, len(buf), memoryview(buf)
    unpack = _PLACE_AND_CRC.unpack_from
    lowest, highest, seen, count = 0, offset, 0, 0
    while pos < end and count != batches_max:
        if end - pos < HEADER_BYTES:
            return LookedOver(pos, count, highest, seen, True)
        base, batch_length, epoch, crc, attributes, last_delta = unpack(buf, pos)
        stop = pos + LENGTH_PREFIX_BYTES + batch_length
        if (
            batch_length < _BATCH_LENGTH_MIN
            or stop > end
            or crc32c(view[pos + _CRC_COVERS_FROM : stop]) != crc
            or not (lowest <= base <= highest or highest < base <= gap_below)
            or base + last_delta < highest
            or (leader_epoch is not None and epoch != leader_epoch)
        ):
            return LookedOver(pos, count, highest, seen, True)
        seen |= attributes
        lowest = highest = base + last_delta + 1
        pos = stop
        count += 1
    return LookedOver(pos, count, highest, seen, False)


def stamped_front(header: BatchHeader) -> bytes:
    """Return the first bytes of a batch up to and with the leader epoch, as `header` says; the rest follows them."""
    return _PLACE.pack(header.base_offset, header.batch_length, header.leader_epoch)


def build_marker(
    marker: MarkerFacts, *, base_offset: int = 0, leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
) -> bytes:
    """Return the control batch of `marker`: one record, one offset (C34)."""
    records = _control_record(marker)
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    covered = (
        _AFTER_CRC.pack(
            attributes, 0, marker.timestamp_ms, marker.timestamp_ms,
            marker.producer_id, marker.producer_epoch, -1, 1,
        )
        + records
    )  # fmt: skip
    head = struct.pack(
        ">qiibI",
        base_offset,
        _BATCH_LENGTH_MIN + len(records),
        leader_epoch,
        MAGIC,
        crc32c(covered),
    )
    return head + covered


def read_marker(batch: Buffer) -> MarkerFacts:
    """Return what the control batch says; `batch` starts at the batch and may run past it.

    Raises:
        BatchError: not a control batch, or its record is not an end-transaction marker.
    """
    header = read_header(batch)
    if not header.is_control:
        raise BatchError(BatchFault.MARKER, "a data batch was read as a marker")
    if header.size_bytes > len(batch):
        raise BatchError(BatchFault.SHORT, "the marker batch is cut off")
    try:
        key, value, decision = _read_control_record(bytes(batch[HEADER_BYTES : header.size_bytes]))
        key_version, type_number = _CONTROL_KEY.unpack_from(key)
        marker_version, coordinator_epoch = _END_TXN_MARKER.unpack_from(value)
        control_type = ControlType(type_number)
    except (struct.error, IndexError, ValueError) as error:
        raise BatchError(BatchFault.MARKER, f"unreadable control record: {error}") from error
    if key_version < 0 or marker_version < 0:
        raise BatchError(BatchFault.MARKER, "negative version in a control record")
    return MarkerFacts(
        header.producer_id, header.producer_epoch, control_type,
        coordinator_epoch, decision, header.max_timestamp_ms,
    )  # fmt: skip


def _control_record(marker: MarkerFacts) -> bytes:
    decision = None if marker.decision is None else marker.decision.encode()
    front = _control_front(
        marker.control_type, marker.coordinator_epoch, -1 if decision is None else len(decision)
    )
    return front if decision is None else front + decision


@lru_cache(_REMEMBERED_FRONTS_MAX)
def _control_front(
    control_type: ControlType, coordinator_epoch: CoordinatorEpoch, decision_bytes: int
) -> bytes:
    """Return the record up to the bytes of its decision; -1: it has none."""
    key = _CONTROL_KEY.pack(_MARKER_VERSION, control_type)
    value = _END_TXN_MARKER.pack(_MARKER_VERSION, coordinator_epoch)
    body = bytearray(b"\x00")  # record attributes
    body += write_varint(0)  # timestamp delta
    body += write_varint(0)  # offset delta
    body += write_varint(len(key)) + key
    body += write_varint(len(value)) + value
    if decision_bytes < 0:
        body += write_varint(0)
        return write_varint(len(body)) + bytes(body)
    body += write_varint(1)
    body += write_varint(len(DECISION_HEADER)) + DECISION_HEADER
    body += write_varint(decision_bytes)
    return write_varint(len(body) + decision_bytes) + bytes(body)


def _read_control_record(record: bytes) -> tuple[bytes, bytes, DecisionId | None]:
    _, pos = read_varint(record, 0)  # length
    pos += 1  # attributes
    _, pos = read_varint(record, pos)  # timestamp delta
    _, pos = read_varint(record, pos)  # offset delta
    key, pos = _read_block(record, pos)
    value, pos = _read_block(record, pos)
    header_count, pos = read_varint(record, pos)
    decision: DecisionId | None = None
    for _ in range(header_count):
        name, pos = _read_block(record, pos)
        content, pos = _read_block(record, pos)
        if name == DECISION_HEADER:
            decision = DecisionId.decode(content)
    return key, value, decision


def _read_block(data: bytes, pos: int) -> tuple[bytes, int]:
    length, pos = read_varint(data, pos)
    if length < 0 or pos + length > len(data):
        raise ValueError(f"field of {length} bytes at {pos} runs past the record")
    return data[pos : pos + length], pos + length


def write_varint(value: int) -> bytes:
    """Return the zigzag variable-length form of a 64-bit `value` (KIP-98 record fields)."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data: Buffer, pos: int) -> tuple[int, int]:
    """Return (value, position behind it) of the zigzag varint at `pos`.

    Raises:
        IndexError: the data ends inside the number.
        ValueError: more than ten bytes.
    """
    raw = 0
    for shift in range(0, 70, 7):
        byte = data[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos
    raise ValueError("varint of more than ten bytes")


__all__ = [
    "CODEC_MASK", "CONTROL_BIT", "FRONT_BYTES", "HEADER_BYTES", "LENGTH_PREFIX_BYTES", "LOG_APPEND_TIME_BIT",
    "MAGIC", "SEALED_BIT", "TRANSACTIONAL_BIT", "BatchError", "BatchFault", "BatchHeader", "Buffer",
    "ControlType", "DecisionError", "MarkerFacts", "build_marker", "crc_ok", "iter_headers",
    "look_over", "read_header", "read_marker", "read_varint", "stamped_front", "write_varint",
]  # fmt: skip
