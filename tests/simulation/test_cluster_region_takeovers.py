"""Another region takes over from one of several nodes, or one of several nodes does (ADR 48): whoever leads a region goes on with it."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from region_broker.partitions.parts.sight import Isolation
from tests.simulation.cluster_region_steps import (
    TOPIC,
    all_alike,
    connected,
    create,
    shown,
    values_at,
    write,
)
from tests.simulation.cluster_regions import (
    BOTH,
    MIRROR_OF_ONE,
    PRIMARY_OF_ONE,
    Layout,
    cluster_regions,
)
from tests.simulation.kafka_client import batch_of, patiently

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


async def test_INV_WC5_the_next_node_that_leads_a_mirror_shows_no_less_than_the_one_before(
    tmp_path: Path,
) -> None:
    """A producer of the first protocol generation has its next transaction open in another partition (seed 5506), and nothing is forgotten yet."""
    hour_ms = 3_600_000
    async with cluster_regions(
        tmp_path, 7, PRIMARY_OF_ONE, retention_check_interval_ms=hour_ms
    ) as regions:
        await create(regions, regions.eu)
        client, name = await connected(regions, regions.eu.led), "teller"
        producer = await patiently(lambda: client.init_producer_id(name))

        async def write_to(number: int) -> None:
            await patiently(lambda: client.add_partitions(name, producer, TOPIC, [number]))
            batch = batch_of(b"1", producer, 0, transactional=True)
            await client.produce(TOPIC, {number: batch}, transactional_id=name)

        def knows_ends() -> bool:
            leader = regions.us.leader
            logs = [] if leader is None else [leader.partition(TOPIC, each) for each in (0, 1)]
            return bool(logs) and all(
                each.sight.knows_end(Isolation.READ_COMMITTED) for each in logs
            )

        async def ends_at_mirror() -> dict[int, int]:
            await regions.until(knows_ends, "the mirror tells where its logs end")
            reader = await connected(regions, regions.us.led)
            ends = await patiently(lambda: reader.ends(TOPIC, 2))
            reader.close()
            return ends

        await write_to(0)
        await client.end_txn(name, producer, commit=True, tv2=False)
        await shown(regions, regions.us, 2)
        first = regions.us.led
        await write_to(1)
        await regions.until(
            lambda: first.partition(TOPIC, 1).sight.visible_end == 1, "it is copied"
        )
        assert await ends_at_mirror() == {0: 2, 1: 0}
        await first.kill()
        await regions.until_led(regions.us, but=first)
        assert await ends_at_mirror() == {0: 2, 1: 0}
        await client.end_txn(name, producer, commit=True, tv2=False)
        await regions.until(
            lambda: regions.us.led.partition(TOPIC, 1).sight.last_stable_offset == 2, "it is shown"
        )
        client.close()
