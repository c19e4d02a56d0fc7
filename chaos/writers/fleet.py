"""All writers of a drill: as many of each client as asked for, started, rested and stopped together.

Not here: what each does (`confluent`, `aio`, `java`), what they tell (`journal`).
"""

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.access.doors import WRITER, Doors, librdkafka_login
from chaos.transfers import ACCOUNTS
from chaos.writers.aio import AioWriter
from chaos.writers.confluent import ConfluentWriter
from chaos.writers.java import JavaWriter
from chaos.writers.java_program import compiled
from chaos.writers.journal import Gate, WritersJournal
from chaos.writers.writer import TOPIC, Writer
from region_broker.workbench.credentials import kafka_login

CLIENTS: Final = ("confluent", "aiokafka", "java")
_ADMIN_S: Final = 20.0
_JOIN_S: Final = 40.0


class Fleet:
    """Writers that know `bootstrap`; `config` is given to librdkafka; with `doors` they log in."""

    def __init__(  # noqa: PLR0913 -- how many of which, where, and as whom
        self, bootstrap: str, chance: Random, folder: Path, *, clients: Collection[str], count: int,
        config: Mapping[str, Any], doors: Doors | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`; raises `JavaMissingError`."""
        self.journal = WritersJournal()
        self._gate = Gate()
        self.java_command = compiled(folder / "classes") if "java" in clients else []
        self.writers: list[Writer] = []
        self._started: list[Writer] = []
        login = None if doors is None else doors.login(WRITER)
        properties = None if doors is None else doors.properties(WRITER)
        for number in range(count):
            base = (number, bootstrap, self.journal, self._gate, chance)
            if "confluent" in clients:
                self.writers.append(ConfluentWriter(*base, {**config, **librdkafka_login(login)}))
            if "aiokafka" in clients:
                log = folder / f"aiokafka-{number}.log"
                self.writers.append(AioWriter(*base, log=log, login=login))
            if "java" in clients:
                log = folder / f"java-{number}.log"
                java = JavaWriter(*base, command=self.java_command, log=log, properties=properties)
                self.writers.append(java)

    @staticmethod
    def prepare(
        bootstrap: str, replicas: int, configs: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create the topic."""
        admin = AdminClient({"bootstrap.servers": bootstrap, **kafka_login()})
        topic = NewTopic(TOPIC, ACCOUNTS, replicas, config=dict(configs))
        admin.create_topics([topic])[TOPIC].result(_ADMIN_S)

    def start(self) -> None:
        """Write from now on."""
        for writer in self.writers:
            writer.start()
            self._started.append(writer)

    def rest(self, timeout_s: float) -> set[str]:
        """Let all end what they do; return who does not in time."""
        self._gate.close()
        for writer in self.writers:
            if isinstance(writer, JavaWriter):
                writer.rest()
        return self._gate.missing({writer.name for writer in self.writers}, timeout_s)

    def go_on(self) -> None:
        """Write again."""
        self._gate.open()
        for writer in self.writers:
            if isinstance(writer, JavaWriter):
                writer.go_on()

    def behind(self, since_s: float) -> list[str]:
        """Return who has had no commit answered since then."""
        return [
            writer.name
            for writer in self.writers
            if self.journal.last_acked_s(writer.name) <= since_s
        ]

    def stop(self) -> list[str]:
        """End all; return those that do not end in time (they end with this process)."""
        for writer in self._started:
            writer.stop()
        self._gate.open()
        deadline_s = time.monotonic() + _JOIN_S
        return [
            writer.name
            for writer in self._started
            if not writer.finish(max(0.0, deadline_s - time.monotonic()))
        ]
