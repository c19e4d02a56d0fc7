"""Latency at a fixed rate: each record has a time at which it is due, and is measured from that time.

Open loop: a record that could not be sent when it was due counts from when it was due, so a broker that stands still is
charged for all that would have been sent meanwhile (no coordinated omission). A record of a transaction is acknowledged
when its commit is. Every record sent is read back, or the run fails: a slow one is not left out.
"""

import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from region_broker.cli.bench.figures import BenchFailed, Plan, Run
from region_broker.cli.bench.stage import TIMEOUT_S, Stage

_DUE: Final = struct.Struct(">d")
_POLL_S: Final = 0.05
Delivered: TypeAlias = Callable[[KafkaError | None, Message], None]
TXN_RECORDS: Final = 10
"""Records of one transaction, where the load is one of transactions."""
_AHEAD_S: Final = 0.2
"""From the start of the schedule to the first record."""


@dataclass(slots=True)
class _Shared:
    """What sender and reader share; times in seconds of the monotonic clock, latencies in ms."""

    measured_from_s: float
    acked_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    read_count: int = 0
    errors: list[str] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)
    all_sent: threading.Event = field(default_factory=threading.Event)
    sent_count: int = 0


def open_loop_runs(
    stage: Stage, plan: Plan, topic: str, reader_bootstrap: str, txn_records: int = 0
) -> tuple[Run, Run]:
    """Send `plan.rate_per_s` records a second and read them, committed, at `reader_bootstrap`.

    `txn_records` > 0: each so many are a transaction, which is committed as soon as the last one was due.
    Return the run by acknowledgement and the run by reading. Raises `BenchFailed`.
    """
    producer = _producer(stage, topic, transactional=txn_records > 0)
    shared = _Shared(time.monotonic())
    reader = threading.Thread(
        target=_read,
        args=(stage.client(**{"bootstrap.servers": reader_bootstrap}), topic, plan, shared),
        daemon=True,
    )
    reader.start()
    if not shared.ready.wait(TIMEOUT_S):
        raise BenchFailed(f"nothing can be read at {reader_bootstrap} within {TIMEOUT_S:.0f} s")
    first_s = time.monotonic() + _AHEAD_S
    shared.measured_from_s = first_s + plan.warm_up_s
    before = stage.cost()
    schedule = _Schedule(topic=topic, plan=plan, first_s=first_s)
    if txn_records:
        _send_transactions(producer, schedule, txn_records, shared)
    else:
        _send(producer, schedule, shared)
    shared.all_sent.set()
    reader.join(2 * TIMEOUT_S)
    cost = stage.cost_since(before)
    if shared.errors or reader.is_alive():
        raise BenchFailed(shared.errors[0] if shared.errors else "the reader does not end")
    return (
        Run(
            count=len(shared.acked_ms),
            seconds=plan.seconds,
            latencies_ms=shared.acked_ms,
            cost=cost,
        ),
        Run(
            count=len(shared.read_ms), seconds=plan.seconds, latencies_ms=shared.read_ms, cost=cost
        ),
    )


def _producer(stage: Stage, topic: str, *, transactional: bool) -> Producer:
    if not transactional:
        return Producer(stage.client(**{"enable.idempotence": True, "linger.ms": 0}))
    producer = Producer(stage.client(**{"transactional.id": f"{topic}-producer", "linger.ms": 0}))
    try:
        producer.init_transactions(TIMEOUT_S)
    except KafkaException as error:
        raise BenchFailed(f"no transactions at {stage.bootstrap}: {error.args[0].str()}") from error
    return producer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """What is sent when: record `number` is due at `due_s(number)` of the monotonic clock."""

    topic: str
    plan: Plan
    first_s: float

    @property
    def total(self) -> int:
        return int((self.plan.warm_up_s + self.plan.seconds) * self.plan.rate_per_s)

    def due_s(self, number: int) -> float:
        return self.first_s + number / self.plan.rate_per_s

    def send(self, producer: Producer, number: int, on_delivery: Delivered | None = None) -> None:
        """Wait until the record is due, serving the producer, and hand it over."""
        due_s = self.due_s(number)
        while (left_s := due_s - time.monotonic()) > 0:
            producer.poll(min(left_s, _POLL_S))
        producer.produce(
            self.topic, _DUE.pack(due_s) + b"x" * max(self.plan.size_bytes - _DUE.size, 0),
            partition=number % self.plan.partition_count, on_delivery=on_delivery,
        )  # fmt: skip


def _send(producer: Producer, schedule: _Schedule, shared: _Shared) -> None:
    for number in range(schedule.total):
        if shared.errors:
            return
        schedule.send(producer, number, _acked(schedule.due_s(number), shared))
        shared.sent_count += 1
    if producer.flush(TIMEOUT_S):
        shared.errors.append(f"records were not acknowledged within {TIMEOUT_S:.0f} s")


def _send_transactions(
    producer: Producer, schedule: _Schedule, txn_records: int, shared: _Shared
) -> None:
    try:
        for start in range(0, schedule.total, txn_records):
            numbers = range(start, min(start + txn_records, schedule.total))
            producer.begin_transaction()
            for number in numbers:
                schedule.send(producer, number)
            producer.commit_transaction(TIMEOUT_S)
            committed_s = time.monotonic()
            shared.sent_count += len(numbers)
            due = [schedule.due_s(number) for number in numbers]
            shared.acked_ms += [
                (committed_s - due_s) * 1000 for due_s in due if due_s >= shared.measured_from_s
            ]
            if shared.errors:
                return
    except KafkaException as error:
        shared.errors.append(f"a transaction failed: {error.args[0].str()}")


def _acked(due_s: float, shared: _Shared) -> Delivered:
    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            shared.errors.append(f"a record was refused: {error.str()}")
        elif due_s >= shared.measured_from_s:
            shared.acked_ms.append((time.monotonic() - due_s) * 1000)

    return delivered


def _read(reader: Mapping[str, Any], topic: str, plan: Plan, shared: _Shared) -> None:
    consumer = Consumer(
        {
            **reader,
            "group.id": "tidemark-bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign(_ends(consumer, topic, plan.partition_count))
        consumer.poll(_POLL_S)
        shared.ready.set()
        deadline_s = None
        while deadline_s is None or time.monotonic() < deadline_s:
            message = consumer.poll(_POLL_S)
            if message is not None:
                _take(message, shared)
            if shared.all_sent.is_set():
                if shared.read_count >= shared.sent_count:
                    return
                deadline_s = deadline_s or time.monotonic() + TIMEOUT_S
        missing = shared.sent_count - shared.read_count
        shared.errors.append(f"{missing} records were not read within {TIMEOUT_S:.0f} s")
    except KafkaException as error:
        shared.errors.append(f"reading failed: {error.args[0].str()}")
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str, partition_count: int) -> list[TopicPartition]:
    """Return where reading begins: the present end of each partition, once the reader's broker has them."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return [
                TopicPartition(
                    topic, number,
                    consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=TIMEOUT_S)[1],
                )
                for number in range(partition_count)
            ]  # fmt: skip
        except KafkaException:  # a mirror learns of a new topic a moment later
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_POLL_S)


def _take(message: Any, shared: _Shared) -> None:
    if message.error() is not None:
        raise KafkaException(message.error())
    read_s = time.monotonic()
    shared.read_count += 1
    (due_s,) = _DUE.unpack_from(message.value())
    if due_s >= shared.measured_from_s:
        shared.read_ms.append((read_s - due_s) * 1000)
