"""The demo's application: consume, process, produce, each row one transaction, on confluent-kafka.

One row is one transaction: two records (value leaves one account, arrives at the other) and the offset of the input
record. Each attempt at a row has an id of its own, in its records: read back, it says which attempt is there. After any
fatal error the worker starts anew: same transactional id, same group, new clients, from the committed offset; it never
guesses what became of a commit, and takes no row twice from a librdkafka that goes back by itself (`client.expected_places`).
"""

import json
import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from region_broker.client.across_regions import ACROSS_REGIONS
from region_broker.client.expected_places import ExpectedPlaces
from region_broker.client.retirement import retire
from region_broker.workbench.credentials import kafka_login
from region_broker.workbench.dataset import Transfer

INPUT_TOPIC: Final = "transfers"
ACCOUNTS_TOPIC: Final = "accounts"
GROUP_ID: Final = "demo"
ACCOUNT_PARTITIONS: Final = 8
# librdkafka prints fatal errors to stderr whatever its log level; the workers report them themselves.
_QUIET: Final = logging.getLogger("tidemark.demo.librdkafka")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False
_CALL_TIMEOUT_S: Final = 5.0
_INPUT_FLUSH_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Ack:
    """A commit that was answered: `at_s` by the monotonic clock."""

    row_id: str
    attempt: str
    at_s: float


@dataclass(slots=True)
class Journal:
    """What all workers saw, in order. `unknown`: commits asked for that were never answered."""

    acks: list[Ack] = field(default_factory=list)
    unknown: list[Ack] = field(default_factory=list)
    rebuilds: int = 0
    errors: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, ack: Ack) -> None:
        """A commit is being asked for; of interest where the worker may die before the answer."""

    def acknowledge(self, ack: Ack) -> None:
        """Note a commit that was answered."""
        with self.lock:
            self.acks.append(ack)

    def leave_open(self, ack: Ack) -> None:
        """Note a commit that was never answered."""
        with self.lock:
            self.unknown.append(ack)

    def fail(self, text: str) -> None:
        """Note why a worker started anew."""
        with self.lock:
            self.rebuilds += 1
            if text not in self.errors:
                self.errors.append(text)


def partition_of(account: str) -> int:
    """Return the partition that an account's entries lie in."""
    return zlib.crc32(account.encode()) % ACCOUNT_PARTITIONS


def transactional_id_of(attempt: str) -> str:
    """Return the transactional id of the worker that made an attempt."""
    return f"demo-{attempt.split('.', maxsplit=1)[0]}"


def produce_input(bootstrap: str, transfers: Iterable[Transfer], partition_count: int) -> int:
    """Write the rows to the input topic, idempotently; return how many. Raises KafkaException."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, **kafka_login(), "enable.idempotence": True, "linger.ms": 20,
         "log_level": 0, "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failed.append(error)

    count = 0
    for transfer in transfers:
        value = json.dumps([transfer.row_id, transfer.source, transfer.target, transfer.amount])
        producer.produce(
            INPUT_TOPIC, value=value, partition=count % partition_count, on_delivery=delivered
        )
        producer.poll(0)
        count += 1
    left = producer.flush(_INPUT_FLUSH_S)
    if failed or left:
        raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
    return count


class Worker(threading.Thread):
    """One instance of the application; `stop` ends it after the transaction in hand."""

    def __init__(
        self, number: int, bootstrap: str, journal: Journal, *, life: str = "1",
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`. `life` tells attempts of a restarted worker apart.

        `config` is given to librdkafka, for both clients, beside the worker's own.
        """
        super().__init__(name=f"worker-{number}", daemon=True)
        self._number = number
        self._addresses = bootstrap
        self._journal = journal
        self._stopping = threading.Event()
        self._life = life
        self._attempts = 0
        self._config = dict(config or {})

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def run(self) -> None:
        """Work until stopped, starting anew after each fatal error."""
        while not self._stopping.is_set():
            expected = ExpectedPlaces(_CALL_TIMEOUT_S, from_beginning=True)
            consumer, producer = self._consumer(expected), self._producer()
            try:
                self._init(producer)
                self._work(producer, consumer, expected)
            except KafkaException as error:
                inner = error.args[0]
                self._journal.fail(f"{inner.name()}: {inner.str()}")
            finally:
                retire(producer)
                consumer.close()

    def _consumer(self, expected: ExpectedPlaces) -> Consumer:
        consumer = Consumer(
            {"bootstrap.servers": self._addresses, **kafka_login(), "group.id": GROUP_ID, "log_level": 0,
             "isolation.level": "read_committed", "enable.auto.commit": False,
             "auto.offset.reset": "earliest", "session.timeout.ms": 6000,
             **ACROSS_REGIONS, "fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 500,
             "heartbeat.interval.ms": 500,
             # A worker that librdkafka never lets go (issue 5511 there) must not keep its partitions.
             "max.poll.interval.ms": 20_000, **self._config}
        )  # fmt: skip

        def gone(_consumer: Consumer, partitions: list[TopicPartition]) -> None:
            expected.forget((each.topic, each.partition) for each in partitions)

        consumer.subscribe([INPUT_TOPIC], on_revoke=gone, on_lost=gone)
        return consumer

    def _producer(self) -> Producer:
        return Producer(
            {"bootstrap.servers": self._addresses, **kafka_login(), "transactional.id": transactional_id_of(f"{self._number}"),
             **ACROSS_REGIONS, "linger.ms": 0, "log_level": 0, "reconnect.backoff.max.ms": 500,
             "transaction.timeout.ms": 20_000, "message.timeout.ms": 10_000,
             **self._config},
            logger=_QUIET,
        )  # fmt: skip

    def _init(self, producer: Producer) -> None:
        while not self._stopping.is_set():
            try:
                producer.init_transactions(_CALL_TIMEOUT_S)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                break

    def _work(self, producer: Producer, consumer: Consumer, expected: ExpectedPlaces) -> None:
        while not self._stopping.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.fatal():
                    raise KafkaException(error)
                continue
            if expected.takes(consumer, message):
                self._transfer(producer, consumer, message)

    def _transfer(self, producer: Producer, consumer: Consumer, message: Any) -> None:
        row_id, source, target, amount = json.loads(message.value())
        self._attempts += 1
        attempt = f"{self._number}.{self._life}.{self._attempts}"
        producer.begin_transaction()
        for account, change in ((source, -amount), (target, amount)):
            producer.produce(
                ACCOUNTS_TOPIC, key=account, value=json.dumps([row_id, change, attempt]),
                partition=partition_of(account),
            )  # fmt: skip
        position = TopicPartition(message.topic(), message.partition(), message.offset() + 1)
        _until_answered(
            lambda: producer.send_offsets_to_transaction(
                [position], consumer.consumer_group_metadata(), _CALL_TIMEOUT_S
            )
        )
        self._journal.begin(Ack(row_id, attempt, time.monotonic()))
        try:
            _until_answered(lambda: producer.commit_transaction(_CALL_TIMEOUT_S))
        except KafkaException:
            self._journal.leave_open(Ack(row_id, attempt, time.monotonic()))
            raise
        self._journal.acknowledge(Ack(row_id, attempt, time.monotonic()))


def _until_answered(call: Callable[[], object], attempt_count: int = 6) -> None:
    """Repeat a call that librdkafka names retriable: it goes on where it was."""
    for attempt in range(1, attempt_count + 1):
        try:
            call()
        except KafkaException as error:
            if attempt == attempt_count or not error.args[0].retriable():
                raise
        else:
            return


@dataclass(slots=True)
class Fleet:
    """All workers."""

    workers: list[Worker]

    @classmethod
    def start(
        cls, count: int, bootstrap: str, journal: Journal, *, first: int = 0,
        config: Mapping[str, Any] | None = None,
    ) -> "Fleet":  # fmt: skip
        """Start `count` workers, numbered from `first`."""
        workers = [
            Worker(first + number, bootstrap, journal, config=config) for number in range(count)
        ]
        for worker in workers:
            worker.start()
        return cls(workers)

    def stop(self) -> None:
        """Stop all and wait for them."""
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join(30)


def committed_rows(bootstrap: str, partition_count: int) -> int:
    """Return how many input records the group has committed."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, **kafka_login(), "group.id": GROUP_ID, "log_level": 0}
    )
    try:
        asked = [TopicPartition(INPUT_TOPIC, number) for number in range(partition_count)]
        return sum(max(found.offset, 0) for found in consumer.committed(asked, timeout=10))
    finally:
        consumer.close()
