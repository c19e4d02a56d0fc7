"""confluent-kafka (librdkafka) behind the face of `clients`."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from tests.compat.clients import CALL_S, POLL_S, Found, Member

RETRIED = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)


class ConfluentMember:
    """A Consumer."""

    def __init__(self, bootstrap: str, topic: str, group: str, *, committed: bool) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "session.timeout.ms": 30_000,
                "heartbeat.interval.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 50,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> list[Found]:
        found = []
        for message in self.consumer.consume(500, POLL_S):
            error = message.error()
            if error is None:
                found.append(_found(message))
            elif error.code() not in RETRIED:
                raise KafkaException(error)
        return found

    def assignment(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


class ConfluentWriter:
    """A transactional Producer."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 3}
        )
        self.producer.init_transactions(CALL_S)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        self.producer.produce(topic, value, partition=0)

    def flush(self) -> None:
        assert self.producer.flush(CALL_S) == 0

    def send_offset(self, member: Member, topic: str, offset: int) -> None:
        assert isinstance(member, ConfluentMember)
        self.producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, offset)], member.consumer.consumer_group_metadata(), CALL_S
        )

    def commit(self) -> None:
        self.producer.commit_transaction(CALL_S)

    def abort(self) -> None:
        self.producer.abort_transaction(CALL_S)

    def close(self) -> None:
        self.producer.flush(CALL_S)


class ConfluentClient:
    """confluent-kafka."""

    name = "confluent-kafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, values: Sequence[bytes], *, codec: str = "none",
        idempotent: bool = False, partitions: int = 1,
    ) -> list[int]:  # fmt: skip
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
            }
        )
        offsets: dict[int, int] = {}
        for index, value in enumerate(values):

            def delivered(error: KafkaError | None, message: Message, index: int = index) -> None:
                assert error is None, error
                offset = message.offset()
                assert offset is not None
                offsets[index] = offset

            producer.produce(topic, value, partition=index % partitions, on_delivery=delivered)
        assert producer.flush(CALL_S) == 0
        return [offsets[index] for index in range(len(values))]

    def member(
        self, bootstrap: str, topic: str, group: str, *, committed: bool = True
    ) -> ConfluentMember:
        return ConfluentMember(bootstrap, topic, group, committed=committed)

    def writer(self, bootstrap: str, transactional_id: str) -> ConfluentWriter:
        return ConfluentWriter(bootstrap, transactional_id)

    def create_topic(
        self, bootstrap: str, topic: str, partition_count: int, configs: dict[str, str]
    ) -> None:
        wanted = NewTopic(topic, partition_count, 1, config=configs)
        admin = self._admin(bootstrap)
        admin.create_topics([wanted])[topic].result(CALL_S)

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._admin(bootstrap).list_topics(timeout=CALL_S).topics)

    def partition_count(self, bootstrap: str, topic: str) -> int:
        return len(
            self._admin(bootstrap).list_topics(topic, timeout=CALL_S).topics[topic].partitions
        )

    def configs(self, bootstrap: str, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = self._admin(bootstrap)
        entries: Any = admin.describe_configs([resource])[resource].result(CALL_S)
        return {name: entry.value for name, entry in entries.items()}

    def delete_topic(self, bootstrap: str, topic: str) -> None:
        admin = self._admin(bootstrap)
        admin.delete_topics([topic])[topic].result(CALL_S)

    @staticmethod
    def _admin(bootstrap: str) -> AdminClient:
        """Return an admin client; it must outlive the futures that it gives."""
        return AdminClient({"bootstrap.servers": bootstrap})


def _found(message: Message) -> Found:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return Found(partition, offset, message.value() or b"")
