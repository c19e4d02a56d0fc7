"""The round gate, the retry schedule and the fan-out by themselves."""

from idempotency.decision import DecisionId, round_of
from idempotency.identity import LeaderEpoch, Round
from tests.fixtures.coordinator import tp
from txn_coordinator.markers import MarkerFanout, retry_delay_ms
from txn_coordinator.rounds import RoundGate


def test_before_the_first_round_everything_is_free() -> None:
    assert RoundGate().is_free(Round(0))


def test_T3_entering_a_round_frees_older_stamps_and_holds_its_own() -> None:
    gate = RoundGate()
    first, second = round_of(7, 1), round_of(7, 2)
    gate.enter(first)
    assert gate.is_free(Round(0))
    assert not gate.is_free(first)
    gate.hold("t", first)
    assert gate.enter(second) == ["t"]
    assert gate.is_free(first)
    assert gate.held_count == 0


def test_T3_a_release_of_an_older_round_frees_nothing() -> None:
    gate = RoundGate()
    first, second = round_of(7, 1), round_of(7, 2)
    gate.enter(first)
    gate.enter(second)
    gate.hold("t", second)
    assert gate.release(first) == []
    assert gate.release(second) == ["t"]
    assert gate.release(second) == []


# Holds INV-RO3.
def test_T21_round_0_of_a_term_needs_no_release() -> None:
    gate = RoundGate()
    gate.restore(round_of(9, 0), 12)
    assert gate.is_free(round_of(9, 0))
    assert gate.current_offset == 12
    gate.restore(round_of(9, 0), 40)  # said again by the next leader
    assert gate.current_offset == 12


def test_retry_pauses_double_up_to_a_second() -> None:
    assert [retry_delay_ms(attempt) for attempt in (1, 2, 3, 7, 50)] == [20, 40, 80, 1000, 1000]


def test_fanout_is_done_once() -> None:
    decision = DecisionId(0, LeaderEpoch(1), 2, Round(3))
    fanout = MarkerFanout(decision, [tp("a"), tp("b")])
    assert not fanout.confirm(decision, tp("b"))
    assert fanout.waiting == (tp("a"),)
    assert fanout.confirm(decision, tp("a"))
    assert not fanout.confirm(decision, tp("a"))
