"""A compacted topic as unmodified clients read it: holes between batches, inside batches, and batches without records."""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat.clients import POLLS_MAX, read_until
from tests.compat.confluent_client import ConfluentClient
from tests.compat.places import TESTED_PLACES
from tests.compat.test_client_matrix import CLIENTS, await_topic

pytestmark = pytest.mark.process
Fresh = Callable[[str], str]
SENDER = ConfluentClient()
KEYS = 10
WAIT_S = 120
PAUSE_S = 0.25


def send(bootstrap: str, topic: str, items: list[tuple[str, bytes]], *, idempotent: bool) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": idempotent, "linger.ms": 5}
    )
    for key, value in items:
        producer.produce(topic, value, key=key.encode(), partition=0)
    assert producer.flush(30) == 0


def records(
    bootstrap: str, topic: str, last: bytes
) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) from the beginning up to the value `last`."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes | None, bytes | None]] = []
    for _ in range(POLLS_MAX):
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        offset = message.offset()
        assert offset is not None
        found.append((offset, message.key(), message.value()))
        if message.value() == last:
            break
    consumer.close()
    return found


@pytest.mark.parametrize("bootstrap", [place for place in TESTED_PLACES if place != "one" or len(TESTED_PLACES) == 1], indirect=True)  # fmt: skip
def test_clients_read_through_what_compaction_left(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("compacted")
    SENDER.create_topic(
        bootstrap, topic, 1,
        {"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0"},
    )  # fmt: skip
    await_topic(SENDER, bootstrap, topic, there=True)
    for number in range(6):  # each time a new producer: all but the newest leave emptied batches
        items = [(f"k{n}", b"%d " % number + b"v" * 700) for n in range(KEYS)]
        send(bootstrap, topic, items, idempotent=number % 2 == 0)
    filler = [("~fill", b"x" * 9000), ("~fill", b"y" * 9000), ("~fill", b"the end")]
    for item in filler:
        send(bootstrap, topic, [item], idempotent=False)
    whole = records(bootstrap, topic, b"the end")
    newest = {key: (offset, key, value) for offset, key, value in whole}
    deadline_s = time.monotonic() + WAIT_S
    left = whole
    while (
        len(left) >= len(whole) / 2
    ):  # the cleaner looks every 15 s, and the primary waits for its mirror
        assert time.monotonic() < deadline_s, "nothing was cleaned"
        time.sleep(PAUSE_S)
        left = records(bootstrap, topic, b"the end")
        assert set(newest.values()) <= set(left) <= set(whole)
        # A mirror hears how far the primary has cleaned a log with what is new in it.
        send(bootstrap, topic, [("~tick", b"")], idempotent=False)
    for reader in CLIENTS:
        member = reader.member(bootstrap, topic, fresh(f"g-{reader.name}"))
        found = [value for value in read_until(member, b"the end") if value]
        member.close()
        assert [value for _, _, value in left if value in found] == found
        assert set(found) >= {value for _, _, value in newest.values()}
