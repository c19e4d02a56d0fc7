"""A plain (not transactional) idempotent producer for asyncio, with confluent-kafka underneath.

INV-CPP1  `send` returns when the record is on stable storage in the primary region, with its place; records of one
          producer for one partition are written in the order of their `send`
INV-CPP2  an error says whether the record may be there all the same: what was never sent is `Unreachable`, what had no answer
          `OutcomeUnknown`
INV-CPP3  a send that is given up while it waits for room in the queue was not sent
INV-CPP4  nobody waits for ever: whoever serves deliveries tells of the room that they leave, and they are served until each record
          that was taken has its answer. `close` takes nothing more; what waits for room then is written first

Deliveries are told by a thread of librdkafka's; handing over never leaves the loop.
Not here: transactions (`transactional_producer`), serializers (`serializers`).
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from region_broker.client.across_regions import ACROSS_REGIONS
from region_broker.client.errors import (
    REFUSALS,
    OutcomeUnknown,
    Refused,
    TidemarkError,
    Unreachable,
    kafka_error,
    unmasked,
)
from region_broker.client.serializers import Serializer, serialized
from region_broker.client.timeouts import DEFAULT_TIMEOUTS, Timeouts
from region_broker.client.transaction import Record
from region_broker.client.verdicts import Position
from region_broker.client.waiting_calls import Heard, reach
from region_broker.security.login import NO_SECURITY, Security

_QUIET: Final = logging.getLogger("tidemark.client.librdkafka")
_POLL_S: Final = 0.1
_NEVER_SENT: Final = {KafkaError._PURGE_QUEUE, KafkaError._QUEUE_FULL}


class Producer:
    """Use as ``async with Producer(bootstrap=...) as producer`` and `send`. `config` is passed on to librdkafka."""

    def __init__(
        self, *, bootstrap: str | Sequence[str], key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None, timeouts: Timeouts = DEFAULT_TIMEOUTS,
        security: Security = NO_SECURITY, config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        self._brokers = bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap)
        self._serializers = (key_serializer, value_serializer)
        self._timeouts = timeouts
        self._heard = Heard(self._brokers, "what is sent waits for one")
        self._config = {
            "bootstrap.servers": self._brokers,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": int(timeouts.recovery_s * 1000),
            **ACROSS_REGIONS,
            "error_cb": self._heard,
            "log_level": 2,
            **security.kafka_config(),
            **(config or {}),
        }
        self._kafka: KafkaProducer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._polling: threading.Thread | None = None
        self._ending = threading.Event()
        self._room = asyncio.Event()
        self._order = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Connect."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Wait for what is under way, and close."""
        await self.close()

    async def start(self) -> None:
        """Connect; raises `Unreachable` if no broker answers in time."""
        self._loop = asyncio.get_running_loop()
        kafka = KafkaProducer(dict(self._config), logger=_QUIET)
        await asyncio.to_thread(reach, kafka, self._brokers, self._timeouts.connect_s, self._heard)
        self._kafka = kafka
        self._ending = threading.Event()
        self._polling = threading.Thread(
            target=self._poll, args=(kafka, self._ending), name="producer", daemon=True
        )
        self._polling.start()

    async def close(self) -> None:
        """Wait until everything that was sent has its answer, then close; what is sent meanwhile is `Refused`."""
        async with self._order:  # whose record waits for room goes first
            kafka, self._kafka = self._kafka, None
        if kafka is None:
            return
        self._ending.set()
        await self._flush(kafka)
        assert self._polling is not None
        await asyncio.to_thread(self._polling.join)

    async def send(
        self, topic: str, value: Any, *, key: Any = None, partition: int = -1,
        headers: Sequence[tuple[str, bytes]] = (), timestamp_ms: int = 0,
    ) -> Position:  # fmt: skip
        """Write one record and return where it lies, once it is on stable storage (INV-CPP1).

        Raises `Refused` (it can never be written), `Unreachable` (it was not sent), `OutcomeUnknown`.
        """
        return await (
            await self.offer(
                topic,
                value,
                key=key,
                partition=partition,
                headers=headers,
                timestamp_ms=timestamp_ms,
            )
        )

    async def offer(
        self, topic: str, value: Any, *, key: Any = None, partition: int = -1,
        headers: Sequence[tuple[str, bytes]] = (), timestamp_ms: int = 0,
    ) -> "asyncio.Future[Position]":  # fmt: skip
        """Hand one record over, and return a future of its place; waits only while the queue is full."""
        of_key, of_value = self._serializers
        record = Record(
            topic, serialized(value, of_value, "value"), serialized(key, of_key, "key"), partition,
            list(headers), timestamp_ms,
        )  # fmt: skip
        async with self._order:
            while True:
                self._room.clear()
                placed = self._hand_over(record)
                if placed is not None:
                    return placed
                await self._room.wait()

    async def send_many(
        self, topic: str, values: Iterable[Any], *, key: Any = None, partition: int = -1
    ) -> list[Position]:
        """Write records, in order where they go to one partition; return their places once all are stable.

        Raises the first error; what it says counts for that record only: others may be there.
        """
        placed = [await self.offer(topic, value, key=key, partition=partition) for value in values]
        return list(await asyncio.gather(*placed))

    async def flush(self) -> None:
        """Wait until everything that was handed over has its answer."""
        await self._flush(self._started())

    async def _flush(self, kafka: KafkaProducer) -> None:
        while await asyncio.to_thread(self._serve, kafka.flush):
            pass

    def _hand_over(self, record: Record) -> "asyncio.Future[Position] | None":
        """Return the future of the record's place, None while the queue is full; raises `Refused`."""
        kafka, loop = self._started(), self._loop
        assert loop is not None
        placed: asyncio.Future[Position] = loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            loop.call_soon_threadsafe(_settle, placed, error, message)

        try:
            kafka.produce(
                record.topic, value=record.value, key=record.key, partition=record.partition,
                headers=record.headers, timestamp=record.timestamp_ms, on_delivery=delivered,
            )  # fmt: skip
        except BufferError:
            return None
        except KafkaException as error:
            raise _failure(kafka_error(error), record.topic) from error
        return placed

    def _poll(self, kafka: KafkaProducer, ending: threading.Event) -> None:
        """Serve deliveries until it is closed and nothing is without its answer; in a thread of its own."""
        while not ending.is_set() or len(kafka):
            self._serve(kafka.poll)

    def _serve(self, wait: Callable[[float], int]) -> int:
        """Serve deliveries by `wait`, librdkafka's `poll` or `flush`, and say that there may be room; in any thread.

        Behind the call, as librdkafka makes the room when a report is done; and by each, as one may find that the other has
        served all there is. Where it is said already, `offer` tries again behind its `clear`, and finds the room.
        """
        assert self._loop is not None
        try:
            result = unmasked(wait, _POLL_S)
        except KafkaException:
            result = 1  # fatal: each record is told by its own report, which are served on
        if not self._room.is_set():
            self._loop.call_soon_threadsafe(self._room.set)
        return result

    def _started(self) -> KafkaProducer:
        if self._kafka is None:
            raise Refused(
                "the producer was not started, or is closed: use `async with` or call start()"
            )
        return self._kafka


def _settle(placed: "asyncio.Future[Position]", error: KafkaError | None, message: Message) -> None:
    if placed.cancelled():
        return
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if error is not None:
        placed.set_exception(_failure(error, str(topic)))
        return
    placed.set_result(Position(str(topic), int(partition or 0), int(offset or 0)))


def _failure(error: KafkaError, topic: str) -> TidemarkError:
    """Return what a failed delivery means (INV-CPP2)."""
    if error.code() in REFUSALS:
        return Refused(f"a record for topic {topic} is refused: {error.str()}", code=error.name())
    if error.code() in _NEVER_SENT:
        return Unreachable(
            f"a record for topic {topic} was not sent: {error.str()}", code=error.name()
        )
    return OutcomeUnknown(
        f"a record for topic {topic} has no answer, it may be there: {error.str()}. Read the topic, or use a"
        " transaction, which can be asked about (`TransactionalProducer.verdict`).",
        code=error.name(),
    )
