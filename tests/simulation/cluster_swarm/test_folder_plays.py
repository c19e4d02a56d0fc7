"""What a region of three does about the folders of its nodes, each fault once; lives draw them by seed."""

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from tests.simulation.cluster_swarm.plan import Plan
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.node_faults.folders import FOLDER_PLAYS, Part, without
from tests.simulation.region_cluster import NAMES
from tests.simulation.simulated_loop import run_simulated
from tests.simulation.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

WELL_S = 30.0
FOR_S = 0.5
Play = Callable[[Stage, str], Coroutine[Any, Any, None]]


async def played(plays: list[Play]) -> Stage:
    """Let a region of three be well, and stay so after each of these, done to one node after the other."""
    stage = Stage(Plan(7), Trace(), None)
    for name in NAMES:
        await stage.start_soundly(name)
    assert await stage.until(stage.is_well, WELL_S), stage.told_state()
    for number, play in enumerate(plays):
        name = NAMES[number % len(NAMES)]
        stage.keep_copy(name)
        await stage.kill(name)
        await stage.start_soundly(name)  # so that the copy is an older one
        assert await stage.until(stage.is_well, WELL_S), (number, stage.told_state())
        await play(stage, name)
        assert await stage.until(stage.is_well, WELL_S), (number, stage.told_state())
    for name in NAMES:
        await stage.kill(name)
    return stage


def test_INV_NFF1_INV_NFF2_INV_NFS1_a_folder_that_is_not_whole_is_refused_and_what_is_lost_of_one_is_copied() -> (
    None
):
    parts: list[Play] = [
        lambda stage, name, part=part: without(stage, name, part, FOR_S, Random(part.value))  # type: ignore[misc]
        for part in Part
    ]
    stage = run_simulated(played(parts), 7)
    assert not stage.anomalies


@pytest.mark.parametrize("seed", [1, 2])
def test_INV_NFF1_INV_NFF2_whatever_becomes_of_a_folder_its_region_is_well_again(seed: int) -> None:
    plays: list[Play] = [
        lambda stage, name, play=play: play(stage, name, FOR_S, Random(seed))  # type: ignore[misc]
        for play in FOLDER_PLAYS.values()
    ]
    stage = run_simulated(played([*plays, *plays[:2]]), seed)
    assert not stage.anomalies
    assert stage.quorums.committed
