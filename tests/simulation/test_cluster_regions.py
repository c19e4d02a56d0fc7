"""Regions of several nodes side by side (ADR 48): whichever node leads a region speaks for it."""

import asyncio
from pathlib import Path

import pytest

from region_broker.controller.cluster_image import Leadership
from tests.simulation.cluster_region_steps import (
    TOPIC,
    all_alike,
    counted_fetches,
    create,
    held_by_all,
    number_of,
    shown,
    tidemarks_go_on,
    values_at,
    write,
)
from tests.simulation.cluster_regions import (
    BOTH,
    MIRROR_OF_ONE,
    PRIMARY_OF_ONE,
    AnyNode,
    Layout,
    NodeAmong,
    Regions,
    cluster_regions,
    leadership_of,
)


def led_by(node: AnyNode) -> Leadership | None:
    joins = isinstance(node, NodeAmong) and node.member.node is None
    return None if joins else leadership_of(node)


pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
LAYOUTS = pytest.mark.parametrize(
    "layout", [BOTH, MIRROR_OF_ONE, PRIMARY_OF_ONE], ids=["3+3", "3+1", "1+3"]
)


@LAYOUTS
async def test_they_come_up_and_mirror(layout: Layout, tmp_path: Path) -> None:
    async with cluster_regions(tmp_path, 1, layout) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        assert await values_at(regions, regions.us) == [b"1", b"2"]
        await tidemarks_go_on(regions, regions.eu, b"3")
        await all_alike(regions, "eu")


async def test_INV_TKO1_a_mirror_whose_leader_dies_in_the_middle_of_copying_fetches_nothing_again(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 2) as regions:
        await create(regions, regions.eu)
        values = [b"%d" % n for n in range(60)]
        with counted_fetches() as fetched:
            writing = asyncio.get_running_loop().create_task(write(regions, regions.eu, *values))
            await regions.until(
                lambda: regions.us.led.partition(TOPIC, 0).log_end_offset > 20, "some are there"
            )
            first = regions.us.led
            before = dict(fetched)
            held = held_by_all(regions.us)
            shown_before = number_of(first)
            await first.kill()
            second = await regions.until_led(regions.us, but=first)
            assert number_of(second) >= shown_before
            await writing
            await shown(regions, regions.us, 60)
            for place, count in fetched.items():
                topic_id, number, position = place
                assert count == before.get(place, 0) or position >= held[topic_id, number], place
        await tidemarks_go_on(regions, regions.eu, b"more")
        await first.begin()
        await all_alike(regions, "eu")
        assert await values_at(regions, regions.us) == [*values, b"more"]


@pytest.mark.parametrize("layout", [BOTH, MIRROR_OF_ONE], ids=["3+3", "3+1"])
async def test_INV_RAD1_the_link_finds_the_node_that_leads_the_primary_next(
    layout: Layout, tmp_path: Path
) -> None:
    async with cluster_regions(tmp_path, 3, layout) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        first = regions.eu.led
        await first.kill()
        await regions.until_led(regions.eu, but=first)
        await regions.until(lambda: regions.eu.acts, "eu acts")
        await write(regions, regions.eu, b"3")
        await shown(regions, regions.us, 3)
        assert await values_at(regions, regions.us) == [b"1", b"2", b"3"]
        await tidemarks_go_on(regions, regions.eu, b"4")
        await first.begin()
        await all_alike(regions, "eu")


async def test_INV_LSH6_a_region_that_grows_knows_itself_before_a_second_node_is_in_sync(
    tmp_path: Path,
) -> None:
    """What is committed only with two of three comes when another node may be elected already, which knows no promise."""
    alone, grown = Regions(tmp_path, 22, PRIMARY_OF_ONE), Regions(tmp_path, 23)
    only, first = alone.nodes["eu"], grown.nodes["eu-1"]
    try:
        await only.begin()
        await alone.until(lambda: alone.eu.acts, "it acts")
        await only.node.topics.create_topic(TOPIC, 2, {})
        await write(alone, alone.eu, b"1")
        await only.kill()
        first.disk, first.folder, first.made = only.disk, only.folder, True
        await first.begin()
        await grown.until(lambda: led_by(first) is not None, "the first node leads")
        metadata = first.node.storage.metadata
        await grown.until(lambda: metadata.image.region_folder is not None, "it is written down")
        await grown.nodes["eu-2"].begin()
        await grown.until(lambda: grown.eu.in_sync() == 2, "a second one is in sync")
        assert await values_at(grown, grown.eu) == [b"1"]
    finally:
        await alone.stop()
        await grown.stop()


async def test_INV_RH5_who_leads_the_primary_next_keeps_what_a_mirror_that_is_away_has_not_copied(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 21) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        for node in regions.us.nodes.values():
            await node.kill()
        first = regions.eu.led
        await first.kill()
        second = await regions.until_led(regions.eu, but=first)
        await regions.until(lambda: regions.eu.acts, "eu acts")
        await second.node.maintain()
        hold = second.node.storage.hold.of(second.partition(TOPIC, 0))
        assert hold is not None
        assert hold.offset <= 2


@pytest.mark.parametrize("silent", [False, True])
async def test_the_link_leaves_a_leader_that_was_deposed_and_does_not_know(
    silent: bool, tmp_path: Path
) -> None:
    """It is cut off from its own region alone: it answers the link still, and has nothing new for it."""
    async with cluster_regions(tmp_path, 23) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1")
        await shown(regions, regions.us, 1)
        first = regions.eu.led
        regions.part([first], regions.eu.others(first), silent=silent)
        second = await regions.until_led(regions.eu, but=first)
        await regions.until(lambda: second.node.role.acting, "another one acts")
        await write(regions, regions.eu, b"2")
        await shown(regions, regions.us, 2)
