"""aiokafka behind the face of `clients`: its coroutines run on an event loop of their own thread."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.compat.clients import CALL_S, POLL_S, Found, Member

Result = TypeVar("Result")


class LoopThread:
    """One event loop in one daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` on the loop and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * CALL_S)


_THREAD: list[LoopThread] = []


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` on the one loop of all aiokafka clients."""
    if not _THREAD:
        _THREAD.append(LoopThread())
    return _THREAD[0].run(work)


class AiokafkaMember:
    """An AIOKafkaConsumer."""

    def __init__(self, bootstrap: str, topic: str, group: str, *, committed: bool) -> None:
        self.group = group
        self.consumer = run(self._open(bootstrap, topic, group, committed=committed))

    @staticmethod
    async def _open(bootstrap: str, topic: str, group: str, *, committed: bool) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
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
        await consumer.start()
        return consumer

    def poll(self) -> list[Found]:
        batches = run(self.consumer.getmany(timeout_ms=int(POLL_S * 1000)))
        return [
            Found(record.partition, record.offset, record.value or b"")
            for records in batches.values()
            for record in records
        ]

    def assignment(self) -> set[int]:
        return {place.partition for place in self.consumer.assignment()}

    def commit(self) -> None:
        run(self.consumer.commit())

    def close(self) -> None:
        run(self.consumer.stop())


class AiokafkaWriter:
    """A transactional AIOKafkaProducer."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._sent: list[Any] = []
        self.producer = run(self._open(bootstrap, transactional_id))

    @staticmethod
    async def _open(bootstrap: str, transactional_id: str) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await producer.start()
        return producer

    def begin(self) -> None:
        run(self.producer.begin_transaction())

    def send(self, topic: str, value: bytes) -> None:
        self._sent.append(run(self.producer.send(topic, value, partition=0)))

    def flush(self) -> None:
        run(self.producer.flush())

    def send_offset(self, member: Member, topic: str, offset: int) -> None:
        assert isinstance(member, AiokafkaMember)
        offsets = {TopicPartition(topic, 0): offset}
        run(self.producer.send_offsets_to_transaction(offsets, member.group))

    def commit(self) -> None:
        run(self.producer.commit_transaction())

    def abort(self) -> None:
        run(self.producer.abort_transaction())

    def close(self) -> None:
        run(self.producer.stop())


class AiokafkaClient:
    """aiokafka."""

    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap: str, topic: str, values: Sequence[bytes], *, codec: str = "none",
        idempotent: bool = False, partitions: int = 1,
    ) -> list[int]:  # fmt: skip
        async def work() -> list[int]:
            async with AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
            ) as producer:
                sent = [
                    await producer.send(topic, value, partition=index % partitions)
                    for index, value in enumerate(values)
                ]
                return [(await each).offset for each in sent]

        return run(work())

    def member(
        self, bootstrap: str, topic: str, group: str, *, committed: bool = True
    ) -> AiokafkaMember:
        return AiokafkaMember(bootstrap, topic, group, committed=committed)

    def writer(self, bootstrap: str, transactional_id: str) -> AiokafkaWriter:
        return AiokafkaWriter(bootstrap, transactional_id)

    def create_topic(
        self, bootstrap: str, topic: str, partition_count: int, configs: dict[str, str]
    ) -> None:
        wanted = NewTopic(topic, partition_count, 1, topic_configs=configs)
        answer = self._ask(bootstrap, lambda admin: admin.create_topics([wanted]))
        assert [error[1] for error in answer.topic_errors] == [0], answer

    def topics(self, bootstrap: str) -> set[str]:
        return set(self._ask(bootstrap, lambda admin: admin.list_topics()))

    def partition_count(self, bootstrap: str, topic: str) -> int:
        (described,) = self._ask(bootstrap, lambda admin: admin.describe_topics([topic]))
        return len(described["partitions"])

    def configs(self, bootstrap: str, topic: str) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._ask(bootstrap, lambda admin: admin.describe_configs([resource]))
        ((_, _, _, _, entries),) = answer.resources
        return {entry[0]: entry[1] for entry in entries}

    def delete_topic(self, bootstrap: str, topic: str) -> None:
        answer = self._ask(bootstrap, lambda admin: admin.delete_topics([topic]))
        assert [error[1] for error in answer.topic_error_codes] == [0], answer

    @staticmethod
    def _ask(bootstrap: str, question: Any) -> Any:
        async def work() -> Any:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                return await question(admin)
            finally:
                await admin.close()

        return run(work())
