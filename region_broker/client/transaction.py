"""One transaction of a `TransactionalProducer`: what was sent, and where it lies.

INV-CP9  records and offsets are kept until the transaction is decided, so that it can be repeated as a whole;
        what an earlier attempt delivered never counts for a later one
INV-CP24 what a transaction has not handed over when it ends is refused: no later one of that producer takes it, and nobody
        is told that it was sent

Not here: commit, abort, repetition (`transactional_producer`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from region_broker.client.errors import REFUSALS, Refused, kafka_error, unmasked
from region_broker.client.serializers import Serializer, serialized
from region_broker.client.verdicts import Position, WrittenBy

_OVER = "this transaction is over: begin another one with producer.transaction()"


class Record(NamedTuple):
    """What `Producer.produce` takes."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None
    partition: int
    headers: list[tuple[str, bytes | str | None]]
    timestamp_ms: int


class Attempt:
    """One try at a transaction on one librdkafka producer. Reports arrive in the producer's thread."""

    __slots__ = ("errors", "kafka", "positions")

    def __init__(self, kafka: Producer) -> None:
        """Nothing is sent yet."""
        self.kafka = kafka
        self.positions: list[Position] = []
        self.errors: list[KafkaError] = []

    def offer(self, record: Record) -> bool:
        """Hand over without blocking; False if the queue is full. Raises `Refused`.

        A transaction that has failed already takes the record all the same: the commit finds out, which is still to come.
        """
        try:
            self.kafka.produce(
                record.topic, value=record.value, key=record.key, partition=record.partition,
                headers=record.headers, timestamp=record.timestamp_ms, on_delivery=self._delivered,
            )  # fmt: skip
        except BufferError:
            return False
        except KafkaException as error:
            inner = kafka_error(error)
            if inner.code() in REFUSALS:
                raise Refused(
                    f"a record for topic {record.topic} is refused: {inner.str()}",
                    code=inner.name(),
                ) from error
        return True

    def offer_all(self, records: Sequence[Record]) -> None:
        """Hand over everything, waiting where the queue is full (blocks; in the producer's thread)."""
        for record in records:
            while not self.offer(record):
                self.serve(0.1)

    def serve(self, timeout_s: float) -> None:
        """Take deliveries in, which makes room (blocks; in the producer's thread)."""
        with suppress(KafkaException):  # a fatal error: the commit meets it as well
            unmasked(self.kafka.poll, timeout_s)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error)
            return
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and offset >= 0:
            self.positions.append(Position(str(message.topic()), partition, offset))


class Sender(Protocol):
    """The producer's side of a transaction."""

    async def wait_for_room(self, attempt: Attempt) -> None:
        """Return after a moment in which the queue may have got room."""
        ...


class Positioned(Protocol):
    """A consumer whose position a transaction can commit (`ReadCommittedConsumer`)."""

    def to_send(self, offsets: Sequence[TopicPartition] | None = None) -> list[TopicPartition]:
        """Return what a transaction commits of it: `offsets`, or those after what was handed out; raises `TransactionAborted`."""
        ...

    def group_metadata(self) -> object:
        """Return the membership that the offsets are fenced by (KIP-447)."""
        ...


@dataclass(slots=True)
class Transaction:
    """One transaction: what was sent so far, and, once committed, where it lies."""

    _sender: Sender
    _serializers: tuple[Serializer | None, Serializer | None] = (None, None)
    """Of keys, of values."""
    _records: list[Record] = field(default_factory=list)
    _offsets: list[tuple[list[TopicPartition], Any]] = field(default_factory=list)
    _attempt: Attempt | None = None
    _open: bool = True
    attempt_count: int = 0
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)
    written_by: WrittenBy = field(default_factory=WrittenBy)
    """As whom its records are written: what a verdict on it is asked with."""

    async def send(
        self, topic: str, value: Any, *, key: Any = None,
        partition: int = -1, headers: Sequence[tuple[str, bytes]] = (), timestamp_ms: int = 0,
    ) -> None:  # fmt: skip
        """Add a record; it is delivered by the commit at the latest. Waits only while the queue is full: a send that
        is given up then was not sent (INV-CP9).

        `partition` -1: by the key. `timestamp_ms` 0: now. Raises `Refused` for a record that can never be
        written (too large, unknown partition), and after the end of the transaction, also where it waits then (INV-CP24).
        """
        self._taking()
        of_key, of_value = self._serializers
        record = Record(
            topic, serialized(value, of_value, "value"), serialized(key, of_key, "key"), partition,
            list(headers), timestamp_ms,
        )  # fmt: skip
        async with self._order:
            while not self._taking().offer(record):
                await self._sender.wait_for_room(self.attempt)
            self._records.append(record)

    async def send_offsets(
        self, consumer: Positioned, offsets: Sequence[TopicPartition] | None = None
    ) -> None:
        """Commit the consumer's position (or `offsets`) with this transaction (KIP-447).

        Raises `TransactionAborted` where the group has taken away a partition whose records were handed out since the last transaction (INV-CP35).
        """
        self._taking()
        chosen = consumer.to_send(offsets)
        if chosen:
            self._offsets.append((chosen, consumer.group_metadata()))

    def _taking(self) -> Attempt:
        """Return the try under way; raises `Refused` once nothing more is taken.

        Asked in the very step that hands a record over. 1. A send waits for room. 2. The transaction is aborted, and librdkafka's
        producer stays. 3. The application begins the next one on it: the send would write into that one.
        """
        if not self._open or self._attempt is None:
            raise Refused(_OVER)
        return self._attempt

    @property
    def positions(self) -> Sequence[Position]:
        """Where the delivered records lie; all of them once the transaction is committed."""
        return () if self._attempt is None else tuple(self._attempt.positions)

    @property
    def records(self) -> Sequence[Record]:
        """The records, in order."""
        return self._records

    @property
    def offsets(self) -> Sequence[tuple[list[TopicPartition], Any]]:
        """(offsets, group metadata) pairs that are committed with it."""
        return self._offsets

    @property
    def attempt(self) -> Attempt:
        """The try under way."""
        assert self._attempt is not None
        return self._attempt

    def begin_attempt(self, kafka: Producer) -> Attempt:
        """Start (again) on `kafka`."""
        self.attempt_count += 1
        self._attempt = Attempt(kafka)
        return self._attempt

    def close(self) -> None:
        """Take nothing more."""
        self._open = False
