"""An idempotent producer that writes numbers to each partition, and the judge of what is read back.

Number n of a partition is written once by the application; librdkafka repeats what was not answered, for ever (a
message that times out makes it take a new epoch, and write again what may be in the log). Every
answered number is at the offset that was answered, nothing is there twice, and the numbers of a partition rise.
Not here: who kills what.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import KafkaError, Message, Producer

TOPIC = "stream"
PARTITIONS = 2


@dataclass
class Streamed:
    """partition -> number -> offset of what was answered; `failed`: what was given up, with the reason."""

    answered: dict[int, dict[int, int]] = field(
        default_factory=lambda: {number: {} for number in range(PARTITIONS)}
    )
    failed: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, partition: int, number: int, offset: int) -> None:
        """Keep an answer."""
        with self.changed:
            self.answered[partition][number] = offset
            self.changed.notify_all()

    def give_up(self, what: str) -> None:
        """Keep a failure."""
        with self.changed:
            self.failed.append(what)
            self.changed.notify_all()

    def count(self) -> int:
        """Return how many were answered."""
        return sum(map(len, self.answered.values()))

    def await_more(self, count: int, timeout_s: float = 60.0) -> None:
        """Return once `count` more were answered, or one was given up; raises TimeoutError."""
        with self.changed:
            wanted = self.count() + count
            if not self.changed.wait_for(lambda: self.failed or self.count() >= wanted, timeout_s):
                raise TimeoutError(f"{self.count()} of {wanted} records of the stream are answered")


class Streamer(threading.Thread):
    """Writes until stopped, many batches in flight."""

    def __init__(self, brokers: str, streamed: Streamed) -> None:
        """Nothing is connected before `start`."""
        super().__init__(name="streamer", daemon=True)
        self._streamed = streamed
        self._stopping = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": brokers, "enable.idempotence": True, "linger.ms": 1, "log_level": 0,
             "max.in.flight": 5,
             "reconnect.backoff.max.ms": 200, "message.timeout.ms": 0,
             "batch.num.messages": 20, "queue.buffering.max.messages": 500}
        )  # fmt: skip

    def stop(self) -> None:
        """End it when all that was written is answered."""
        self._stopping.set()
        self.join(90)

    def run(self) -> None:
        """Write."""
        number = 0
        while not self._stopping.is_set():
            for partition in range(PARTITIONS):
                self._write(partition, number)
            number += 1
        self._producer.flush(60)

    def _write(self, partition: int, number: int) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self._streamed.give_up(f"{partition}/{number}: {error}")
            else:
                self._streamed.note(partition, number, offset)

        while not self._stopping.is_set():
            try:
                self._producer.produce(
                    TOPIC, b"%d" % number, partition=partition, on_delivery=delivered
                )
            except BufferError:
                self._producer.poll(0.05)
            else:
                self._producer.poll(0)
                return


def check_stream(
    answered: Mapping[int, Mapping[int, int]], read: Mapping[int, Sequence[tuple[int, int]]]
) -> list[str]:
    """Return what is wrong; `read`: partition -> (offset, number) in offset order."""
    found = []
    for partition, records in read.items():
        there = {number: offset for offset, number in reversed(records)}  # the first of each
        counts = Counter(number for _, number in records)
        found += [f"twice: {partition}/{number}" for number, count in counts.items() if count > 1]
        for number, offset in answered[partition].items():
            if number not in there:
                found.append(f"lost: {partition}/{number}, answered at {offset}")
            elif there[number] != offset:
                found.append(f"moved: {partition}/{number} from {offset} to {there[number]}")
        for (_, before), (_, after) in pairwise(records):
            if after < before:
                found.append(f"order: {partition}/{after} behind {before}")
    return found
