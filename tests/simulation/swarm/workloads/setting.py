"""What a workload is, what it may talk to, and what it is judged by at the end.

INV-SWW1  a workload draws from a generator of its own: that a seed has another one changes nothing of what it draws
No call is waited for longer than CALL_S: then the connection is given up, as real clients do.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from typing_extensions import override

from chaos.shuffle.judge import covered
from chaos.story import Place, Sighting, Story
from region_broker.records.batches import Record
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region

CALL_S: Final = 30.0
LIST_OFFSETS: Final = 2
EARLIEST: Final = -2

Spawn = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(frozen=True, slots=True)
class Reach:
    """What a client can talk to."""

    fabric: Fabric
    regions: Mapping[str, Region]

    def only(self, name: str) -> "Reach":
        """Return the same with one region."""
        return Reach(self.fabric, {name: self.regions[name]})


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a workload lives. `pace_s`: how long a writer rests, on average."""

    reach: Reach
    chance: random.Random
    pace_s: float

    def drawn(self) -> random.Random:
        """Return a generator for one client."""
        return random.Random(self.chance.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlan:
    """A topic that a workload begins with."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


class Workload(Protocol):
    """Some clients and their judge."""

    topics: Sequence[TopicPlan]

    def start(self, spawn: Spawn) -> None:
        """Begin; the topics are being made."""
        ...

    def stop(self) -> None:
        """End, each client with what it has under way."""
        ...

    def progress(self) -> Mapping[str, int]:
        """Return how much each client got through: what must grow once all is well."""
        ...

    def last_errors(self) -> Mapping[str, str]:
        """Return why each of `progress` last gave a connection up."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return what else it did, for whoever reads the run."""
        ...

    async def violations(self, end: "End") -> list[str]:
        """Return what is wrong, now that all writers have ended and the regions are one primary and its mirrors."""
        ...


class Client(Protocol):
    """What runs until it is closed."""

    closed: asyncio.Event

    async def run(self) -> None:
        """Run until closed."""
        ...


class Load:
    """What most workloads are: clients that run from the start on. It counts nothing by itself."""

    def __init__(self, *topics: TopicPlan) -> None:
        """Have no clients yet."""
        self.topics: Sequence[TopicPlan] = topics
        self.clients: list[Client] = []

    def start(self, spawn: Spawn) -> None:
        """See `Workload`."""
        for client in self.clients:
            spawn(client.run())

    def stop(self) -> None:
        """See `Workload`."""
        for client in self.clients:
            client.closed.set()


class KeyedReader(Reader):
    """Keeps whole records, with their partitions."""

    def __init__(self, topic: str, partitions: int) -> None:
        """Read what is committed."""
        self.kept: list[tuple[int, Record]] = []
        super().__init__(topic, partitions, committed=True)

    @override
    def keep(self, partition: int, record: Record) -> None:
        self.kept.append((partition, record))


@dataclass
class End:
    """The end of a life: what happened, and every region to read from."""

    reach: Reach
    acting: str
    story: Story

    @property
    def undisturbed(self) -> bool:
        """Return whether no word was given and no folder damaged."""
        return not self.story.words and not self.story.damages

    def excuse(self, gone: Sighting, alike: Sequence[Sighting]) -> bool:
        """See `chaos.judges.excuse.Excuse`."""
        shown: dict[tuple[str, Place], list[float]] = defaultdict(list)
        for each in alike:
            if each.shown:
                shown[each.region, gone.place].append(each.at_s)
        return covered(gone, self.story, shown)

    async def connect(self, region: str) -> Connection:
        """Connect to a region; raises OSError."""
        network = self.reach.fabric.site("auditor")
        return await Connection.open(network, self.reach.regions[region].kafka_port)

    async def starts(self, region: str, topic: str, partitions: int) -> list[int]:
        """Return the log start of each partition there."""
        connection = await self.connect(region)
        found = await earliest(connection, topic, partitions)
        connection.close()
        return found

    async def records(
        self, region: str, topic: str, partitions: int, starts: Sequence[int] = ()
    ) -> list[tuple[int, Record]]:
        """Return (partition, record) of all that a read-committed reader is shown there, from `starts` on."""
        connection = await self.connect(region)
        reader = KeyedReader(topic, partitions)
        reader.positions |= dict(enumerate(starts))
        while await reader.read(connection):
            pass
        connection.close()
        return reader.kept

    async def places(
        self, region: str, topic: str, partitions: int, starts: Sequence[int] = ()
    ) -> frozenset[Place]:
        """Return the same as places."""
        kept = await self.records(region, topic, partitions, starts)
        return frozenset(Place(topic, n, r.offset, (r.value or b"").decode()) for n, r in kept)


class Visitor:
    """A client that takes one step after the other through one of its regions, on one connection while that lasts."""

    rest_s = 0.3
    call_s = CALL_S

    def __init__(self, reach: Reach, name: str, chance: random.Random) -> None:
        """Nothing is connected before `run`."""
        self.name, self.chance, self.reach = name, chance, reach
        self.closed = asyncio.Event()
        self.last_error = ""
        self.region = ""
        """Whom it is connected to."""
        self._network = reach.fabric.site(name)

    async def run(self) -> None:
        """Take steps until closed."""
        connection: Connection | None = None
        while not self.closed.is_set():
            try:
                async with asyncio.timeout(self.call_s):
                    if connection is None:
                        connection = await self._connect()
                    await self.step(connection)
            except (OSError, Refused) as error:
                self.last_error = repr(error)
                if connection is not None:
                    connection.close()
                connection = None
                self.gave_up()
            await asyncio.sleep(self.chance.uniform(0, 2 * self.rest_s))
        if connection is not None:
            connection.close()

    async def fence(self) -> None:
        """End what a transactional id of this name has left open: it would hold the LSO until its time-out."""
        while True:
            try:
                async with asyncio.timeout(self.call_s):
                    connection = await self._connect()
                    await connection.init_producer_id(self.name)
                    return connection.close()
            except (OSError, Refused) as error:
                self.last_error = repr(error)
            await asyncio.sleep(self.chance.uniform(0, 2 * self.rest_s))

    async def _connect(self) -> Connection:
        self.region = self.chance.choice(list(self.reach.regions))
        return await Connection.open(self._network, self.reach.regions[self.region].kafka_port)

    async def step(self, connection: Connection) -> None:
        """Do the next thing; raises OSError or `Refused` where it cannot."""
        raise NotImplementedError

    def gave_up(self) -> None:
        """Forget what belonged to the connection."""


def now_s() -> float:
    """Return the simulated time."""
    return asyncio.get_running_loop().time()


async def earliest(connection: Connection, topic: str, partitions: int) -> list[int]:
    """Return the log start of each partition; raises `Refused`."""
    rows = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": EARLIEST}
        for number in range(partitions)
    ]
    answer = await connection.call(
        LIST_OFFSETS, 5,
        {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": rows}]},
    )  # fmt: skip
    found = [0] * partitions
    for row in answer.topics[0].partitions:
        if row.error_code.value:
            raise Refused(f"ListOffsets of {topic}-{row.partition_index}", row.error_code)
        found[row.partition_index] = row.offset
    return found
