"""How many nodes of a region have to be in sync, and what does not wait for them (INV-MH7, INV-RPL14, INV-TLC6)."""

from uuid import UUID

import msgspec
import pytest

from region_broker.controller.cluster_commands import RemoveNode
from region_broker.controller.metadata_commands import SetTopicConfigs
from region_broker.partitions.partition import Partition
from region_broker.region.cluster.replica_leading import LeadingParts, ReplicaLeading
from tests.fixtures.node_logs import Topic, batch
from tests.fixtures.replica_nodes import ReplicaRegion, live


def test_INV_MH7_who_grows_from_one_node_waits_for_no_more_than_have_been_in_sync() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start(topic_configs={"min.insync.replicas": "3"})

        def wanted() -> int:
            return one.leading._min_in_sync_of(one.partition())

        assert wanted() == 3
        for grown_to in (1, 2):
            region.image = msgspec.structs.replace(region.image, grown_to=grown_to)
            assert wanted() == grown_to
        region.image = msgspec.structs.replace(region.image, grown_to=0)
        assert wanted() == 3

    live(life)


@pytest.mark.parametrize("grown_to", [0, 3])
def test_INV_MH7_a_node_that_was_removed_is_waited_for_no_more_also_where_the_region_has_grown(
    grown_to: int,
) -> None:
    """A topic that asks for more nodes than are left would take nothing for good."""

    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start(topic_configs={"min.insync.replicas": "3"})
        region.image = msgspec.structs.replace(region.image, grown_to=grown_to)
        await three.kill()
        region.fence(3)
        await region.until(lambda: region.in_sync() == {1, 2}, "it is out of sync")
        assert one.leading.is_short(one.partition()), (
            "until an operator says that it does not come back"
        )
        region.change(RemoveNode(3, region.image.nodes[3].incarnation))
        assert not one.leading.is_short(one.partition())
        assert await one.produce(batch()) == 1

    live(life)


@pytest.mark.parametrize("restarts", [False, True])
def test_INV_RPL14_a_topic_that_asks_for_all_nodes_keeps_no_leader_from_beginning(
    restarts: bool,
) -> None:
    """Its tail is on all that may lead next: the region's gate is shut until that is committed (INV-LSH3)."""

    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start(topic_configs={"min.insync.replicas": "3"})
        end = await one.produce(batch(3))
        await three.kill()
        region.fence(3)
        await region.until(lambda: region.in_sync() == {1, 2}, "it is out of sync")
        tail = one.append(batch(2)).next_offset  # with acks=1
        await region.until(lambda: two.partition().commits.durable_end == tail, "it is copied")
        assert one.partition().high_watermark == end, "INV-RPL3"
        if restarts:  # nothing is known then of what was committed
            for node in (one, two):
                await node.kill()
            for node in (two, one):
                await node.start()
        region.elect(2)
        await region.until(lambda: two.leading.is_settled, "it serves")
        assert two.partition().high_watermark == tail
        assert two.leading.is_short(two.partition())
        two.append(batch())
        await region.clock.sleep_ms(500)
        assert two.partition().high_watermark == tail, "INV-RPL3"

    live(life)


def test_INV_TLC6_a_record_is_acknowledged_on_as_many_as_the_topic_that_asks_for_the_fewest() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start(topic_configs={"min.insync.replicas": "1"})
        leading = ReplicaLeading(
            LeadingParts(
                me=one.member, partitions=one.table, clock=region.clock, image=lambda: region.image, propose=region.propose,
                min_in_sync=lambda: 2,
            )
        )  # fmt: skip
        assert leading.acknowledged_on() == 1
        topics = {name: msgspec.structs.replace(topic, configs={"min.insync.replicas": "3"}) for name, topic in region.image.topics.items()}  # fmt: skip
        region.image = msgspec.structs.replace(region.image, topics=topics)
        assert leading.acknowledged_on() == 2, "of a topic that is still to be made"

    live(life)


def test_INV_MIS1_a_change_of_the_metadata_costs_the_logs_of_the_topics_that_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = list[int]()
    asked_of = ReplicaLeading._min_in_sync_of

    def counted(leading: ReplicaLeading, partition: Partition) -> int:
        looked.append(partition.tp.partition)
        return asked_of(leading, partition)

    monkeypatch.setattr(ReplicaLeading, "_min_in_sync_of", counted)

    async def life(region: ReplicaRegion) -> None:
        other = Topic(partition_count=3, topic_id=UUID(int=77), name="other")
        region.topics.append(other)
        one, *_ = await region.start()
        looked.clear()
        region.fence(3)
        assert looked == []
        region.change(SetTopicConfigs(other.topic_id, {"min.insync.replicas": "3"}))
        assert looked == [0, 1, 2]
        await region.until(lambda: one.leading.is_short(one.partition(0, 1)), "two are left")
        looked.clear()
        region.change(RemoveNode(3, region.image.nodes[3].incarnation))
        assert len(looked) == 1 + 3, "all, as there are fewer nodes"
        assert not one.leading.is_short(one.partition(0, 1))

    live(life)
