"""What a drill of nodes counts, and which faults it deals out (INV-CNF1)."""

from collections import Counter

from chaos.nodes.figures import Played, longest_pause_s, pauses_s, quantile, table
from chaos.nodes.plan import Fault, Victim, rounds


def test_INV_CNF1_a_pause_begins_with_the_last_acknowledgement_before_the_fault() -> None:
    assert longest_pause_s([1.0, 1.9, 3.4, 3.5, 3.9], 2.0, 4.0) == 1.5
    assert longest_pause_s([1.9, 2.1], 2.0, 4.0) == 4.0 - 2.1
    assert longest_pause_s([], 2.0, 4.0) == 2.0


def test_the_worst_client_of_a_class_counts_and_all_together_count_as_one() -> None:
    acked_s = {"plain-0": [1.0, 2.0, 3.0], "plain-1": [1.5, 3.0], "teller-0": [1.0, 2.5]}
    found = pauses_s(acked_s, Played("kill leader", 1.5, 2.5, 3.0, {}))
    assert found == {"plain": 1.5, "teller": 1.5, "anybody": 0.5}


def test_quantiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [quantile(values, share) for share in (0.5, 0.99, 0.2)] == [3.0, 5.0, 1.0]
    assert quantile([], 0.5) == 0.0


def test_errors_of_all_rounds_of_a_kind_are_summed_by_name() -> None:
    played = [Played("kill leader", 0.0, 1.0, 2.0, {"teller _TIMED_OUT": n}) for n in (1, 2)]
    assert table({"teller-0": [0.5]}, played)[-1].endswith("teller _TIMED_OUT 3")


def test_every_fault_comes_as_often_as_any_other_and_a_seed_is_one_drill() -> None:
    dealt = list(rounds(7, 18))
    assert set(Counter((each.fault, each.victim) for each in dealt).values()) == {2}
    assert dealt == list(rounds(7, 18))
    assert {each.victim for each in rounds(7, 6, [Fault.KILL], [Victim.LEADER])} == {Victim.LEADER}
