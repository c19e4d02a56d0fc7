"""The clients of a sequence: at each region a plain producer, a transactional one and a reader; each notes what it saw.

A client knows its own region's address only, so what it saw says which region said it.

One more transactional producer knows all addresses, as applications do.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.history import Attempt, Outcome, record_value
from chaos.plain_producers import PLAIN_PARTITIONS, PLAIN_TOPIC, PlainJournal, PlainProducer
from chaos.readers import read_committed_consumer
from chaos.story import Place, Sighting
from chaos.transfers import ACCOUNTS, Journal, Teller
from chaos.transfers import TOPIC as ACCOUNTS_TOPIC

TOPICS: Final = {PLAIN_TOPIC: PLAIN_PARTITIONS, ACCOUNTS_TOPIC: ACCOUNTS}
EVERYWHERE: Final = "everywhere"
_POLL_S: Final = 0.2
_BATCH_MAX: Final = 500
_ASK_S: Final = 0.1


class _TimedJournal(Journal):
    """Keeps when each try ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_s: dict[str, float] = {}

    def note(self, attempt: Attempt) -> None:
        self.ended_s[attempt.name] = time.monotonic()
        super().note(attempt)


class Watcher(threading.Thread):
    """Reads committed records of one region on and on, and notes each as often as it is shown."""

    def __init__(self, region: str, bootstrap: str) -> None:
        """Nothing is read before `start`."""
        super().__init__(name=f"watcher-{region}", daemon=True)
        self.region = region
        self._addresses = bootstrap
        self._stopping = threading.Event()
        self._seen: list[Sighting] = []
        self.failures: list[str] = []

    def seen(self) -> list[Sighting]:
        """Return what was shown so far."""
        return list(self._seen)

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def run(self) -> None:
        """Read until stopped; a new consumer after a fatal error."""
        while not self._stopping.is_set():
            try:
                self._read()
            except KafkaException as error:
                self.failures.append(str(error))

    def _read(self) -> None:
        consumer = read_committed_consumer(self._addresses, f"watcher-{self.region}")
        consumer.assign(
            [TopicPartition(name, n, 0) for name, c in TOPICS.items() for n in range(c)]
        )
        try:
            while not self._stopping.is_set():
                for message in consumer.consume(_BATCH_MAX, timeout=_POLL_S):
                    error = message.error()
                    if error is None:
                        place = Place(
                            message.topic(), message.partition(), message.offset(),
                            message.value().decode(),
                        )  # fmt: skip
                        self._seen.append(Sighting(time.monotonic(), self.region, place, True))
                    elif error.fatal():
                        raise KafkaException(error)
        finally:
            consumer.close()


class Clients:
    """All clients. `bootstraps`: region -> address."""

    def __init__(self, bootstraps: Mapping[str, str], folder: Path, seed: int) -> None:
        """Nothing is connected before `start`."""
        self.bootstraps = bootstraps
        self._folder = folder
        self._seed = seed
        self.plain = PlainJournal()
        self.journal = _TimedJournal()
        self._names = list(bootstraps)
        self._producers: list[PlainProducer] = []
        self._tellers: list[Teller] = []
        self._watchers: list[Watcher] = []

    def create_topics(self, region: str) -> None:
        """Create the topics at the region that acts."""
        admin = AdminClient({"bootstrap.servers": self.bootstraps[region]})
        for future in admin.create_topics([NewTopic(n, c, 1) for n, c in TOPICS.items()]).values():
            future.result(20)

    def start(self) -> None:
        """Write and read from now on."""
        for number, (region, address) in enumerate(self.bootstraps.items()):
            self._producers.append(PlainProducer(number, address, self.plain, self._folder))
            self._tellers.append(Teller(region, address, self.journal, self._seed + number))
            self._watchers.append(Watcher(region, address))
        everywhere = ",".join(self.bootstraps.values())
        self._tellers.append(Teller(EVERYWHERE, everywhere, self.journal, self._seed - 1))
        for thread in (*self._producers, *self._tellers, *self._watchers):
            thread.start()

    def await_progress(self, timeout_s: float) -> list[str]:
        """Return which clients got nothing through within the time, empty when each did."""
        before = self._progress()
        deadline_s = time.monotonic() + timeout_s
        while True:
            now = self._progress()
            stuck = [name for name, count in now.items() if count <= before[name]]
            if not stuck or time.monotonic() > deadline_s:
                return stuck
            time.sleep(_ASK_S)

    def _progress(self) -> dict[str, int]:
        with self.plain.lock:
            acked = list(self.plain.acked)
        found = {f"plain producer of {name}": 0 for name in self._names}
        for value in acked:
            found[f"plain producer of {self._plain_region(value)}"] += 1
        attempts = list(self.journal.attempts)
        for name in (*self._names, EVERYWHERE):
            found[f"transactions of {name}"] = sum(
                a.teller == name and a.outcome is Outcome.COMMITTED for a in attempts
            )
        return found

    def stop_writing(self, timeout_s: float) -> list[str]:
        """End the writers; return those that did not end in time."""
        for producer in self._producers:
            producer.stop()
        for teller in self._tellers:
            teller.stop()
        return _join([*self._producers, *self._tellers], timeout_s)

    def stop_reading(self, timeout_s: float) -> list[str]:
        """End the readers; return those that did not end in time."""
        for watcher in self._watchers:
            watcher.stop()
        return _join(self._watchers, timeout_s)

    def sightings(self) -> list[Sighting]:
        """Return all that was acknowledged and shown."""
        found = [each for watcher in self._watchers for each in watcher.seen()]
        with self.plain.lock:
            for value, (partition, offset) in self.plain.acked.items():
                place = Place(PLAIN_TOPIC, partition, -1 if offset is None else offset, value)
                region = self._plain_region(value)
                found.append(Sighting(self.plain.acked_s[value], region, place, False))
        for attempt in list(self.journal.attempts):
            if attempt.outcome is Outcome.COMMITTED:
                for partition, change in attempt.changes.items():
                    value = record_value(attempt.name, change).decode()
                    place = Place(ACCOUNTS_TOPIC, partition, -1, value)
                    at_s = self.journal.ended_s[attempt.name]
                    found.append(Sighting(at_s, attempt.teller, place, False))
        return found

    def _plain_region(self, value: str) -> str:
        return self._names[int(value.split(".", maxsplit=1)[0])]


def _join(threads: Sequence[threading.Thread], timeout_s: float) -> list[str]:
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
