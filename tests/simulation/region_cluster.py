"""One region of three whole nodes in one event loop, as `region_pair` plays two regions of one.

Nodes are called `eu-1` to `eu-3`; the first one's folder has the region's birth, the others begin empty and join.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from typing_extensions import override

from region_broker.config.node_config import NodeConfig
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.node import Node, Ports
from region_broker.node.cluster_node import ClusterNode
from tests.fixtures.born_folders import birth_at, with_history
from tests.simulation.disk import SimulatedDisk
from tests.simulation.http_server import without_the_machine
from tests.simulation.network import Fabric
from tests.simulation.region_pair import (
    CLUSTER_ID,
    JOURNAL_BYTES,
    MAINTAINED_MS,
    SHARD_COUNT,
    LifeDisk,
    Region,
    SeededChance,
    until,
)
from tests.simulation.sqlite import SimulatedSqlite

REGION = "eu"
NAMES = ("eu-1", "eu-2", "eu-3")
ENDING_S = 0.05
"""How long a process that is killed is waited for: it may be in the middle of asking the quorum."""


def rack_of(name: str) -> str:
    """Return where a node stands: each has a rack of its own."""
    return f"rack-{name}"


class Member(Region):
    """One node of the region."""

    member: ClusterNode
    levels: range = SUPPORTED
    """The feature levels that its code knows: fewer for that of an older release."""

    @property
    def node_id(self) -> int:
        """Return its id."""
        return self.names.index(self.name) + 1

    @override
    def config(self) -> NodeConfig:
        """Return the node's configuration."""
        nodes = [
            {"node_id": at + 1, "kafka": f"127.0.0.1:{10_000 + at}", "peer": f"127.0.0.1:{11_000 + at}",
             "http": f"127.0.0.1:{12_000 + at}", "rack": rack_of(self.names[at])}
            for at in range(len(self.names))
        ]  # fmt: skip
        return NodeConfig.build(
            {
                "region": REGION, "cluster_id": CLUSTER_ID, "data_dir": str(self.folder), "node_id": self.node_id,
                "initial_primary_region": REGION, "shard_count": SHARD_COUNT, "tidemark_interval_ms": 5,
                "retention_check_interval_ms": MAINTAINED_MS, "journal_bytes": JOURNAL_BYTES,
                "regions": [{"name": REGION, "ordinal": 0, "nodes": nodes}],
                **self.settings,
            },
            self.name,
        )  # fmt: skip

    @property
    def is_elected(self) -> bool:
        """Whether this node knows who leads the region."""
        return self.runs and self.member.node is not None and self.node.storage.metadata.image.leadership is not None  # fmt: skip

    def make_folder(self) -> None:
        """Write what the folder is to have before its first start: the first node's has the region's birth."""
        if self.node_id == 1:
            with_history(
                self.disk, self.folder, cluster_id=CLUSTER_ID, region=REGION, node_id=1,
                history=birth_at(REGION, 0),
            )  # fmt: skip

    @override
    async def open(self) -> None:
        """Begin a life of the folder."""
        if not self.made:
            self.made = True
            self.make_folder()
        disk = LifeDisk(self.disk)
        ports = Ports(
            self.clock,
            SeededChance(self._chance),
            disk,
            self.fabric.site(self.name),
            lambda path: SimulatedSqlite(path, cast("SimulatedDisk", disk)),
        )
        self.member = await self.as_process(ClusterNode.open(self.config(), ports, self.levels))
        self.member.on_node = self._take_node

    def _take_node(self, node: Node) -> None:
        self.node = node
        without_the_machine(node.metrics.registry)
        node.ledger_images.step_bytes, node.ledger_images.pause_ms = 512, 25
        if self.on_open is not None:
            self.on_open(node)

    @override
    async def begin(self) -> None:
        """Open and run, without waiting until the node serves."""
        await self.open()
        self._task = self.as_process(self.member.run(lambda: None))

    @override
    async def run(self) -> None:
        """Run what was opened; return once it serves or follows."""
        ready = asyncio.Event()
        self._task = self.as_process(self.member.run(ready.set))
        await until(lambda: ready.is_set() or self.died, f"{self.name} is ready, or ends")
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Stop cleanly; raises what the node raised."""
        assert self._task is not None
        self.member.stop()
        task, self._task = self._task, None
        await task
        self.fabric.kill(self.name)
        self.disk.process_killed()

    @override
    async def _end(self) -> None:
        """End the process; what it would still wait for is left alone: nothing of it reaches its disk or the network."""
        task, self._task = self._task, None
        if task is not None:
            task.add_done_callback(_heard)
            task.cancel()
            await asyncio.wait([task], timeout=ENDING_S)

    @property
    def runs(self) -> bool:
        """Return whether its process runs."""
        return self._task is not None and not self.died

    @property
    def leads(self) -> bool:
        """Return whether it takes writes."""
        return self.runs and self.member.node is not None and self.node.role.acting


def _heard(task: asyncio.Task[None]) -> None:
    """Whatever a killed process says at last: it is dead."""
    if not task.cancelled():
        task.exception()


class Cluster:
    """The three of them."""

    def __init__(
        self, folder: Path, seed: int, *, names: tuple[str, ...] = NAMES, **settings: Any
    ) -> None:
        """Nothing runs yet."""
        self.chance = random.Random(seed)
        self.fabric = Fabric(random.Random(self.chance.random()))
        self.nodes = {
            name: Member(name, folder / name, self.fabric, random.Random(self.chance.random()), names)
            for name in names
        }  # fmt: skip
        for node in self.nodes.values():
            node.settings |= settings

    async def start(self) -> None:
        """Start the first one, then the others at once: where it is elected before it serves, it waits for one of them."""
        first, *others = self.nodes.values()
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(first.start())
            await until(lambda: starting.done() or first.is_elected, "the first one is there")
            for node in others:
                tasks.create_task(node.start())

    @property
    def leader(self) -> Member | None:
        """Return who takes writes."""
        leading = [node for node in self.nodes.values() if node.leads]
        # One that was cut off may not know yet that it leads no more.
        return max(leading, key=lambda node: node.node.role.leader_epoch, default=None)

    async def until_led(self, *, but: Member | None = None) -> Member:
        """Return who leads, once somebody does, other than `but`."""
        await until(lambda: self.leader not in (None, but), "a node leads")
        assert self.leader is not None
        return self.leader

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and fail if a running node has ended by itself."""

        def look() -> bool:
            for node in self.nodes.values():
                if node._task is not None:
                    node.check_running()
            return condition()

        await until(look, what)

    async def stop(self) -> None:
        """Kill what runs."""
        for node in self.nodes.values():
            with contextlib.suppress(AssertionError):
                await node.kill()


@asynccontextmanager
async def region_cluster(folder: Path, seed: int, **settings: Any) -> AsyncIterator[Cluster]:
    """A region of three nodes that serves."""
    cluster = Cluster(folder, seed, **settings)
    try:
        await cluster.start()
        await cluster.until_led()
        yield cluster
    finally:
        await cluster.stop()
