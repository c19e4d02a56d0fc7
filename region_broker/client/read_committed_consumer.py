"""A read-committed consumer for asyncio, with confluent-kafka underneath.

INV-CP4  only records of committed transactions (and plain ones) are handed out, in offset order per partition
INV-CP5  the position moves only past what was handed out; it is committed by `commit`, or with a transaction
INV-CP12 records and positions of a partition are forgotten when the group takes it away

Bootstrap over several regions: reads are served by whichever region answers, up to the tidemark it reached.
Records are fetched from librdkafka in batches, one thread hop each.
Not here: transactions (`transactional_producer`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from region_broker.client.errors import MEMBERSHIP_LOST, REFUSALS, Refused, Unreachable, kafka_error

_POLL_TIMEOUT_S: Final = 0.5
_BATCH_COUNT: Final = 500
_COMMITTED_TIMEOUT_S: Final = 30.0
_UNKNOWN_TOPIC: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}

_QUIET: Final = logging.getLogger("tidemark.client.librdkafka")


class ReadCommittedConsumer:
    """Use as ``async with ReadCommittedConsumer(...) as consumer`` and iterate, or call `poll`.

    Commits nothing by itself: `commit`, or `Transaction.send_offsets`. `config` is passed on to librdkafka.
    """

    def __init__(
        self, topics: Sequence[str], *, bootstrap: str | Sequence[str], group_id: str,
        from_beginning: bool = True, config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        self._topics = list(topics)
        self._start_offset = OFFSET_BEGINNING if from_beginning else OFFSET_END
        self._config = {
            "bootstrap.servers": bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap),
            "group.id": group_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if from_beginning else "latest",
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 2,
            **(config or {}),
        }
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"consumer-{group_id}")
        self._kafka: Consumer | None = None
        self._fetched: deque[Message] = deque()
        self._position: dict[tuple[str, int], int] = {}

    async def __aenter__(self) -> Self:
        """Join the group."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Leave the group."""
        await self.close()

    async def start(self) -> None:
        """Subscribe; partitions arrive with the first polls."""
        self._kafka = Consumer(self._config, logger=_QUIET)
        self._kafka.subscribe(self._topics, on_revoke=self._taken_away, on_lost=self._taken_away)

    async def close(self) -> None:
        """Leave the group and close; what was not committed is read again by who comes next."""
        if self._kafka is not None:
            kafka, self._kafka = self._kafka, None
            await asyncio.get_running_loop().run_in_executor(self._thread, kafka.close)
        self._thread.shutdown(wait=False)

    async def poll(self, timeout_s: float = _POLL_TIMEOUT_S) -> Message | None:
        """Return the next record, or None when none came in time.

        Raises `Refused` on an error that reading on will not mend (unknown topic, no authority).
        """
        if not self._fetched:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, self._fetch, self._joined(), timeout_s
            )
        while self._fetched:
            message = self._fetched.popleft()
            error = message.error()
            if error is not None:
                self._check(error)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            self._position[topic, partition] = offset + 1
            return message
        return None

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield records for ever."""
        while True:
            message = await self.poll()
            if message is not None:
                yield message

    async def commit(self) -> None:
        """Commit the position of what was handed out.

        Raises `Unreachable` (try again), `Refused` if the group has given the partitions to others.
        """
        kafka, position = self._joined(), self.position()
        if not position:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: kafka.commit(offsets=position, asynchronous=False)
            )
        except KafkaException as error:
            inner = kafka_error(error)
            text = f"the position was not committed: {inner.str()}"
            if inner.code() in MEMBERSHIP_LOST | REFUSALS:
                raise Refused(
                    f"{text}. What was read is read again by the partitions' new owner: poll on.",
                    code=inner.name(),
                ) from error
            raise Unreachable(text, code=inner.name()) from error

    def position(self) -> list[TopicPartition]:
        """Return the offsets after what was handed out, of the partitions read from."""
        return [
            TopicPartition(topic, partition, offset)
            for (topic, partition), offset in sorted(self._position.items())
        ]

    def group_metadata(self) -> object:
        """Return the membership that a transaction's offsets are fenced by (KIP-447)."""
        return self._joined().consumer_group_metadata()

    async def rewind(self) -> None:
        """Go back to the committed position: after an aborted transaction.

        Raises `Unreachable` if no coordinator tells it.
        """
        kafka = self._joined()
        self._fetched.clear()
        self._position.clear()

        def seek() -> None:
            assigned = kafka.assignment()
            if not assigned:
                return  # partitions come with their committed position
            for each in kafka.committed(assigned, timeout=_COMMITTED_TIMEOUT_S):
                if each.offset < 0:
                    each.offset = self._start_offset
                kafka.seek(each)

        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, seek)
        except KafkaException as error:
            inner = kafka_error(error)
            raise Unreachable(
                f"the committed position is not known: {inner.str()}", code=inner.name()
            ) from error

    def _fetch(self, kafka: Consumer, timeout_s: float) -> None:
        """Wait for one record, and take what else is there.

        Record by record: `consume` would wait for a full batch, and would not tell which of its records
        came before a rebalance within it.
        """
        message = kafka.poll(timeout_s)
        while message is not None:
            self._fetched.append(message)
            if len(self._fetched) >= _BATCH_COUNT:
                return
            message = kafka.poll(0)

    def _taken_away(self, _kafka: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget (called within `poll` of `_fetch`, or `close`): who has them next reads them again."""
        lost = {(each.topic, each.partition) for each in partitions}
        for each in lost:
            self._position.pop(each, None)
        kept = [each for each in self._fetched if (each.topic(), each.partition()) not in lost]
        self._fetched.clear()
        self._fetched.extend(kept)

    def _check(self, error: KafkaError) -> None:
        if error.code() in _UNKNOWN_TOPIC:
            raise Refused(
                f"there is no topic {' or '.join(self._topics)} in the region that answered: create it"
                f" first (`tidemark topic create`). {error.str()}",
                code=error.name(),
            )
        if error.fatal() or error.code() in REFUSALS:
            raise Refused(f"reading {self._topics} failed: {error.str()}", code=error.name())

    def _joined(self) -> Consumer:
        if self._kafka is None:
            raise Refused("the consumer was not started: use `async with` or call start()")
        return self._kafka
