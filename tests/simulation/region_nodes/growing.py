"""A region that begins with one node and grows while it serves: its nodes, and writers that note every error they meet.

Not here: what is judged (`test_growing`).
"""

import asyncio
import random
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from region_broker.config.node_config import NodeConfig
from region_broker.http_api.routes_cluster import AddNodeBody
from region_broker.node import GrowingNode, Ports
from region_broker.node.cluster_node import ClusterNode
from tests.simulation.disk import SimulatedDisk
from tests.simulation.kafka_client import Connection, Refused, batch_of, patiently
from tests.simulation.region_cluster import REGION, Cluster, Member
from tests.simulation.region_pair import CLUSTER_ID, LifeDisk, SeededChance
from tests.simulation.sqlite import SimulatedSqlite

TOPIC = "accounts"
NAMES = ("eu-1", "eu-2", "eu-3", "eu-4")
CALL_S = 3.0
"""How long a writer waits for an answer before it gives its connection up."""


def addresses(node_id: int) -> dict[str, Any]:
    """Return where a node is met, as a configuration says it."""
    at = node_id - 1
    return {
        "node_id": node_id, "kafka": f"127.0.0.1:{10_000 + at}", "peer": f"127.0.0.1:{11_000 + at}",
        "http": f"127.0.0.1:{12_000 + at}",
    }  # fmt: skip


def wanted(node_id: int, **more: Any) -> AddNodeBody:
    """Return what an operator says of a new node."""
    return AddNodeBody(**{**addresses(node_id), "data_dir": f"/simulated/eu-{node_id}", **more})


class GrowingMember(Member):
    """One node; `file` is its configuration file, which nobody changes once it is written."""

    file: dict[str, Any]

    @override
    def config(self) -> NodeConfig:
        return NodeConfig.build({**self.file, **self.settings}, self.name)

    @override
    async def open(self) -> None:
        if not self.made:
            self.made = True
            self.make_folder()
        disk = LifeDisk(self.disk)
        ports = Ports(
            self.clock, SeededChance(self._chance), disk, self.fabric.site(self.name),
            lambda path: SimulatedSqlite(path, cast("SimulatedDisk", disk)),
        )  # fmt: skip
        opened = await self.as_process(GrowingNode.open(self.config(), ports, self.levels))
        opened.on_node = self._take_node
        self.member = opened  # type: ignore[assignment]

    @property
    def has_turned(self) -> bool:
        """Return whether it is one of several nodes."""
        return isinstance(self.process._present, ClusterNode)

    @property
    def process(self) -> GrowingNode:
        """Return what runs in its process."""
        return cast("GrowingNode", self.member)


class GrowingRegion(Cluster):
    """Begins with `eu-1` alone."""

    def __init__(self, folder: Path, seed: int, **settings: Any) -> None:
        """Nothing runs yet."""
        super().__init__(folder, seed, **settings)
        self.nodes = {
            name: GrowingMember(name, folder / name, self.fabric, random.Random(self.chance.random()), NAMES)
            for name in NAMES
        }  # fmt: skip
        for node in self.nodes.values():
            node.settings |= settings | {"retention_check_interval_ms": 25}
        self.first.file = {
            "region": REGION, "cluster_id": CLUSTER_ID, "data_dir": str(self.first.folder), "journal_bytes": 1 << 20,
            "initial_primary_region": REGION, "shard_count": 2, "tidemark_interval_ms": 5,
            "regions": [{"name": REGION, "ordinal": 0, **addresses(1)}],
        }  # fmt: skip

    def grower(self, node_id: int) -> GrowingMember:
        """Return a node."""
        return cast("GrowingMember", self.nodes[f"eu-{node_id}"])

    @property
    def first(self) -> GrowingMember:
        """Return the node that was alone."""
        return self.grower(1)

    @override
    async def start(self) -> None:
        """Start the first one."""
        await self.first.start()
        await self.until(lambda: self.first.leads, "it takes writes")

    async def add(self, node_id: int, by: Member, **more: Any) -> dict[str, Any]:
        """Add a node by one that runs, as a process of that one does, and write its configuration."""
        work = by.node.adding.add(wanted(node_id, **more), dry_run=False)
        done = dict(await by.as_process(work))
        self.grower(node_id).file = dict(done["config"])
        return done

    async def joined(self, count: int) -> Member:
        """Return who leads, once so many are in sync and know each other."""

        def is_so() -> bool:
            leader = self.leader
            if leader is None:
                return False
            leadership = leader.node.storage.metadata.image.leadership
            return leadership is not None and len(leadership.in_sync) == count

        await self.until(is_so, f"{count} nodes are in sync")
        assert self.leader is not None
        return self.leader


class Writer:
    """Writes numbers, each in one transaction to two partitions, one after the other, at whichever node takes them."""

    def __init__(self, region: GrowingRegion, name: str) -> None:
        """Nothing is connected before `run`."""
        self._region, self._name = region, name
        self._site = region.fabric.site(name)
        self._connection: Connection | None = None
        self.begun = 0
        self.committed: list[int] = []
        self.errors: list[str] = []
        """What it met that a client sees."""
        self.connections = 0
        self.closed = asyncio.Event()

    async def run(self) -> None:
        """Write until it is closed."""
        producer: tuple[Any, Any] | None = None
        sequence = 0
        while not self.closed.is_set():
            number = self.begun
            try:
                async with asyncio.timeout(CALL_S):
                    connection = await self._connected()
                    if producer is None:
                        producer = await patiently(lambda: connection.init_producer_id(self._name))  # noqa: B023
                        sequence = 0
                    self.begun += 1
                    await self._write(connection, producer, number, sequence)
                    self.committed.append(number)
                    sequence += 1
            except (OSError, Refused) as error:
                self.errors.append(f"{number}: {error!r}")
                producer = None
                self._leave()
                await asyncio.sleep(0.01)
        self._leave()

    async def _connected(self) -> Connection:
        if self._connection is None:
            node = self._region.leader or self._region.first
            self._connection = await Connection.open(self._site, node.kafka_port)
            self.connections += 1
        return self._connection

    async def _write(
        self, connection: Connection, producer: Any, number: int, sequence: int
    ) -> None:
        await connection.add_partitions(self._name, producer, TOPIC, [0, 1])
        batch = batch_of(f"{self._name} {number}".encode(), producer, sequence, transactional=True)
        await connection.produce(TOPIC, {0: batch, 1: batch}, transactional_id=self._name)

        async def end() -> object:
            return await connection.end_txn(self._name, producer, commit=True, tv2=False)

        await patiently(end)

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
