"""What a client's batch must be before its sequence is judged: whole, sound, and of a kind clients may send.

INV-AD2  a batch that passes is exactly one batch, its CRC is right, and its count fits its offsets
INV-AD3  nor are there more records than it can hold: each says how far offsets go on, and a segment holds 2^31 of them at most, so a header alone
         could begin a new one with each batch
The header is parsed once; records are never decoded.

Not here: sequences, epochs, open transactions (`PartitionState.judge`).
Source: Kafka LogValidator.java, DefaultRecordBatch.java `ensureValid` (KIP-98).
"""

from enum import Enum, auto
from typing import Final

import msgspec

from idempotency.partition_state import Verdict
from idempotency.record_batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    SEALED_BIT,
    TRANSACTIONAL_BIT,
    BatchError,
    BatchFault,
    BatchHeader,
    Buffer,
    crc_ok,
    read_header,
)
from region_broker.limits import RECORD_COUNT_MAX

CODEC_MAX: Final = 4
_PACKED_RECORDS_OF_A_BYTE: Final = 128
"""No codec comes near it: each record has an offset of its own, which the one before has not. 2^31 offsets, a segment's most, take 16 MB so."""
_RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, two lengths and the count of headers: a byte each at least (KIP-98)."""


class AppendVerdict(Enum):
    """What became of an append."""

    APPENDED = auto()
    DUPLICATE = auto()
    """Was in the log before: success with the original offset, once that is below HW."""
    OUT_OF_ORDER_SEQUENCE = auto()
    STALE_PRODUCER_EPOCH = auto()
    INVALID_TXN_STATE = auto()
    CORRUPT = auto()
    """Cut off, wrong length or wrong CRC."""
    INVALID_RECORD = auto()
    """Sound, but nothing that a client may send."""
    TOO_LARGE = auto()
    """Larger than `max.message.bytes`."""
    LARGER_THAN_SEGMENT = auto()
    """Larger than `segment.bytes`: no segment may hold it."""
    INVALID_TIMESTAMP = auto()
    """Too far from this node's clock, or of a type that only brokers set."""
    NOT_LEADER = auto()
    STORAGE_FAILED = auto()
    """The partition has stopped; the batch may or may not be found after a restart."""
    COORDINATOR_FENCED = auto()
    MARKER_ALREADY_APPLIED = auto()
    """Success, once `next_offset` is below HW (T6)."""
    UNSUPPORTED_MAGIC = auto()
    KEY_NOT_HERE = auto()
    """The topic is sealed, and this node has not the key: it takes nothing rather than keep it plain."""
    TOO_MANY_PRODUCERS = auto()
    """The producer is new, and there is no room for one more (INV-PRR1)."""


APPEND_VERDICTS: Final = {
    Verdict.DUPLICATE: AppendVerdict.DUPLICATE,
    Verdict.OUT_OF_ORDER_SEQUENCE: AppendVerdict.OUT_OF_ORDER_SEQUENCE,
    Verdict.STALE_PRODUCER_EPOCH: AppendVerdict.STALE_PRODUCER_EPOCH,
    Verdict.INVALID_TXN_STATE: AppendVerdict.INVALID_TXN_STATE,
    Verdict.INVALID_RECORD: AppendVerdict.INVALID_RECORD,
    Verdict.COORDINATOR_FENCED: AppendVerdict.COORDINATOR_FENCED,
    Verdict.MARKER_ALREADY_APPLIED: AppendVerdict.MARKER_ALREADY_APPLIED,
}
assert set(APPEND_VERDICTS) == set(Verdict) - {Verdict.FRESH}


class AppendOutcome(msgspec.Struct, frozen=True):
    """What became of one batch; wait for `next_offset` before saying so. Offsets are -1 on refusal."""

    verdict: AppendVerdict
    base_offset: int = -1
    next_offset: int = -1
    log_append_time_ms: int = -1
    detail: str = ""
    bad_records: tuple[int, ...] = ()
    """Which records of a refused batch are the reason, counted from 0; at most RECORD_ERRORS_MAX (KIP-467)."""


def too_large(data: Buffer, batch_bytes_max: int) -> AppendOutcome | None:
    """Return why a client's batch is refused for its size; of fresh ones only: a retry of what is there has its answer (INV-FIT3)."""
    if len(data) <= batch_bytes_max:
        return None
    return AppendOutcome(
        AppendVerdict.TOO_LARGE,
        detail=f"the batch has {len(data)} bytes, max.message.bytes is {batch_bytes_max}",
    )


def check_client_batch(data: Buffer) -> BatchHeader | AppendOutcome:
    """Return the header of a client's batch, or why it is refused."""
    try:
        header = read_header(data)
    except BatchError as error:
        magic = error.reason is BatchFault.MAGIC
        verdict = AppendVerdict.UNSUPPORTED_MAGIC if magic else AppendVerdict.CORRUPT
        return AppendOutcome(verdict, detail=str(error))
    if header.size_bytes != len(data):
        return _wrong_length(data, header)
    if not crc_ok(data, 0, header):
        return AppendOutcome(AppendVerdict.CORRUPT, detail="the CRC of the batch does not match")
    reason = _invalid(header)
    if reason:
        return AppendOutcome(AppendVerdict.INVALID_RECORD, detail=reason)
    return header


def _wrong_length(data: Buffer, header: BatchHeader) -> AppendOutcome:
    if HEADER_BYTES <= header.size_bytes < len(data):
        return AppendOutcome(
            AppendVerdict.INVALID_RECORD,
            detail=f"one batch per partition and request: {len(data) - header.size_bytes} bytes follow it",
        )
    return AppendOutcome(
        AppendVerdict.CORRUPT,
        detail=f"the batch says {header.size_bytes} bytes, {len(data)} were sent",
    )


def _invalid(header: BatchHeader) -> str:
    if header.record_count <= 0 or header.last_offset_delta != header.record_count - 1:
        return (
            f"{header.record_count} records with last offset delta {header.last_offset_delta}: "
            "a client's batch holds one record for each offset"
        )
    if header.record_count > _records_max(header):
        return f"{header.record_count} records do not fit into a batch of {header.size_bytes} bytes, or into any"
    if header.base_offset != 0:
        return f"a client's batch starts at offset 0, not at {header.base_offset}: the broker gives offsets"
    attributes = header.attributes
    if attributes & CONTROL_BIT:
        return "only the broker writes control batches"
    if attributes & TRANSACTIONAL_BIT and header.producer_id < 0:
        return "a transactional batch needs a producer id"
    if attributes & SEALED_BIT:
        return f"bit {SEALED_BIT:#x} of its attributes says that a broker has sealed it: no client sets that"
    if attributes & CODEC_MASK > CODEC_MAX:
        return f"compression codec {header.codec} is unknown"
    return ""


def _records_max(header: BatchHeader) -> int:
    """Return how many records a batch may say that it has; what packed ones hold nobody knows before they are unpacked (INV-AD3)."""
    payload_bytes = header.size_bytes - HEADER_BYTES
    if header.attributes & CODEC_MASK:
        return min(RECORD_COUNT_MAX, payload_bytes * _PACKED_RECORDS_OF_A_BYTE)
    return min(RECORD_COUNT_MAX, payload_bytes // _RECORD_BYTES_MIN)
