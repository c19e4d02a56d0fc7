"""A few hundred power losses in every run; docs/TESTING.md has the command for thousands."""

import pytest

from tests.property.power_loss import run


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nothing_acknowledged_is_lost_with_the_power(seed: int) -> None:
    assert run(50, seed).total() == 50
