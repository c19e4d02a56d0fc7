"""Lives of whole regions from one seed each: nothing is violated, and a seed is the same run in every process.

What differs between processes differs from its first event on that it touches, so the beginnings of many lives are compared,
and two lives are played to their end and judged. `.ci/run` plays some more after the tests.
"""

import os
import subprocess
import sys

import pytest

from tests.simulation.swarm.life import play

pytestmark = [pytest.mark.slow, pytest.mark.simulation]
MINUTES = 0.02
EVENTS = 5_000
OTHER_PLACES = "held = [bytearray(size % 700) for size in range(1, 40_000)]; del held[::3];"
"""What makes objects of a process lie elsewhere than those of another one."""


def traces(regions: int, seeds: int, *, hash_seed: int, before: str) -> list[str]:
    """Return the last line of each of the seeds, from a process of its own."""
    play = f"{before}from tests.simulation.__main__ import main; main()"
    run = subprocess.run(
        [sys.executable, "-c", play, "--seed", "100", "--seeds", str(seeds), "--regions", str(regions),
         "--minutes", str(MINUTES), "--first", str(EVENTS)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]
    return [line for line in run.stdout.splitlines() if line.startswith("trace ")]


@pytest.mark.parametrize(("regions", "seeds"), [(2, 6), (3, 2)])
def test_INV_SWL1_a_seed_is_the_same_run_in_every_process(regions: int, seeds: int) -> None:
    first = traces(regions, seeds, hash_seed=1, before="")
    second = traces(regions, seeds, hash_seed=2, before=OTHER_PLACES)
    assert len(first) == seeds == len(set(first))
    assert first == second


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize(("regions", "seed"), [(2, 100), (3, 104)])
def test_INV_SWL2_a_life_ends_whole_and_all_regions_alike(regions: int, seed: int) -> None:
    outcome = play(seed, minutes=MINUTES, regions=regions)
    assert not outcome.violations
