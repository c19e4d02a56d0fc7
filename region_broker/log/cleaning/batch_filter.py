"""One batch without some of its records.

INV-CLB1  offsets, sequences, producer and codec of a batch stay; its offset range stays, so holes lie inside it
INV-CLB3  a tombstone or a marker that may go some day says when: bit 0x40, the time in the place of the base timestamp
         (KIP-534); record timestamps stay what they were
INV-CLB4  what a producer wrote under a right CRC may be anything: `walk` yields records whose offsets grow and lie inside
         the batch and whose times fit 64 bits, or raises RecordsError, and nothing else is raised here
A batch of which every record is kept, and that needs no delete horizon, stays byte for byte.

Source: Kafka MemoryRecords.java `filterTo`, DefaultRecordBatch.java `writeEmptyHeader`.
Not here: which records are kept (`rewriting`).
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from idempotency.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_varint,
    write_varint,
)
from region_broker.records.batches import INT64_MAX, INT64_MIN, RecordsError
from region_broker.records.compression import Codec, CompressionError, compress, decompress

DELETE_HORIZON_BIT: Final = 0x40
NO_TIMESTAMP_MS: Final = -1
_FRONT: Final = struct.Struct(">qiibI")
_COVERED: Final = struct.Struct(">hiqqqhii")

Keeps = Callable[[int, bytes | None, bool], bool]
"""(offset, key, has a value) -> whether the record stays."""


class RecordAt(NamedTuple):
    """Where one record lies in a batch's decompressed body, and what a cleaner asks of it."""

    offset_delta: int
    timestamp_delta_ms: int
    key: bytes | None
    has_value: bool
    start: int
    behind_timestamp: int
    end: int


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """Return from when on tombstones and markers of the batch may go; None if that was not decided yet."""
    return header.base_timestamp_ms if header.attributes & DELETE_HORIZON_BIT else None


def open_body(batch: bytes, header: BatchHeader) -> bytes:
    """Return the batch's records, decompressed; raises RecordsError, also where they are sealed: those stay as they are (INV-CLW5)."""
    if header.is_sealed:
        raise RecordsError("the records are sealed")
    try:
        return decompress(Codec(header.codec), batch[HEADER_BYTES:])
    except (ValueError, CompressionError) as error:
        raise RecordsError(str(error)) from error


def walk(body: bytes, header: BatchHeader) -> Iterator[RecordAt]:
    """Yield the records of a batch's decompressed body; raises RecordsError unless they are what the header says."""
    position, lowest = 0, 0
    for index in range(header.record_count):
        try:
            record = _record_at(body, position)
        except (IndexError, ValueError) as error:
            raise RecordsError(f"record {index} is damaged: {error}", index) from error
        if not lowest <= record.offset_delta <= header.last_offset_delta:
            raise RecordsError(
                f"record {index} has offset delta {record.offset_delta}, which is out of order",
                index,
            )
        if not _fits(header.base_timestamp_ms + record.timestamp_delta_ms):
            raise RecordsError(f"the time of record {index} does not fit 64 bits", index)
        yield record
        position, lowest = record.end, record.offset_delta + 1
    if position != len(body):
        raise RecordsError(f"{len(body) - position} bytes follow the last record")


def _fits(time_ms: int) -> bool:
    return INT64_MIN <= time_ms <= INT64_MAX


def _record_at(body: bytes, start: int) -> RecordAt:
    size_bytes, position = read_varint(body, start)
    end = position + size_bytes
    if size_bytes <= 0 or end > len(body):
        raise ValueError(f"record of {size_bytes} bytes with {len(body) - position} left")
    timestamp_delta_ms, behind_timestamp = read_varint(body, position + 1)
    offset_delta, position = read_varint(body, behind_timestamp)
    key_bytes, position = read_varint(body, position)
    key = None
    if key_bytes >= 0:
        key = body[position : position + key_bytes]
        position += key_bytes
    value_bytes, position = read_varint(body, position)
    if key_bytes < -1 or value_bytes < -1 or position + max(value_bytes, 0) > end:
        raise ValueError("key and value run past the record")
    return RecordAt(
        offset_delta, timestamp_delta_ms, key, value_bytes >= 0, start, behind_timestamp, end
    )


def filtered(batch: bytes, header: BatchHeader, keeps: Keeps, new_horizon_ms: int) -> bytes | None:
    """Return the batch with the records that `keeps` names, None if there are none.

    `new_horizon_ms` is when its tombstones may go, where that was not decided before. Raises RecordsError.
    """
    body = open_body(batch, header)
    base_offset = header.base_offset
    kept: list[RecordAt] = []
    tombstones = False
    for record in walk(body, header):
        if keeps(base_offset + record.offset_delta, record.key, record.has_value):
            kept.append(record)
            tombstones = tombstones or not record.has_value
    if not kept:
        return None
    horizon_ms = new_horizon_ms if tombstones and delete_horizon_ms(header) is None else None
    if len(kept) == header.record_count and horizon_ms is None:
        return batch
    return _rebuilt(header, body, kept, horizon_ms)


def with_delete_horizon(batch: bytes, header: BatchHeader, horizon_ms: int) -> bytes:
    """Return the (marker's) batch with the time from which on it may go."""
    body = open_body(batch, header)
    return _rebuilt(header, body, list(walk(body, header)), horizon_ms)


def emptied(header: BatchHeader) -> bytes:
    """Return the batch without records: its header keeps the producer's sequence, and the offsets taken."""
    attributes = header.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _assembled(header, attributes, (NO_TIMESTAMP_MS, header.max_timestamp_ms), 0, b"")


def _rebuilt(
    header: BatchHeader, body: bytes, kept: list[RecordAt], horizon_ms: int | None
) -> bytes:
    first_ms = header.base_timestamp_ms
    if horizon_ms is None:
        attributes, base_ms = header.attributes, first_ms
        records = b"".join(body[record.start : record.end] for record in kept)
    else:
        attributes, base_ms = header.attributes | DELETE_HORIZON_BIT, horizon_ms
        records = b"".join(_moved(body, record, first_ms - horizon_ms) for record in kept)
    max_ms = header.max_timestamp_ms
    if not attributes & LOG_APPEND_TIME_BIT:
        max_ms = first_ms + max(record.timestamp_delta_ms for record in kept)
    codec = Codec(attributes & CODEC_MASK)
    return _assembled(header, attributes, (base_ms, max_ms), len(kept), compress(codec, records))


def _moved(body: bytes, record: RecordAt, by_ms: int) -> bytes:
    """Return the record with its timestamp written as the distance from another base; raises RecordsError."""
    rest = body[record.behind_timestamp : record.end]
    delta_ms = record.timestamp_delta_ms + by_ms
    if not _fits(delta_ms):
        raise RecordsError(f"a time {delta_ms} ms from the delete horizon does not fit 64 bits")
    content = b"\x00" + write_varint(delta_ms) + rest
    return write_varint(len(content)) + content


def _assembled(
    header: BatchHeader, attributes: int, times_ms: tuple[int, int], count: int, payload: bytes
) -> bytes:
    covered = (
        _COVERED.pack(
            attributes,
            header.last_offset_delta,
            *times_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            count,
        )
        + payload
    )
    front = _FRONT.pack(
        header.base_offset,
        HEADER_BYTES - LENGTH_PREFIX_BYTES + len(payload),
        header.leader_epoch,
        header.magic,
        crc32c(covered),
    )
    return front + covered
