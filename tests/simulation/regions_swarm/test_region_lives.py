"""A few short lives of two regions of several nodes; longer ones: ``python -m tests.simulation.regions_swarm``."""

import os
import subprocess
import sys

import pytest

from tests.simulation.regions_swarm.life import play

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
MINUTES = 0.05


@pytest.mark.parametrize("seed", [1])
def test_INV_RGJ1_INV_RGJ2_INV_RGJ3_INV_RSL2_INV_NFS1_INV_RGW1_INV_RGW2_nothing_is_lost_but_by_a_word(
    seed: int,
) -> None:
    outcome = play(seed, minutes=MINUTES)
    assert not outcome.violations, outcome
    assert outcome.counted["acked"] > 0
    assert outcome.counted["committed"] > 0
    assert outcome.counted["data groups led"] > 0, "leaders were spread"
    assert outcome.counted["access changes"] > 0


def test_INV_RSL1_one_seed_has_one_trace_in_every_process() -> None:
    said = set()
    for hash_seed in ("1", "2"):
        played = subprocess.run(
            [sys.executable, "-m", "tests.simulation.regions_swarm", "--seed", "4", "--first", "14000"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said.add(played.stdout.splitlines()[-1])
    assert len(said) == 1, said
    assert "trace" in said.pop()
