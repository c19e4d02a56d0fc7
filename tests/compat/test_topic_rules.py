"""Topics that change what producers send: another codec, the broker's time. Every client reads what came of it."""

from collections.abc import Callable

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Producer, TopicPartition

from region_broker.ports.system.clock import SystemClock
from tests.compat.clients import POLLS_MAX, read_until
from tests.compat.confluent_client import ConfluentClient
from tests.compat.test_client_matrix import CLIENTS, await_topic

pytestmark = pytest.mark.process
Fresh = Callable[[str], str]
SENDER = ConfluentClient()


@pytest.mark.parametrize("kept", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_recompressed_batches_are_read_by_every_client(
    kept: str, bootstrap: str, fresh: Fresh
) -> None:
    topic = fresh("kept")
    SENDER.create_topic(
        bootstrap, topic, 1, {"compression.type": kept, "message.timestamp.type": "LogAppendTime"}
    )
    await_topic(SENDER, bootstrap, topic, there=True)
    values = [b"%d " % number * 2000 for number in range(30)]
    for start, codec in enumerate(("none", "gzip", "zstd")):
        part = values[start * 10 : start * 10 + 10]
        offsets = SENDER.produce(bootstrap, topic, part, codec=codec, idempotent=True)
        assert offsets == list(range(start * 10, start * 10 + 10))
    for reader in CLIENTS:
        if kept == "uncompressed" or kept in reader.codecs:
            member = reader.member(bootstrap, topic, fresh(f"g-{reader.name}"))
            assert read_until(member, values[-1]) == values
            member.close()


def test_records_carry_the_time_of_the_broker(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("timed")
    SENDER.create_topic(bootstrap, topic, 1, {"message.timestamp.type": "LogAppendTime"})
    await_topic(SENDER, bootstrap, topic, there=True)
    before_ms = SystemClock().wall_ms()
    producer = Producer({"bootstrap.servers": bootstrap})
    told: list[tuple[int, int]] = []
    for _ in range(3):
        producer.produce(
            topic,
            b"v",
            timestamp=1_000,
            on_delivery=lambda _, message: told.append(message.timestamp()),
        )
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": fresh("g"), "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[tuple[int, int]] = []
    for _ in range(POLLS_MAX):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            read.append(message.timestamp())
        if len(read) == 3:
            break
    consumer.close()
    assert {kind for kind, _ in read} == {TIMESTAMP_LOG_APPEND_TIME}
    assert all(at_ms >= before_ms for _, at_ms in read)
    assert told == read
