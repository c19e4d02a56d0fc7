"""Two whole nodes in one event loop, on a network and disks in memory: the composition that runs in production.

Only the four ports are played, and what asyncio binds for HTTP (`http_server`). Retention and expiry are looked at all the time (`MAINTAINED_MS`). A region can be killed (its page cache survives) or lose
power (unsynced pages are lost by chance), be cut off, and be started again on the same disk.
"""

import asyncio
import contextlib
import errno
import random
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from uuid import UUID

from geo_replicator.failover import Phase
from idempotency.ports import Clock
from region_broker.config.node_config import NodeConfig
from region_broker.node import Node, Ports
from region_broker.partitions.partition import Partition
from region_broker.region.failover.operations import Operation
from tests.fixtures import waiting
from tests.fixtures.born_folders import birth_at, with_history
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.simulation.http_server import bind, without_the_machine
from tests.simulation.network import Fabric
from tests.simulation.simulated_loop import BIND, PROCESS, LoopClock, SimulatedLoop
from tests.simulation.sqlite import SimulatedSqlite

T = TypeVar("T")
NAMES = ("eu", "us")
CLUSTER_ID = str(UUID(int=77))
SHARD_COUNT = 2
WAIT_LOOKS = waiting.LOOKS
MAINTAINED_MS = 25
JOURNAL_BYTES = 1 << 20
"""As small as one may be: it is filled within a life, and made quickly."""
FORGOTTEN_CHANCE = 0.2
"""How often something is not in memory that a node reads without waiting."""


class SeededChance:
    """`Chance` of one seed."""

    def __init__(self, source: random.Random) -> None:
        """Draw from `source`."""
        self._source = source

    def uniform(self, low: float, high: float) -> float:
        """See `Chance`."""
        return self._source.uniform(low, high)

    def randbits(self, bit_count: int) -> int:
        """See `Chance`."""
        return self._source.getrandbits(bit_count)

    def uuid(self) -> UUID:
        """See `Chance`."""
        return UUID(int=self._source.getrandbits(128), version=4)


class JumpingClock(LoopClock):
    """The loop's time, with a wall clock that can be set."""

    __slots__ = ("off_ms",)

    def __init__(self) -> None:
        """Start right."""
        self.off_ms = 0

    def wall_ms(self) -> int:
        """See `Clock`."""
        return super().wall_ms() + self.off_ms


class LifeDisk:
    """A disk as one life of a process sees it: after its death every operation fails."""

    def __init__(self, disk: SimulatedDisk) -> None:
        """Live as long as the disk's present life."""
        self._disk = disk
        self._life = disk.life

    def __getattr__(self, name: str) -> Any:
        """Return the disk's operation while alive."""
        if self._life != self._disk.life:
            raise OSError(errno.EIO, "this process is dead")
        return getattr(self._disk, name)


class _Unbound:
    """In place of the HTTP server on a loop that would bind a real port."""

    async def start(self, _host: str, _port: int) -> tuple[str, int]:
        return ("", 0)

    async def stop(self) -> None:
        return None


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition()`; fails with `what` after WAIT_LOOKS."""
    await waiting.until(condition, what, looks=WAIT_LOOKS)


class Region:
    """One region: a node that is started, killed and started again on the same folder and disk."""

    def __init__(
        self, name: str, folder: Path, fabric: Fabric, chance: random.Random,
        names: tuple[str, ...] = NAMES,
    ) -> None:  # fmt: skip
        """Live in `folder` of a disk of its own."""
        self.name = name
        self.names = names
        self.disk = SimulatedDisk()
        self.disk.forget_by_chance(random.Random(f"memory of {name}"), FORGOTTEN_CHANCE)
        self.fabric = fabric
        self.folder = folder
        self.wall = JumpingClock()
        """What `clock` is, unless a test hands in another."""
        self.clock: Clock = self.wall
        self.settings: dict[str, Any] = {}  # keys of the configuration
        self.made = False
        """Whether its folder was made; set before the first start, it begins with an empty one."""
        self.on_open: Callable[[Node], None] | None = None
        self._chance = chance
        self._task: asyncio.Task[None] | None = None
        self.node: Node

    @property
    def http_port(self) -> int:
        """Return the HTTP port."""
        return 12_000 + self.names.index(self.name)

    @property
    def kafka_port(self) -> int:
        """Return the Kafka port."""
        return 10_000 + self.names.index(self.name)

    def config(self) -> NodeConfig:
        """Return the node's configuration."""
        return NodeConfig.build(
            {
                "region": self.name, "cluster_id": CLUSTER_ID, "data_dir": str(self.folder),
                "initial_primary_region": self.names[0], "shard_count": SHARD_COUNT, "tidemark_interval_ms": 5,
                "retention_check_interval_ms": MAINTAINED_MS, "journal_bytes": JOURNAL_BYTES,
                "regions": [
                    {"name": name, "ordinal": at, "node_id": at + 1, "kafka": f"127.0.0.1:{10_000 + at}",
                     "peer": f"127.0.0.1:{11_000 + at}", "http": f"127.0.0.1:{12_000 + at}"}
                    for at, name in enumerate(self.names)
                ],
                **self.settings,
            },
            self.name,
        )  # fmt: skip

    async def start(self) -> None:
        """Open and run; returns once the role is decided and the ports are bound."""
        await self.open()
        await self.run()

    async def open(self) -> None:
        """Open the disk and join the node; the first time the folder is made, with the cluster's history."""
        if not self.made:
            self.made = True
            with_history(
                self.disk, self.folder, cluster_id=CLUSTER_ID, region=self.name,
                node_id=self.names.index(self.name) + 1, history=birth_at(self.names[0], 0),
            )  # fmt: skip
        disk = LifeDisk(self.disk)
        ports = Ports(
            self.clock,
            SeededChance(self._chance),
            disk,
            self.fabric.site(self.name),
            lambda path: SimulatedSqlite(path, cast("SimulatedDisk", disk)),
        )
        self.node = await self.as_process(Node.open(self.config(), ports))
        without_the_machine(self.node.metrics.registry)
        if not isinstance(asyncio.get_running_loop(), SimulatedLoop):
            self.node.http = _Unbound()  # type: ignore[assignment]
        self.node.ledger_images.step_bytes, self.node.ledger_images.pause_ms = 512, 25
        if self.on_open is not None:
            self.on_open(self.node)

    async def begin(self) -> None:
        """Open and run, without waiting until the node serves: it may have a reason not to."""
        await self.open()
        self._task = self.as_process(self.node.run(lambda: None))

    async def run(self) -> None:
        """Run what was opened."""
        ready = asyncio.Event()
        self._task = self.as_process(self.node.run(ready.set))
        await until(lambda: ready.is_set() or self.died, "the node is ready, or ends")
        if self._task.done():
            self._task.result()
        if self.disk.crashed:
            raise Crashed

    def within(self, function: Callable[[], T]) -> T:
        """Return what `function` returns; what it starts is part of the region's process."""
        context = copy_context()
        context.run(PROCESS.set, self.name)
        context.run(BIND.set, partial(bind, self.fabric.site(self.name)))
        return context.run(function)

    def as_process(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Let `work` run as part of the region's process, which may stand still or be slow."""
        return self.within(lambda: asyncio.get_running_loop().create_task(work))

    async def kill(self, *, power: random.Random | None = None) -> None:
        """End the process as SIGKILL does, or, with `power`, as a power cut does."""
        self.fabric.kill(self.name)
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimulatedLoop):
            loop.resume(self.name)
        if power is None:
            self.disk.process_killed()
        else:
            self.disk.power_loss(power)
        await self._end()

    @property
    def died(self) -> bool:
        """Return whether the node ended by itself, or its disk ended it.

        A crash that strikes in a callback of the loop ends no task: nobody hears of it, as nobody would who is dead.
        """
        return self._task is not None and (self._task.done() or self.disk.crashed)

    def why_died(self) -> str:
        """Return what ended the node, where it ended by itself."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return "a crash of its disk" if self.disk.crashed else "nothing"
        error = self._task.exception()
        return "it stopped" if error is None else "".join(traceback.format_exception(error))

    async def _end(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError, BaseExceptionGroup, OSError, Crashed):
            await self._task
        self._task = None

    def check_running(self) -> None:
        """Raise what ended the node, if it ended by itself."""
        if self._task is not None and self._task.done():
            self._task.result()
            raise AssertionError(f"region {self.name} ended")

    def partition(self, topic: str, number: int) -> Partition:
        """Return an open partition."""
        found = self.node.storage.partitions.get(topic, number)
        assert found is not None, (self.name, topic, number)
        return found

    @property
    def phase(self) -> Phase:
        """Return the failover phase."""
        return self.node.failover.state.phase


class Pair:
    """Both regions, and a third one where `names` has one."""

    def __init__(
        self, folder: Path, seed: int, *, delay_ms_max: float = 0.0,
        names: tuple[str, ...] = NAMES,
    ) -> None:  # fmt: skip
        """Nothing runs yet."""
        self.chance = random.Random(seed)
        self.fabric = Fabric(random.Random(self.chance.random()), delay_ms_max=delay_ms_max)
        self.regions = {
            name: Region(
                name, folder / name, self.fabric, random.Random(self.chance.random()), names
            )
            for name in names
        }
        self.eu, self.us = self.regions["eu"], self.regions["us"]

    async def start(self) -> None:
        """Start all."""
        for region in self.regions.values():
            await region.open()  # one after the other: Alembic migrates once at a time in a process
        async with asyncio.TaskGroup() as tasks:
            for region in self.regions.values():
                tasks.create_task(region.run())

    async def create_topic(self, name: str, partition_count: int) -> None:
        """Create a topic at the primary and wait until the mirror has opened it."""
        await self.eu.node.topics.create_topic(name, partition_count, {})
        await self.until(
            lambda: self.us.node.storage.partitions.get(name, 0) is not None, "the topic arrives"
        )

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until `condition()`; fails with `what`, or with what ended a node."""

        def checked() -> bool:
            for region in self.regions.values():
                region.check_running()
            return condition()

        await until(checked, what)

    async def fail_over(self) -> Operation:
        """Let us act, as after the loss of eu; returns the operation once it succeeded."""
        return await self.take_over(planned=False)

    async def take_over(self, *, planned: bool, by: Region | None = None) -> Operation:
        """Let us act, or the region given; returns the operation once it succeeded."""
        operations = (by or self.us).node.operations
        operation = (
            operations.begin_switch() if planned else operations.begin_failover(confirmed=True)
        )
        await self.until(lambda: operation.status != "running", "the takeover ends")
        assert operation.status == "succeeded", operation
        return operation

    async def stop(self) -> None:
        """End whatever runs."""
        for region in self.regions.values():
            await region.kill()


@contextlib.asynccontextmanager
async def region_pair(
    folder: Path, seed: int, *, delay_ms_max: float = 0.0, names: tuple[str, ...] = NAMES
) -> AsyncIterator[Pair]:
    """Run two regions, or as many as `names` has."""
    pair = Pair(folder, seed, delay_ms_max=delay_ms_max, names=names)
    await pair.start()
    try:
        yield pair
    finally:
        await pair.stop()
