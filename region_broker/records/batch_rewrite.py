"""Batches that a broker writes otherwise than they came: in another codec, or with its own time.

Records keep their bytes, offsets and sequences: the codec around them changes, or the time above them. The CRC of the
result is right, and nothing here looks into a record.

Source: Kafka DefaultRecordBatch.java `setMaxTimestamp`, LogValidator.java (KIP-32, KIP-110).
Not here: when it is done (`partitions.record_rules`); dropping records (`log.cleaning`).
"""

import struct
from typing import Final

from crc32c import crc32c

from idempotency.record_batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    Buffer,
)
from region_broker.limits import DECOMPRESSED_BYTES_MAX
from region_broker.records.batches import RecordsError
from region_broker.records.compression import Codec, CompressionError, compress, decompress

_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
_ATTRIBUTES: Final = struct.Struct(">h")
_TIMESTAMP_MS: Final = struct.Struct(">q")
_LENGTH_AT: Final = 8
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35


def with_append_time(batch: Buffer, header: BatchHeader, now_ms: int) -> bytes:
    """Return the batch as of LogAppendTime: the bit is set, `now_ms` is the time of all its records (KIP-32)."""
    result = bytearray(batch)
    _ATTRIBUTES.pack_into(result, _ATTRIBUTES_AT, header.attributes | LOG_APPEND_TIME_BIT)
    _TIMESTAMP_MS.pack_into(result, _MAX_TIMESTAMP_AT, now_ms)
    return _with_crc(result)


def recompressed(
    batch: Buffer,
    header: BatchHeader,
    codec: Codec,
    *,
    level: int | None = None,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """Return the batch with its records in another codec; `header` is the batch's own.

    Raises RecordsError if the records cannot be decompressed, or to more than `max_bytes`.
    """
    with memoryview(batch) as view:
        head = bytearray(view[:HEADER_BYTES])
        body = bytes(view[HEADER_BYTES : header.size_bytes])
    try:
        records = decompress(Codec(header.codec), body, max_bytes=max_bytes)
        packed = compress(codec, records, level=level)
    except (ValueError, CompressionError) as error:
        raise RecordsError(str(error)) from error
    _ATTRIBUTES.pack_into(head, _ATTRIBUTES_AT, header.attributes & ~CODEC_MASK | codec)
    _LENGTH.pack_into(head, _LENGTH_AT, HEADER_BYTES - LENGTH_PREFIX_BYTES + len(packed))
    return _with_crc(head + packed)


def _with_crc(batch: bytearray) -> bytes:
    crc = crc32c(memoryview(batch)[_ATTRIBUTES_AT:])
    _CRC.pack_into(batch, _CRC_AT, crc)
    return bytes(batch)
