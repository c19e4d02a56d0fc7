"""Do the lives bite? A core that leaves out one rule must be noticed, and for that rule."""

import re

import pytest

from tests.simulation.mutants.patch import edited
from tests.simulation.raft.mutants import MUTANTS, Mutant, noticed

pytestmark = [pytest.mark.slow, pytest.mark.simulation]

SEEDS_MAX = 25
LAST_QUICK = "requests-of-former-leaders-are-taken"
_UP_TO = [each.name for each in MUTANTS].index(LAST_QUICK) + 1
QUICK = [each for each in MUTANTS[:_UP_TO] if not each.rare]
"""What each test run plays, a second each; all of them: ``python -m tests.simulation.raft.mutants``."""


@pytest.mark.parametrize("mutant", QUICK, ids=[each.name for each in QUICK])
def test_INV_RSM1_a_core_without_a_rule_is_noticed(mutant: Mutant) -> None:
    _, violation = noticed(mutant, SEEDS_MAX)
    assert re.search(mutant.expected, violation), violation


def test_INV_RSM1_every_mutants_edits_apply_to_the_core() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 40
    assert len(QUICK) >= 20
    for mutant in MUTANTS:
        with edited(mutant.edits):
            pass
