"""T19 (unique epochs) and T22 (a plain idempotent producer goes on after a takeover)."""

import pytest

from idempotency.fencing import (
    EpochExhausted,
    leader_counter_of,
    leader_epoch,
    next_region_epoch,
    region_epoch,
    region_epoch_of,
    region_number_of,
    region_ordinal_of,
)
from idempotency.identity import ProducerEpoch, RegionEpoch, SequenceNumber
from idempotency.partition_state import AcceptedGap, PartitionState, Verdict
from tests.fixtures.kernel_batches import PRODUCER, data, end, marker, state_of

AT_PRIMARY = (1 << 3 | 0) << 16
AFTER_TAKEOVER = (2 << 3 | 1) << 16


def taken_over() -> PartitionState:
    """Sequences 0..9 are in the cut; the candidate allows one gap."""
    state = state_of(data(0, sequence=0, count=10, leader_epoch=AT_PRIMARY))
    state.allow_gap_once()
    return state


def test_T19_epochs_are_packed_as_the_rule_says() -> None:
    assert region_epoch(1, 0) == 8
    assert region_epoch(2, 1) == 17
    assert leader_epoch(RegionEpoch(8), 0) == 8 << 16
    assert leader_epoch(RegionEpoch(17), 3) == 17 << 16 | 3


def test_T19_epochs_come_apart_again() -> None:
    epoch = leader_epoch(region_epoch(4095, 7), 65535)
    assert epoch == 2**31 - 1
    assert region_epoch_of(epoch) == region_epoch(4095, 7)
    assert leader_counter_of(epoch) == 65535
    assert (region_number_of(region_epoch(9, 5)), region_ordinal_of(region_epoch(9, 5))) == (9, 5)


# Holds INV-F1.
def test_T19_two_regions_that_decide_at_once_get_different_epochs() -> None:
    """H18: an operator decides twice, B and C both take n = 2."""
    first, second = region_epoch(2, 1), region_epoch(2, 2)
    assert first != second
    assert leader_epoch(first, 0) != leader_epoch(second, 0)


# Holds INV-F2.
def test_T19_every_leader_epoch_of_a_later_region_epoch_is_greater() -> None:
    assert leader_epoch(region_epoch(2, 0), 0) > leader_epoch(region_epoch(1, 7), 65535)


def test_T19_next_region_epoch_is_one_more_than_any_known() -> None:
    assert next_region_epoch(-1, 0) == region_epoch(1, 0)
    assert next_region_epoch(region_epoch(3, 7), 1) == region_epoch(4, 1)


# Holds INV-F3.
@pytest.mark.parametrize(
    "take", [lambda: region_epoch(4096, 0), lambda: leader_epoch(RegionEpoch(8), 65536)]
)
def test_T19_exhaustion_fails_closed(take: object) -> None:
    assert callable(take)
    with pytest.raises(EpochExhausted):
        take()


def test_T22_first_gap_after_a_takeover_is_accepted_and_recorded_as_exact_loss() -> None:
    state = taken_over()
    after_gap = data(10, sequence=14, leader_epoch=AFTER_TAKEOVER)
    assert state.judge(after_gap).verdict is Verdict.FRESH
    state.apply(after_gap)
    assert state.accepted_gaps == (
        AcceptedGap(PRODUCER, ProducerEpoch(0), SequenceNumber(10), SequenceNumber(14), 10),
    )
    assert state.accepted_gaps[0].lost_records == 4


def test_T22_second_gap_is_refused() -> None:
    state = taken_over()
    state.apply(data(10, sequence=14, leader_epoch=AFTER_TAKEOVER))
    assert state.judge(data(sequence=20)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    state.apply(data(11, sequence=15, leader_epoch=AFTER_TAKEOVER))
    assert state.judge(data(sequence=20)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_T22_batch_without_a_gap_uses_the_allowance_up() -> None:
    state = taken_over()
    state.apply(data(10, sequence=10, leader_epoch=AFTER_TAKEOVER))
    assert state.judge(data(sequence=20)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    assert state.accepted_gaps == ()


def test_T22_without_a_takeover_no_gap_is_accepted() -> None:
    state = state_of(data(0, sequence=0, count=10))
    assert state.judge(data(sequence=14)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_T22_deduplication_goes_on_across_the_takeover() -> None:
    state = taken_over()
    retry = state.judge(data(sequence=0, count=10))
    assert (retry.verdict, retry.base_offset) == (Verdict.DUPLICATE, 0)
    behind = state.judge(data(sequence=5, count=5))
    assert behind.verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_T22_transactional_producers_get_no_allowance() -> None:
    state = state_of(
        data(0, sequence=0, transactional=True, leader_epoch=AT_PRIMARY),
        end(1, marker(), leader_epoch=AT_PRIMARY),
    )
    state.allow_gap_once()
    late = data(sequence=5, transactional=True)
    assert state.judge(late).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_T22_producer_that_came_after_the_takeover_gets_no_allowance() -> None:
    state = taken_over()
    state.apply(data(10, producer_id=9, sequence=0, leader_epoch=AFTER_TAKEOVER))
    assert state.judge(data(producer_id=9, sequence=5)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_T22_lost_epoch_bump_of_an_idempotent_producer_is_a_gap_too() -> None:
    state = taken_over()
    bumped = data(10, sequence=3, producer_epoch=1, leader_epoch=AFTER_TAKEOVER)
    assert state.judge(bumped).verdict is Verdict.FRESH
    state.apply(bumped)
    assert state.accepted_gaps == (
        AcceptedGap(PRODUCER, ProducerEpoch(1), SequenceNumber(0), SequenceNumber(3), 10),
    )


def test_T22_allowance_and_record_are_in_the_snapshot() -> None:
    allowed = PartitionState.decode(taken_over().encode())
    after_gap = data(10, sequence=14, leader_epoch=AFTER_TAKEOVER)
    assert allowed.judge(after_gap).verdict is Verdict.FRESH
    allowed.apply(after_gap)
    assert PartitionState.decode(allowed.encode()).accepted_gaps == allowed.accepted_gaps


def test_T22_replay_and_mirrors_record_the_gap_without_being_told() -> None:
    log = (
        data(0, sequence=0, count=10, leader_epoch=AT_PRIMARY),
        data(10, sequence=14, leader_epoch=AFTER_TAKEOVER),
    )
    assert state_of(*log).accepted_gaps == (
        AcceptedGap(PRODUCER, ProducerEpoch(0), SequenceNumber(10), SequenceNumber(14), 10),
    )


def test_T22_allowing_again_after_a_restart_changes_nothing() -> None:
    state = taken_over()
    state.apply(data(10, sequence=14, leader_epoch=AFTER_TAKEOVER))
    state.allow_gap_once(below_offset=10)
    assert state.judge(data(sequence=20)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_T22_gap_within_one_region_epoch_is_no_loss_by_takeover() -> None:
    """An expired producer may go on anywhere: a replay, which knows the old entry, records nothing."""
    log = (
        data(0, sequence=0, leader_epoch=AT_PRIMARY),
        data(1, sequence=9, leader_epoch=AT_PRIMARY + 1),
    )
    assert state_of(*log).accepted_gaps == ()


def test_T22_gap_of_a_transactional_batch_is_not_recorded() -> None:
    log = (
        data(0, sequence=0, leader_epoch=AT_PRIMARY),
        data(1, sequence=9, transactional=True, leader_epoch=AFTER_TAKEOVER),
    )
    assert state_of(*log).accepted_gaps == ()


def test_T22_allowance_never_reaches_past_the_end_of_the_log() -> None:
    state = state_of(data(0, sequence=0, count=10, leader_epoch=AT_PRIMARY))
    state.allow_gap_once(below_offset=1_000)
    state.apply(data(10, sequence=14, leader_epoch=AFTER_TAKEOVER))
    assert state.judge(data(sequence=20)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
