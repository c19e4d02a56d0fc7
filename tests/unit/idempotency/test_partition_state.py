"""Corners of the partition state, the window, verifications and the cut index beside the named rules."""

import pytest

from idempotency.cut_index import CutIndex
from idempotency.identity import (
    NO_COORDINATOR_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    ProducerEpoch,
    ProducerId,
    Round,
    SequenceNumber,
)
from idempotency.partition_state import OpenTxn, PartitionState, ProducerFacts, Verdict
from idempotency.record_batch import ControlType
from idempotency.verification import Verifications
from idempotency.window import BatchWindow, SentBatch, WindowVerdict
from tests.fixtures.kernel_batches import PRODUCER, data, end, marker, marker_header, state_of


def test_batch_without_a_producer_is_always_fresh_and_leaves_no_entry() -> None:
    plain = data(0, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH, sequence=-1)
    state = state_of(plain)
    assert state.judge(plain).verdict is Verdict.FRESH
    assert state.producers() == []
    assert state.end_offset == 1


@pytest.mark.parametrize(
    "header",
    [
        data(sequence=-1),
        data(producer_epoch=-1),
        data(producer_id=-1, sequence=-1, transactional=True),
        marker_header(0, marker()),
    ],
)
def test_shapes_no_client_may_send_are_invalid_records(header: object) -> None:
    assert PartitionState().judge(header).verdict is Verdict.INVALID_RECORD  # type: ignore[arg-type]


def test_refusals_say_what_was_expected() -> None:
    state = state_of(data(0, sequence=0, count=5))
    assert "expected 5" in state.judge(data(sequence=8)).detail


def test_staged_offset_commits_open_a_transaction_without_touching_the_window() -> None:
    """TxnOffsetCommit batches carry producer id and epoch but no sequence (GroupCoordinator)."""
    state = state_of(
        data(0, sequence=-1, transactional=True), data(1, sequence=-1, transactional=True)
    )
    assert state.last_stable_offset(2) == 0
    assert state.producers() == [
        ProducerFacts(PRODUCER, ProducerEpoch(0), NO_SEQUENCE, 1_000, NO_COORDINATOR_EPOCH, 0)
    ]
    state.apply(*end(2, marker()))
    assert state.last_stable_offset(3) == 3


def test_open_transactions_are_listed_oldest_first() -> None:
    state = state_of(
        data(0, producer_id=9, producer_epoch=2, transactional=True, timestamp_ms=5),
        data(1, producer_id=3, transactional=True, timestamp_ms=6),
        data(2, producer_id=9, producer_epoch=2, sequence=1, transactional=True, timestamp_ms=7),
    )
    assert state.open_transactions() == [
        OpenTxn(ProducerId(9), ProducerEpoch(2), 0, 7),
        OpenTxn(ProducerId(3), ProducerEpoch(0), 1, 6),
    ]


# Holds INV-S1.
def test_log_that_starts_late_or_has_holes_is_applied() -> None:
    state = state_of(data(1_000, sequence=70), data(2_000, sequence=71))
    assert state.end_offset == 2_001
    assert state.judge(data(sequence=72)).verdict is Verdict.FRESH


def test_applying_backwards_is_a_programmer_error() -> None:
    state = state_of(data(0, count=5))
    with pytest.raises(AssertionError):
        state.apply(data(4))


def test_asking_below_a_forgotten_bound_is_a_programmer_error() -> None:
    state = state_of(data(0, transactional=True), end(1, marker()))
    state.forget_completed_below(2)
    with pytest.raises(AssertionError):
        state.last_stable_offset(1)


def test_committed_transactions_are_found_by_where_their_markers_lie() -> None:
    state = state_of(
        data(0, transactional=True, sequence=0), end(1, marker()),
        data(2, transactional=True, sequence=1), end(3, marker(ControlType.ABORT)),
        data(4, transactional=True, sequence=2), end(5, marker()),
        data(6, transactional=True, sequence=3), end(7, marker()),
    )  # fmt: skip
    found = {
        (start, bound): [txn.marker_offset for txn in state.committed_below(bound, start)]
        for start, bound in ((0, 8), (1, 7), (2, 7), (3, 6), (5, 5), (7, 8), (8, 8))
    }
    assert found == {
        (0, 8): [1, 5, 7], (1, 7): [1, 5], (2, 7): [5], (3, 6): [5], (5, 5): [], (7, 8): [7], (8, 8): [],
    }  # fmt: skip


# Holds INV-P1.
def test_stale_batch_in_a_replayed_log_changes_neither_epoch_nor_window() -> None:
    state = state_of(data(0, producer_epoch=2, sequence=0), data(1, producer_epoch=1, sequence=50))
    assert state.judge(data(sequence=1, producer_epoch=2)).verdict is Verdict.FRESH


def test_window_verdicts() -> None:
    window = BatchWindow()
    assert window.judge(SequenceNumber(0), SequenceNumber(0)) is WindowVerdict.NEXT
    window.push(SentBatch(SequenceNumber(0), SequenceNumber(4), 100, 104, 1))
    assert window.judge(SequenceNumber(5), SequenceNumber(5)) is WindowVerdict.NEXT
    assert window.judge(SequenceNumber(0), SequenceNumber(4)) is WindowVerdict.DUPLICATE
    assert window.judge(SequenceNumber(0), SequenceNumber(3)) is WindowVerdict.BEHIND
    assert window.judge(SequenceNumber(6), SequenceNumber(6)) is WindowVerdict.GAP


# Holds INV-G1.
def test_P4_guard_of_an_ended_attempt_is_not_current_again() -> None:
    verifications = Verifications()
    guard = verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(0))
    assert verifications.is_current(guard)
    verifications.end(PRODUCER, ProducerEpoch(0))
    again = verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(0))
    assert not verifications.is_current(guard)
    assert verifications.is_current(again)
    verifications.leave(guard)
    assert verifications.is_current(again), "who leaves an ended attempt takes no other one along"


def test_P4_marker_between_verification_and_append_ends_the_guard() -> None:
    state = PartitionState()
    guard = state.verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(0))
    state.apply(*end(0, marker()))
    assert not state.verifications.is_current(guard)


# Holds INV-G1.
@pytest.mark.parametrize(
    ("tv2", "marker_epoch", "current"),
    [(False, 2, True), (False, 3, False), (False, 4, False), (True, 3, True), (True, 4, False)],
)
def test_P5_marker_of_the_transaction_before_leaves_the_next_ones_attempt(
    tv2: bool, marker_epoch: int, current: bool
) -> None:
    verifications = Verifications()
    guard = verifications.begin(PRODUCER, ProducerEpoch(3), SequenceNumber(0), tv2=tv2)
    verifications.end(PRODUCER, ProducerEpoch(marker_epoch))
    assert verifications.is_current(guard) is current


def test_P4_a_v1_batch_among_those_of_v2_ends_with_a_marker_of_its_epoch() -> None:
    verifications = Verifications()
    guard = verifications.begin(PRODUCER, ProducerEpoch(3), SequenceNumber(0), tv2=True)
    verifications.begin(PRODUCER, ProducerEpoch(3), SequenceNumber(1))
    verifications.end(PRODUCER, ProducerEpoch(3))
    assert not verifications.is_current(guard)


def test_INV_G4_each_producer_epoch_has_an_attempt_of_its_own() -> None:
    verifications = Verifications()
    old = verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(7))
    new = verifications.begin(PRODUCER, ProducerEpoch(1), SequenceNumber(3))
    assert verifications.lowest_sequence(PRODUCER, ProducerEpoch(0)) == 7
    assert verifications.lowest_sequence(PRODUCER, ProducerEpoch(1)) == 3
    verifications.end(PRODUCER, ProducerEpoch(0))
    assert [verifications.is_current(guard) for guard in (old, new)] == [False, True]


def test_INV_G2_lowest_sequence_sinks_with_later_arrivals() -> None:
    verifications = Verifications()
    guard = verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(7))
    assert verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(3)) is guard
    assert verifications.lowest_sequence(PRODUCER, ProducerEpoch(0)) == 3


@pytest.mark.parametrize(
    ("sequences", "lowest"),
    [((0, 2**31 - 1), 2**31 - 1), ((2**31 - 1, 0), 2**31 - 1), ((7, -1), 7), ((-1, 7), 7)],
    ids=["over the end", "over the end, in order", "without a sequence", "first without one"],
)
def test_INV_G2_the_lowest_sequence_is_found_over_the_end_of_the_numbers(
    sequences: tuple[int, int], lowest: int
) -> None:
    verifications = Verifications()
    for sequence in sequences:
        verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(sequence))
    assert verifications.lowest_sequence(PRODUCER, ProducerEpoch(0)) == lowest


def test_INV_G3_an_attempt_ends_with_the_last_one_that_waits_in_it() -> None:
    verifications = Verifications()
    guard = verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(7))
    verifications.begin(PRODUCER, ProducerEpoch(0), SequenceNumber(8))
    verifications.leave(guard)
    assert verifications.lowest_sequence(PRODUCER, ProducerEpoch(0)) == 7
    verifications.leave(guard)
    assert verifications.lowest_sequence(PRODUCER, ProducerEpoch(0)) is None
    with pytest.raises(AssertionError, match="INV-G3"):
        verifications.leave(guard)


def test_pruned_cut_index_keeps_the_highest_round() -> None:
    index = CutIndex()
    for offset, stamp in enumerate((3, 5, 9)):
        index.record(Round(stamp), offset)
    index.prune(Round(100))
    index.record(Round(4), 50)  # a late marker of an old round is no first of anything
    assert index.entries() == [(9, 2)]


# Holds INV-C2.
def test_cut_index_holds_one_entry_per_round() -> None:
    index = CutIndex()
    for offset, stamp in enumerate((3, 3, 2, 3, 4, 4)):
        index.record(Round(stamp), offset)
    assert index.entries() == [(3, 0), (4, 4)]
