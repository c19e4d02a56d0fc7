"""Streams of records: as fast as one client can produce, one request at a time, and reading back.

A record counts once the broker has acknowledged it (acks=all, idempotent); a failed one fails the run. Every wait is
bounded.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from region_broker.cli.bench.figures import BenchFailed, Plan, Run
from region_broker.cli.bench.stage import TIMEOUT_S, Stage

BATCH_RECORDS: Final = 1_000
POLL_RECORDS: Final = 10_000
_ROOM_WAIT_S: Final = 0.01


def produce_run(stage: Stage, plan: Plan, topic: str) -> Run:
    """Produce as fast as the client can; the run ends when all is acknowledged."""
    flow = _Flow(stage, topic, plan)
    flow.send_for(plan.warm_up_s)
    before = stage.cost()
    started_s = time.monotonic()
    count = flow.send_for(plan.seconds)
    return Run(count=count, seconds=time.monotonic() - started_s, cost=stage.cost_since(before))


def fill(stage: Stage, plan: Plan, topic: str) -> int:
    """Produce for the length of a run; return how many records the topic has now."""
    return _Flow(stage, topic, plan).send_for(plan.seconds)


def fill_records(stage: Stage, plan: Plan, topic: str, at_least: int) -> int:
    """Produce `at_least` so many records; return how many the topic has now."""
    return _Flow(stage, topic, plan).send_records(at_least)


class _Flow:
    """One producer and the batch it sends again and again, to the partitions in turn."""

    def __init__(self, stage: Stage, topic: str, plan: Plan) -> None:
        self._producer = Producer(
            stage.client(
                **{
                    "enable.idempotence": True,
                    "linger.ms": 5,
                    "batch.size": plan.batch_bytes,
                    "queue.buffering.max.messages": 1_000_000,
                    "queue.buffering.max.kbytes": 256 * 1024,
                    "delivery.report.only.error": True,
                    "message.timeout.ms": int(TIMEOUT_S * 1000),
                },
            )
        )
        self._topic = topic
        self._partition_count = plan.partition_count
        value = b"x" * plan.size_bytes
        self._batch: list[dict[str, Any]] = [{"value": value} for _ in range(BATCH_RECORDS)]
        self._batches = 0
        self._error: KafkaError | None = None

    def send_for(self, seconds: float) -> int:
        """Send, then wait for all acknowledgements; return how many records. Raises `BenchFailed`."""
        deadline_s = time.monotonic() + seconds
        count = 0
        while time.monotonic() < deadline_s and self._error is None:
            count += self._send_batch()
        self._flush()
        return count

    def send_records(self, at_least: int) -> int:
        """Send that many, in whole batches, and wait for all acknowledgements. Raises `BenchFailed`."""
        count = 0
        while count < at_least and self._error is None:
            count += self._send_batch()
        self._flush()
        return count

    def _flush(self) -> None:
        left = self._producer.flush(TIMEOUT_S)
        if self._error is not None:
            raise BenchFailed(f"a record was refused: {self._error.str()}")
        if left:
            raise BenchFailed(f"{left} records were not acknowledged within {TIMEOUT_S:.0f} s")

    def _send_batch(self) -> int:
        partition = self._batches % self._partition_count
        queued = self._producer.produce_batch(
            self._topic, self._batch, partition=partition, on_delivery=self._delivered
        )
        if queued == BATCH_RECORDS:
            self._batches += 1
            self._producer.poll(0)
        else:  # the queue is full
            self._producer.poll(_ROOM_WAIT_S)
        return queued

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        self._error = self._error or error


def lone_run(stage: Stage, plan: Plan, topic: str) -> Run:
    """Produce one record at a time, each acknowledged before the next is sent."""
    producer = Producer(stage.client(**{"enable.idempotence": True, "linger.ms": 0}))
    value = b"x" * plan.size_bytes
    answered: list[KafkaError | None] = []

    def one() -> None:
        answered.clear()
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _message: answered.append(error)
        )
        deadline_s = time.monotonic() + TIMEOUT_S
        while not answered and time.monotonic() < deadline_s:
            producer.poll(TIMEOUT_S)
        if not answered or answered[0] is not None:
            why = answered[0].str() if answered and answered[0] is not None else "no answer"
            raise BenchFailed(f"a record was not acknowledged: {why}")

    _repeat(one, plan.warm_up_s)
    before = stage.cost()
    started_s = time.monotonic()
    latencies_ms = _repeat(one, plan.seconds)
    return Run(
        count=len(latencies_ms),
        seconds=time.monotonic() - started_s,
        latencies_ms=latencies_ms,
        cost=stage.cost_since(before),
    )


def _repeat(one: Callable[[], None], seconds: float) -> list[float]:
    """Call until the time is over, once at least; return the durations in ms."""
    deadline_s = time.monotonic() + seconds
    durations_ms: list[float] = []
    while not durations_ms or time.monotonic() < deadline_s:
        started_s = time.monotonic()
        one()
        durations_ms.append((time.monotonic() - started_s) * 1000)
    return durations_ms


def consume_run(stage: Stage, plan: Plan, topic: str, record_count: int) -> Run:
    """Read the topic from its start to its end; connecting and the first records are not timed."""
    consumer = Consumer(
        stage.client(
            **{
                "group.id": "tidemark-bench",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.queue.backoff.ms": 10,
                "queued.max.messages.kbytes": 256 * 1024,
            },
        )
    )
    try:
        consumer.assign(
            [TopicPartition(topic, number, 0) for number in range(plan.partition_count)]
        )
        untimed = len(_poll(consumer))
        before = stage.cost()
        started_s = time.monotonic()
        count = 0
        while untimed + count < record_count:
            count += len(_poll(consumer))
        seconds = time.monotonic() - started_s
    finally:
        consumer.close()
    if count == 0:
        raise BenchFailed(
            f"{record_count} records came in one answer: too few to time, give more --seconds"
        )
    return Run(count=count, seconds=seconds, cost=stage.cost_since(before))


def _poll(consumer: Consumer) -> list[Message]:
    """Return at least one record; raises `BenchFailed`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            messages = consumer.consume(POLL_RECORDS, timeout=0.1)
        except KafkaException as error:
            raise BenchFailed(f"reading failed: {error.args[0].str()}") from error
        failed = next((message.error() for message in messages if message.error()), None)
        if failed is not None:
            raise BenchFailed(f"reading failed: {failed.str()}")
        if messages:
            return messages
    raise BenchFailed(f"no record came within {TIMEOUT_S:.0f} s")
