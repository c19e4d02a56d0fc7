"""Do the simulated runs bite? A product that leaves out one rule must be noticed, and for that rule."""

import pytest

from tests.simulation.mutants.named import MUTANTS, Mutant, caught, clean, played
from tests.simulation.mutants.scenes import SCENES

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

SAMPLE = MUTANTS[::4]
"""What each test run plays; all of them: ``python -m tests.simulation.mutants``."""


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_INV_SCN1_a_scene_is_clean_without_an_edit(scene: str) -> None:
    assert clean(scene) == ()


@pytest.mark.parametrize("mutant", SAMPLE, ids=[each.name for each in SAMPLE])
def test_INV_MUT1_INV_MUT2_a_product_without_a_rule_is_noticed(mutant: Mutant) -> None:
    said = played(mutant)
    assert caught(mutant, said), (mutant.expected, said)
