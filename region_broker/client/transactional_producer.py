"""A transactional producer for asyncio, with confluent-kafka underneath.

INV-C1  a transaction that `transaction()` leaves without an error is committed, once
INV-C2  nothing is repeated while it may have been written: after a commit without an answer the verdict is
        asked, and only what was aborted or lost is sent again
INV-C3  a fence by failover (rule T22: every transactional producer gets a new producer id) rebuilds the
        producer and repeats the transaction; a fence by another instance is an error

Records are kept until the transaction is decided, so that it can be repeated as a whole. confluent-kafka's
calls block; each producer has one thread for them, and the event loop is never held.
Not here: the protocol (librdkafka), the decision (`txn_coordinator`), where a verdict is read from
(`region_broker.client.verdicts`).
"""

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from region_broker.client.errors import (
    Fenced,
    OutcomeUnknown,
    Refused,
    TidemarkError,
    TransactionAborted,
    Unreachable,
    kafka_error,
)
from region_broker.client.read_committed_consumer import ReadCommittedConsumer
from region_broker.client.verdicts import Position, Verdict, VerdictClient

ATTEMPT_COUNT_MAX: Final = 8
CALL_TIMEOUT_S: Final = 10.0

Result = TypeVar("Result")


class _Outcome(enum.Enum):
    NOT_COMMITTED = enum.auto()
    UNKNOWN = enum.auto()


class _Repeat(Exception):
    """The transaction did not happen (or may have): what to do is decided by `outcome`."""

    def __init__(self, outcome: _Outcome, error: KafkaError, *, rebuild: bool) -> None:
        super().__init__(error.str())
        self.outcome = outcome
        self.error = error
        self.rebuild = rebuild


@dataclass(frozen=True, slots=True)
class _Record:
    topic: str
    value: bytes | str | None
    key: bytes | str | None
    partition: int
    headers: list[tuple[str, str | bytes | None]] | None
    timestamp_ms: int


@dataclass(slots=True)
class Transaction:
    """One transaction: what was sent so far, and, once committed, where it lies.

    `positions` holds (topic, partition, offset) of each delivered record, in the order of delivery.
    """

    _producer: "TransactionalProducer"
    _records: list[_Record] = field(default_factory=list)
    _offsets: list[tuple[list[TopicPartition], Any]] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)
    attempt_count: int = 0

    async def send(
        self, topic: str, value: bytes | str | None, *, key: bytes | str | None = None,
        partition: int = -1, headers: Sequence[tuple[str, bytes]] | None = None,
        timestamp_ms: int = 0,
    ) -> None:  # fmt: skip
        """Add a record to the transaction; it is delivered by the commit at the latest.

        Raises `Refused` if the record can never be written (too large, unknown partition).
        """
        record = _Record(topic, value, key, partition, list(headers or ()) or None, timestamp_ms)
        self._records.append(record)
        await self._producer.hand_over(self, record)

    async def send_offsets(
        self, consumer: ReadCommittedConsumer, offsets: Sequence[TopicPartition] | None = None
    ) -> None:
        """Commit the consumer's position (or `offsets`) with this transaction."""
        chosen = list(offsets) if offsets is not None else consumer.position()
        self._offsets.append((chosen, consumer.group_metadata()))

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Delivery report (called in the producer's thread): note where the record lies."""
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.positions.append(Position(str(message.topic()), partition, offset))

    @property
    def records(self) -> Sequence[_Record]:
        """The records of the transaction, in order."""
        return self._records

    @property
    def offsets(self) -> Sequence[tuple[list[TopicPartition], Any]]:
        """(offsets, group metadata) pairs that are committed with it."""
        return self._offsets


class TransactionalProducer:
    """Use as ``async with TransactionalProducer(...) as producer``; one transaction at a time.

    `bootstrap` names brokers of several regions, `urls` the HTTP addresses that verdicts are asked from.
    Raises `Unreachable` where no region answers, `Fenced` where another instance took over.
    """

    def __init__(
        self, *, bootstrap: str | Sequence[str], transactional_id: str,
        urls: str | Sequence[str] = (), transaction_timeout_ms: int = 60_000,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        self._config = {
            "bootstrap.servers": bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": transaction_timeout_ms,
            "linger.ms": 0,
            "log_level": 2,
            **(config or {}),
        }
        self._verdicts = VerdictClient(urls)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"producer-{transactional_id}")
        self._kafka: Producer | None = None
        self._region_epoch: int | None = None

    async def __aenter__(self) -> Self:
        """Connect and fence earlier instances."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Close; an open transaction has been aborted by then."""
        await self.close()

    async def start(self) -> None:
        """Obtain a producer id; waits through a failover, then raises `Unreachable`."""
        await self._rebuild()

    async def close(self) -> None:
        """Let go of the connections."""
        if self._kafka is not None:
            await self._call(self._kafka.flush, CALL_TIMEOUT_S)
        self._kafka = None
        self._thread.shutdown(wait=False)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Begin a transaction; commit it when the block ends, abort it when the block raises.

        Raises `TransactionAborted` (run it again), `OutcomeUnknown` (ask `verdict`), `Fenced`.
        """
        transaction = Transaction(self)
        await self._begin(transaction)
        try:
            yield transaction
        except BaseException:
            await self._abort_quietly()
            raise
        await self._commit_or_repeat(transaction)

    async def verdict(self, positions: Sequence[Position]) -> Verdict:
        """Return the final word on the transaction whose records were delivered to `positions`."""
        return await asyncio.to_thread(self._verdicts.ask, positions[0], self._region_epoch)

    async def hand_over(self, transaction: Transaction, record: _Record) -> None:
        """Give one record to librdkafka, waiting while its queue is full."""
        await self._call(self._produce, transaction, record)

    def _produce(self, transaction: Transaction, record: _Record) -> None:
        kafka = self._connected()
        while True:
            try:
                kafka.produce(
                    record.topic, value=record.value, key=record.key, partition=record.partition,
                    headers=record.headers, timestamp=record.timestamp_ms,
                    on_delivery=transaction.delivered,
                )  # fmt: skip
            except BufferError:
                kafka.poll(0.1)
            except KafkaException as error:
                inner = kafka_error(error)
                if not _belongs_to_state(inner):
                    raise Refused(
                        f"record for {record.topic} refused: {inner.str()}", code=inner.name()
                    ) from error
                return  # the transaction has failed already: the commit finds out and repeats it
            else:
                kafka.poll(0)
                return

    async def _begin(self, transaction: Transaction) -> None:
        transaction.attempt_count += 1
        transaction.positions.clear()
        if self._kafka is None:
            await self._rebuild()
        try:
            await self._call(self._connected().begin_transaction)
        except KafkaException as error:
            if not kafka_error(error).fatal():
                raise
            await self._rebuild()
            await self._call(self._connected().begin_transaction)

    async def _commit_or_repeat(self, transaction: Transaction) -> None:
        while True:
            try:
                await self._call(self._commit, transaction)
            except _Repeat as failure:
                await self._settle(transaction, failure)
                if failure.outcome is _Outcome.UNKNOWN and await self._was_committed(
                    transaction, failure
                ):
                    return
                if transaction.attempt_count >= ATTEMPT_COUNT_MAX:
                    raise TransactionAborted(
                        f"the transaction was tried {transaction.attempt_count} times and aborted"
                        f" each time, at last because: {failure.error.str()}",
                        code=failure.error.name(),
                    ) from failure
                await self._begin(transaction)
                for record in transaction.records:
                    await self.hand_over(transaction, record)
            else:
                return

    def _commit(self, transaction: Transaction) -> None:
        kafka = self._connected()
        try:
            for offsets, group_metadata in transaction.offsets:
                _until_answered(
                    lambda o=offsets, g=group_metadata: kafka.send_offsets_to_transaction(  # type: ignore[misc]
                        o, g, CALL_TIMEOUT_S
                    )
                )
            kafka.flush(CALL_TIMEOUT_S)
        except KafkaException as error:
            inner = kafka_error(error)
            raise _Repeat(_Outcome.NOT_COMMITTED, inner, rebuild=inner.fatal()) from error
        try:
            _until_answered(lambda: kafka.commit_transaction(CALL_TIMEOUT_S))
        except KafkaException as error:
            inner = kafka_error(error)
            if inner.txn_requires_abort():
                raise _Repeat(_Outcome.NOT_COMMITTED, inner, rebuild=False) from error
            raise _Repeat(_Outcome.UNKNOWN, inner, rebuild=True) from error

    async def _settle(self, transaction: Transaction, failure: _Repeat) -> None:
        if failure.error.code() == KafkaError._FENCED and not await self._failed_over():
            raise Fenced(
                f"another producer uses {self._config['transactional.id']!r} now; this one must stop",
                code=failure.error.name(),
            ) from failure
        if failure.outcome is _Outcome.UNKNOWN and not transaction.positions:
            raise OutcomeUnknown(
                "the commit was sent and no answer came, and no record's position is known to ask a"
                f" verdict about: {failure.error.str()}",
                code=failure.error.name(),
            ) from failure
        if failure.rebuild:
            return
        await self._abort_quietly()

    async def _was_committed(self, transaction: Transaction, failure: _Repeat) -> bool:
        positions, epoch = list(transaction.positions), self._region_epoch
        await self._rebuild()  # InitProducerId: whatever was open is decided when it answers
        try:
            verdict = await asyncio.to_thread(self._verdicts.ask, positions[0], epoch)
        except TidemarkError as error:
            raise OutcomeUnknown(
                f"the commit was sent, no answer came ({failure.error.str()}), and no region could"
                f" be asked: {error}. Give the producer `urls` of the regions, and ask verdict() with"
                f" {positions[0]}.",
                code=failure.error.name(),
            ) from error
        return verdict is Verdict.COMMITTED

    async def _failed_over(self) -> bool:
        now = await asyncio.to_thread(self._verdicts.region_epoch)
        return now is not None and now != self._region_epoch

    async def _abort_quietly(self) -> None:
        """Abort; where the producer is beyond that, build a new one, which aborts as well."""
        kafka = self._connected()
        try:
            await self._call(_until_answered, lambda: kafka.abort_transaction(CALL_TIMEOUT_S))
        except KafkaException as error:
            if not kafka_error(error).fatal():
                raise
            await self._rebuild()

    async def _rebuild(self) -> None:
        self._kafka = await self._call(self._build)
        self._region_epoch = await asyncio.to_thread(self._verdicts.region_epoch)

    def _build(self) -> Producer:
        last: KafkaError | None = None
        for _ in range(ATTEMPT_COUNT_MAX):
            kafka = Producer(self._config)
            try:
                _until_answered(lambda k=kafka: k.init_transactions(CALL_TIMEOUT_S))  # type: ignore[misc]
            except KafkaException as error:
                last = kafka_error(error)
            else:
                return kafka
        assert last is not None
        raise Unreachable(
            f"no region gave a producer id for {self._config['transactional.id']!r} at"
            f" {self._config['bootstrap.servers']}: {last.str()}. Look at `tidemark region status`.",
            code=last.name(),
        )

    def _connected(self) -> Producer:
        if self._kafka is None:
            raise Unreachable("the producer was not started: use `async with` or call start()")
        return self._kafka

    async def _call(self, function: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _belongs_to_state(error: KafkaError) -> bool:
    return error.fatal() or error.code() in {KafkaError._STATE, KafkaError._FENCED}


def _until_answered(call: Callable[[], object]) -> None:
    """Repeat a call that librdkafka names retriable: it goes on where it was, nothing is doubled."""
    for attempt in range(1, ATTEMPT_COUNT_MAX + 1):
        try:
            call()
        except KafkaException as error:
            if attempt == ATTEMPT_COUNT_MAX or not kafka_error(error).retriable():
                raise
        else:
            return
