"""Mutants of the simulator are edits of the product, so a change of the product may leave one that edits nothing.

Here rather than beside the lives that play them: those come last, and are left out where time is short.
"""

import pytest

from tests.simulation.mutants.named import MUTANTS
from tests.simulation.mutants.patch import DoesNotApply, Edit, edited


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
