"""kafka-python behind the face of `clients`."""

import queue
import threading
from collections.abc import Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType, NewTopic
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.compat.clients import CALL_S, POLL_S, Found, Member

LONG_POLL_MS = 3_000
CODECS = {"gzip": has_gzip, "snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}


class KafkaPythonMember:
    """A KafkaConsumer that polls in a thread of its own, without end, as an application would.

    kafka-python 3.0.12 forgets to start heartbeats when a rejoin ends between two polls, so no poll here
    ends in the middle of one: it returns with records only, and then waits to be asked for more. Asking for
    more commits what was given before.
    """

    def __init__(self, bootstrap: str, topic: str, group: str, *, committed: bool) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed" if committed else "read_uncommitted",
            session_timeout_ms=30_000,
            heartbeat_interval_ms=200,
            metadata_max_age_ms=500,
        )
        self._given: queue.SimpleQueue[list[Found]] = queue.SimpleQueue()
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._idle = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        while True:
            found: list[Found] = []
            while not found:
                if self._closing.is_set():
                    return
                batches = self.consumer.poll(timeout_ms=LONG_POLL_MS)
                found = [
                    Found(record.partition, record.offset, record.value or b"")
                    for records in batches.values()
                    for record in records
                ]
            self._given.put(found)
            committed = False
            while (order := self._asked.get()) != "close":
                if not committed:
                    self.consumer.commit()
                    committed = True
                if order == "more":
                    break
                self._given.put([])
            if order == "close":
                return

    def poll(self) -> list[Found]:
        if self._idle:
            self._asked.put("more")
            self._idle = False
        try:
            found = self._given.get(timeout=POLL_S)
        except queue.Empty:
            return []
        self._idle = True
        return found

    def assignment(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def commit(self) -> None:
        if self._idle:
            self._asked.put("commit")
            assert self._given.get(timeout=CALL_S) == []

    def close(self) -> None:
        self._closing.set()
        self._asked.put("close")
        self._thread.join(2 * CALL_S)
        self.consumer.close()


class KafkaPythonWriter:
    """A transactional KafkaProducer."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self.producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            max_block_ms=int(CALL_S * 1000),
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, value: bytes) -> None:
        self.producer.send(topic, value, partition=0)

    def flush(self) -> None:
        self.producer.flush(CALL_S)

    def send_offset(self, member: Member, topic: str, offset: int) -> None:
        assert isinstance(member, KafkaPythonMember)
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, member.consumer.group_metadata())

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(CALL_S)


class KafkaPythonClient:
    """kafka-python."""

    name = "kafka-python"
    codecs = ("none", *(codec for codec, has in CODECS.items() if has()))

    def produce(
        self, bootstrap: str, topic: str, values: Sequence[bytes], *, codec: str = "none",
        idempotent: bool = False, partitions: int = 1,
    ) -> list[int]:  # fmt: skip
        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
        )
        sent = [
            producer.send(topic, value, partition=index % partitions)
            for index, value in enumerate(values)
        ]
        offsets = [each.get(CALL_S).offset for each in sent]
        producer.close(CALL_S)
        return offsets

    def member(
        self, bootstrap: str, topic: str, group: str, *, committed: bool = True
    ) -> KafkaPythonMember:
        return KafkaPythonMember(bootstrap, topic, group, committed=committed)

    def writer(self, bootstrap: str, transactional_id: str) -> KafkaPythonWriter:
        return KafkaPythonWriter(bootstrap, transactional_id)

    def create_topic(
        self, bootstrap: str, topic: str, partition_count: int, configs: dict[str, str]
    ) -> None:
        wanted = NewTopic(topic, partition_count, 1, topic_configs=configs)
        self._ask(bootstrap, lambda admin: admin.create_topics([wanted]))

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._ask(bootstrap, lambda admin: admin.list_topics()))

    def partition_count(self, bootstrap: str, topic: str) -> int:
        (described,) = self._ask(bootstrap, lambda admin: admin.describe_topics([topic]))
        return len(described["partitions"])

    def configs(self, bootstrap: str, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        answer = self._ask(
            bootstrap,
            lambda admin: admin.describe_configs([resource], config_filter=ConfigFilterType.ALL),
        )
        described = answer["topic"][topic]
        return {name: entry["value"] for name, entry in described.items()}

    def delete_topic(self, bootstrap: str, topic: str) -> None:
        self._ask(bootstrap, lambda admin: admin.delete_topics([topic]))

    @staticmethod
    def _ask(bootstrap: str, question: Any) -> Any:
        with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
            return question(admin)
