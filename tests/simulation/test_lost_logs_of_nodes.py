"""A node of a region of several has lost a log, copies it again, and is elected: its region has lost nothing (T36)."""

from pathlib import Path

import pytest

from tests.simulation.cluster_region_steps import TOPIC, create, shown, values_at, write
from tests.simulation.cluster_regions import Regions, cluster_regions
from tests.simulation.folder_faults import lose_log

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def let_lead(regions: Regions, name: str) -> None:
    """Kill whoever leads eu, one after the other, until this node does."""
    while (leader := regions.eu.led) is not regions.nodes[name]:
        await leader.kill()
        await regions.until_led(regions.eu, but=leader)
        await leader.begin()
        await regions.all_well()


async def test_T36_a_node_that_has_copied_again_what_it_had_lost_may_lead(tmp_path: Path) -> None:
    async with cluster_regions(tmp_path, 31) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        node = regions.eu.follower
        await node.kill()
        lose_log(node, TOPIC, 0)
        node.disk.write_out()
        await write(regions, regions.eu, b"3")
        await node.begin()
        await regions.all_well()
        await regions.until(lambda: node.partition(TOPIC, 0).log_end_offset == 3, "it has it again")
        await let_lead(regions, node.name)
        await regions.until(lambda: regions.eu.acts, "eu acts")
        await write(regions, regions.eu, b"4")
        assert await values_at(regions, regions.eu) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_INV_NRP3_a_node_that_lacks_a_log_does_not_lead_where_another_one_is_in_sync(
    which: int, tmp_path: Path
) -> None:
    """All were down, so it is in sync still: whoever leads, nothing is lost, and nobody stands in dispute."""
    async with cluster_regions(tmp_path, 32) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        nodes = list(regions.eu.nodes.values())
        for each in nodes:
            await each.kill()
        lose_log(nodes[which], TOPIC, 0)
        nodes[which].disk.write_out()
        for each in nodes:
            await each.begin()
        await regions.until(lambda: regions.eu.acts, "eu acts")
        await write(regions, regions.eu, b"3")
        assert await values_at(regions, regions.eu) == [b"1", b"2", b"3"]
