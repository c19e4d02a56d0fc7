"""Records in and out of record batches (magic 2): for ledgers, links, tests and validation.

INV-WB3  offsets that `iter_records` and `iter_times` yield grow and lie inside the batch, and times fit 64 bits
INV-WB4  who needs times alone pays for records, and not for what they hold: 18 kB of zstd may have 33 million headers, which take half a minute
What `build_batch` writes, `iter_records` reads back equal, for every codec. `iter_records` allocates no more than the
bytes it was given or the decompression cap allow, and raises `RecordsError` (never anything else) on hostile bytes.
Layout: https://kafka.apache.org/documentation/#recordbatch (KIP-98).
Not here: the header's layout and reading (`idempotency.record_batch`), the broker's produce and fetch paths:
those never look at records.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from idempotency.identity import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
)
from idempotency.record_batch import SEALED_BIT
from region_broker.limits import (
    DECOMPRESSED_BYTES_MAX,
    RECORD_COUNT_MAX,
    RECORD_HEADER_COUNT_MAX,
)
from region_broker.records.compression import Codec, CompressionError, compress, decompress

HEADER_BYTES: Final = 61
INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1
MAGIC: Final = 2
ATTRIBUTE_LOG_APPEND_TIME: Final = 0x08
ATTRIBUTE_TRANSACTIONAL: Final = 0x10
ATTRIBUTE_CONTROL: Final = 0x20
_CODEC_MASK: Final = 0x07
_CRC_START: Final = 21
_FRONT: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, crc
_BACK: Final = struct.Struct(">hiqqqhii")  # attributes .. record count, all under the CRC
_LENGTH_START: Final = 12


class RecordsError(Exception):
    """The bytes are no valid batch of records; `record_index` says where, -1 when it is the batch."""

    def __init__(self, reason: str, record_index: int = -1) -> None:
        """Say what is wrong."""
        super().__init__(reason)
        self.record_index = record_index


class Record(msgspec.Struct, frozen=True):
    """One record; `offset` is absolute when read and ignored when built."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    offset: int = 0


class Origin(msgspec.Struct, frozen=True):
    """Who writes a batch: the idempotent producer's coordinates, or none of them."""

    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    base_sequence: SequenceNumber = NO_SEQUENCE
    transactional: bool = False
    control: bool = False


NO_ORIGIN: Final = Origin()


def build_batch(
    records: Sequence[Record],
    *,
    origin: Origin = NO_ORIGIN,
    codec: Codec = Codec.NONE,
    base_offset: int = 0,
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
) -> bytes:
    """Return one batch of `records` (at least one) with offsets `base_offset`, +1, +2 ..."""
    assert records, "a batch holds at least one record"
    assert base_offset >= 0, base_offset
    base_timestamp_ms = records[0].timestamp_ms
    body = bytearray()
    for index, record in enumerate(records):
        _write_record(body, index, record, base_timestamp_ms)
    newest_ms = max(record.timestamp_ms for record in records)
    back = _back_of(len(records), (base_timestamp_ms, newest_ms), origin, codec)
    return _batch_of(back, compress(codec, bytes(body)), base_offset, leader_epoch)


def _back_of(
    count: int, timestamps_ms: tuple[int, int], origin: Origin, codec: Codec = Codec.NONE
) -> bytes:
    """Return what the CRC covers of the header; `timestamps_ms`: of the first and the newest record."""
    attributes = (
        int(codec)
        | (ATTRIBUTE_TRANSACTIONAL if origin.transactional else 0)
        | (ATTRIBUTE_CONTROL if origin.control else 0)
    )
    return _BACK.pack(
        attributes, count - 1, *timestamps_ms,
        origin.producer_id, origin.producer_epoch, origin.base_sequence, count,
    )  # fmt: skip


def _batch_of(
    back: bytes,
    payload: bytes | bytearray,
    base_offset: int = 0,
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH,
) -> bytes:
    front = _FRONT.pack(
        base_offset,
        _CRC_START + len(back) + len(payload) - _LENGTH_START,
        leader_epoch,
        MAGIC,
        crc32c(payload, crc32c(back)),
    )
    return b"".join((front, back, payload))


class BatchInParts:
    """A batch that is made record by record, all with one timestamp, so that a large one can be made in pieces."""

    __slots__ = ("_body", "count", "timestamp_ms")

    def __init__(self, timestamp_ms: int) -> None:
        """Begin without records."""
        self._body = bytearray()
        self.timestamp_ms = timestamp_ms
        self.count = 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the records so far."""
        return len(self._body)

    def add(self, key: bytes, value: bytes | None) -> None:
        """Write one more record."""
        record = Record(key, value, timestamp_ms=self.timestamp_ms)
        _write_record(self._body, self.count, record, self.timestamp_ms)
        self.count += 1

    def built(self, origin: Origin = NO_ORIGIN) -> bytes:
        """Return the batch, at offset 0; it has at least one record."""
        assert self.count > 0, "a batch holds at least one record"
        back = _back_of(self.count, (self.timestamp_ms, self.timestamp_ms), origin)
        return _batch_of(back, self._body)


def iter_records(
    batch: bytes | bytearray | memoryview, *, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """Yield the records of one batch, control records too; `RecordsError` when it is not whole.

    The CRC is not checked here: bytes from a log or a link are checked where they are appended.
    """
    opened = _opened(batch, max_bytes)
    base_offset, base_timestamp_ms = opened.base_offset, opened.base_timestamp_ms
    position, lowest = 0, base_offset
    for index in range(opened.record_count):
        try:
            record, position = _read_record(opened.body, position, base_offset, base_timestamp_ms)
            _check_place(record.offset, record.timestamp_ms, lowest, opened.last_offset)
        except (IndexError, UnicodeDecodeError, _Malformed) as error:
            raise RecordsError(f"record {index} is damaged: {error}", index) from error
        if opened.append_time_ms is not None:
            record = replace(record, timestamp_ms=opened.append_time_ms)
        yield record
        lowest = record.offset + 1
    opened.check_end(position)


def iter_times(batch: bytes | bytearray | memoryview) -> Iterator[tuple[int, int]]:
    """Yield offset and time in ms of each record of one batch; `RecordsError` where these are not whole.

    What else a record holds is skipped by its length (INV-WB4), and not looked at: `iter_records` may refuse the batch.
    """
    opened = _opened(batch, DECOMPRESSED_BYTES_MAX)
    base_offset, base_timestamp_ms = opened.base_offset, opened.base_timestamp_ms
    position, lowest = 0, base_offset
    for index in range(opened.record_count):
        try:
            timestamp_delta_ms, offset_delta, position = _read_place(opened.body, position)
            offset, timestamp_ms = (
                base_offset + offset_delta,
                base_timestamp_ms + timestamp_delta_ms,
            )
            _check_place(offset, timestamp_ms, lowest, opened.last_offset)
        except (IndexError, _Malformed) as error:
            raise RecordsError(f"record {index} is damaged: {error}", index) from error
        yield offset, timestamp_ms if opened.append_time_ms is None else opened.append_time_ms
        lowest = offset + 1
    opened.check_end(position)


class _Opened(NamedTuple):
    """A batch whose records are no longer compressed. `append_time_ms`: the time of all of them, None where each has its own."""

    body: bytes
    base_offset: int
    last_offset: int
    base_timestamp_ms: int
    append_time_ms: int | None
    record_count: int

    def check_end(self, position: int) -> None:
        """Raise `RecordsError` unless the last record ends where the body does."""
        if position != len(self.body):
            raise RecordsError(f"{len(self.body) - position} bytes follow the last record")


def _opened(batch: bytes | bytearray | memoryview, max_bytes: int) -> _Opened:
    view = memoryview(batch)
    if len(view) < HEADER_BYTES:
        raise RecordsError(f"{len(view)} bytes are less than a batch header")
    base_offset, batch_length, _, magic, _ = _FRONT.unpack_from(view)
    back = _BACK.unpack_from(view, _CRC_START)
    attributes, last_delta, base_timestamp_ms, max_timestamp_ms, _, _, _, count = back
    if magic != MAGIC:
        raise RecordsError(f"magic {magic} is not supported, only {MAGIC}")
    end = _LENGTH_START + batch_length
    if not HEADER_BYTES <= end <= len(view):
        raise RecordsError(f"batch length {batch_length} with {len(view)} bytes given")
    if not 0 <= count <= RECORD_COUNT_MAX:
        raise RecordsError(f"record count {count} is not in 0..{RECORD_COUNT_MAX}")
    body = _body_of(attributes, bytes(view[HEADER_BYTES:end]), max_bytes)
    append_time_ms = max_timestamp_ms if attributes & ATTRIBUTE_LOG_APPEND_TIME else None
    return _Opened(
        body, base_offset, base_offset + last_delta, base_timestamp_ms, append_time_ms, count
    )


def _body_of(attributes: int, section: bytes, max_bytes: int) -> bytes:
    """Return a records section decompressed; raises `RecordsError`."""
    if attributes & SEALED_BIT:
        raise RecordsError("its records are sealed: only a reader that has the key opens them")
    try:
        return decompress(Codec(attributes & _CODEC_MASK), section, max_bytes=max_bytes)
    except (ValueError, CompressionError) as error:
        raise RecordsError(str(error)) from error


class _Malformed(Exception):
    """A length inside a record makes no sense."""


def _check_place(offset: int, timestamp_ms: int, lowest: int, highest: int) -> None:
    if not lowest <= offset <= highest:
        raise _Malformed(f"its offset {offset} is not in {lowest}..{highest}")
    if not INT64_MIN <= timestamp_ms <= INT64_MAX:
        raise _Malformed(f"its time of {timestamp_ms} ms does not fit 64 bits")


def _write_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        _write_varint(out, -1)
    else:
        _write_varint(out, len(value))
        out += value


def _write_record(out: bytearray, index: int, record: Record, base_timestamp_ms: int) -> None:
    body = bytearray(1)  # attributes, unused
    _write_varint(body, record.timestamp_ms - base_timestamp_ms)
    _write_varint(body, index)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    _write_varint(body, len(record.headers))
    for name, value in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, value)
    _write_varint(out, len(body))
    out += body


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise _Malformed("a varint of more than 10 bytes")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position


def _read_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size_bytes, position = _read_varint(data, position)
    if size_bytes < 0:
        if size_bytes != -1:
            raise _Malformed(f"length {size_bytes}")
        return None, position
    stop = position + size_bytes
    if stop > end:
        raise _Malformed(f"length {size_bytes} with {end - position} bytes left")
    return data[position:stop], stop


def _record_of(data: bytes, position: int) -> tuple[int, int]:
    """Return where the content of a record begins, behind its attributes, and where it ends."""
    size_bytes, position = _read_varint(data, position)
    end = position + size_bytes
    if size_bytes <= 0 or end > len(data):
        raise _Malformed(f"record of {size_bytes} bytes with {len(data) - position} left")
    return position + 1, end


def _read_place(data: bytes, position: int) -> tuple[int, int, int]:
    """Return a record's timestamp and offset deltas, and where it ends."""
    position, end = _record_of(data, position)
    timestamp_delta_ms, position = _read_varint(data, position)
    offset_delta, position = _read_varint(data, position)
    if position > end:
        raise _Malformed(f"time and offset end {position - end} bytes behind its end")
    return timestamp_delta_ms, offset_delta, end


def _read_record(
    data: bytes, position: int, base_offset: int, base_timestamp_ms: int
) -> tuple[Record, int]:
    position, end = _record_of(data, position)
    timestamp_delta_ms, position = _read_varint(data, position)
    offset_delta, position = _read_varint(data, position)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    headers, position = _read_headers(data, position, end)
    if position != end:
        raise _Malformed(f"it ends {end - position} bytes before its length says")
    return Record(
        key, value, headers, base_timestamp_ms + timestamp_delta_ms, base_offset + offset_delta
    ), end


def _read_headers(
    data: bytes, position: int, end: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _read_varint(data, position)
    if not 0 <= count <= min(RECORD_HEADER_COUNT_MAX, end - position):
        raise _Malformed(f"header count {count}")
    if count == 0:
        return (), position
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position, end)
        if name is None:
            raise _Malformed("a header without a name")
        value, position = _read_bytes(data, position, end)
        headers.append((name.decode(), value))
    return tuple(headers), position
