"""Transactions: each producer a thread with a transactional id of its own, one transaction after the other.

A transaction counts if its commit was answered within the measured time; it lasts from begin_transaction to that
answer. The first error of any producer ends the run, with that error.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException, Producer

from region_broker.cli.bench.figures import BenchFailed, Plan, Run
from region_broker.cli.bench.stage import TIMEOUT_S, Stage

RECORDS: Final = 10
"""Records of one transaction, half in one partition and half in the next."""


@dataclass(slots=True)
class _Shared:
    """What the threads of one run share."""

    start: threading.Barrier
    stop: threading.Event = field(default_factory=threading.Event)
    done: list[tuple[float, float]] = field(default_factory=list)
    """(answered at, lasted) in seconds of the monotonic clock; appended by all threads."""
    errors: list[str] = field(default_factory=list)

    def fail(self, text: str) -> None:
        """Note why, and end the run."""
        self.errors.append(text)
        self.stop.set()
        self.start.abort()


def transactions_run(stage: Stage, plan: Plan, topic: str, producer_count: int) -> Run:
    """Let `producer_count` producers commit transactions at once. Raises `BenchFailed`."""
    shared = _Shared(threading.Barrier(producer_count + 1))
    threads = [
        threading.Thread(
            target=_work, args=(stage, plan, topic, number, shared), name=f"producer-{number}"
        )
        for number in range(producer_count)
    ]
    for thread in threads:
        thread.daemon = True
        thread.start()
    try:
        _wait_at(shared)
        shared.stop.wait(plan.warm_up_s)
        before = stage.cost()
        started_s = time.monotonic()
        shared.stop.wait(plan.seconds)
        ended_s = time.monotonic()
        cost = stage.cost_since(before)
    finally:
        shared.stop.set()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
    if shared.errors:
        raise BenchFailed(f"a transaction failed: {shared.errors[0]}")
    lasted_ms = [lasted_s * 1000 for at_s, lasted_s in shared.done if started_s <= at_s < ended_s]
    if not lasted_ms:
        raise BenchFailed(
            f"no transaction was committed within {plan.seconds} s: give more --seconds"
        )
    return Run(count=len(lasted_ms), seconds=ended_s - started_s, latencies_ms=lasted_ms, cost=cost)


def _wait_at(shared: _Shared) -> None:
    try:
        shared.start.wait(2 * TIMEOUT_S)
    except threading.BrokenBarrierError:
        shared.stop.set()
        why = shared.errors[0] if shared.errors else "they were not ready in time"
        raise BenchFailed(f"the producers could not begin: {why}") from None


def _work(stage: Stage, plan: Plan, topic: str, number: int, shared: _Shared) -> None:
    try:
        producer = Producer(
            stage.client(
                **{
                    "transactional.id": f"tidemark-bench-{stage.mark}-{number}",
                    "transaction.timeout.ms": int(TIMEOUT_S * 1000),
                    "linger.ms": 0,
                },
            )
        )
        producer.init_transactions(TIMEOUT_S)
        shared.start.wait(2 * TIMEOUT_S)
        values = [b"x" * plan.size_bytes] * (RECORDS // 2)
        pair = (number % plan.partition_count, (number + 1) % plan.partition_count)
        while not shared.stop.is_set():
            began_s = time.monotonic()
            _transaction(producer, topic, pair, values)
            ended_s = time.monotonic()
            shared.done.append((ended_s, ended_s - began_s))
    except threading.BrokenBarrierError:
        return
    except KafkaException as error:
        shared.fail(f"{error.args[0].name()}: {error.args[0].str()}")


def _transaction(
    producer: Producer, topic: str, pair: tuple[int, int], values: list[bytes]
) -> None:
    producer.begin_transaction()
    for partition in pair:
        for value in values:
            producer.produce(topic, value, partition=partition)
    producer.commit_transaction(TIMEOUT_S)
