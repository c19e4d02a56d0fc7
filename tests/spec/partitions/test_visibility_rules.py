"""C36-C38 and T17: what a reader sees at the primary (bound = high watermark) and on a mirror (bound = D)."""

from idempotency.identity import ProducerId
from idempotency.partition_state import AbortedTxn, PartitionState
from idempotency.record_batch import ControlType
from tests.fixtures.kernel_batches import data, end, marker, state_of

A, B, C = 1, 2, 3
ABORT = ControlType.ABORT


def two_interleaved() -> PartitionState:
    """A: 0, B: 1, abort A: 2, A again: 3, commit B: 4, plain: 5, commit A: 6."""
    return state_of(
        data(0, producer_id=A, transactional=True),
        data(1, producer_id=B, transactional=True),
        end(2, marker(ABORT, producer_id=A)),
        data(3, producer_id=A, sequence=1, transactional=True),
        end(4, marker(producer_id=B)),
        data(5, producer_id=C),
        end(6, marker(producer_id=A)),
    )


def test_C36_without_transactions_the_bound_is_stable() -> None:
    state = state_of(data(0, count=10))
    assert state.last_stable_offset(10) == 10
    assert state.last_stable_offset(4) == 4


def test_C36_first_offset_of_the_oldest_open_transaction_bounds() -> None:
    state = state_of(
        data(0, producer_id=C, count=5),
        data(5, producer_id=A, transactional=True),
        data(6, producer_id=B, transactional=True),
    )
    assert state.last_stable_offset(7) == 5
    state.apply(*end(7, marker(producer_id=A)))
    assert state.last_stable_offset(8) == 6
    state.apply(*end(8, marker(producer_id=B)))
    assert state.last_stable_offset(9) == 9


# Holds INV-V2.
def test_C36_transaction_whose_marker_is_not_below_the_bound_counts_as_open() -> None:
    state = two_interleaved()
    assert [state.last_stable_offset(bound) for bound in range(8)] == [0, 0, 0, 1, 1, 3, 3, 7]


def test_C36_marker_exactly_at_the_bound_is_not_below_it() -> None:
    state = state_of(data(0, transactional=True), end(1, marker()))
    assert state.last_stable_offset(1) == 0
    assert state.last_stable_offset(2) == 2


# Holds INV-V4.
def test_C36_forgetting_below_the_bound_changes_no_answer_at_or_above_it() -> None:
    state = two_interleaved()
    state.forget_completed_below(5)
    assert [state.last_stable_offset(bound) for bound in (5, 6, 7)] == [3, 3, 7]


# Holds INV-V1.
def test_C37_read_committed_never_reads_past_read_uncommitted() -> None:
    state = two_interleaved()
    assert all(state.last_stable_offset(bound) <= bound for bound in range(8))


# Holds INV-V3.
def test_C38_all_aborted_transactions_that_overlap_the_range() -> None:
    state = two_interleaved()
    expected = [AbortedTxn(producer_id=ProducerId(A), first_offset=0, last_offset=2)]
    assert state.aborted_in(0, 7, 7) == expected
    assert state.aborted_in(2, 7, 7) == expected
    assert state.aborted_in(1, 2, 7) == expected
    assert state.aborted_in(3, 7, 7) == []
    assert state.aborted_in(0, 0, 7) == []


def test_C38_long_transaction_is_found_behind_short_ones() -> None:
    state = state_of(
        data(0, producer_id=A, transactional=True),
        data(1, producer_id=B, transactional=True),
        end(2, marker(ABORT, producer_id=B)),
        data(3, producer_id=C, count=10),
        end(13, marker(ABORT, producer_id=A)),
    )
    assert state.aborted_in(0, 1, 14) == [AbortedTxn(ProducerId(A), 0, 13)]
    assert state.aborted_in(0, 14, 14) == [
        AbortedTxn(ProducerId(B), 1, 2),
        AbortedTxn(ProducerId(A), 0, 13),
    ]
    assert state.aborted_in(5, 6, 14) == [AbortedTxn(ProducerId(A), 0, 13)]


def test_C38_aborted_index_outlives_the_snapshot() -> None:
    state = PartitionState.decode(two_interleaved().encode())
    assert state.aborted_in(0, 7, 7) == [AbortedTxn(ProducerId(A), 0, 2)]


def test_C38_retention_drops_what_ended_below_the_log_start() -> None:
    state = two_interleaved()
    state.forget_aborted_below(2)
    assert state.aborted_in(0, 7, 7) == [AbortedTxn(ProducerId(A), 0, 2)]
    state.forget_aborted_below(3)
    assert state.aborted_in(0, 7, 7) == []


def test_T17_marker_above_the_cut_neither_frees_nor_aborts() -> None:
    """H10: data below D, marker copied but above D: the reader must not be given the transaction."""
    state = state_of(
        data(0, producer_id=A, transactional=True),
        data(1, producer_id=C),
        end(2, marker(ABORT, producer_id=A)),
        data(3, producer_id=C, sequence=1),
    )
    cut = 2
    assert state.last_stable_offset(cut) == 0
    assert state.aborted_in(0, cut, cut) == []
    assert state.aborted_in(0, 3, 3) == [AbortedTxn(ProducerId(A), 0, 2)]


def test_T17_transaction_that_begins_above_the_cut_does_not_hold_it_back() -> None:
    state = state_of(data(0, producer_id=C, count=5), data(5, producer_id=A, transactional=True))
    assert state.last_stable_offset(5) == 5
