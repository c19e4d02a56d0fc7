"""Do the lives bite? A core that leaves out one rule must be noticed, and for that rule."""

import re

import pytest

from tests.simulation.mutants.patch import edited
from tests.simulation.replication.mutants import MUTANTS, Mutant, noticed

pytestmark = [pytest.mark.slow, pytest.mark.simulation]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[each.name for each in MUTANTS])
def test_INV_RPM1_a_core_without_a_rule_is_noticed(mutant: Mutant) -> None:
    _, violation = noticed(mutant)
    assert re.search(mutant.expected, violation), "nothing is noticed"


def test_INV_RPM1_every_mutants_edits_apply_to_the_cores() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 28
    for mutant in MUTANTS:
        with edited(mutant.edits):
            pass
