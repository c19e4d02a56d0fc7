"""Record batch layout against aiokafka and kio as oracles: our own reading may be wrong twice."""

import contextlib
import struct

import pytest
from aiokafka.record.control_record import ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from kio.schema.end_txn_marker.v0 import EndTxnMarker
from kio.serial import entity_reader

from idempotency.identity import LeaderEpoch
from idempotency.record_batch import (
    BatchError,
    BatchFault,
    ControlType,
    build_marker,
    crc_ok,
    iter_headers,
    read_header,
    read_marker,
)
from tests.fixtures.kernel_batches import data, decision, marker, stamp


def foreign_batch(
    count: int = 3, *, codec: int = 0, producer_epoch: int = 5, transactional: bool = True
) -> bytes:
    """Return a batch as aiokafka builds it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(transactional),
        producer_id=123_456_789_012,
        producer_epoch=producer_epoch,
        base_sequence=77,
        batch_size=100_000,
    )
    for n in range(count):
        builder.append(n, 1_700_000_000_000 + n, b"key", b"value" * 20, [("h", b"x")])
    return bytes(builder.build())


@pytest.mark.parametrize("codec", [0, 1])
def test_header_of_a_foreign_batch_reads_field_by_field(codec: int) -> None:
    raw = foreign_batch(codec=codec)
    header, oracle = read_header(raw), DefaultRecordBatch(raw)
    assert header.size_bytes == len(raw)
    assert (header.base_offset, header.last_offset, header.next_offset) == (0, 2, 3)
    names = (
        "base_offset", "next_offset", "magic", "crc", "attributes", "last_offset_delta",
        "producer_id", "producer_epoch", "base_sequence", "is_transactional",
    )  # fmt: skip
    assert [getattr(header, name) for name in names] == [getattr(oracle, name) for name in names]
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (
        1_700_000_000_000,
        1_700_000_000_002,
    )
    assert (header.producer_id, header.producer_epoch) == (123_456_789_012, 5)
    assert (header.base_sequence, header.last_sequence, header.record_count) == (77, 79, 3)
    assert (header.is_transactional, header.is_control, header.codec) == (True, False, codec)


def test_crc_of_a_foreign_batch_holds_and_a_flipped_bit_breaks_it() -> None:
    raw = bytearray(foreign_batch())
    header = read_header(raw)
    assert crc_ok(raw, 0, header)
    assert crc_ok(memoryview(raw), 0, header)
    for position in (21, 30, 60, len(raw) - 1):
        raw[position] ^= 1
        assert not crc_ok(raw, 0, header)
        raw[position] ^= 1


def test_crc_of_a_cut_off_batch_does_not_hold() -> None:
    raw = foreign_batch()
    assert not crc_ok(raw[:-1], 0, read_header(raw))


# Holds INV-B1.
def test_stamp_changes_offset_and_epoch_and_keeps_the_crc() -> None:
    raw = bytearray(b"\x00" * 7 + foreign_batch())
    stamp(raw, 7, base_offset=2**40, leader_epoch=8 << 16)
    header = read_header(raw, 7)
    assert (header.base_offset, header.leader_epoch) == (2**40, 8 << 16)
    assert crc_ok(raw, 7, header)
    assert DefaultRecordBatch(bytes(raw[7:])).base_offset == 2**40


def test_stamped_header_equals_the_header_of_stamped_bytes() -> None:
    raw = bytearray(foreign_batch())
    before = read_header(raw)
    stamp(raw, 0, base_offset=41, leader_epoch=9)
    assert before.stamped(base_offset=41, leader_epoch=LeaderEpoch(9)) == read_header(raw)


def test_iter_headers_walks_whole_batches_and_stops_at_a_torn_tail() -> None:
    one, two = foreign_batch(1), foreign_batch(2)
    whole = one + two
    assert [pos for pos, _ in iter_headers(whole)] == [0, len(one)]
    for cut in (1, 60, 61, len(two) - 1):
        assert [pos for pos, _ in iter_headers(one + two[:cut])] == [0]
    assert list(iter_headers(b"")) == []


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", BatchFault.SHORT),
        (foreign_batch()[:16], BatchFault.SHORT),
        (foreign_batch()[:60], BatchFault.SHORT),
        (foreign_batch()[:16] + b"\x01" + foreign_batch()[17:], BatchFault.MAGIC),
        (foreign_batch()[:16] + b"\x00", BatchFault.MAGIC),
        (foreign_batch()[:8] + struct.pack(">i", 48) + foreign_batch()[12:], BatchFault.LENGTH),
        (foreign_batch()[:8] + struct.pack(">i", -1) + foreign_batch()[12:], BatchFault.LENGTH),
        (foreign_batch()[:23] + struct.pack(">i", -1) + foreign_batch()[27:], BatchFault.LENGTH),
    ],
)
def test_bytes_that_are_no_batch_are_refused_by_reason(raw: bytes, reason: BatchFault) -> None:
    with pytest.raises(BatchError) as refused:
        read_header(raw)
    assert refused.value.reason is reason


def test_last_sequence_wraps_to_zero() -> None:
    assert data(sequence=2**31 - 1, count=1).last_sequence == 2**31 - 1
    assert data(sequence=2**31 - 1, count=2).last_sequence == 0
    assert data(sequence=-1, count=5).last_sequence == -1


@pytest.mark.parametrize("control_type", list(ControlType))
@pytest.mark.parametrize("with_decision", [False, True])
def test_marker_is_read_alike_by_foreign_clients(
    control_type: ControlType, with_decision: bool
) -> None:
    decided = decision(99, stamp=7, leader_epoch=8 << 16, shard=3) if with_decision else None
    facts = marker(
        control_type,
        producer_id=2**40,
        producer_epoch=31_000,
        coordinator_epoch=17,
        decision=decided,
        timestamp_ms=1_700_000_000_123,
    )
    raw = build_marker(facts, base_offset=1_000, leader_epoch=LeaderEpoch(5))
    assert crc_ok(raw, 0, read_header(raw))
    batch = MemoryRecords(raw).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    assert batch.is_control_batch
    assert batch.is_transactional
    (record,) = list(batch)
    assert (record.offset, record.timestamp) == (1_000, 1_700_000_000_123)
    parsed = ControlRecord.parse(record.key)
    assert parsed.version == 0
    assert parsed.type_ == control_type.value
    end_txn_marker, _ = entity_reader(EndTxnMarker)(memoryview(record.value), 2)
    assert (record.value[:2], end_txn_marker.coordinator_epoch) == (b"\x00\x00", 17)
    expected = [] if decided is None else [("tidemark.decision", decided.encode())]
    assert list(record.headers) == expected
    assert read_marker(raw) == facts


def test_marker_of_software_without_decisions_is_read() -> None:
    assert read_marker(build_marker(marker(decision=None))).decision is None


def test_data_batch_is_not_read_as_a_marker() -> None:
    with pytest.raises(BatchError, match="data batch"):
        read_marker(foreign_batch())


def test_damaged_marker_raises_nothing_but_batch_errors() -> None:
    raw = bytearray(build_marker(marker(decision=decision(1))))
    for position in range(61, len(raw)):
        for value in (0x00, 0x7F, 0xFF):
            damaged = bytearray(raw)
            damaged[position] = value
            with contextlib.suppress(BatchError):
                read_marker(damaged)
