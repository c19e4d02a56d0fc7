"""Where the client begins to read and goes on, where librdkafka has it wrong; the real one, against a real region."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from region_broker.client import ReadCommittedConsumer
from tests.process.client_fixture import CALL_S, create_topic, open_cluster, proxied_regions

pytestmark = pytest.mark.process
LIST_OFFSETS = 2
LOOKS = 10
"""Polls of 0.2 s: librdkafka asks again within a second."""


def fill(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(count):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(CALL_S) == 0


async def polled(consumer: ReadCommittedConsumer) -> list[int]:
    """Return the offsets of what comes within a few polls."""
    found: list[Message] = []
    for _ in range(LOOKS):
        found += await consumer.poll_many(timeout_s=0.2)
    return [message.offset() or 0 for message in found]


async def test_INV_CP19_what_is_undecided_when_partitions_come_is_not_taken_for_nothing(
    tmp_path: Path,
) -> None:
    """1. A transaction holds back what is committed. 2. Partitions come while librdkafka asks again."""
    with open_cluster(tmp_path, 1) as cluster:
        await asyncio.to_thread(cluster.start)
        create_topic(cluster.bootstrap, "orders-a", 1)
        fill(cluster.bootstrap, "orders-a", 100)
        group = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0}
        simple = Consumer(group)
        simple.commit(offsets=[TopicPartition("orders-a", 0, 50)], asynchronous=False)
        writer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
        writer.init_transactions(CALL_S)
        writer.begin_transaction()
        metadata = simple.consumer_group_metadata()
        writer.send_offsets_to_transaction([TopicPartition("orders-a", 0, 70)], metadata, CALL_S)
        settings = {
            "partition.assignment.strategy": "cooperative-sticky",
            "topic.metadata.refresh.interval.ms": 200,
        }
        async with ReadCommittedConsumer(
            ["^orders-.*"], bootstrap=cluster.bootstrap, group_id="g", config=settings
        ) as consumer:
            while not await consumer.assignment():
                assert await consumer.poll(0.2) is None
            create_topic(cluster.bootstrap, "orders-b", 1)
            while len(await consumer.assignment()) < 2:
                assert await consumer.poll(0.2) is None
            assert await polled(consumer) == []
            await asyncio.to_thread(writer.commit_transaction, CALL_S)
            found: list[int] = []
            while len(found) < 30:
                found += [message.offset() or 0 for message in await consumer.poll_many()]
            assert found == list(range(70, 100))
        simple.close()


async def test_INV_CP19_an_answer_that_came_too_late_takes_nobody_back_to_the_beginning(
    tmp_path: Path,
) -> None:
    """1. The answer where the log begins is on its way. 2. The consumer pauses and goes on, as at a rebalance. 3. So it does later."""
    async with proxied_regions(tmp_path, 1) as regions:
        bootstrap = regions.cluster.bootstrap
        await asyncio.to_thread(create_topic, bootstrap, "orders", 1)
        await asyncio.to_thread(fill, bootstrap, "orders", 60)
        (proxy,) = regions.kafka.values()
        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def hold(api_key: int) -> None:
            if api_key == LIST_OFFSETS:
                asked.set()
                await may_answer.wait()

        proxy.before_answer = hold
        async with ReadCommittedConsumer(["orders"], bootstrap=bootstrap, group_id="g") as consumer:
            while not asked.is_set():
                assert await consumer.poll(0.05) is None
            await consumer.pause()
            await consumer.resume()
            may_answer.set()
            found: list[int] = []
            while len(found) < 60:
                found += [message.offset() or 0 for message in await consumer.poll_many()]
            await consumer.pause()
            await consumer.resume()
            found += await polled(consumer)
            await asyncio.to_thread(fill, bootstrap, "orders", 1)
            while len(found) < 61:
                found += [message.offset() or 0 for message in await consumer.poll_many()]
            assert found == list(range(61))
