"""Which transaction without a marker in one log is a part of one that is committed in another."""

from uuid import UUID

import pytest

from geo_replicator.lineage import LogKey
from geo_replicator.whole_cut import (
    NO_ROUND,
    Forgotten,
    LogTransactions,
    RoundBefore,
    whole_cut,
)
from idempotency.decision import DecisionId
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, Round
from idempotency.partition_state import UnendedTxn
from idempotency.visibility import CompletedTxn

HERE, THERE = (LogKey(UUID(int=7), number) for number in range(2))
PRODUCER, EPOCH = 40, 2
OLDER, DECISION, NEWER = (
    DecisionId(0, LeaderEpoch(1), offset, Round(offset)) for offset in (10, 20, 30)
)


def never(_key: LogKey, _offset: int) -> Round:
    return NO_ROUND


def shown_here(unended: UnendedTxn, rounds: RoundBefore = never) -> int:
    """Return the end of a log with one transaction at 5, committed by DECISION, beside one that is `unended` at 3."""
    committed = CompletedTxn(
        ProducerId(PRODUCER), 5, 6, 5, ProducerEpoch(EPOCH), committed=True, decision=DECISION
    )
    logs = {HERE: LogTransactions(7, [committed], []), THERE: LogTransactions(3, [], [unended])}
    ends = whole_cut(logs, rounds)
    assert ends[THERE] == 3
    return ends[HERE]


@pytest.mark.parametrize(("decision", "end"), [(DECISION, 5), (OLDER, 7), (NEWER, 7)])
def test_INV_WC2_a_marker_above_D_ties_the_logs_by_its_decision(
    decision: DecisionId, end: int
) -> None:
    assert (
        shown_here(UnendedTxn(ProducerId(PRODUCER), ProducerEpoch(EPOCH), 3, decision, OLDER))
        == end
    )


@pytest.mark.parametrize(
    ("producer_epoch", "decided_before", "end"),
    [(EPOCH, None, 5), (EPOCH, OLDER, 5), (EPOCH, DECISION, 7), (EPOCH, NEWER, 7), (3, OLDER, 7)],
)
def test_INV_WC3_without_a_marker_its_epoch_and_the_decision_before_tell(
    producer_epoch: int, decided_before: DecisionId | None, end: int
) -> None:
    assert (
        shown_here(
            UnendedTxn(ProducerId(PRODUCER), ProducerEpoch(producer_epoch), 3, None, decided_before)
        )
        == end
    )


@pytest.mark.parametrize(("round_before", "end"), [(0, 5), (20, 5), (21, 7)])
def test_INV_WC5_what_began_behind_a_tidemark_is_no_part_of_what_that_holds(
    round_before: int, end: int
) -> None:
    def rounds(key: LogKey, offset: int) -> Round:
        assert (key, offset) == (THERE, 3)
        return Round(round_before)

    unended = UnendedTxn(ProducerId(PRODUCER), ProducerEpoch(EPOCH), 3, None, OLDER)
    assert shown_here(unended, rounds) == end


def test_INV_WC3_another_producer_holds_nothing_back() -> None:
    assert shown_here(UnendedTxn(ProducerId(41), ProducerEpoch(EPOCH), 3, DECISION, None)) == 7


@pytest.mark.parametrize(("decision", "end"), [(DECISION, 5), (None, 7)])
def test_INV_WC2_what_waits_in_one_log_is_hidden_in_the_other_by_its_decision(
    decision: DecisionId | None, end: int
) -> None:
    """A marker that an administrator wrote names no decision, and stands for its own log only."""
    here = CompletedTxn(
        ProducerId(PRODUCER), 5, 6, 5, ProducerEpoch(EPOCH), committed=True, decision=decision
    )
    behind = CompletedTxn(
        ProducerId(PRODUCER), 4, 8, 4, ProducerEpoch(EPOCH), committed=True, decision=decision
    )
    logs = {HERE: LogTransactions(7, [here], []), THERE: LogTransactions(3, [behind], [])}
    assert whole_cut(logs) == {HERE: end, THERE: 3}


@pytest.mark.parametrize(("open_at", "ends"), [(3, (1, 2)), (5, (5, 7))])
def test_INV_WC4_what_was_forgotten_is_shown_in_all_logs_or_in_none(
    open_at: int, ends: tuple[int, int]
) -> None:
    """Of what lies below 5 here and below 7 there nobody knows which transactions it was; one more is open here."""
    unended = UnendedTxn(ProducerId(PRODUCER), ProducerEpoch(EPOCH), open_at, None, None)
    logs = {
        HERE: LogTransactions(open_at, [], [unended], Forgotten(1, 5)),
        THERE: LogTransactions(7, [], [], Forgotten(2, 7)),
    }
    assert whole_cut(logs) == {HERE: ends[0], THERE: ends[1]}


def test_INV_WC4_what_is_hidden_where_nothing_was_forgotten_hides_what_was_forgotten_elsewhere() -> (
    None
):
    """Its other part may be among what was forgotten there."""
    committed = CompletedTxn(
        ProducerId(PRODUCER), 2, 6, 4, ProducerEpoch(EPOCH), committed=True, decision=DECISION
    )
    logs = {
        HERE: LogTransactions(3, [committed], [], Forgotten(0, 5)),
        THERE: LogTransactions(7, [], [], Forgotten(4, 7)),
    }
    assert whole_cut(logs) == {HERE: 0, THERE: 4}


def test_INV_WC4_a_log_of_which_nothing_was_forgotten_hides_nothing_of_others() -> None:
    logs = {
        HERE: LogTransactions(3, [], [], Forgotten(5, 5)),
        THERE: LogTransactions(7, [], [], Forgotten(2, 7)),
    }
    assert whole_cut(logs) == {HERE: 3, THERE: 7}
