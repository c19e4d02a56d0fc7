"""Codecs of the kernel: what is written is read, and no bytes make a reader do anything but refuse."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from idempotency.decision import DecisionError, DecisionId
from idempotency.identity import LeaderEpoch, SequenceNumber, TopicName, TopicPartition
from idempotency.ledger_records import (
    LedgerError,
    TransactionKey,
    TransactionRecord,
    TxnStatus,
    decode_key,
    decode_round_value,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from idempotency.partition_state import PartitionState, SnapshotError
from idempotency.record_batch import (
    BatchError,
    ControlType,
    MarkerFacts,
    build_marker,
    crc_ok,
    iter_headers,
    read_header,
    read_marker,
    read_varint,
    write_varint,
)
from idempotency.sequence import SEQUENCE_MAX, advance, distance, is_ahead
from tests.fixtures.kernel_batches import stamp

INT16, INT32 = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
IDS, EPOCHS = st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)
SEQUENCES = st.integers(0, SEQUENCE_MAX)
DECISIONS = st.builds(DecisionId, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), IDS, IDS)
MARKERS = st.builds(
    MarkerFacts,
    producer_id=IDS,
    producer_epoch=EPOCHS,
    control_type=st.sampled_from(list(ControlType)),
    coordinator_epoch=INT32,
    decision=st.none() | DECISIONS,
    timestamp_ms=INT64,
)
PARTITIONS = st.lists(
    st.builds(TopicPartition, st.text(max_size=200).map(TopicName), st.integers(0, 2**31 - 1)),
    max_size=20,
).map(tuple)
TRANSACTIONS = st.builds(
    TransactionRecord,
    transactional_id=st.text(max_size=50),
    producer_id=INT64,
    previous_producer_id=INT64,
    next_producer_id=INT64,
    producer_epoch=INT16,
    last_producer_epoch=INT16,
    timeout_ms=INT32,
    status=st.sampled_from(list(TxnStatus)),
    partitions=PARTITIONS,
    last_update_ms=INT64,
    start_ms=INT64,
    stamp=st.none() | IDS,
    decision=st.none() | DECISIONS,
    region_epoch=INT32,
    client_tv=INT16,
    wait_for=INT32,
)


@given(MARKERS, INT64, INT32)
def test_marker_round_trips(facts: MarkerFacts, base_offset: int, leader_epoch: int) -> None:
    raw = build_marker(facts, base_offset=base_offset, leader_epoch=LeaderEpoch(leader_epoch))
    header = read_header(raw)
    assert read_marker(raw) == facts
    assert crc_ok(raw, 0, header)
    assert (header.base_offset, header.leader_epoch) == (base_offset, leader_epoch)
    assert header.size_bytes == len(raw)


@given(MARKERS, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_stamp_is_what_build_would_have_written(
    facts: MarkerFacts, base_offset: int, leader_epoch: int
) -> None:
    raw = bytearray(build_marker(facts))
    stamp(raw, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    assert raw == build_marker(
        facts, base_offset=base_offset, leader_epoch=LeaderEpoch(leader_epoch)
    )


@given(st.lists(MARKERS, max_size=5), st.integers(0, 200))
def test_iteration_finds_every_whole_batch(markers: list[MarkerFacts], cut: int) -> None:
    batches = [build_marker(facts) for facts in markers]
    whole = b"".join(batches)
    torn = whole[: max(len(whole) - cut, 0)]
    positions = [pos for pos, _ in iter_headers(torn)]
    ends = [sum(map(len, batches[: n + 1])) for n in range(len(batches))]
    assert len(positions) == sum(1 for end in ends if end <= len(torn))


@given(st.binary(max_size=300))
def test_no_bytes_harm_a_reader(raw: bytes) -> None:
    for read, error in (
        (read_header, BatchError),
        (read_marker, BatchError),
        (lambda data: list(iter_headers(data)), BatchError),
        (DecisionId.decode, DecisionError),
        (PartitionState.decode, SnapshotError),
        (decode_key, LedgerError),
        (decode_round_value, LedgerError),
        (lambda data: decode_transaction_value("t", data), LedgerError),
    ):
        with contextlib.suppress(error):
            read(raw)


@given(MARKERS, st.data())
def test_damaged_markers_are_read_or_refused(facts: MarkerFacts, data: st.DataObject) -> None:
    raw = bytearray(build_marker(facts))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BatchError):
        read_marker(raw)


# Holds INV-L1.
@given(TRANSACTIONS)
def test_transaction_record_round_trips(record: TransactionRecord) -> None:
    stamp_or_none = record.stamp
    assert stamp_or_none is None or stamp_or_none >= 0
    encoded = encode_transaction_value(record)
    assert decode_transaction_value(record.transactional_id, encoded) == record
    key = encode_transaction_key(record.transactional_id)
    assert decode_key(key) == TransactionKey(record.transactional_id)


@given(TRANSACTIONS, st.data())
def test_damaged_transaction_records_are_read_or_refused(
    record: TransactionRecord, data: st.DataObject
) -> None:
    raw = bytearray(encode_transaction_value(record))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(LedgerError):
        decode_transaction_value(record.transactional_id, bytes(raw))


@given(INT64)
def test_varint_round_trips(value: int) -> None:
    encoded = write_varint(value)
    assert read_varint(encoded, 0) == (value, len(encoded))
    assert len(encoded) <= 10


# Holds INV-SQ1.
@given(SEQUENCES, SEQUENCES)
def test_sequence_distance_undoes_advance(start: int, end: int) -> None:
    assert advance(SequenceNumber(start), distance(start, end)) == end
    assert not (is_ahead(SequenceNumber(start), end) and is_ahead(SequenceNumber(end), start))
