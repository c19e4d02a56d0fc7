"""Another region takes over from one of several nodes, or one of several nodes does (ADR 48): whoever leads a region goes on with it."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.simulation.cluster_region_steps import all_alike, create, shown, values_at, write
from tests.simulation.cluster_regions import (
    BOTH,
    MIRROR_OF_ONE,
    PRIMARY_OF_ONE,
    Layout,
    cluster_regions,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
LAYOUTS = pytest.mark.parametrize(
    "layout", [BOTH, MIRROR_OF_ONE, PRIMARY_OF_ONE], ids=["3+3", "3+1", "1+3"]
)


@LAYOUTS
async def test_a_failover_when_the_primary_is_lost_and_a_node_is_down_on_each_side(
    layout: Layout, tmp_path: Path
) -> None:
    async with cluster_regions(tmp_path, 4, layout) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        for region in (regions.eu, regions.us):
            if len(region.nodes) > 1:
                await region.follower.kill()
        for node in regions.eu.nodes.values():
            await node.kill()
        await regions.take_over(regions.us, planned=False)
        await regions.until(lambda: regions.us.acts, "us acts")
        await write(regions, regions.us, b"3")
        assert await values_at(regions, regions.us) == [b"1", b"2", b"3"]
        for node in regions.nodes.values():
            if not node.runs:
                await node.begin()
        await all_alike(regions, "us")
        assert await values_at(regions, regions.eu) == [b"1", b"2", b"3"]


@LAYOUTS
async def test_a_planned_switch_there_and_back(layout: Layout, tmp_path: Path) -> None:
    async with cluster_regions(tmp_path, 5, layout) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1")
        await regions.take_over(regions.us, planned=True)
        await regions.until(lambda: regions.us.acts, "us acts")
        await write(regions, regions.us, b"2")
        await all_alike(regions, "us")
        await regions.take_over(regions.eu, planned=True)
        await regions.until(lambda: regions.eu.acts, "eu acts")
        await write(regions, regions.eu, b"3")
        await all_alike(regions, "eu")
        assert await values_at(regions, regions.us) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("phase", [Phase.FENCING, Phase.CUTTING, Phase.ADOPTING])
@pytest.mark.parametrize("planned", [False, True])
async def test_INV_FA3_another_node_ends_a_takeover_of_a_node_that_dies(
    phase: Phase, planned: bool, tmp_path: Path
) -> None:
    async with cluster_regions(tmp_path, 6) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        if not planned:
            for node in regions.eu.nodes.values():
                await node.kill()
        first = regions.us.led
        operation = await regions.ordered(regions.us, planned=planned)
        await regions.until(lambda: first.phase is phase, f"it is {phase}")
        await first.kill()
        second = await regions.until_led(regions.us, but=first)
        takeover = second.node.failover.state.takeover
        assert takeover is not None
        assert takeover.operation_id == operation.operation_id
        await regions.until(lambda: regions.us.acts, "us acts")
        await write(regions, regions.us, b"3")
        for node in regions.nodes.values():
            if not node.runs:
                await node.begin()
        await all_alike(regions, "us")
        assert await values_at(regions, regions.eu) == [b"1", b"2", b"3"]
        entries = regions.us.led.node.storage.metadata.image.main_domain.lineage
        assert len(entries) == 1
