"""What a drill of regions deals out (INV-DRP1, INV-DRP2), how it is judged (INV-DRJ1 to INV-DRJ3), and what it sums up."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from chaos.history import Attempt, Outcome, Seen
from chaos.nodes.plan import Fault
from chaos.regions.figures import Played, lines, spread_ms, summary
from chaos.regions.judge import Told, judged
from chaos.regions.plan import Blow, Kind, Role, rounds
from chaos.writers.writer import TOPIC


def test_INV_DRP1_half_of_the_rounds_are_failovers_and_a_seed_is_one_drill() -> None:
    dealt = list(rounds(7, 32))
    assert Counter(each.kind for each in dealt) == {Kind.FAILOVER: 16, Kind.PAIR: 16}
    assert dealt == list(rounds(7, 32))
    assert [each.kind for each in rounds(7, 3)].count(Kind.FAILOVER) == 2
    pairs = [(each.acting, each.mirror) for each in dealt if each.kind is Kind.PAIR]
    assert len(set(pairs)) == 16
    assert {each.kind for each in rounds(7, 6, [Kind.PAIR])} == {Kind.PAIR}
    wanted = (Fault.CUT, Fault.EIO)
    blows = {each.mirror for each in rounds(7, 16, [Kind.PAIR], faults=wanted)}
    assert blows == {Blow(fault, role) for fault in wanted for role in Role}


def test_INV_DRP2_a_region_that_goes_on_loses_one_node_at_a_time() -> None:
    for each in rounds(3, 200):
        if each.kind is Kind.FAILOVER:
            assert each.acting is not None
            assert each.runner_dies == (each.mirror is None)
            assert {blow.fault for blow in (each.acting, each.mirror) if blow} == {Fault.KILL}
        else:
            assert not each.runner_dies
            assert each.acting is not None
            assert each.mirror is not None


def test_a_round_says_what_is_done_on_either_side() -> None:
    told = {str(each) for each in rounds(3, 200)}
    assert "failover: kill leader | nothing, then the node that runs the step" in told
    assert "pair: pause follower | kill leader" in told
    assert str(Blow(Fault.KILL, Role.LEADER)) == "kill leader"


def attempt(number: int, term: int, outcome: Outcome = Outcome.COMMITTED) -> Attempt:
    return Attempt("java-0", number, term, 0, 1, 5, outcome)


def records(number: int, offset: int) -> list[Seen]:
    name = f"java-0.{number}"
    return [Seen(0, offset, name, -5), Seen(1, offset, name, 5)]


def loss(epoch: int, ids: Sequence[str], ranges: Mapping[int, tuple[int, int]]) -> dict[str, Any]:
    return {
        "exact": True, "cause": "lineage", "lineage_epoch": epoch, "region": "eu", "unexplained": [],
        "transaction_count": len(ids), "plain_record_count": 0,
        "transactions": [{"transactional_id": each} for each in ids],
        "records": [
            {"topic": TOPIC, "partition": partition, "first_offset": first, "last_offset": last}
            for partition, (first, last) in ranges.items()
        ],
    }  # fmt: skip


PLACES = {"java-0.1": {0: 0, 1: 0}, "java-0.2": {0: 2, 1: 2}, "java-0.3": {0: 2, 1: 2}}
LISTED = loss(17, ["java-0"], {0: (2, 2), 1: (2, 2)})


def told(**changes: Any) -> Told:
    """Return a sound history: 1 is there, 2 was lost with term 0 and is listed, 3 was written in term 1 at the same offsets."""
    shown = [*records(1, 0), *records(3, 2)]
    sound: dict[str, Any] = {
        "attempts": [attempt(1, 0), attempt(2, 0), attempt(3, 1)], "places": PLACES,
        "final": {"eu": shown, "us": shown}, "losses": [LISTED], "epochs": {17: 0},
        "planned": frozenset(),
    }  # fmt: skip
    return Told(**{**sound, **changes})


def test_a_sound_history_with_a_listed_loss_is_judged_so() -> None:
    verdict = judged(told())
    assert verdict.wrong == []
    assert (verdict.gone, verdict.listed) == (1, 1)


def test_what_is_torn_doubled_or_out_of_order_is_counted_by_its_name() -> None:
    shown = [*records(3, 0), *records(1, 2), *records(1, 4)[:1]]
    verdict = judged(told(final={"eu": shown, "us": shown}))
    assert {"DUPLICATE", "OUT_OF_ORDER"} <= set(verdict.counts)
    shown = [*records(1, 0), records(3, 2)[0]]
    assert judged(told(final={"eu": shown, "us": shown})).counts["TORN"] == 1


def test_INV_DRJ1_a_loss_that_is_not_listed_and_one_that_is_listed_in_another_term_are_found() -> (
    None
):
    assert any("term 0" in each for each in judged(told(losses=[])).wrong)
    wrong = judged(told(epochs={17: 1})).wrong
    assert any("java-0 in term 0: 1 gone" in each for each in wrong)
    assert any("java-0 in term 1: 0 gone" in each for each in wrong)


def test_INV_DRJ1_a_try_that_was_not_answered_may_be_listed_or_not() -> None:
    unsure = attempt(2, 0, Outcome.UNKNOWN)
    assert judged(told(attempts=[attempt(1, 0), unsure, attempt(3, 1)])).wrong == []
    there = told(attempts=[attempt(1, 0), unsure, attempt(3, 1)], losses=[])
    assert judged(there).wrong == []


def test_INV_DRJ2_a_record_beside_the_listed_ranges_and_one_that_is_there_within_are_found() -> (
    None
):
    narrow = loss(17, ["java-0"], {0: (1, 1), 1: (2, 2)})
    assert any("0/2: gone, and not listed" in each for each in judged(told(losses=[narrow])).wrong)
    below = loss(17, ["java-0"], {0: (3, 3), 1: (3, 3)})
    assert judged(told(losses=[below])).wrong == []
    wide = loss(17, ["java-0"], {0: (0, 2), 1: (0, 2)})
    assert any("listed, and there" in each for each in judged(told(losses=[wide])).wrong)


def test_INV_DRJ3_what_a_switch_cost_and_what_no_statement_explains_is_found() -> None:
    assert any("planned switch" in e for e in judged(told(planned=frozenset({17}))).wrong)
    odd = {**LISTED, "unexplained": ["x"]}
    assert any("outside the loss statement" in each for each in judged(told(losses=[odd])).wrong)


def test_times_are_summed_over_all_rounds_and_by_case() -> None:
    played = [
        Played(n, "failover", "failover: a", float(n), float(n) + 1, 3.0, 9.0, {"java X": 1})
        for n in (1, 2, 3)
    ]
    pair = Played(4, "pair", "pair: b", None, None, 0.5, 1.0, {})
    found = summary([*played, pair])
    assert found["acting_after"] == {"median_ms": 2000, "p99_ms": 3000, "longest_ms": 3000}
    assert found["by_case"]["pair: b"]["acting_after"] == {}
    assert found["errors"] == {"java X": 3}
    assert spread_ms([]) == {}
    assert lines(found)[-1] == "errors that reached an application: java X 3"
