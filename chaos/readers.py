"""Readers that never stop, one per region: whatever they were shown is kept, to see that it stays.

Not here: what may be taken back (`chaos.soak_judge`).
"""

import threading
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from chaos.soak_judge import Shown
from region_broker.workbench.credentials import kafka_login

_POLL_S: Final = 0.2
_BATCH_MAX: Final = 500


def read_committed_consumer(bootstrap: str, name: str) -> Any:
    """Return a quiet consumer that says where partitions end and commits nothing."""
    return Consumer(
        {"bootstrap.servers": bootstrap, **kafka_login(), "group.id": name, "log_level": 0,
         "isolation.level": "read_committed", "enable.auto.commit": False,
         "enable.partition.eof": True, "auto.offset.reset": "earliest",
         "fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 500}
    )  # fmt: skip


class Reader(threading.Thread):
    """Reads topics (name -> partition count) of one region, committed records only."""

    def __init__(self, bootstrap: str, topics: dict[str, int]) -> None:
        """Nothing is read before `start`."""
        super().__init__(name=f"reader-{bootstrap}", daemon=True)
        self._addresses = bootstrap
        self._topics = topics
        self._stopping = threading.Event()
        self._shown: set[Shown] = set()
        self._lock = threading.Lock()

    def shown(self) -> frozenset[Shown]:
        """Return everything shown so far."""
        with self._lock:
            return frozenset(self._shown)

    def forget(self, gone: frozenset[Shown]) -> None:
        """Do not speak of these again: they were judged."""
        with self._lock:
            self._shown -= gone

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def run(self) -> None:
        """Read until stopped."""
        consumer = read_committed_consumer(self._addresses, f"soak-reader-{self._addresses}")
        consumer.assign(
            [TopicPartition(name, each, 0) for name, n in self._topics.items() for each in range(n)]
        )
        while not self._stopping.is_set():
            for message in consumer.consume(_BATCH_MAX, timeout=_POLL_S):
                if message.error() is None:
                    with self._lock:
                        self._shown.add(_shown(message))
        consumer.close()


def read_all(bootstrap: str, topics: dict[str, int], timeout_polls: int = 150) -> frozenset[Shown]:
    """Return everything of `topics` that a read-committed reader finds now, to the end of each."""
    consumer = read_committed_consumer(bootstrap, "soak-audit")
    wanted = {(name, each) for name, n in topics.items() for each in range(n)}
    found: set[Shown] = set()
    ended: set[tuple[str, int]] = set()
    idle = 0
    consumer.assign([TopicPartition(name, each, 0) for name, each in wanted])
    try:
        while ended != wanted:
            messages = consumer.consume(_BATCH_MAX, timeout=_POLL_S)
            idle = 0 if messages else idle + 1
            if idle > timeout_polls:
                raise OSError(f"{bootstrap}: no end of {sorted(wanted - ended)}")
            for message in messages:
                error = message.error()
                if error is None:
                    found.add(_shown(message))
                elif error.name() == "_PARTITION_EOF":
                    ended.add((message.topic(), message.partition()))
                elif error.fatal():
                    raise KafkaException(error)
    finally:
        consumer.close()
    return frozenset(found)


def _shown(message: Any) -> Shown:
    return Shown(
        message.topic(), message.partition(), message.offset(),
        message.key() or b"", message.value() or b"",
    )  # fmt: skip
