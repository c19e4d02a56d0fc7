"""What a mirror's link asks of the registry of topics, where the region's quorum does not settle it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from geo_replicator.ports import LinkFailed
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_cut import NO_ROUND
from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.metadata_commands import Command, CommandRefused
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.log.recovery.removal import MARK_NAME
from region_broker.partitions.partition import Partition
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
    view = MirrorView(site.partitions, site.clock, 0, lambda *_: NO_ROUND)
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


def marked(site: Site) -> list[str]:
    """Return what is noted on disk as about to be deleted."""
    return sorted(map(str, site.folder.rglob(MARK_NAME)))


@pytest.mark.parametrize("what", ["the topic", "a partition"])
@pytest.mark.parametrize(
    ("failure", "stays"),
    [
        (MetadataInDoubt("not settled"), True),
        (MetadataUnwritable("the disk is full"), False),
        (CommandRefused("internal-topic", "no"), False),
    ],
    ids=["in doubt", "not written", "refused"],
)
async def test_INV_T5_a_mark_stays_only_where_nobody_knows_whether_the_registry_has_forgotten(
    mirror: Site, what: str, failure: Exception, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark that stayed after a refusal would have the next start delete what the registry has; one that goes leaves files for ever."""
    topics, metadata, two = topics_of(mirror), mirror.metadata, replace(ORDERS, partition_count=2)
    metadata.image = replace(metadata.image, topics={"orders": two})
    await topics.open_logs(mirror_topic(two))

    async def apply(_: Command) -> MetadataImage:
        assert marked(mirror), "noted before it is asked for"
        raise failure

    monkeypatch.setattr(metadata, "apply", apply)
    change = topics.delete(mirror_topic(two)) if what == "the topic" else topics.shrink(TOPIC_ID, 1)
    with pytest.raises((LinkFailed, OSError)):
        await change
    assert bool(marked(mirror)) is stays
    assert len(list(mirror.partitions)) == 2


async def test_INV_MT2_the_replication_hears_of_a_log_before_anybody_asks_how_far_it_is(
    mirror: Site,
) -> None:
    """Else it counts as durable on this node alone, and a tidemark would be reached that the others lack."""
    happened: list[str] = []

    class Watching(MirrorPartitions):
        def opened(self, partition: Partition) -> None:
            happened.append(f"opened {partition.tp.partition}")

        def take_on(self, partition: Partition, *, is_new: bool = True) -> None:
            super().take_on(partition, is_new=is_new)
            happened.append(f"taken on {partition.tp.partition}")

    view = MirrorView(mirror.partitions, mirror.clock, 0, lambda *_: NO_ROUND)
    logs = Watching(mirror.partitions, LedgerTopics(TOPIC_ID, TOPIC_ID), view)
    topics = MirrorTopicStore(
        mirror.metadata, mirror.partitions, logs, lambda: happened.append("told")
    )
    two = replace(ORDERS, partition_count=2)
    mirror.metadata.image = replace(mirror.metadata.image, topics={"orders": two})
    await topics.open_logs(mirror_topic(two))
    assert happened == ["taken on 0", "taken on 1", "told", "opened 0", "opened 1"]
