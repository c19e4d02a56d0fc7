"""Nodes of a region whose disks take their time when they start."""

import asyncio
from pathlib import Path

import pytest

from tests.simulation.region_cluster import Cluster
from tests.simulation.simulated_loop import SimulatedLoop

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_INV_LSH2_a_node_that_is_elected_while_it_opens_its_logs_leads(
    tmp_path: Path, seed: int
) -> None:
    """1. It registers, is let in and elected. 2. Only then its logs are open: nobody else will elect it again."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    cluster = Cluster(tmp_path, seed)
    first = cluster.nodes["eu-1"]
    loop.slow["eu-1"] = 0.3
    first.on_open = lambda _node: loop.slow.clear()
    try:
        for node in cluster.nodes.values():
            await node.begin()
        leader = await cluster.until_led()
        assert leader.name == "eu-1"
    finally:
        await cluster.stop()
