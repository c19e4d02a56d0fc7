"""Sequences of events in a region of three that broke a promise, or may; what still does is a strict xfail with its reason."""

import asyncio
import errno
import os
from pathlib import Path
from typing import cast

import pytest

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


@pytest.mark.xfail(
    strict=True,
    reason="DeleteRecords is answered before the members that may lead next have the log start (Kafka waits for all replicas)",
)
async def test_records_whose_deletion_was_acknowledged_do_not_come_back_with_the_next_leader(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 33, **CALM) as cluster:
        first = await all_in_sync(cluster)
        await first.node.topics.create_topic(TOPIC, 1, {})
        await write(await connected(cluster, first), [b"1", b"2", b"3"])
        await everything_equal(cluster)
        for node in others_of(cluster, first):
            loop().pause(node.name)
        deleting = first.within(
            lambda: asyncio.ensure_future(first.partition(TOPIC, 0).retention.delete_records(2))
        )
        done, _ = await asyncio.wait([deleting], timeout=0.2)
        await first.kill()
        for node in others_of(cluster, first):
            loop().resume(node.name)
        second = await cluster.until_led(but=first)
        assert not done or second.partition(TOPIC, 0).log_start_offset == 2


@pytest.mark.xfail(
    strict=True,
    reason="a leader whose disk has stopped one of its logs goes on leading: that log serves nobody until it is restarted",
)
async def test_a_leader_with_a_ledger_that_its_disk_has_stopped_lets_another_one_lead(
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
