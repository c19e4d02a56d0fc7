"""Very many aborted transactions in one log: segments are full by them, and their indexes are asked quickly."""

import random

import pytest

from idempotency.decision import DecisionId
from idempotency.identity import ProducerEpoch, ProducerId, Round, SequenceNumber
from idempotency.record_batch import ControlType
from idempotency.visibility import AbortedTxn
from region_broker.log.indexes.aborted_index import AbortedIndex, decode_aborted, encode_aborted
from region_broker.log.indexes.checked_file import unpack_frame
from region_broker.log.parts import appender
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, all_bytes, append_marker, batch, fixture

ABORTS, MAX = 10, 3
EXPECTED = [AbortedTxn(ProducerId(n), 2 * n, 2 * n + 1) for n in range(ABORTS)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "SEGMENT_ABORTED_MAX", MAX)
    monkeypatch.setattr(appender, "BYTES_FOR_PRODUCER", 0)  # INV-APP2 asks for more bytes


def abort(some: Fixture, producer: int) -> None:
    """Append one record of a transaction, and its abort."""
    origin = Origin(ProducerId(producer), ProducerEpoch(0), SequenceNumber(0), transactional=True)
    some.partition.writer.append(batch(origin=origin))
    append_marker(
        some.partition, producer_id=producer, producer_epoch=0, control_type=ControlType.ABORT,
        coordinator_epoch=1, decision=DecisionId(0, LEADER_EPOCH, producer, Round(0)), timestamp_ms=1,
    )  # fmt: skip


def bases(some: Fixture) -> list[int]:
    return list(some.partition.log.segments.bases)


def aborted(some: Fixture) -> list[AbortedTxn]:
    end = some.partition.log.log_end_offset
    return some.partition.log.aborted_in(0, end, end)


def test_INV_APP3_a_segment_with_so_many_aborts_is_full() -> None:
    some = fixture()
    for producer in range(ABORTS):
        abort(some, producer)
    assert bases(some) == [0, 6, 12, 18]  # three transactions of a record and a marker each
    assert aborted(some) == EXPECTED
    some.sync()
    assert len(some.partition.state.visibility.aborted) == 1, "of the open segment only"
    assert aborted(some) == EXPECTED
    some.kill_and_reopen()
    assert aborted(some) == EXPECTED
    assert bases(some) == [0, 6, 12, 18]


def test_INV_APP3_who_copies_the_log_has_segments_of_its_own_and_the_same_aborts() -> None:
    some = fixture()
    for producer in range(ABORTS):
        abort(some, producer)
    some.sync()
    for in_one_piece in (True, False):
        copy = fixture(leads=False)
        if in_one_piece:
            copy.partition.writer.append_mirrored(all_bytes(some.partition))
        else:
            data, at = all_bytes(some.partition), 0
            while at < len(data):
                size_bytes = 12 + int.from_bytes(data[at + 8 : at + 12])  # Kafka's batchLength
                copy.partition.writer.append_mirrored(data[at : at + size_bytes])
                at += size_bytes
        copy.sync()
        assert bases(copy) == ([0] if in_one_piece else [0, 6, 12, 18])
        assert aborted(copy) == EXPECTED
        assert all_bytes(copy.partition) == all_bytes(some.partition)


def test_INV_A3_an_index_names_what_touches_the_range() -> None:
    """Against the rule of C38, word by word: it begins below the end, and ends at or behind the start, below the bound."""
    chance = random.Random(5)
    for _ in range(200):
        markers = sorted(chance.sample(range(100), chance.randrange(30)))
        entries = [
            AbortedTxn(ProducerId(chance.randrange(4)), chance.randrange(at + 1), at)
            for at in markers
        ]
        read = decode_aborted(encode_aborted(entries))
        assert len(read) == len(entries)
        for _ in range(20):
            start, end, bound = sorted(chance.randrange(105) for _ in range(3))
            for upper in (bound, start):
                expected = [
                    each
                    for each in entries
                    if each.first_offset < end and start <= each.last_offset < upper
                ]
                assert AbortedIndex.of(entries).overlapping(start, end, upper) == expected
                assert read.overlapping(start, end, upper) == expected


def test_INV_A2_an_index_is_written_as_it_always_was() -> None:
    written = encode_aborted([AbortedTxn(ProducerId(1), 2, 3), AbortedTxn(ProducerId(1 << 40), 4, 5)])  # fmt: skip
    fields = (1, 2, 3, 1 << 40, 4, 5)
    assert unpack_frame(b"TMAX", 1, written) == b"".join(each.to_bytes(8) for each in fields)


@pytest.mark.parametrize("bound", [("SEGMENTS_MAX", 1), ("BYTES_FOR_PRODUCER", 1 << 30)], ids=str)
def test_INV_APP3_aborts_fill_a_segment_also_where_others_would_grow(
    monkeypatch: pytest.MonkeyPatch, bound: tuple[str, int]
) -> None:
    monkeypatch.setattr(appender, *bound)
    some = fixture()
    for producer in range(ABORTS):
        abort(some, producer)
    assert bases(some) == [0, 6, 12, 18]
