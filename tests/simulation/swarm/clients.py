"""The clients of a life: at each region a plain producer, a transactional one and a reader; each notes what it saw.

A client knows its own region's address only, so what it saw says which region said it. No call is waited for longer
than CALL_S: then the connection is given up, as real clients do.

One more transactional producer knows all addresses, as applications do.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from chaos.history import Attempt, Outcome, record_value
from chaos.story import Place, Sighting
from tests.simulation.bank import ACCOUNTS, Bank, Teller
from tests.simulation.bank import TOPIC as ACCOUNTS_TOPIC
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region
from tests.simulation.swarm.churn import Churner
from tests.simulation.swarm.plain_writer import BACKOFF_S, CALL_S, PLAIN_TOPIC, PlainWriter
from tests.simulation.swarm.processor import OUTPUT_TOPIC, Processor
from tests.simulation.swarm.workloads.setting import Reach, Workload

EVERYWHERE: Final = "everywhere"
READ_EVERY_S: Final = 0.03


class TimedBank(Bank):
    """Keeps when each try ended."""

    def __init__(self, name: str, reach: Reach) -> None:
        """Belong to the teller called `name`, of these regions."""
        super().__init__(reach)
        self.name = name
        self.teller: Teller
        self.ended_s: dict[str, float] = {}

    @override
    def ledger_end(self, shard: int) -> int:
        return -1

    @override
    def note(self, attempt: Attempt) -> None:
        self.ended_s[attempt.name] = asyncio.get_running_loop().time()
        super().note(attempt)


class Watcher:
    """Reads committed records of one region on and on, from the beginning again where its place is gone."""

    def __init__(self, reach: Reach, name: str, topics: Mapping[str, int]) -> None:
        """Nothing is read before `run`."""
        self.name = name
        self.call_s, self.rest_s = CALL_S, READ_EVERY_S
        self.closed = asyncio.Event()
        self.seen: list[Sighting] = []
        self._network = reach.fabric.site(f"watcher-{name}")
        [self._region] = reach.regions.values()
        self._topics = topics
        self._readers: dict[str, Reader] = {}

    async def run(self) -> None:
        """Read until closed."""
        connection: Connection | None = None
        while not self.closed.is_set():
            try:
                async with asyncio.timeout(self.call_s):
                    if connection is None:
                        connection = await Connection.open(self._network, self._region.kafka_port)
                    for topic in self._topics:
                        await self._read(connection, topic)
            except (OSError, Refused):
                if connection is not None:
                    connection.close()
                connection = None
            await asyncio.sleep(self.rest_s)

    async def _read(self, connection: Connection, topic: str) -> None:
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = Reader(topic, self._topics[topic], committed=True)
        before = len(reader.records)
        try:
            await reader.read(connection)
        except Refused as refused:
            if refused.code.name == "offset_out_of_range":
                del self._readers[topic]
            raise
        finally:
            now_s = asyncio.get_running_loop().time()
            for partition, offset, value in reader.records[before:]:
                place = Place(topic, partition, offset, value.decode())
                self.seen.append(Sighting(now_s, self.name, place, True))


@dataclass
class Clients:
    """All clients of a life."""

    fabric: Fabric
    regions: Mapping[str, Region]
    chance: random.Random
    pace_s: float
    writers: list[PlainWriter] = field(default_factory=list)
    banks: list[TimedBank] = field(default_factory=list)
    watchers: list[Watcher] = field(default_factory=list)
    processors: list[Processor] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    read_regions: Mapping[str, Region] = field(default_factory=dict)
    """Where readers meet a region, if not where writers do."""
    churner: Churner = field(init=False)

    def start(self, spawn: Callable[..., object]) -> None:
        """Write and read from now on."""
        count = len(self.regions)
        self.topics = {PLAIN_TOPIC: count, ACCOUNTS_TOPIC: ACCOUNTS, OUTPUT_TOPIC: count}
        for number, (name, region) in enumerate(self.regions.items()):
            reach = Reach(self.fabric, {name: region})
            self.writers.append(PlainWriter(reach, name, number, self._drawn(), self.pace_s))
            read_at = Reach(self.fabric, {name: self.read_regions.get(name, region)})
            self.watchers.append(Watcher(read_at, name, self.topics))
            self.processors.append(Processor(reach, name, PLAIN_TOPIC, number, self._drawn()))
            self._open_bank(name, reach, spawn)
        self._open_bank(EVERYWHERE, Reach(self.fabric, self.regions), spawn)
        self.churner = Churner(Reach(self.fabric, self.regions), self._drawn())
        spawn(self.churner.run())
        for writer in self.writers:
            spawn(writer.run())
        for processor in self.processors:
            spawn(processor.run())
        for watcher in self.watchers:
            spawn(watcher.run())
        for workload in self.workloads.values():
            workload.start(spawn)

    def _open_bank(self, name: str, reach: Reach, spawn: Callable[..., object]) -> None:
        bank = TimedBank(name, reach)
        self.banks.append(bank)
        teller = bank.teller = Teller(bank, name, self._drawn())
        teller.think_s, teller.call_s, teller.backoff_s = self.pace_s, CALL_S, BACKOFF_S
        spawn(teller.run())

    def _drawn(self) -> random.Random:
        return random.Random(self.chance.random())

    def progress(self) -> dict[str, int]:
        """Return how much each writer got through."""
        found = {f"plain producer of {each.name}": len(each.acked) for each in self.writers}
        for bank in self.banks:
            done = [a for a in bank.attempts if a.outcome is Outcome.COMMITTED]
            found[f"transactions of {bank.name}"] = len(done)
        found |= {f"processor of {each.name}": each.committed for each in self.processors}
        for workload in self.workloads.values():
            found |= workload.progress()
        return found

    def last_errors(self) -> dict[str, str]:
        """Return why each writer last gave a connection up, or why it was refused."""
        found = {
            f"plain producer of {each.name}": each.producer.last_error for each in self.writers
        }
        found |= {f"transactions of {each.name}": each.teller.last_error for each in self.banks}
        found |= {f"processor of {each.name}": each.last_error for each in self.processors}
        for workload in self.workloads.values():
            found |= workload.last_errors()
        return found

    def stop_writing(self) -> None:
        """End the writers, each with what it has under way."""
        for writer in self.writers:
            writer.closed.set()
        for bank in self.banks:
            bank.closed.set()
        for processor in self.processors:
            processor.closed.set()
        self.churner.closed.set()
        for workload in self.workloads.values():
            workload.stop()

    def stop_reading(self) -> None:
        """End the readers."""
        for each in self.watchers:
            each.closed.set()

    def attempts(self) -> list[Attempt]:
        """Return all tries."""
        return [attempt for bank in self.banks for attempt in bank.attempts]

    def sightings(self) -> list[Sighting]:
        """Return all that was acknowledged and shown."""
        found = [each for watcher in self.watchers for each in watcher.seen]
        found += [each for writer in self.writers for each in writer.acked]
        for bank in self.banks:
            for attempt in bank.attempts:
                if attempt.outcome is Outcome.COMMITTED:
                    for partition, change in attempt.changes.items():
                        value = record_value(attempt.name, change).decode()
                        place = Place(ACCOUNTS_TOPIC, partition, -1, value)
                        at_s = bank.ended_s[attempt.name]
                        found.append(Sighting(at_s, attempt.teller, place, False))
        return found
