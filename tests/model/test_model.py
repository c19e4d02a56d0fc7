"""Every state of each small instance is looked at: nothing is wrong, and without any one rule something is."""

import pytest

from tests.model.explore import explore, walk
from tests.model.instances import INSTANCES, LARGEST, MUTANTS, Mutant

pytestmark = pytest.mark.slow
LEAST_STATES = 500


MIRRORS = ("mirror", "mirror crash", "mirror start", "closed in vain")
REGIONS = ("takeover", "two candidates", "takeover in steps")
ADOPTIONS = ("adoption", "adoption of transactions v2")
COMPACTIONS = ("compaction", "compaction for two")
OTHERS = {*MIRRORS, *REGIONS, *ADOPTIONS, *COMPACTIONS, "planned switch", "topics", "groups"}
ROUNDS = tuple(name for name in INSTANCES if name not in OTHERS)


def look_at(name: str) -> None:
    result = explore(INSTANCES[name].small(frozenset()), liveness=INSTANCES[name].liveness)
    assert result.found is None, result.found
    assert result.states > LEAST_STATES


@pytest.mark.parametrize("name", ROUNDS)
def test_T1_T2_T3_T4_T5_T7_T8_T9_T10_T11_hold_in_every_state(name: str) -> None:
    look_at(name)


@pytest.mark.parametrize("name", MIRRORS)
def test_T10_T11_T16_T17_hold_in_every_state_of_a_mirror(name: str) -> None:
    look_at(name)


@pytest.mark.parametrize("name", REGIONS)
def test_T18_T19_T20_T23_T24_T25_T31_hold_in_every_state_of_three_regions(name: str) -> None:
    look_at(name)


def test_T24_INV_FOP2_INV_FD6_hold_in_every_state_of_a_planned_switch_that_is_crossed() -> None:
    """What was promised in vain goes on by steps that are not in it, so that somebody acts in the end is not judged."""
    look_at("planned switch")


@pytest.mark.parametrize("name", ADOPTIONS)
def test_T6_T21_T22_hold_in_every_state_of_a_producer_over_a_takeover(name: str) -> None:
    look_at(name)


@pytest.mark.parametrize("name", COMPACTIONS)
def test_T13_holds_in_every_state_of_a_compacted_log(name: str) -> None:
    look_at(name)


def test_T15_holds_in_every_state_of_topics_that_change() -> None:
    look_at("topics")


def test_T26_holds_in_every_state_of_a_group_over_a_takeover() -> None:
    look_at("groups")


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.name for each in MUTANTS])
def test_a_rule_that_is_left_out_breaks_what_it_keeps(mutant: Mutant) -> None:
    world = INSTANCES[mutant.instance].small(frozenset({mutant.name}))
    found = explore(world, liveness=mutant.breaks == "stuck").found
    assert found is not None
    assert found.name == mutant.breaks, found


@pytest.mark.parametrize("seed", range(40))
def test_T1_T4_T9_hold_on_long_walks_of_all_faults_at_once(seed: int) -> None:
    found = walk(LARGEST, steps=150, seed=seed)
    assert found is None, found
