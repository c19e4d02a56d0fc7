"""Does a transfer between two accounts survive the loss of a region? Tellers on librdkafka, as applications run it.

    begin; produce("accounts", p, "<try> -n"); produce("accounts", q, "<try> +n"); commit | abort

After any error a teller starts anew with the same transactional id: what became of a commit that was not
answered it never guesses (`Outcome.UNKNOWN`). A reader reads committed records of all partitions.
Not here: who breaks what and when (`tests/process`), the verdict (`chaos.checker`).
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from chaos.history import Attempt, Outcome, Seen, record_value, seen
from region_broker.client.retirement import retire
from region_broker.client.waiting_calls import until_answered

TOPIC = "accounts"
ACCOUNTS = 4
CALL_S = 5.0
END = b"end"
POLLS_MAX = 600


@dataclass
class Journal:
    """What all tellers did; `term` counts takeovers."""

    attempts: list[Attempt] = field(default_factory=list)
    term: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def fail(self, error: KafkaException) -> None:
        """A call has failed for good; of interest to who counts what reaches an application."""

    def place(self, attempt: str, partition: int, offset: int) -> None:
        """A record of a try was answered with its offset; of interest to who looks for records one by one."""

    def note(self, attempt: Attempt) -> None:
        """Add a try."""
        with self.changed:
            self.attempts.append(attempt)
            self.changed.notify_all()

    def committed(self, term: int) -> int:
        """Return how many commits of a term were answered."""
        return sum(a.outcome is Outcome.COMMITTED and a.term == term for a in self.attempts)

    def await_commits(self, term: int, count: int, timeout_s: float = 60.0) -> None:
        """Return once that many were answered; raises TimeoutError."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.committed(term) >= count, timeout_s):
                raise TimeoutError(f"{self.committed(term)} of {count} commits in term {term}")


class Teller(threading.Thread):
    """One transactional id, from start to `stop`. `topic`: it has a partition for each account."""

    topic = TOPIC

    def __init__(
        self, name: str, bootstrap: str, journal: Journal, seed: int,
        config: Mapping[str, Any] | None = None, patience_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`. `config` is given to librdkafka beside the teller's own.

        `patience_s`: how long a call that librdkafka names retriable is repeated before the teller starts anew.
        """
        super().__init__(name=name, daemon=True)
        self._config = dict(config or {})
        self._patience_s = patience_s
        self._brokers, self._journal = bootstrap, journal
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._number = 0

    def stop(self) -> None:
        """Ask it to end; nothing of it is left open when it has."""
        self._stopping.set()

    def run(self) -> None:
        """Transfer until stopped."""
        producer: Producer | None = None
        while not self._stopping.is_set() or producer is None:
            if producer is None:
                producer = self._begin_anew()
            elif not self._transfer(producer):
                retire(producer)
                producer = None

    def _begin_anew(self) -> Producer | None:
        producer = Producer(
            {"bootstrap.servers": self._brokers, "transactional.id": self.name, "linger.ms": 0,
             "log_level": 0, "reconnect.backoff.max.ms": 250, "transaction.timeout.ms": 20_000,
             "message.timeout.ms": 8_000, **self._config}
        )  # fmt: skip
        try:
            until_answered(self._patience_s, lambda: producer.init_transactions(CALL_S))
        except KafkaException as error:
            self._journal.fail(error)
            return None
        return producer

    def _transfer(self, producer: Producer) -> bool:
        """Return whether the producer can go on."""
        self._number += 1
        source, target = self._chance.sample(range(ACCOUNTS), 2)
        amount = self._chance.randrange(1, 100)
        number, term, outcome = self._number, self._journal.term, Outcome.NOT_COMMITTED
        try:
            producer.begin_transaction()
            for partition, change in ((source, -amount), (target, amount)):
                attempt = f"{self.name}.{number}"
                producer.produce(
                    self.topic, record_value(attempt, change), partition=partition,
                    on_delivery=partial(self._delivered, attempt),
                )  # fmt: skip
            if self._chance.random() < 0.1:
                until_answered(self._patience_s, lambda: producer.abort_transaction(CALL_S))
            else:
                outcome = Outcome.UNKNOWN
                until_answered(self._patience_s, lambda: producer.commit_transaction(CALL_S))
                outcome = Outcome.COMMITTED
        except KafkaException as error:
            self._journal.fail(error)
            return False
        else:
            return True
        finally:
            self._journal.note(Attempt(self.name, number, term, source, target, amount, outcome))

    def _delivered(self, attempt: str, error: KafkaError | None, message: Any) -> None:
        if error is None and message.offset() is not None:
            self._journal.place(attempt, message.partition(), message.offset())


class Reader:
    """A read-committed consumer of all accounts, from the beginning, without a group of its own."""

    def __init__(self, bootstrap: str) -> None:
        """Read from one region."""
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0,
             "isolation.level": "read_committed", "enable.auto.commit": False,
             "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
             "reconnect.backoff.max.ms": 250}
        )  # fmt: skip
        self._consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(ACCOUNTS)])
        self.records: list[Seen] = []
        self.ends: set[tuple[int, int]] = set()

    def poll(self) -> bool:
        """Take what is there; return whether anything came. Raises KafkaException."""
        messages = self._consumer.consume(1000, 0.1)
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            if value == END:
                self.ends.add((partition, offset))
            else:
                self.records.append(seen(partition, offset, value or b""))
        return bool(messages)

    def read_to(self, ends: set[tuple[int, int]]) -> list[Seen]:
        """Return everything up to these end records; raises TimeoutError."""
        for _ in range(POLLS_MAX):
            if ends <= self.ends:
                return self.records
            self.poll()
        raise TimeoutError(f"the records at {sorted(ends - self.ends)} were not shown")

    def close(self) -> None:
        """Close it."""
        self._consumer.close()


class Watcher(threading.Thread):
    """A reader that reads on and on; `shown` is what it was given."""

    def __init__(self, bootstrap: str) -> None:
        """Nothing is read before `start`."""
        super().__init__(name="watcher", daemon=True)
        self._brokers = bootstrap
        self._stopping = threading.Event()
        self.shown: list[Seen] = []
        self.failure: KafkaException | None = None

    def run(self) -> None:
        """Read until stopped."""
        reader = Reader(self._brokers)
        self.shown = reader.records
        try:
            while not self._stopping.is_set():
                reader.poll()
        except KafkaException as error:
            self.failure = error
        finally:
            reader.close()

    def stop(self) -> None:
        """End it and raise what ended it before."""
        self._stopping.set()
        self.join(30)
        if self.failure is not None:
            raise self.failure


def write_ends(bootstrap: str) -> set[tuple[int, int]]:
    """Write one end record to each partition, outside any transaction; return (partition, offset) of each."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    ends: set[tuple[int, int]] = set()

    def delivered(error: KafkaError | None, message: object) -> None:
        assert error is None, error
        ends.add((message.partition(), message.offset()))  # type: ignore[attr-defined]

    for number in range(ACCOUNTS):
        producer.produce(TOPIC, END, partition=number, on_delivery=delivered)
    if producer.flush(30) or len(ends) != ACCOUNTS:
        raise TimeoutError("the end records were not answered")
    return ends


def tellers(
    count: int, bootstrap: str, journal: Journal, chance: random.Random
) -> Iterator[Teller]:
    """Start tellers."""
    for number in range(count):
        teller = Teller(f"teller-{number}", bootstrap, journal, chance.randrange(1 << 30))
        teller.start()
        yield teller


def end_all(working: list[Teller], on_hang: Callable[[str], None]) -> None:
    """Stop tellers and wait for each."""
    for teller in working:
        teller.stop()
    for teller in working:
        teller.join(60)
        if teller.is_alive():
            on_hang(teller.name)
