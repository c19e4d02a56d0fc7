"""Read-committed readers of three clients that read all transfers along, from the beginning, and are judged by what they were shown.

An error that a reader's application meets is counted; it reads on with the same consumer.

Not here: what may be shown (`sightings`).
"""

import asyncio
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from chaos.access.doors import READER, Doors, aiokafka_login, librdkafka_login
from chaos.transfers import ACCOUNTS
from chaos.writers.journal import WritersJournal
from chaos.writers.sightings import Sightings
from chaos.writers.writer import TOPIC
from region_broker.security.login import Security

_POLL_S: Final = 0.2
_JOIN_S: Final = 10.0
_LOOK_S: Final = 0.05


class Reads(Protocol):
    """A thread that reads until it is stopped."""

    client: str
    sightings: Sightings

    def start(self) -> None:
        """Read from now on."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class _Reader(threading.Thread):
    client = ""

    def __init__(
        self, bootstrap: str, journal: WritersJournal, login: Security | None = None
    ) -> None:
        super().__init__(name=f"{self.client}-reader", daemon=True)
        self._login = login
        self.sightings = Sightings()
        self._brokers, self._journal = bootstrap, journal
        self._stopping = threading.Event()

    def _fail(self, name: str) -> None:
        self._journal.fail_of(f"{self.client} reader", name)

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self.join(_JOIN_S)
        if self.is_alive():
            self._fail("never ends")


class ConfluentReader(_Reader):
    """On confluent-kafka."""

    client = "confluent"

    def run(self) -> None:
        """Read until stopped."""
        consumer = Consumer(
            {"bootstrap.servers": self._brokers, "group.id": self.name, "log_level": 0, "isolation.level": "read_committed",
             "enable.auto.commit": False, "auto.offset.reset": "error", "reconnect.backoff.max.ms": 500,
             **librdkafka_login(self._login)}
        )  # fmt: skip
        consumer.assign([Place(TOPIC, each, 0) for each in range(ACCOUNTS)])
        while not self._stopping.is_set():
            for message in cast("list[Any]", consumer.consume(500, timeout=_POLL_S)):
                error = message.error()
                if error is not None:
                    self._fail(error.name())
                else:
                    self.sightings.note(
                        message.partition(), message.offset(), message.value() or b""
                    )
        consumer.close()


class AioReader(_Reader):
    """On aiokafka."""

    client = "aiokafka"

    def run(self) -> None:
        """Read until stopped."""
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._brokers, isolation_level="read_committed",
            enable_auto_commit=False, auto_offset_reset="none", request_timeout_ms=5_000,
            metadata_max_age_ms=2_000, **aiokafka_login(self._login),
        )  # fmt: skip
        await consumer.start()
        places = [TopicPartition(TOPIC, each) for each in range(ACCOUNTS)]
        consumer.assign(places)
        for place in places:
            consumer.seek(place, 0)
        try:
            while not self._stopping.is_set():
                await self._poll(consumer)
        finally:
            await consumer.stop()

    async def _poll(self, consumer: AIOKafkaConsumer) -> None:
        try:
            found = await consumer.getmany(timeout_ms=int(1000 * _POLL_S))
        except KafkaError as error:
            self._fail(type(error).__name__)
            return
        for records in found.values():
            for record in records:
                self.sightings.note(record.partition, record.offset, record.value or b"")


class JavaReader(_Reader):
    """On the Java client, in a process of its own (`java/Reader.java`)."""

    client = "java"

    def __init__(
        self, bootstrap: str, journal: WritersJournal, command: Sequence[str], log: Path,
        properties: Path | None = None,
    ) -> None:  # fmt: skip
        """`command` runs a program of `java_program`; `properties`: a file that says who logs in."""
        super().__init__(bootstrap, journal)
        self._command = [*command, "Reader", bootstrap, TOPIC, str(ACCOUNTS)]
        self._command += [] if properties is None else [str(properties)]
        self._log = log

    def run(self) -> None:
        """Read until stopped."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=self._end, args=(process,), daemon=True).start()
        with process.stdout:
            for line in process.stdout:
                word, *rest = line.rstrip("\n").split("\t")
                if word == "shown":
                    self.sightings.note(int(rest[0]), int(rest[1]), rest[2].encode())
                else:
                    self._fail(" ".join(rest))
        if code := process.wait():
            self._fail(f"ended with {code}")

    def _end(self, process: "subprocess.Popen[str]") -> None:
        self._stopping.wait()
        assert process.stdin is not None
        process.stdin.close()


class Readers:
    """One reader of each client."""

    def __init__(
        self, bootstrap: str, journal: WritersJournal, clients: Collection[str],
        *, command: Sequence[str], folder: Path, doors: Doors | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        self.each: list[Reads] = []
        login = None if doors is None else doors.login(READER)
        properties = None if doors is None else doors.properties(READER)
        if "confluent" in clients:
            self.each.append(ConfluentReader(bootstrap, journal, login))
        if "aiokafka" in clients:
            self.each.append(AioReader(bootstrap, journal, login))
        if "java" in clients:
            log = folder / "java-reader.log"
            self.each.append(JavaReader(bootstrap, journal, command, log, properties))

    def start(self) -> None:
        """Read from now on."""
        for reader in self.each:
            reader.start()

    def await_ends(self, ends: dict[int, int], timeout_s: float) -> list[str]:
        """Wait until each was shown the records at these offsets; return who was not in time."""
        deadline_s = time.monotonic() + timeout_s
        while late := [each.client for each in self.each if each.sightings.lacks(ends)]:
            if time.monotonic() > deadline_s:
                return late
            time.sleep(_LOOK_S)
        return []

    def stop(self) -> None:
        """End all."""
        for reader in self.each:
            reader.stop()
