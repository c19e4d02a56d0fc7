"""Lives of a region's nodes over the simulated network: Raft's rules hold, enough happens, a seed is one run everywhere."""

import logging
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulation.region_nodes.play import play

pytestmark = [pytest.mark.slow, pytest.mark.simulation]

SEEDS = range(1, 13)
"""Seed 6: a member made a snapshot of its own between two pieces of its leader's, and lost the pieces (INV-RF5)."""
HAPPEN = (
    "MEMBERSHIP DONE", "PROPOSE DONE", "PROPOSE LOST", "PROPOSE NOT_LEADER", "READ DONE", "TRANSFER DONE", "_crash",
    "_cut", "_drop", "_hush", "_pause", "_reset", "_sever", "cuts", "drops", "installs", "leaders", "loads", "pieces",
    "snapshots",
)  # fmt: skip


def test_INV_RSJ1_INV_RSJ2_INV_RSJ3_INV_RSJ4_INV_RSJ5_INV_RSJ7_INV_RSJ8_INV_RSJ9_INV_RSJ10_hold_over_peer_ports() -> (
    None
):
    logging.disable(logging.WARNING)  # connections break all the time
    try:
        lives = [play(seed) for seed in SEEDS]
    finally:
        logging.disable(logging.NOTSET)
    assert [life for life in lives if life.violation] == []
    counted = sum((life.counted for life in lives), Counter[str]())
    assert [what for what in HAPPEN if counted[what] < 2] == []
    assert counted["pieces"] > 2 * counted["installs"], "snapshots come in several pieces"


def traces(*, hash_seed: int) -> list[str]:
    """Return the trace hashes of some seeds, from a process of its own."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation.region_nodes", "--seed", "1", "--seeds", "3", "--verbose"],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-4_000:]
    return [line for line in run.stdout.splitlines() if line.startswith("trace ")]


def test_INV_SNP1_a_seed_is_the_same_run_in_every_process() -> None:
    first = traces(hash_seed=1)
    assert len(set(first)) == 3
    assert first == traces(hash_seed=2)
