"""Do the simulated runs bite? A product that leaves out one rule must be noticed, and for that rule."""

import pytest

from tests.simulation.mutants.named import MUTANTS, Mutant, caught, clean, played
from tests.simulation.mutants.patch import DoesNotApply, Edit, edited
from tests.simulation.mutants.scenes import SCENES

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

SAMPLE = MUTANTS[::4]
"""What each test run plays; all of them: ``python -m tests.simulation.mutants``."""


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_INV_SCN1_a_scene_is_clean_without_an_edit(scene: str) -> None:
    assert clean(scene) == ()


@pytest.mark.parametrize("mutant", SAMPLE, ids=[each.name for each in SAMPLE])
def test_INV_MUT1_a_product_without_a_rule_is_noticed(mutant: Mutant) -> None:
    said = played(mutant)
    assert caught(mutant, said), (mutant.expected, said)


def test_INV_TPA1_every_mutants_edits_apply_to_the_product() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 40
    for mutant in MUTANTS:
        with edited(mutant.edits):
            pass


@pytest.mark.parametrize(
    "edit",
    [
        Edit("idempotency.window:BatchWindow.find", "no such text", ""),
        Edit("idempotency.window:BatchWindow.find", "batch", ""),
        Edit("idempotency.window:BatchWindow.lost", "batch", ""),
    ],
)
def test_INV_TPA1_an_edit_that_does_not_apply_fails(edit: Edit) -> None:
    with pytest.raises(DoesNotApply), edited([edit]):
        pass
