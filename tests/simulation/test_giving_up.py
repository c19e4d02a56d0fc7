"""A leader that hears neither followers nor the quorum gives up by itself, and its clients go on where another one leads."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import combinations
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.handlers.dispatch.nodes import NO_NODE
from region_broker.region.cluster.giving_up import GIVE_UP_MS, LOOK_MAX_MS
from tests.simulation.kafka_client import Connection, Refused, batch_of, patiently
from tests.simulation.region_cluster import Cluster, Member, region_cluster
from tests.simulation.test_region_of_three import (
    TOPIC,
    all_in_sync,
    connected,
    everything_equal,
    leadership,
    values_at,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
METADATA = 3
SOON_MS = GIVE_UP_MS + 2_000
"""Until the quorum is known to be lost, and coordinators have resigned."""


async def led(cluster: Cluster) -> Member:
    """Return the leader of a topic with two records that all nodes have."""
    leader = await all_in_sync(cluster)
    await leader.node.topics.create_topic(TOPIC, 2, {})
    await write(await connected(cluster, leader), [b"1", b"2"])
    await everything_equal(cluster)
    return leader


def cut_off(cluster: Cluster, node: Member) -> None:
    for each in cluster.nodes.values():
        if each is not node:
            cluster.fabric.hush(node.name, each.name)


def joined(cluster: Cluster) -> None:
    for one, other in combinations(cluster.nodes, 2):
        cluster.fabric.heal(one, other)


async def refusal_of(call: Callable[[], Awaitable[object]]) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        await call()
    found = refused.value.code
    assert isinstance(found, ErrorCode)
    return found


async def leaders_told(connection: Connection) -> set[int]:
    answer = await connection.call(
        METADATA, 9, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False,
                      "include_cluster_authorized_operations": False,
                      "include_topic_authorized_operations": False},
    )  # fmt: skip
    return {partition.leader_id for topic in answer.topics for partition in topic.partitions}


async def sent(cluster: Cluster, node: Member) -> tuple[Connection, bytes]:
    """Return a connection of a client, and a batch of an idempotent producer."""
    connection = await connected(cluster, node)
    producer = await patiently(lambda: connection.init_producer_id(None))
    return connection, batch_of(b"held", producer, 0, transactional=False)


async def test_INV_GUP1_INV_GUP3_INV_LSH8_INV_HD8_what_a_leader_holds_that_is_cut_off_is_answered_and_sent_to_the_next_one(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 31) as cluster:
        first = await led(cluster)
        connection, batch = await sent(cluster, first)
        reading = await connected(cluster, first)
        end = first.partition(TOPIC, 0).log_end_offset
        cut_off(cluster, first)
        began_ms = first.clock.monotonic_ms()
        async with asyncio.TaskGroup() as tasks:
            held = tasks.create_task(refusal_of(lambda: connection.produce(TOPIC, {0: batch})))
            tasks.create_task(reading.fetch(TOPIC, {0: end}, committed=True, wait_ms=60_000))
        # P18: it lies in a log, and may be committed yet.
        assert held.result() is ErrorCode.request_timed_out
        took_ms = first.clock.monotonic_ms() - began_ms
        assert GIVE_UP_MS - LOOK_MAX_MS <= took_ms <= SOON_MS
        assert not first.node.role.acting
        asking = await connected(cluster, first)
        assert await leaders_told(asking) == {NO_NODE}
        with pytest.raises(ConnectionResetError):  # INV-HD8
            await leaders_told(asking)
        again = await refusal_of(lambda: connection.produce(TOPIC, {0: batch}))
        assert again is ErrorCode.not_leader_or_follower
        [row] = await reading.fetch(TOPIC, {0: end}, committed=True, wait_ms=60_000)
        assert row.error_code is ErrorCode.not_leader_or_follower
        second = await cluster.until_led(but=first)
        with_second = await connected(cluster, second)
        await patiently(lambda: with_second.produce(TOPIC, {0: batch}))
        joined(cluster)
        await all_in_sync(cluster)
        assert await values_at(cluster, second) == [b"1", b"2", b"held"]
        await everything_equal(cluster)


async def test_INV_GUP4_who_was_not_replaced_leads_again_under_another_leader_epoch(
    tmp_path: Path,
) -> None:
    """All three are cut off from each other: nobody can be elected."""
    async with region_cluster(tmp_path, 32) as cluster:
        first = await led(cluster)
        epoch = leadership(first).leader_epoch
        connection, batch = await sent(cluster, first)
        for one, other in combinations(cluster.nodes, 2):
            cluster.fabric.hush(one, other)
        held = await refusal_of(lambda: connection.produce(TOPIC, {0: batch}))
        assert held is ErrorCode.request_timed_out
        assert leadership(first).leader == first.member._begun.member
        assert leadership(first).leader_epoch == epoch
        joined(cluster)
        leader = await all_in_sync(cluster)
        assert leadership(leader).leader_epoch > epoch
        connection = await connected(cluster, leader)
        await patiently(lambda: connection.produce(TOPIC, {0: batch}))
        assert await values_at(cluster, leader) == [b"1", b"2", b"held"]
        await everything_equal(cluster)


async def test_INV_GUP1_a_leader_that_hears_the_quorum_or_a_follower_goes_on(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 33) as cluster:
        first = await led(cluster)
        epoch = leadership(first).leader_epoch
        other, third = (each for each in cluster.nodes.values() if each is not first)
        cluster.fabric.hush(first.name, other.name)
        await asyncio.sleep(2 * GIVE_UP_MS / 1000)
        cluster.fabric.heal(first.name, other.name)
        await all_in_sync(cluster)
        await other.kill()
        await third.kill()
        # Both are in sync, and the quorum is gone.
        await cluster.until(lambda: not first.node.role.acting, "it gives up")
        assert leadership(first).leader_epoch == epoch
        await other.start()
        await third.start()
        assert leadership(await all_in_sync(cluster)).leader_epoch > epoch


async def test_INV_M22_what_a_leader_wished_that_is_cut_off_counts_no_more_once_another_one_leads(
    tmp_path: Path,
) -> None:
    """1. A leader is cut off, and asked to delete a topic. 2. Another one leads, and takes records of it. 3. The first one is back."""
    async with region_cluster(tmp_path, 41) as cluster:
        first = await led(cluster)
        cut_off(cluster, first)
        async with asyncio.TaskGroup() as tasks:
            deleting = tasks.create_task(refused_order(first.node.topics.delete_topic(TOPIC)))
            second = await cluster.until_led(but=first)
            await write(await connected(cluster, second), [b"3"])
            joined(cluster)
        assert deleting.result() == NOT_ACTING
        await all_in_sync(cluster)
        assert await values_at(cluster, second) == [b"1", b"2", b"3"]
        await everything_equal(cluster)


async def refused_order(order: Awaitable[object]) -> str:
    with pytest.raises(CommandRefused) as refused:
        await order
    return refused.value.code
