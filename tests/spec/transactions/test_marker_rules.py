"""Markers in a partition: T6, T7, C30, C31, C34, P8, P9 and the model's traces H7, H9."""

from idempotency.identity import Round
from idempotency.partition_state import PartitionState, Verdict
from idempotency.record_batch import ControlType, build_marker, read_header, read_marker
from tests.fixtures.kernel_batches import PRODUCER, data, decision, end, marker, state_of

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT


# Holds INV-S5.
def test_T6_same_decision_again_is_acknowledged_without_appending() -> None:
    first = marker(decision=decision(10))
    state = state_of(data(0, transactional=True), end(1, first))
    assert state.judge_marker(first).verdict is Verdict.MARKER_ALREADY_APPLIED


def test_T6_resent_by_a_reloaded_coordinator_is_still_the_same_decision() -> None:
    """The coordinator epoch grows at a reload; it must not make an old decision look new."""
    state = state_of(data(0, transactional=True), end(1, marker(decision=decision(10))))
    resent = marker(decision=decision(10), coordinator_epoch=99)
    assert state.judge_marker(resent).verdict is Verdict.MARKER_ALREADY_APPLIED


# Holds INV-P4.
def test_T6_late_marker_of_an_earlier_transaction_does_not_end_the_next_one() -> None:
    """H9: T0's marker is in the log, T2 of the same producer and epoch (TV1) is open."""
    state = state_of(
        data(0, transactional=True),
        end(1, marker(decision=decision(10))),
        data(2, sequence=1, transactional=True),
    )
    late = marker(decision=decision(10), coordinator_epoch=5)
    assert state.judge_marker(late).verdict is Verdict.MARKER_ALREADY_APPLIED
    own = marker(ABORT, decision=decision(11))
    assert state.judge_marker(own).verdict is Verdict.FRESH


# Holds INV-D2.
def test_T6_lower_offset_under_a_newer_leader_epoch_is_newer() -> None:
    """After a takeover ledger offsets above the cut are used again."""
    state = state_of(
        data(0, transactional=True), end(1, marker(decision=decision(100, leader_epoch=1)))
    )
    adopted = marker(ABORT, decision=decision(50, leader_epoch=2))
    assert state.judge_marker(adopted).verdict is Verdict.FRESH


def test_T6_last_decision_is_in_the_snapshot() -> None:
    applied = marker(decision=decision(10))
    state = PartitionState.decode(state_of(data(0, transactional=True), end(1, applied)).encode())
    assert state.judge_marker(applied).verdict is Verdict.MARKER_ALREADY_APPLIED


# Holds INV-D1.
def test_T6_decision_travels_in_the_marker() -> None:
    facts = marker(decision=decision(10, stamp=7 << 32 | 3, leader_epoch=9, shard=2))
    assert read_marker(build_marker(facts)) == facts


# Holds INV-C1.
def test_T7_first_commit_marker_of_a_round_or_later() -> None:
    state = state_of(
        end(0, marker(producer_id=1, decision=decision(1, stamp=5))),
        end(1, marker(producer_id=2, decision=decision(2, stamp=5))),
        end(2, marker(producer_id=3, decision=decision(3, stamp=8))),
    )
    assert state.first_commit_marker(Round(0)) == 0
    assert state.first_commit_marker(Round(5)) == 0
    assert state.first_commit_marker(Round(6)) == 2
    assert state.first_commit_marker(Round(8)) == 2
    assert state.first_commit_marker(Round(9)) is None


# Holds INV-C2.
def test_T7_marker_of_a_lower_round_may_come_late_from_another_shard() -> None:
    state = state_of(
        end(0, marker(producer_id=1, decision=decision(1, stamp=8, shard=0))),
        end(1, marker(producer_id=2, decision=decision(1, stamp=7, shard=1))),
        end(2, marker(producer_id=3, decision=decision(2, stamp=9, shard=1))),
    )
    assert state.first_commit_marker(Round(7)) == 0
    assert state.first_commit_marker(Round(9)) == 2


def test_T7_T5_abort_markers_do_not_stop_the_cut() -> None:
    state = state_of(end(0, marker(ABORT, decision=decision(1, stamp=5))))
    assert state.first_commit_marker(Round(5)) is None


# Holds INV-C3.
def test_T7_index_survives_snapshot_and_pruning() -> None:
    state = state_of(
        end(0, marker(producer_id=1, decision=decision(1, stamp=5))),
        end(1, marker(producer_id=2, decision=decision(2, stamp=8))),
    )
    state.prune_cut_index(Round(6))
    restored = PartitionState.decode(state.encode())
    assert restored.first_commit_marker(Round(6)) == 1


def test_C30_older_coordinator_is_fenced() -> None:
    state = state_of(data(0, transactional=True), end(1, marker(coordinator_epoch=7)))
    assert state.judge_marker(marker(coordinator_epoch=6)).verdict is Verdict.COORDINATOR_FENCED
    assert state.judge_marker(marker(coordinator_epoch=7)).verdict is Verdict.FRESH


def test_C30_replicated_marker_of_an_older_coordinator_is_applied() -> None:
    state = state_of(end(0, marker(coordinator_epoch=7)), data(1, transactional=True))
    state.apply(*end(2, marker(coordinator_epoch=6)))
    assert state.open_transactions() == []


def test_C31_marker_of_an_older_producer_epoch_is_refused() -> None:
    state = state_of(data(0, producer_epoch=3, transactional=True))
    assert state.judge_marker(marker(producer_epoch=2)).verdict is Verdict.STALE_PRODUCER_EPOCH
    assert state.judge_marker(marker(producer_epoch=3)).verdict is Verdict.FRESH
    assert state.judge_marker(marker(producer_epoch=4)).verdict is Verdict.FRESH


def test_C31_transactions_v2_marker_must_be_newer_than_the_open_transaction() -> None:
    state = state_of(data(0, producer_epoch=3, transactional=True))
    same, bumped = marker(producer_epoch=3), marker(producer_epoch=4)
    assert state.judge_marker(same, tv2=True).verdict is Verdict.STALE_PRODUCER_EPOCH
    assert state.judge_marker(bumped, tv2=True).verdict is Verdict.FRESH


# Holds INV-B2.
def test_C34_marker_is_one_control_record_at_one_offset() -> None:
    header = read_header(build_marker(marker(), base_offset=41))
    assert (header.is_control, header.is_transactional, header.record_count) == (True, True, 1)
    assert (header.base_offset, header.last_offset, header.base_sequence) == (41, 41, -1)


def test_P8_late_duplicate_marker_does_not_conflate_two_transactions() -> None:
    """KAFKA-19446: TV2 marker of T1 (epoch 1) comes again while T2 is open under epoch 1."""
    ended = marker(producer_epoch=1, decision=decision(10))
    state = state_of(
        data(0, transactional=True),
        end(1, ended),
        data(2, producer_epoch=1, sequence=0, transactional=True),
    )
    assert state.judge_marker(ended, tv2=True).verdict is Verdict.MARKER_ALREADY_APPLIED
    foreign = marker(producer_epoch=1, decision=None)
    assert state.judge_marker(foreign, tv2=True).verdict is Verdict.STALE_PRODUCER_EPOCH
    assert [txn.first_offset for txn in state.open_transactions()] == [2]


def test_P9_retried_marker_is_acknowledged_and_never_refused() -> None:
    """KAFKA-19999: crash between marker and COMPLETE; the retry must not be stuck for ever."""
    ended = marker(producer_epoch=1, decision=decision(10))
    state = state_of(data(0, transactional=True), end(1, ended))
    again = marker(producer_epoch=1, decision=decision(10), coordinator_epoch=2)
    assert state.judge_marker(again, tv2=True).verdict is Verdict.MARKER_ALREADY_APPLIED


def test_P9_equal_epoch_is_accepted_when_no_transaction_is_open() -> None:
    state = state_of(data(0, transactional=True), end(1, marker(producer_epoch=1)))
    assert state.judge_marker(marker(producer_epoch=1), tv2=True).verdict is Verdict.FRESH


def test_B10_marker_of_an_empty_transaction_is_accepted_and_counts_no_aborted_range() -> None:
    state = PartitionState()
    assert state.judge_marker(marker(ABORT)).verdict is Verdict.FRESH
    state.apply(*end(0, marker(ABORT)))
    assert state.aborted_in(0, 1, 1) == []


# Holds INV-P2.
def test_C4_KIP890_marker_that_raises_the_epoch_clears_the_window() -> None:
    state = state_of(data(0, sequence=0, transactional=True), end(1, marker(producer_epoch=1)))
    facts = state.producers()[0]
    assert (facts.producer_id, facts.producer_epoch, facts.last_sequence) == (PRODUCER, 1, -1)


def test_KIP360_marker_of_the_same_epoch_keeps_the_window() -> None:
    state = state_of(data(0, sequence=0, transactional=True), end(1, marker()))
    again = state.judge(data(sequence=0, transactional=True))
    assert (again.verdict, again.base_offset) == (Verdict.DUPLICATE, 0)
    assert state.judge(data(sequence=1, transactional=True)).verdict is Verdict.FRESH
