"""A few short lives of a region of three nodes; longer ones: ``python -m tests.simulation.cluster_swarm``."""

import os
import subprocess
import sys

import pytest

from tests.simulation.cluster_swarm.life import play
from tests.simulation.cluster_swarm.plan import Fault

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
MINUTES = 0.05


def test_INV_CSJ1_INV_CSW1_INV_CSW2_INV_CSR1_nothing_is_lost_doubled_or_torn() -> None:
    outcome = play(2, minutes=MINUTES)
    assert not outcome.violations, outcome
    assert any(outcome.counted[each.value] for each in Fault), "nothing has happened"
    assert outcome.counted["acked"] > 0
    assert outcome.counted["committed"] > 0


def test_INV_CSR1_readers_of_a_rack_are_served_by_followers_where_one_node_leads_all() -> None:
    outcome = play(2, minutes=MINUTES, without=frozenset({"spread"}))
    assert not outcome.violations, outcome
    assert outcome.counted["read at followers"] > 0


def test_INV_CSL1_one_seed_has_one_trace_in_every_process() -> None:
    said = set()
    for hash_seed in ("1", "2"):
        played = subprocess.run(
            [sys.executable, "-m", "tests.simulation.cluster_swarm", "--seed", "6", "--first", "9000"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said.add(played.stdout.splitlines()[-1])
    assert len(said) == 1, said
    assert "trace" in said.pop()
