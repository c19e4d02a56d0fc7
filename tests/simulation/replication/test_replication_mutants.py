"""Do the lives bite? A core that leaves out one rule must be noticed, and for that rule."""

import re

import pytest

from tests.simulation.mutants.patch import edited
from tests.simulation.replication.mutants import MUTANTS, Mutant, noticed
from tests.simulation.replication.play import WEIGHTS, play

pytestmark = [pytest.mark.slow, pytest.mark.simulation]

CLEAN_SEEDS = 30


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.name for each in MUTANTS])
def test_INV_RPM1_a_core_without_a_rule_is_noticed(mutant: Mutant) -> None:
    _, violation = noticed(mutant)
    assert re.search(mutant.expected, violation), "nothing is noticed"


@pytest.mark.parametrize("name", [each.name for each in MUTANTS if each.bent])
def test_INV_RPM1_bent_lives_are_clean_without_the_edits(name: str) -> None:
    [mutant] = [each for each in MUTANTS if each.name == name]
    for seed in range(1, CLEAN_SEEDS + 1):
        played = play(seed, {**WEIGHTS, **mutant.bent})
        assert not played.violation, (seed, played.violation, played.steps[-30:])


def test_INV_RPM1_every_mutants_edits_apply_to_the_cores() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 28
    for mutant in MUTANTS:
        with edited(mutant.edits):
            pass
