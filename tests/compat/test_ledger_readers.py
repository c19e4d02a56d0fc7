"""The ledgers as a client reads them: what was just decided is there, in a mirror region too, without a restart."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat.clients import POLLS_MAX
from tests.compat.confluent_client import ConfluentClient
from tests.compat.test_client_matrix import await_topic

pytestmark = pytest.mark.process
Fresh = Callable[[str], str]
SENDER = ConfluentClient()


def transact(bootstrap: str, topic: str, transactional_id: str) -> None:
    """Commit one record in a transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v")
    producer.commit_transaction(30)


def test_a_running_region_shows_new_records_of_its_ledgers(bootstrap: str, fresh: Fresh) -> None:
    topic, first, second = fresh("t"), fresh("first"), fresh("second")
    SENDER.create_topic(bootstrap, topic, 1, {})
    await_topic(SENDER, bootstrap, topic, there=True)
    listed = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": fresh("g"),
            "isolation.level": "read_committed",
        }
    )
    # From their ends on: what tests before this one have left may be more than is polled for.
    consumer.assign(
        [
            TopicPartition(
                name, number, consumer.get_watermark_offsets(TopicPartition(name, number), 30)[1]
            )
            for name in ("__transaction_state", "__tidemarks")
            for number in listed[name].partitions
        ]
    )
    transact(bootstrap, topic, first)

    def read_of(transactional_id: str) -> None:
        decided, tidemarks = False, 0
        for _ in range(POLLS_MAX):
            message = consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            tidemarks += message.topic() == "__tidemarks"
            decided = decided or transactional_id.encode() in (message.key() or b"")
            if decided and tidemarks:
                return
        raise AssertionError(f"{transactional_id}: decided {decided}, {tidemarks} tidemarks read")

    read_of(first)
    transact(bootstrap, topic, second)
    read_of(second)
    consumer.close()
