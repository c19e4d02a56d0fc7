"""Lives of whole regions from one seed each: nothing is violated, and a seed is the same run in every process."""

import os
import subprocess
import sys

import pytest

from tests.simulation.swarm.life import play

pytestmark = [pytest.mark.slow, pytest.mark.simulation]
SEEDS = 20
MINUTES = 0.05


def traces(hash_seed: int) -> list[str]:
    """Return the last line of each of the seeds, from a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", "1", "--seeds", str(SEEDS), "--minutes", str(MINUTES)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]
    return [line for line in run.stdout.splitlines() if line.startswith("trace ")]


def test_INV_SWL1_a_seed_is_the_same_run_in_every_process() -> None:
    first, second = traces(1), traces(2)
    assert len(first) == SEEDS == len(set(first))
    assert first == second


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("seed", range(100, 101))
def test_INV_SWL2_three_regions_converge_once_faults_end(seed: int) -> None:
    outcome = play(seed, minutes=MINUTES, regions=3)
    assert not outcome.violations
