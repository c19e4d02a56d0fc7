"""A read-committed reader of a mirror that audits it while the stream runs, as any application could.

An audit asks for the ends of all partitions in one request, reads up to them, and judges what lies below them and
nothing else: both halves of each transfer, the sum over all accounts. An audit counts only if its ends were answered
before `stop`: as long as that, the region was a mirror (one that takes over may show partitions by themselves).

Not here: what a mirror shows (`geo_replicator.whole_cut`), the proof at the end (`audit`).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from region_broker.workbench.audit import is_of_moved_leader
from region_broker.workbench.credentials import kafka_login

Decode = Callable[[bytes], tuple[str, int] | None]
"""The transfer that a record is a half of, and its change; None for a record that is none."""

PAUSE_S: Final = 0.5
_CALL_S: Final = 10.0
_READ_S: Final = 20.0
_POLL_S: Final = 0.2
_BATCH_MAX: Final = 2_000
_AGAIN_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Audit:
    """One look at all partitions: `torn` are transfers without exactly two records."""

    transfer_count: int
    torn: tuple[str, ...]
    total: int

    @property
    def holds(self) -> bool:
        """Return whether nothing is torn and the sum is unchanged."""
        return not self.torn and self.total == 0


class MirrorAuditor(threading.Thread):
    """Audits one mirror again and again until `stop`; `audits` is what it found."""

    def __init__(
        self, bootstrap: str, topic: str, partition_count: int, decode: Decode,
        pause_s: float = PAUSE_S,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`. `pause_s` is the time between two audits."""
        super().__init__(name=f"mirror-audit-{bootstrap}", daemon=True)
        self._brokers = bootstrap
        self._partitions = [TopicPartition(topic, number, 0) for number in range(partition_count)]
        self._decode = decode
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._books = _Books(partition_count)
        self.audits: list[Audit] = []

    @property
    def has_judged(self) -> bool:
        """Return whether an audit found anything to judge, or no audit will come."""
        return any(audit.transfer_count for audit in self.audits) or not self.is_alive()

    def stop(self) -> None:
        """Let the audit in hand be the last one; returns at once."""
        self._stopping.set()

    def result(self) -> list[Audit]:
        """Wait for the end after `stop` and return the audits; raises what ended it before."""
        self.join(_READ_S + _CALL_S)
        if self.is_alive():
            raise TimeoutError(f"{self.name} does not end")
        if self._failure is not None:
            raise self._failure
        return self.audits

    def run(self) -> None:
        """Audit until stopped."""
        try:
            self._audit_on_and_on()
        except (KafkaException, OSError) as error:
            self._failure = error

    def _audit_on_and_on(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._brokers, **kafka_login(), "log_level": 0})
        consumer = Consumer(
            {"bootstrap.servers": self._brokers, **kafka_login(), "group.id": "mirror-audit", "log_level": 0,
             "isolation.level": "read_committed", "enable.auto.commit": False,
             "enable.partition.eof": True, "auto.offset.reset": "error",
             # Few, full answers: the mirror shows something new twenty times a second.
             "fetch.min.bytes": 1 << 20, "fetch.wait.max.ms": 200}
        )  # fmt: skip
        try:
            consumer.assign(self._partitions)
            while not self._stopping.is_set():
                ends = self._ends(admin)
                if self._stopping.is_set():
                    return
                self._read_to(consumer, ends)
                self.audits.append(self._books.close_at(ends))
                self._stopping.wait(self._pause_s)
        finally:
            consumer.close()

    def _ends(self, admin: AdminClient) -> list[int]:
        """Return the ends of all partitions, of one moment; raises KafkaException.

        After an election librdkafka goes on with the leader epoch that it knows, and its user is to ask again: once it is told to look.
        """
        deadline_s = time.monotonic() + _CALL_S
        while True:
            try:
                return self._asked_ends(admin)
            except KafkaException as error:
                if not is_of_moved_leader(error.args[0]) or time.monotonic() > deadline_s:
                    raise
            time.sleep(_AGAIN_S)
            admin.list_topics(timeout=_CALL_S)

    def _asked_ends(self, admin: AdminClient) -> list[int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka's own
        futures = admin.list_offsets(
            {TopicPartition(each.topic, each.partition): latest for each in self._partitions},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=_CALL_S,
        )  # fmt: skip
        found = {asked.partition: future.result() for asked, future in futures.items()}
        return [found[each.partition].offset for each in self._partitions]

    def _read_to(self, consumer: Consumer, ends: list[int]) -> None:
        deadline_s = time.monotonic() + _READ_S
        while not self._books.reach(ends):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._brokers} did not send what it says it shows: {ends}")
            for message in consumer.consume(_BATCH_MAX, _POLL_S):
                self._take(message)

    def _take(self, message: Message) -> None:
        error, number, offset = message.error(), message.partition(), message.offset()
        assert number is not None
        if error is None:
            assert offset is not None
            self._books.enter(number, offset, self._decode(message.value() or b""))
        elif error.code() == KafkaError._PARTITION_EOF:
            self._books.read_to(number, offset or 0)
        elif error.fatal() or not (error.retriable() or is_of_moved_leader(error)):
            raise KafkaException(error)


class _Books:
    """What was read, entered up to the ends of each audit."""

    def __init__(self, partition_count: int) -> None:
        self._waiting: list[list[tuple[int, str, int]]] = [[] for _ in range(partition_count)]
        self._positions = [0] * partition_count
        self._records = Counter[str]()
        self._odd: set[str] = set()
        self._total = 0

    def enter(self, number: int, offset: int, half: tuple[str, int] | None) -> None:
        """Take one record of a partition; they come in order."""
        self._positions[number] = offset + 1
        if half is not None:
            self._waiting[number].append((offset, *half))

    def read_to(self, number: int, offset: int) -> None:
        """Note that there is nothing more below `offset`."""
        self._positions[number] = max(self._positions[number], offset)

    def reach(self, ends: list[int]) -> bool:
        """Return whether everything below `ends` was read."""
        return all(at >= end for at, end in zip(self._positions, ends, strict=True))

    def close_at(self, ends: list[int]) -> Audit:
        """Enter what lies below `ends`, and judge."""
        for number, end in enumerate(ends):
            waiting = self._waiting[number]
            count = 0
            for offset, transfer, change in waiting:
                if offset >= end:
                    break
                count += 1
                self._enter(transfer, change)
            del waiting[:count]
        return Audit(len(self._records), tuple(sorted(self._odd)), self._total)

    def _enter(self, transfer: str, change: int) -> None:
        self._total += change
        self._records[transfer] += 1
        if self._records[transfer] == 2:
            self._odd.discard(transfer)
        else:
            self._odd.add(transfer)
