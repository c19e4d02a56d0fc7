"""A region of three nodes: one leads, the others copy; any one of them may go (ADR 47)."""

import random
from pathlib import Path

import pytest

from region_broker.controller.cluster_image import Leadership
from region_broker.controller.metadata_image import TIDEMARK_LEDGER
from region_broker.partitions.partition import Partition
from tests.simulation.kafka_client import Connection, Reader, Refused, batch_of, patiently
from tests.simulation.region_cluster import Cluster, Member, region_cluster

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

TOPIC = "accounts"


def leadership(node: Member) -> Leadership:
    found = node.node.storage.metadata.image.leadership
    assert found is not None
    return found


async def all_in_sync(cluster: Cluster, count: int = 3) -> Member:
    """Return the leader once that many are in sync."""
    await cluster.until(
        lambda: cluster.leader is not None and len(leadership(cluster.leader).in_sync) == count,
        f"{count} nodes are in sync",
    )
    leader = cluster.leader
    assert leader is not None
    return leader


async def connected(cluster: Cluster, node: Member) -> Connection:
    return await Connection.open(cluster.fabric.site("client"), node.kafka_port)


def bytes_of(partition: Partition) -> bytes:
    """Return all that is in a log, to its very end."""
    if partition.log_end_offset == partition.kept_from:
        return b""
    found = partition.reader.read_replica(partition.kept_from, 1 << 30)
    return bytes(found[0])


def ends_of(node: Member) -> dict[str, int]:
    return {str(p.tp): p.log_end_offset for p in node.node.storage.partitions}


async def everything_equal(cluster: Cluster) -> None:
    """Wait until all logs of all nodes that run end at the same places, then compare their bytes."""
    running = [node for node in cluster.nodes.values() if node.runs]

    def settled() -> bool:
        first, *others = (ends_of(node) for node in running)
        marks = {
            str(p.tp): p.high_watermark for node in running for p in node.node.storage.partitions
        }
        return all(other == first for other in others) and marks == first

    await cluster.until(settled, "all logs end at the same places, and all of them is committed")
    for partition in running[0].node.storage.partitions:
        copies = {
            bytes_of(node.partition(str(partition.tp.topic), partition.tp.partition))
            for node in running
        }
        assert len(copies) == 1, partition.tp


async def write(connection: Connection, values: list[bytes], first: int = 0) -> None:
    producer = await patiently(lambda: connection.init_producer_id(None))
    for number, value in enumerate(values):
        batch = batch_of(value, producer, first + number, transactional=False)
        await connection.produce(TOPIC, {0: batch})


async def values_at(cluster: Cluster, node: Member) -> list[bytes]:
    connection = await connected(cluster, node)
    reader = Reader(TOPIC, 2, committed=True)
    while await reader.read(connection):
        pass
    connection.close()
    return [value for _, _, value in reader.records]


async def test_INV_CNN2_folders_without_history_join_their_region_and_have_its_logs(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 1) as cluster:
        leader = await all_in_sync(cluster)
        assert leader.name == "eu-1"
        births = {
            node.node.storage.folder.identity.born.birth_id  # type: ignore[union-attr]
            for node in cluster.nodes.values()
        }
        assert len(births) == 1
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, leader), [b"one", b"two"])
        await everything_equal(cluster)


async def test_INV_RGF1_topics_come_and_go_on_all_nodes(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 2) as cluster:
        leader = await all_in_sync(cluster)
        topics, nodes = leader.node.topics, cluster.nodes.values()
        await topics.create_topic(TOPIC, 2, {"retention.ms": "1000"})
        await cluster.until(
            lambda: all(n.node.storage.partitions.get(TOPIC, 1) is not None for n in nodes), "made"
        )
        await topics.grow_topic(TOPIC, 3, 2)
        await cluster.until(
            lambda: all(n.node.storage.partitions.get(TOPIC, 2) is not None for n in nodes), "grown"
        )
        await topics.change_configs(TOPIC, {"retention.ms": "5000"}, {"retention.ms": "1000"})
        await topics.delete_topic(TOPIC)
        await cluster.until(
            lambda: all(n.node.storage.partitions.get(TOPIC, 0) is None for n in nodes), "gone"
        )


async def test_INV_LSH2_another_node_leads_where_the_leader_is_killed_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 3) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, first), [b"1", b"2", b"3"])
        epoch = leadership(first).leader_epoch
        await first.kill()
        second = await cluster.until_led(but=first)
        assert leadership(second).leader_epoch > epoch
        assert await values_at(cluster, second) == [b"1", b"2", b"3"]
        await write(await connected(cluster, second), [b"4"])
        await first.start()
        await all_in_sync(cluster)
        assert first.leads is False
        await everything_equal(cluster)
        await second.kill(power=random.Random(1))
        third = await cluster.until_led(but=second)
        assert await values_at(cluster, third) == [b"1", b"2", b"3", b"4"]


async def test_a_transaction_goes_on_over_the_death_of_its_coordinator(tmp_path: Path) -> None:
    """TV1: what was begun under one leader is committed under the next, once, with both halves."""
    async with region_cluster(tmp_path, 4) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 2, {})
        connection = await connected(cluster, first)
        producer = await patiently(lambda: connection.init_producer_id("t"))
        await connection.add_partitions("t", producer, TOPIC, [0, 1])
        halves = {n: batch_of(b"half %d" % n, producer, 0, transactional=True) for n in (0, 1)}
        await connection.produce(TOPIC, halves, transactional_id="t")
        await first.kill()
        second = await cluster.until_led(but=first)
        assert await values_at(cluster, second) == []
        again = await connected(cluster, second)
        await patiently(lambda: again.end_txn("t", producer, commit=True, tv2=False))
        await cluster.until(
            lambda: (
                second.partition(TOPIC, 0).sight.last_stable_offset == 2
                and second.partition(TOPIC, 1).sight.last_stable_offset == 2
            ),
            "both markers are there",
        )
        assert sorted(await values_at(cluster, second)) == [b"half 0", b"half 1"]


async def test_INV_LSH1_a_leader_that_is_cut_off_acknowledges_nothing_more(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 5) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 2, {})
        connection = await connected(cluster, first)
        await write(connection, [b"known"])
        for other in cluster.nodes.values():
            if other is not first:
                cluster.fabric.cut(first.name, other.name)
        producer = await patiently(lambda: connection.init_producer_id(None))
        mark = first.partition(TOPIC, 0).high_watermark
        connection.send(0, 9, _produced(batch_of(b"lost", producer, 0, transactional=False)))
        second = await cluster.until_led(but=first)
        assert first.partition(TOPIC, 0).high_watermark == mark
        await write(await connected(cluster, second), [b"new"])
        for other in cluster.nodes.values():
            if other is not first:
                cluster.fabric.heal(first.name, other.name)
        await all_in_sync(cluster)
        await everything_equal(cluster)
        assert await values_at(cluster, second) == [b"known", b"new"]


def _produced(batch: bytes) -> dict[str, object]:
    return {
        "transactional_id": None, "acks": -1, "timeout": 60_000,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}],
    }  # fmt: skip


async def test_INV_NRP1_all_lose_power_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 6) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, first), [b"%d" % number for number in range(20)])
        for at, node in enumerate(cluster.nodes.values()):
            await node.kill(power=random.Random(at))
        for node in cluster.nodes.values():
            await node.begin()
        leader = await all_in_sync(cluster)
        assert await values_at(cluster, leader) == [b"%d" % number for number in range(20)]
        await everything_equal(cluster)
        ends = leader.partition(TIDEMARK_LEDGER, 0).log_end_offset
        await write(await connected(cluster, leader), [b"more"])
        await cluster.until(
            lambda: leader.partition(TIDEMARK_LEDGER, 0).log_end_offset > ends, "tidemarks go on"
        )


async def test_a_node_whose_disk_was_emptied_copies_everything(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 7) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, leader), [b"1", b"2"])
        lost = next(node for node in cluster.nodes.values() if not node.leads)
        await lost.kill()
        lost.disk.remove_tree(lost.folder)
        await write(await connected(cluster, leader), [b"3"])
        await lost.start()
        await all_in_sync(cluster)
        await everything_equal(cluster)


async def test_a_clean_stop_hands_over_first(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 8) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, first), [b"1"])
        await first.stop()
        second = await cluster.until_led(but=first)
        assert await values_at(cluster, second) == [b"1"]
        await first.start()
        await all_in_sync(cluster)
        await everything_equal(cluster)


async def test_without_most_of_its_nodes_nothing_is_acknowledged(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 9) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 2, {})
        connection = await connected(cluster, leader)
        await write(connection, [b"1"])
        others = [node for node in cluster.nodes.values() if node is not leader]
        for node in others:
            await node.kill()
        with pytest.raises((Refused, OSError, TimeoutError)):
            await write(connection, [b"2"])
        for node in others:
            await node.begin()
        again = await all_in_sync(cluster)
        await write(await connected(cluster, again), [b"3"])
        found = await values_at(cluster, again)
        assert found[0] == b"1"
        assert found[-1] == b"3"
        await everything_equal(cluster)
