"""Sequences of events in a region of three that broke a promise, or may; what still does is a strict xfail with its reason."""

import asyncio
import errno
import os
import random
from pathlib import Path
from typing import cast

import pytest

from region_broker.controller.cluster_commands import DrainNode
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from tests.simulation.kafka_client import Connection, batch_of, patiently
from tests.simulation.region_cluster import Cluster, Member, region_cluster
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.test_region_of_three import (
    TOPIC,
    all_in_sync,
    connected,
    everything_equal,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

NONE, NOT_LEADER, TIMED_OUT = 0, 6, 7
CALM = {"tidemark_interval_ms": 100, "retention_check_interval_ms": 200}


def loop() -> SimulatedLoop:
    return cast("SimulatedLoop", asyncio.get_running_loop())


def others_of(cluster: Cluster, node: Member) -> list[Member]:
    return [other for other in cluster.nodes.values() if other is not node]


async def test_INV_RGF1_a_topic_whose_deletion_a_full_disk_kept_back_is_dropped_and_may_come_again(
    tmp_path: Path,
) -> None:
    """1. A follower's disk takes nothing more. 2. A topic is deleted, which cannot be marked there. 3. Another one gets its name."""
    async with region_cluster(tmp_path, 31, **CALM) as cluster:
        leader = await all_in_sync(cluster)
        topics = leader.node.topics
        former = await topics.create_topic(TOPIC, 1, {})
        await write(await connected(cluster, leader), [b"1"])
        await everything_equal(cluster)
        full = others_of(cluster, leader)[0]
        marked = str(former.topic_id.hex)

        def refuse(operation: str, path: Path) -> None:
            if marked in str(path) and operation in {
                "write_file_atomic",
                "make_dir",
                "pwrite",
                "rename",
            }:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        full.disk.fault = refuse
        await topics.delete_topic(TOPIC)
        await cluster.until(
            lambda: TOPIC not in full.node.storage.metadata.image.topics, "it hears of that"
        )
        present = await topics.create_topic(TOPIC, 1, {})
        await cluster.until(
            lambda: TOPIC in full.node.storage.metadata.image.topics, "it hears of the new one"
        )
        full.disk.fault = None
        await cluster.until(
            lambda: (
                full.node.storage.partitions.by_id(former.topic_id, 0) is None
                and full.node.storage.partitions.by_id(present.topic_id, 0) is not None
            ),
            "the one is gone, the other one is there",
        )
        await write(await connected(cluster, leader), [b"2"])
        await everything_equal(cluster)


async def committed_transactions(connection: Connection, count: int) -> None:
    producer = await patiently(lambda: connection.init_producer_id("t"))
    for number in range(count):
        await patiently(lambda: connection.add_partitions("t", producer, TOPIC, [0]))
        batch = batch_of(b"%d" % number, producer, number, transactional=True)
        await connection.produce(TOPIC, {0: batch}, transactional_id="t")
        await patiently(lambda: connection.end_txn("t", producer, commit=True, tv2=False))


async def test_a_follower_forgets_what_its_leader_forgets(tmp_path: Path) -> None:
    """Completed transactions below the high watermark, and idle producers (C8): else a follower grows for as long as it follows."""
    async with region_cluster(tmp_path, 32, **CALM) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        await committed_transactions(await connected(cluster, leader), 5)
        await everything_equal(cluster)
        for node in cluster.nodes.values():
            await node.node.maintain()
        left = {
            name: len(node.partition(TOPIC, 0).state.committed_below(1 << 40))
            for name, node in cluster.nodes.items()
        }
        assert set(left.values()) == {0}, left


async def delete_below(
    connection: Connection, offset: int, timeout_ms: int = 5_000
) -> tuple[int, int]:
    """Return error and low watermark of DeleteRecords."""
    row = {"partition_index": 0, "offset": offset}
    answer = await connection.call(
        21, 2, {"topics": [{"name": TOPIC, "partitions": [row]}], "timeout": timeout_ms}
    )
    found = answer.topics[0].partitions[0]
    return int(found.error_code), int(found.low_watermark)


async def test_INV_HDR2_records_whose_deletion_was_acknowledged_do_not_come_back_with_the_next_leader(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 33, **CALM) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 1, {})
        connection = await connected(cluster, first)
        await write(connection, [b"1", b"2", b"3"])
        await everything_equal(cluster)
        for node in others_of(cluster, first):
            loop().pause(node.name)
        deleting = loop().create_task(delete_below(connection, 2))
        await cluster.until(lambda: first.partition(TOPIC, 0).log_start_offset == 2, "begun")
        done, _ = await asyncio.wait([deleting], timeout=0.2)
        assert not done, "nobody else has it"
        await first.kill()
        for node in others_of(cluster, first):
            loop().resume(node.name)
        second = await cluster.until_led(but=first)
        assert second.partition(TOPIC, 0).log_start_offset == 0
        await asyncio.wait([deleting])
        assert deleting.exception() is not None
        again = await connected(cluster, second)
        assert await patiently(lambda: delete_below(again, 2)) == (NONE, 2)
        [third] = [node for node in others_of(cluster, second) if node is not first]
        assert third.partition(TOPIC, 0).log_start_offset == 2
        await first.start()
        await all_in_sync(cluster)
        await second.kill(power=random.Random(1))
        last = await cluster.until_led(but=second)
        assert last.partition(TOPIC, 0).log_start_offset == 2
        await second.start()
        await all_in_sync(cluster)
        await everything_equal(cluster)
        assert {n.partition(TOPIC, 0).log_start_offset for n in cluster.nodes.values()} == {2}


async def test_INV_HDR2_an_order_to_delete_that_a_member_does_not_get_in_time_is_timed_out(
    tmp_path: Path,
) -> None:
    """1. A member in sync stands still. 2. The order is late, and counts. 3. That member is out of sync: the order repeated is answered.
    4. It is back, and is taken in with the log start.
    """
    async with region_cluster(tmp_path, 41, **CALM) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        connection = await connected(cluster, leader)
        await write(connection, [b"1", b"2", b"3"])
        await everything_equal(cluster)
        slow = others_of(cluster, leader)[0]
        loop().pause(slow.name)
        assert await delete_below(connection, 2, timeout_ms=100) == (TIMED_OUT, 0)
        assert leader.partition(TOPIC, 0).log_start_offset == 2
        assert await delete_below(connection, 1, timeout_ms=100) == (TIMED_OUT, 0)
        assert await delete_below(connection, 1, timeout_ms=5_000) == (NONE, 2)
        loop().resume(slow.name)
        await all_in_sync(cluster)
        assert slow.partition(TOPIC, 0).log_start_offset == 2
        await everything_equal(cluster)


async def test_INV_HDR2_an_order_to_delete_whose_leader_is_deposed_is_not_leader(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 42, **CALM) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        connection = await connected(cluster, leader)
        await write(connection, [b"1", b"2", b"3"])
        await everything_equal(cluster)
        slow = others_of(cluster, leader)[0]
        loop().pause(slow.name)
        deleting = loop().create_task(delete_below(connection, 2))
        await cluster.until(lambda: leader.partition(TOPIC, 0).log_start_offset == 2, "begun")
        metadata = leader.node.storage.metadata
        own = metadata.image.nodes[leader.node_id]
        draining = leader.as_process(metadata.apply(DrainNode(own.member.node_id, own.life)))
        assert await deleting == (NOT_LEADER, -1)
        await draining
        loop().resume(slow.name)


async def test_INV_NRP2_a_leader_with_a_ledger_that_its_disk_has_stopped_lets_another_one_lead(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 34, **CALM) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 1, {})
        first.partition(TRANSACTION_LEDGER, 0).stop("its disk has failed")
        first.partition(TRANSACTION_LEDGER, 1).stop("its disk has failed")
        await asyncio.sleep(10)
        leader = await cluster.until_led()
        await asyncio.wait_for(committed_transactions(await connected(cluster, leader), 1), 10)


async def test_a_follower_that_lags_behind_retention_starts_again_and_may_lead(
    tmp_path: Path,
) -> None:
    """1. A follower is away. 2. The leader writes on, and retention takes what the follower lacks. 3. It is back, and leads."""
    async with region_cluster(tmp_path, 35, **CALM) as cluster:
        first = await all_in_sync(cluster)
        configs = {"retention.bytes": "20000", "segment.bytes": "16384"}
        await first.node.topics.create_topic(TOPIC, 1, configs)
        connection = await connected(cluster, first)
        await write(connection, [b"1", b"2", b"3"])
        await everything_equal(cluster)
        away, third = others_of(cluster, first)
        await away.kill(power=random.Random(1))
        await write(connection, [b"%d" % number * 4000 for number in range(4, 40)])
        await cluster.until(
            lambda: first.partition(TOPIC, 0).kept_from > 10, "retention has deleted something"
        )
        await away.start()
        await all_in_sync(cluster)
        await everything_equal(cluster)
        start = first.partition(TOPIC, 0).log_start_offset
        await third.kill()
        await first.kill(power=random.Random(2))
        await third.start()
        second = await cluster.until_led(but=first)
        assert second.partition(TOPIC, 0).log_start_offset >= start
        await first.start()
        await all_in_sync(cluster)
        await everything_equal(cluster)


@pytest.mark.parametrize("seed", range(4))
async def test_a_follower_loses_its_power_while_it_copies_what_an_order_has_deleted(
    tmp_path: Path, seed: int
) -> None:
    """It has the log start durably, and not yet the records up to there."""
    async with region_cluster(tmp_path, 36, **CALM) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 1, {})
        connection = await connected(cluster, first)
        await write(connection, [b"1", b"2", b"3"])
        await everything_equal(cluster)
        away = others_of(cluster, first)[0]
        await away.kill()
        await write(connection, [b"%d" % number for number in range(4, 20)])
        await first.partition(TOPIC, 0).retention.delete_records(15)
        await away.begin()
        await cluster.until(
            lambda: (
                away.member.node is not None
                and (found := away.node.storage.partitions.get(TOPIC, 0)) is not None
                and found.log_start_offset > 3
            ),
            "it knows of the order",
        )
        await away.kill(power=random.Random(seed))
        await away.start()
        await all_in_sync(cluster)
        await everything_equal(cluster)
        await first.kill()
        second = await cluster.until_led(but=first)
        assert second.partition(TOPIC, 0).log_start_offset == 15


async def test_a_leader_that_stands_still_while_its_topic_is_deleted_and_made_again(
    tmp_path: Path,
) -> None:
    """1. A leader has a topic deleted, and stands still at once. 2. The next one makes another of that name. 3. The first hears of all."""
    async with region_cluster(tmp_path, 37, **CALM) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, first), [b"1"])
        await everything_equal(cluster)
        others = others_of(cluster, first)
        deleting = first.as_process(first.node.topics.delete_topic(TOPIC))
        await cluster.until(
            lambda: any(
                TOPIC not in n.node.storage.metadata.image.topics for n in cluster.nodes.values()
            ),
            "it is deleted",
        )
        loop().pause(first.name)
        second = await cluster.until_led(but=first)
        assert second in others
        await cluster.until(
            lambda: TOPIC not in second.node.storage.metadata.image.topics, "the next one knows"
        )
        await second.node.topics.create_topic(TOPIC, 3, {})
        loop().resume(first.name)
        await asyncio.wait([deleting])
        await all_in_sync(cluster)
        await write(await connected(cluster, second), [b"2"])
        await everything_equal(cluster)


async def test_INV_RPL9_nobody_is_taken_in_who_may_lack_what_a_stopped_log_of_the_leader_had(
    tmp_path: Path,
) -> None:
    """1. A follower is away, and more is acknowledged. 2. The leader's disk stops that log. 3. The follower is back; nobody can give
    it the rest. 4. The leader is started anew, as its disk asks for: whoever leads meanwhile must have all that was acknowledged.
    """
    async with region_cluster(tmp_path, 38, **CALM) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 1, {})
        connection = await connected(cluster, first)
        await write(connection, [b"1"])
        await everything_equal(cluster)
        away = others_of(cluster, first)[0]
        await away.kill()
        await write(connection, [b"2", b"3"])
        first.partition(TOPIC, 0).stop("its disk has failed")
        await away.start()
        await asyncio.sleep(8)
        await first.kill()
        await first.start()
        leader = await cluster.until_led()
        await cluster.until(lambda: leader.partition(TOPIC, 0).high_watermark == 3, "all is there")
        await all_in_sync(cluster)
        await everything_equal(cluster)


async def commit_offset(connection: Connection, offset: int) -> None:
    row = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    answer = await connection.call(
        8, 7,
        {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
         "topics": [{"name": TOPIC, "partitions": [row]}]},
    )  # fmt: skip
    assert answer.topics[0].partitions[0].error_code.value == 0, answer


async def committed_offset(connection: Connection) -> int:
    answer = await connection.call(
        9, 5, {"group_id": "g", "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    )
    return int(answer.topics[0].partitions[0].committed_offset)


async def test_offsets_of_a_topic_whose_deletion_its_leader_did_not_survive_do_not_count_for_the_next_of_that_name(
    tmp_path: Path,
) -> None:
    """1. A group has read a topic. 2. It is deleted; the leader dies before the group's offsets are. 3. One of that name is made: the
    group would begin behind its first records.
    """
    async with region_cluster(tmp_path, 39, **CALM) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 1, {})
        connection = await connected(cluster, first)
        await write(connection, [b"1", b"2", b"3"])
        await commit_offset(connection, 3)
        assert await committed_offset(connection) == 3
        await everything_equal(cluster)
        reached = asyncio.Event()

        async def never(*_topic: object) -> None:
            reached.set()
            await asyncio.Event().wait()

        first.node.topics.on_delete = never
        deleting = first.as_process(first.node.topics.delete_topic(TOPIC))
        await reached.wait()
        assert not deleting.done()
        await cluster.until(
            lambda: all(
                TOPIC not in n.node.storage.metadata.image.topics for n in cluster.nodes.values()
            ),
            "gone",
        )
        await first.kill()
        second = await cluster.until_led(but=first)
        await second.node.topics.create_topic(TOPIC, 1, {})
        again = await connected(cluster, second)
        await write(again, [b"a", b"b", b"c", b"d"])
        assert await committed_offset(again) == -1


async def test_a_follower_forgets_the_rounds_that_its_leader_forgets(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 40, retention_check_interval_ms=200) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        await committed_transactions(await connected(cluster, leader), 30)
        await everything_equal(cluster)
        for node in cluster.nodes.values():
            await node.node.maintain()
        kept = {
            name: len(node.partition(TOPIC, 0).state._cut_index.entries())
            for name, node in cluster.nodes.items()
        }
        assert max(kept.values()) <= 2, kept
