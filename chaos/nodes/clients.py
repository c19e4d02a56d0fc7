"""The clients of a drill of nodes: transactional tellers, plain idempotent producers, and a group that reads, processes, writes;
and transactional writers and read-committed readers of three clients at the same time (`chaos.writers`).

Each knows all nodes. What was acknowledged is kept with its time, each error that reached the application by its name.

Not here: what happens to nodes (`stage`), what is wrong (`judge`).
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from chaos.access.doors import (
    LOOKER,
    READER,
    SEALED,
    WRITER,
    Doors,
    Grant,
    librdkafka_login,
)
from chaos.history import Attempt, Outcome
from chaos.plain_producers import PLAIN_PARTITIONS, PLAIN_TOPIC, PlainJournal, PlainProducer
from chaos.transfers import ACCOUNTS, Teller
from chaos.transfers import Journal as TellersJournal
from chaos.writers.fleet import CLIENTS, Fleet
from chaos.writers.readers import Readers
from chaos.writers.writer import TOPIC as TRANSFERS_TOPIC
from region_broker.workbench import workload
from region_broker.workbench.credentials import kafka_login
from region_broker.workbench.dataset import Transfer

TELLERS_TOPIC: Final = "tellers"
INPUT_PARTITIONS: Final = 4
TOPICS: Final = {
    TELLERS_TOPIC: ACCOUNTS,
    workload.ACCOUNTS_TOPIC: workload.ACCOUNT_PARTITIONS,
    PLAIN_TOPIC: PLAIN_PARTITIONS,
    TRANSFERS_TOPIC: ACCOUNTS,
}
"""What is read back."""
_PATIENCE_S: Final = 60.0
_JOIN_S: Final = 30.0
_ADMIN_S: Final = 20.0


class _TimedTellers(TellersJournal):
    def __init__(self) -> None:
        super().__init__()
        self.acked_s: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()

    def note(self, attempt: Attempt) -> None:
        """Keep when, too."""
        super().note(attempt)
        if attempt.outcome is Outcome.COMMITTED:
            self.acked_s[attempt.teller].append(time.monotonic())
            time.sleep(0.005)

    def fail(self, error: KafkaException) -> None:
        """Count it."""
        self.errors[f"teller {error.args[0].name()}"] += 1


class _TimedWorkers(workload.Journal):
    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def acknowledge(self, ack: workload.Ack) -> None:
        """Work at a pace that leaves input for the whole drill."""
        super().acknowledge(ack)
        time.sleep(0.02)

    def fail(self, text: str) -> None:
        """Count it."""
        super().fail(text)
        self.counted[f"worker {text.split(':', maxsplit=1)[0]}"] += 1


@dataclass(frozen=True, slots=True)
class Load:
    """How many clients of each kind. `rows`: what the workers have to read. `clients`: of which there are writers and readers."""

    tellers: int = 3
    producers: int = 2
    workers: int = 2
    rows: int = 30_000
    clients: Sequence[str] = CLIENTS


class NodesClients:
    """All clients. `config` is given to librdkafka, beside their own; with `doors` they log in."""

    def __init__(
        self, bootstrap: str, seed: int, folder: Path, load: Load, config: Mapping[str, Any], doors: Doors | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`; raises `JavaMissingError`."""
        self._bootstrap = bootstrap
        login = None if doors is None else doors.login(WRITER)
        self._config = {**config, **librdkafka_login(login)}
        self._configs = {} if doors is None else dict(SEALED)
        chance = Random(seed)
        self.tellers_journal = _TimedTellers()
        self.workers_journal = _TimedWorkers()
        self.plain_journal = PlainJournal()
        self._tellers = [
            Teller(f"teller-{n}", bootstrap, self.tellers_journal, chance.randrange(1 << 30),
                   config=self._config, patience_s=_PATIENCE_S)
            for n in range(load.tellers)
        ]  # fmt: skip
        for teller in self._tellers:
            teller.topic = TELLERS_TOPIC
        self._producers = [
            PlainProducer(n, bootstrap, self.plain_journal, folder, self._config)
            for n in range(load.producers)
        ]
        self.writers = Fleet(
            bootstrap,
            chance,
            folder,
            clients=load.clients,
            count=1,
            config=self._config,
            doors=doors,
        )
        self.readers = Readers(
            bootstrap, self.writers.journal, load.clients,
            command=self.writers.java_command, folder=folder, doors=doors,
        )  # fmt: skip
        self._worker_count = load.workers
        self._fleet: workload.Fleet | None = None
        self.rows = [
            Transfer(str(n), f"a{chance.randrange(40)}", f"b{chance.randrange(40)}", chance.randrange(1, 100))
            for n in range(load.rows)
        ]  # fmt: skip

    def prepare(self) -> None:
        """Create topics and input."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, **kafka_login()})
        topics = {workload.INPUT_TOPIC: INPUT_PARTITIONS, **TOPICS}
        made = [NewTopic(n, c, 3, config=self._configs_of(n)) for n, c in topics.items()]
        for future in admin.create_topics(made).values():
            future.result(_ADMIN_S)
        workload.produce_input(self._bootstrap, self.rows, INPUT_PARTITIONS)

    def _configs_of(self, topic: str) -> dict[str, str]:
        """Return what is sealed: what the writers of three clients write."""
        return self._configs if topic == TRANSFERS_TOPIC else {}

    def start(self) -> None:
        """Work from now on."""
        for thread in (*self._tellers, *self._producers):
            thread.start()
        self.writers.start()
        self.readers.start()
        self._fleet = workload.Fleet.start(
            self._worker_count, self._bootstrap, self.workers_journal, config=self._config
        )

    def acked_s(self) -> dict[str, list[float]]:
        """Return when each client was acknowledged a write, ascending."""
        found: dict[str, list[float]] = {each.name: [] for each in self._tellers}
        found |= {f"plain-{n}": [] for n in range(len(self._producers))}
        found |= {f"worker-{n}": [] for n in range(self._worker_count)}
        found |= {each.name: [] for each in self.writers.writers} | self.writers.journal.acked_now()
        for name, times in list(self.tellers_journal.acked_s.items()):
            found[name] += list(times)
        with self.plain_journal.lock:
            for value, at_s in self.plain_journal.acked_s.items():
                found[f"plain-{value.split('.')[0]}"].append(at_s)
        with self.workers_journal.lock:
            for ack in self.workers_journal.acks:
                found[f"worker-{ack.attempt.split('.')[0]}"].append(ack.at_s)
        return found

    def errors(self) -> Counter[str]:
        """Return how often each error reached an application until now."""
        found = self.tellers_journal.errors + self.workers_journal.counted
        found += self.writers.journal.errors_now()
        with self.plain_journal.lock:
            found.update(f"plain {name}" for name in self.plain_journal.failed.values())
            found.update(f"plain fatal {each}" for each in self.plain_journal.fatal)
        return found

    def behind(self, since_s: float) -> list[str]:
        """Return who has had nothing acknowledged since then."""
        return [
            name for name, times in self.acked_s().items() if not any(at > since_s for at in times)
        ]

    def stop(self) -> list[str]:
        """End all that write; return those that do not end in time (they end with this process)."""
        workers = self._fleet.workers if self._fleet is not None else []
        stopped: list[Teller | workload.Worker] = [*self._tellers, *workers]
        threads: list[threading.Thread] = [*stopped, *self._producers]
        for each in stopped:
            each.stop()
        for producer in self._producers:
            producer.rest(_JOIN_S)
            producer.stop()
        deadline_s = time.monotonic() + _JOIN_S
        for thread in threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))
        return [*(t.name for t in threads if t.is_alive()), *self.writers.stop()]


def grants() -> list[Grant]:
    """Return what a drill's writers and readers need, and no more (INV-DRA1)."""
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    topic, group = ResourceType.TOPIC, ResourceType.GROUP
    writes: list[Grant] = [
        (WRITER, topic, name, literal, AclOperation.WRITE)
        for name in TOPICS
        if name != TRANSFERS_TOPIC
    ]
    ids = ("teller-", workload.transactional_id_of(""))
    return [
        *writes,
        *((WRITER, ResourceType.TRANSACTIONAL_ID, each, prefixed, AclOperation.WRITE) for each in ids),
        (WRITER, topic, workload.INPUT_TOPIC, literal, AclOperation.READ),
        (WRITER, group, workload.GROUP_ID, literal, AclOperation.READ),
        *writers_write(),
    ]  # fmt: skip


def writers_write() -> list[Grant]:
    """Return what writers and readers of three clients need, and that some may know of what they write."""
    literal, topic = ResourcePatternType.LITERAL, ResourceType.TOPIC
    prefixed, named = ResourcePatternType.PREFIXED, ResourceType.TRANSACTIONAL_ID
    return [
        (WRITER, topic, TRANSFERS_TOPIC, literal, AclOperation.WRITE),
        *((WRITER, named, f"{each}-", prefixed, AclOperation.WRITE) for each in CLIENTS),
        (READER, topic, TRANSFERS_TOPIC, literal, AclOperation.READ),
        (LOOKER, topic, TRANSFERS_TOPIC, literal, AclOperation.DESCRIBE),
    ]
