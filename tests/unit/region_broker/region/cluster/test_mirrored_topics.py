"""Topics that grow, go and come again in a mirror region of three: the nodes that follow have what the leading one's link opens."""

from pathlib import Path

from region_broker.controller.metadata_commands import CreateTopic
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.topic_names import waiting_name
from region_broker.region.topics import settle_partitions
from tests.fixtures.linked_regions import Site, values_in
from tests.fixtures.mirror_nodes import MirrorRegion, NodesMetadata, grow_topic, mirror_of_three
from tests.fixtures.waiting import until


def hold_tidemarks(primary: Site) -> None:
    """Let the primary publish nothing more but by `final_round`."""
    primary.tidemarks.change_pace(interval_ms=3_600_000, whole_wait_ms=120_000)


async def made_again(primary: Site, region: MirrorRegion, topic: TopicImage) -> TopicImage:
    """Delete a topic at the primary and make it again; return the new one, once it waits for its name on all nodes."""
    await primary.delete_topic(topic)
    again = await primary.create_topic(topic.name, 2)
    await primary.produce(topic.name, b"b", b"c", number=1)
    waiting = waiting_name(topic.name, again.topic_id)

    def waits() -> bool:
        logs = [node.table.get(waiting, 1) for node in region.nodes.values()]
        return all(log is not None and log.high_watermark == 2 for log in logs)

    await region.until(waits, "it waits for its name")
    return again


async def test_INV_MT1_a_topic_that_grows_is_copied_by_all_nodes_before_its_registry_has_it(
    tmp_path: Path,
) -> None:
    async with mirror_of_three(tmp_path) as (primary, region, cut_leader):
        await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        await region.reaches(await cut_leader.final_round())
        await grow_topic(primary, "orders", 3)
        await primary.produce("orders", b"b", b"c", number=2)
        await region.reaches(await cut_leader.final_round())
        await region.all_have("orders", 1, 0, 2)
        assert (region.topic("orders").partition_count, region.topic("orders").copied_count) == (
            3,
            0,
        )
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync")


async def test_T15_what_grew_early_is_there_after_a_change_of_leader_and_after_a_start(
    tmp_path: Path,
) -> None:
    """Both come before a tidemark that names it."""
    async with mirror_of_three(tmp_path) as (primary, region, cut_leader):
        await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        await region.reaches(await cut_leader.final_round())
        hold_tidemarks(primary)
        await region.nodes[3].stop()
        await region.until(lambda: region.in_sync() == {1, 2}, "node 3 is away")
        await grow_topic(primary, "orders", 3)
        await primary.produce("orders", b"b", number=2)
        await primary.produce("orders", b"c", number=1)
        await region.all_have("orders", 1, 1, 1)
        topic = region.topic("orders")
        assert (topic.partition_count, topic.copied_count) == (1, 3)
        copy = region.nodes[1].table.get("orders", 2)
        assert copy is not None
        assert copy.sight.visible_end == 0, "INV-ML2"
        await region.nodes[3].start()
        await region.all_have("orders", 1, 1, 1)
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is back")
        await region.lead_next(2)
        await region.all_have("orders", 1, 1, 1)
        assert region.topic("orders").partition_count == 1
        await region.reaches(await cut_leader.final_round())
        assert (region.topic("orders").partition_count, region.topic("orders").copied_count) == (
            3,
            0,
        )
        await region.all_have("orders", 1, 1, 1)


async def test_T15_what_a_takeover_gives_up_goes_on_all_nodes(tmp_path: Path) -> None:
    async with mirror_of_three(tmp_path) as (primary, region, cut_leader):
        await primary.create_topic("orders")
        await region.reaches(await cut_leader.final_round())
        hold_tidemarks(primary)
        await grow_topic(primary, "orders", 3)
        await region.all_have("orders", 0, 0, 0)
        await region.end_link()
        one = region.nodes[1]
        await settle_partitions(NodesMetadata(region, one), one.table)
        one.logs_changed()
        assert region.topic("orders").copied_count == 0
        await region.all_have("orders", 0)


async def test_INV_MT2_a_topic_that_is_deleted_and_made_again_is_the_new_one_on_all_nodes(
    tmp_path: Path,
) -> None:
    """It waits for its name until a tidemark is past the deletion, at the followers, too."""
    async with mirror_of_three(tmp_path) as (primary, region, cut_leader):
        first = await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        await region.reaches(await cut_leader.final_round())
        await region.all_have("orders", 1)
        hold_tidemarks(primary)
        middle = await made_again(primary, region, first)
        last = await made_again(primary, region, middle)
        await region.lead_next(2)
        await region.reaches(await cut_leader.final_round())
        await region.all_have("orders", 0, 2)
        for node in (region.nodes[2], region.nodes[3]):
            assert region.logs_of(node) == {("orders", 0), ("orders", 1)}
            assert node.table.get("orders", 1) is node.table.by_id(last.topic_id, 1)
            kept = {note.note.why for note in node.table.kept.listed()}
            assert not any("order to delete" in why for why in kept), kept
        await region.until(lambda: region.in_sync() == {2, 3}, "both are in sync")
        await primary.produce("orders", b"d")
        await region.reaches(await cut_leader.final_round())
        await region.all_have("orders", 1, 2)


async def test_INV_MT2_what_goes_at_the_link_is_led_no_more_in_that_step(tmp_path: Path) -> None:
    async with mirror_of_three(tmp_path) as (primary, region, cut_leader):
        topic = await primary.create_topic("orders", 2)
        await region.reaches(await cut_leader.final_round())
        term = region.nodes[1].leading._term
        assert term is not None
        assert all(log.key in term.logs for log in region.nodes[1].table)
        store = region.link._ports.topics
        await store.shrink(topic.topic_id, 1)
        assert set(term.logs) == {log.key for log in region.nodes[1].table}
        await primary.delete_topic(topic)
        await primary.create_topic("later")
        await until(lambda: region.nodes[1].table.get("orders", 0) is None, what="it is gone")
        assert set(term.logs) == {log.key for log in region.nodes[1].table}
        await region.until(
            lambda: all(region.logs_of(node) == {("later", 0)} for node in region.nodes.values()),
            "it is gone on all nodes",
        )


async def test_INV_ML2_a_topic_that_a_former_leader_asked_for_is_mirrored(tmp_path: Path) -> None:
    """1. A node leads, and has a topic created. 2. Another one leads. 3. The command is settled."""
    async with mirror_of_three(tmp_path) as (primary, region, cut_leader):
        await region.reaches(await cut_leader.final_round())
        await region.end_link()
        topic = await primary.create_topic("orders")
        await region.lead(region.nodes[1])
        region.change(CreateTopic(topic))
        log = region.nodes[1].table.get("orders", 0)
        assert log is not None
        assert not log.is_leader
        await primary.produce("orders", b"a")
        await region.reaches(await cut_leader.final_round())
        await region.all_have("orders", 1)
        assert values_in(log, log.sight.visible_end) == [b"a"]
