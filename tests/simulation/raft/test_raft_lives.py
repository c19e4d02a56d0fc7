"""Lives of Raft groups from one seed each: no rule is violated, enough happens, and a seed is one run everywhere."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.raft.plan import BENT, Bent
from tests.simulation.raft.play import play

pytestmark = [pytest.mark.slow, pytest.mark.simulation]

SEEDS = range(1, 81)
HAPPEN = (
    "crashes", "cuts", "installs", "leaders", "snapshots", "MEMBERSHIP BUSY", "MEMBERSHIP DONE", "MEMBERSHIP LOST",
    "MEMBERSHIP REFUSED", "PROPOSE BUSY", "PROPOSE DONE", "PROPOSE LOST", "PROPOSE NOT_LEADER", "READ DONE", "READ LOST",
    "TRANSFER DONE", "TRANSFER LOST", "TRANSFER REFUSED",
)  # fmt: skip


def test_INV_RSJ1_INV_RSJ2_INV_RSJ3_INV_RSJ4_INV_RSJ5_INV_RSJ6_INV_RSJ7_INV_RSJ8_INV_RSJ9_INV_RSJ10_hold() -> (
    None
):
    lives = [play(seed) for seed in SEEDS]
    assert [life for life in lives if life.violation] == []
    counted = sum((life.counted for life in lives), Counter[str]())
    assert [what for what in HAPPEN if counted[what] < 10] == []


@pytest.mark.parametrize("members", range(1, 8))
def test_groups_of_every_size_hold_the_rules(members: int) -> None:
    assert [life for seed in range(5) if (life := play(seed, members)).violation] == []


@pytest.mark.parametrize("bent", BENT)
def test_lives_bent_towards_what_seldom_happens_hold_the_rules(bent: Bent) -> None:
    assert [life for seed in range(20) if (life := play(seed, bent=bent)).violation] == []


def traces(*, hash_seed: int) -> list[str]:
    """Return the trace hashes of some seeds, from a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation.raft", "--seed", "1", "--seeds", "20", "--verbose"],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]
    return [line for line in run.stdout.splitlines() if line.startswith("trace ")]


def test_INV_RSW1_a_seed_is_the_same_run_in_every_process() -> None:
    first = traces(hash_seed=1)
    assert len(set(first)) == 20
    assert first == traces(hash_seed=2)
