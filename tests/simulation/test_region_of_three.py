"""A region of three nodes: one leads, the others copy; any one of them may go (ADR 47)."""

from pathlib import Path

import pytest

from tests.simulation.region_cluster import region_cluster

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def test_a_region_of_three_starts_and_one_leads(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 1) as cluster:
        leader = await cluster.until_led()
        assert leader.name == "eu-1"
        image = leader.node.storage.metadata.image
        assert image.leadership is not None
        await cluster.until(
            lambda: len(leader.node.storage.metadata.image.leadership.in_sync) == 3,
            "all are in sync",
        )
