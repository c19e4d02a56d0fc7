"""What a mirror's link asks of the registry of topics, where the region's quorum does not settle it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from geo_replicator.ports import LinkFailed
from geo_replicator.topology import LedgerTopics
from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.controller.metadata_commands import Command
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.region.mirror.mirror_log import MirrorPartitions
from region_broker.region.mirror.mirror_topics import MirrorTopicStore, mirror_topic
from region_broker.region.mirror.mirror_view import MirrorView
from tests.fixtures.linked_regions import PlayedMetadata, Site, first_image, running
from tests.fixtures.node_logs import TOPIC_ID

LED = Leadership(leader=None, leader_epoch=LeaderEpoch(1), in_sync=(), version=1)
ORDERS = TopicImage(topic_id=TOPIC_ID, name="orders", partition_count=1)


class Unsettled(PlayedMetadata):
    """Metadata of which nobody knows whether a command took effect."""

    async def apply(self, command: Command) -> MetadataImage:
        raise MetadataInDoubt(f"{type(command).__name__} is not settled")


@pytest.fixture
async def mirror(tmp_path: Path) -> AsyncIterator[Site]:
    async with running() as tasks:
        site = Site(tmp_path, "mirror", metadata=Unsettled(first_image()))
        site.start(tasks)
        yield site


def topics_of(site: Site) -> MirrorTopicStore:
    view = MirrorView(site.partitions, site.clock, 0)
    logs = MirrorPartitions(site.partitions, LedgerTopics(TOPIC_ID, TOPIC_ID), view)
    return MirrorTopicStore(site.metadata, site.partitions, logs, lambda: None)


async def test_a_change_that_the_other_nodes_do_not_settle_ends_the_session_and_not_the_node(
    mirror: Site,
) -> None:
    topics, metadata = topics_of(mirror), mirror.metadata
    metadata.image = replace(metadata.image, leadership=LED)
    with pytest.raises(LinkFailed, match="CreateTopic is not settled"):
        await topics.create(mirror_topic(ORDERS))
    metadata.image = replace(metadata.image, topics={"orders": ORDERS})
    for change in (topics.open_logs, topics.update_configs):
        with pytest.raises(LinkFailed, match="is not settled"):
            await change(mirror_topic(replace(ORDERS, partition_count=2)))
    assert not list(mirror.partitions), "INV-MT1"


async def test_a_region_of_one_node_ends_with_metadata_that_are_in_doubt(mirror: Site) -> None:
    """A start shows what became of it. What is copied early needs no command: nobody else copies it."""
    topics, metadata = topics_of(mirror), mirror.metadata
    with pytest.raises(MetadataInDoubt):
        await topics.create(mirror_topic(ORDERS))
    metadata.image = replace(metadata.image, topics={"orders": ORDERS})
    await topics.open_logs(mirror_topic(replace(ORDERS, partition_count=2)))
    assert len(list(mirror.partitions)) == 2
