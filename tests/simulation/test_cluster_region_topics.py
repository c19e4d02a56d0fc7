"""Topics that grow, go and come again at the primary, where a region of three mirrors it: all of its nodes follow (T15)."""

from pathlib import Path

import pytest

from region_broker.controller.metadata_image import TopicImage
from tests.simulation.cluster_region_steps import (
    TOPIC,
    all_alike,
    connected,
    create,
    shown,
    tidemarks_go_on,
    write,
)
from tests.simulation.cluster_regions import (
    BOTH,
    PRIMARY_OF_ONE,
    AnyNode,
    ClusterRegion,
    Layout,
    Regions,
    cluster_regions,
)
from tests.simulation.kafka_client import batch_of, patiently

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def topic_at(node: AnyNode) -> TopicImage:
    return node.node.storage.metadata.image.topics[TOPIC]


async def write_to(regions: Regions, at: ClusterRegion, number: int, *values: bytes) -> None:
    connection = await connected(regions, at.led)
    producer = await patiently(lambda: connection.init_producer_id(None))
    for sequence, value in enumerate(values):
        batch = batch_of(value, producer, sequence, transactional=False)
        await connection.produce(TOPIC, {number: batch})
    connection.close()


async def until_grown(regions: Regions, count: int) -> None:
    nodes = [node for node in regions.us.nodes.values() if node.runs]
    await regions.until(
        lambda: all(topic_at(node).partition_count == count for node in nodes), "it has grown"
    )
    assert all(topic_at(node).copied_count == 0 for node in nodes)


@pytest.mark.parametrize("layout", [BOTH, PRIMARY_OF_ONE], ids=["3+3", "1+3"])
async def test_INV_MT1_a_topic_grows_at_a_mirror_of_three(layout: Layout, tmp_path: Path) -> None:
    async with cluster_regions(tmp_path, 11, layout) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1")
        await shown(regions, regions.us, 1)
        await regions.eu.led.node.topics.grow_topic(TOPIC, 4, 2)
        await write_to(regions, regions.eu, 3, b"2", b"3")
        await until_grown(regions, 4)
        await tidemarks_go_on(regions, regions.eu, b"4")
        assert regions.us.in_sync() == 3
        await all_alike(regions, "eu")


@pytest.mark.parametrize("seed", [12, 13])
async def test_INV_MT1_so_it_does_where_the_leader_of_the_mirror_dies_meanwhile(
    seed: int, tmp_path: Path
) -> None:
    async with cluster_regions(tmp_path, seed) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1")
        await shown(regions, regions.us, 1)
        first = regions.us.led
        await regions.eu.led.node.topics.grow_topic(TOPIC, 4, 2)
        await regions.until(
            lambda: any(topic_at(node).copied_count for node in regions.us.nodes.values()), "early"
        )
        await first.kill()
        await write_to(regions, regions.eu, 3, b"2", b"3")
        await regions.until_led(regions.us, but=first)
        await until_grown(regions, 4)
        await first.begin()
        await tidemarks_go_on(regions, regions.eu, b"4")
        await all_alike(regions, "eu")


async def test_T15_a_takeover_gives_up_on_all_nodes_what_was_copied_early(tmp_path: Path) -> None:
    async with cluster_regions(tmp_path, 14) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1")
        await shown(regions, regions.us, 1)
        await regions.eu.led.node.topics.grow_topic(TOPIC, 4, 2)
        await regions.until(
            lambda: any(topic_at(node).copied_count for node in regions.us.nodes.values()), "early"
        )
        for node in regions.eu.nodes.values():
            await node.kill()
        await regions.take_over(regions.us, planned=False)
        us = regions.us.nodes.values()
        await regions.until(lambda: all(not topic_at(node).copied_count for node in us), "given up")
        count = topic_at(regions.us.led).partition_count
        for node in us:
            held = node.node.storage.partitions.beyond(topic_at(node).topic_id, 0)
            assert len(held) == count


async def test_INV_MT2_a_topic_that_goes_and_comes_again_is_the_new_one_on_all_nodes(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 15) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        topics = regions.eu.led.node.topics
        await topics.delete_topic(TOPIC)
        made = await topics.create_topic(TOPIC, 3, {"retention.ms": "900000"})
        await write_to(regions, regions.eu, 2, b"3")
        nodes = regions.us.nodes.values()
        await regions.until(
            lambda: all(
                node.node.storage.metadata.image.topics.get(TOPIC) == made for node in nodes
            ),
            "it is there under its name",
        )
        await tidemarks_go_on(regions, regions.eu, b"4")
        for node in nodes:
            assert node.partition(TOPIC, 2).topic_id == made.topic_id
            assert node.partition(TOPIC, 2).log.config.retention_ms == 900_000
        await all_alike(regions, "eu")
