"""Regions of several whole nodes side by side, in one event loop: `region_pair`, where a region is what `region_cluster` plays (ADR 48).

`eu` is born at its first node, `us` is founded at its first one (INV-BI4) and joins; all other folders begin empty. A region with one
name is a node of the kind that has none beside it.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from typing_extensions import override

from geo_replicator.failover import Phase
from region_broker.config.node_config import NodeConfig
from region_broker.controller.cluster_image import Leadership
from region_broker.region.failover.operations import Operation
from region_broker.region.folder.identity_file import write_identity
from region_broker.region.folder.newborn import new_identity
from tests.fixtures.born_folders import FolderChance, birth_at, with_history
from tests.simulation.network import Fabric
from tests.simulation.region_cluster import Member, rack_of
from tests.simulation.region_pair import (
    CLUSTER_ID,
    JOURNAL_BYTES,
    MAINTAINED_MS,
    SHARD_COUNT,
    Region,
    until,
)
from tests.simulation.spread_facts import in_sync_everywhere

Layout: TypeAlias = Mapping[str, Sequence[str]]
"""Region -> its nodes."""

BOTH: Final[Layout] = {"eu": ("eu-1", "eu-2", "eu-3"), "us": ("us-1", "us-2", "us-3")}
MIRROR_OF_ONE: Final[Layout] = {"eu": ("eu-1", "eu-2", "eu-3"), "us": ("us",)}
PRIMARY_OF_ONE: Final[Layout] = {"eu": ("eu",), "us": ("us-1", "us-2", "us-3")}
PRIMARY: Final = "eu"
CUT_OFF: Final = {
    "the node is stopping; it goes on after a restart",
    "this node stops, or leads no more; it goes on at whoever leads the region next",
}
"""What an operation says whose node was deposed, as it is by each takeover: under the new region epoch somebody is elected anew."""


def region_of(name: str) -> str:
    """Return the region of a node."""
    return name.partition("-")[0]


def config_of(node: Region, layout: Layout) -> NodeConfig:
    """Return the configuration of one node among all."""
    names = node.names
    regions = [
        {"name": region, "ordinal": ordinal, "nodes": [
            {"node_id": at + 1, "kafka": f"127.0.0.1:{10_000 + at}", "peer": f"127.0.0.1:{11_000 + at}",
             "http": f"127.0.0.1:{12_000 + at}", "rack": rack_of(names[at])}
            for at in map(names.index, members)]}
        for ordinal, (region, members) in enumerate(layout.items())
    ]  # fmt: skip
    return NodeConfig.build(
        {
            "region": region_of(node.name), "cluster_id": CLUSTER_ID, "data_dir": str(node.folder),
            "node_id": names.index(node.name) + 1, "initial_primary_region": PRIMARY, "shard_count": SHARD_COUNT,
            "tidemark_interval_ms": 5, "retention_check_interval_ms": MAINTAINED_MS, "journal_bytes": JOURNAL_BYTES,
            "regions": regions, **node.settings,
        },
        region_of(node.name),
    )  # fmt: skip


class NodeAmong(Member):
    """One of several nodes of a region that stands beside others."""

    layout: Layout = BOTH

    @override
    def config(self) -> NodeConfig:
        """Return the node's configuration."""
        return config_of(self, self.layout)

    @override
    def make_folder(self) -> None:
        """Let the first node of the primary region be born, and the first one of another region found it."""
        region = region_of(self.name)
        if self.name != self.layout[region][0]:
            return
        if region == PRIMARY:
            with_history(
                self.disk, self.folder, cluster_id=CLUSTER_ID, region=region, node_id=self.node_id, history=birth_at(region, 0),
            )  # fmt: skip
            return
        self.disk.make_dirs(self.folder)
        chance = FolderChance(f"folder of {region}")
        identity = new_identity(CLUSTER_ID, region, self.node_id, chance)
        write_identity(self.disk, self.folder, msgspec.structs.replace(identity, founds=True))


class OnlyNode(Region):
    """The only node of its region, beside regions of several."""

    layout: Layout = MIRROR_OF_ONE

    @override
    def config(self) -> NodeConfig:
        """Return the node's configuration."""
        return config_of(self, self.layout)

    @property
    def runs(self) -> bool:
        """Return whether its process runs."""
        return self._task is not None and not self.died

    @property
    def leads(self) -> bool:
        """Return whether it speaks for its region."""
        return self.runs and self.node.failover.running

    @override
    async def open(self) -> None:
        if not self.made:
            self.made = True
            region = region_of(self.name)
            with_history(
                self.disk, self.folder, cluster_id=CLUSTER_ID, region=region, node_id=self.names.index(self.name) + 1,
                history=birth_at(PRIMARY, 0),
            )  # fmt: skip
        await super().open()


AnyNode: TypeAlias = NodeAmong | OnlyNode


def speaks(node: AnyNode) -> bool:
    """Return whether this node leads its region and runs its failover machine, as it says itself."""
    if not node.runs or (isinstance(node, NodeAmong) and node.member.node is None):
        return False
    return node.node.failover.running


def leadership_of(node: AnyNode) -> Leadership | None:
    """Return who leads its region, as it knows."""
    return node.node.storage.metadata.image.leadership


def leader_epoch_of(node: AnyNode) -> int:
    """Return the leader epoch that it leads its region in, 0 for a node that is the only one."""
    replication = node.node._replication
    return 0 if replication is None else int(replication.leadership.leads or 0)


@dataclass
class ClusterRegion:
    """One region: its nodes."""

    name: str
    nodes: dict[str, AnyNode]

    @property
    def leader(self) -> AnyNode | None:
        """Return who speaks for it; of two, one of which was deposed and does not know, the one elected later."""
        return max(filter(speaks, self.nodes.values()), key=leader_epoch_of, default=None)

    @property
    def led(self) -> AnyNode:
        """Return who speaks for it, while somebody does."""
        leader = self.leader
        assert leader is not None, f"nobody speaks for {self.name}"
        return leader

    @property
    def phase(self) -> Phase | None:
        """Return where it is on the way round, as its leader says; None without one."""
        leader = self.leader
        return None if leader is None else leader.phase

    @property
    def acts(self) -> bool:
        """Return whether it takes writes."""
        leader = self.leader
        return leader is not None and leader.node.role.acting

    @property
    def mirrors(self) -> bool:
        """Return whether it mirrors."""
        return self.phase is Phase.MIRRORING

    def in_sync(self) -> int:
        """Return how many of its nodes are in sync in every replica group, as its leader knows."""
        leader = self.leader
        if leader is None:
            return 0
        if leadership_of(leader) is None:
            return len(self.nodes)
        return len(in_sync_everywhere(leader.node.storage.metadata.image))

    def others(self, *without: AnyNode) -> list[AnyNode]:
        """Return its other nodes."""
        return [node for node in self.nodes.values() if node not in without]

    @property
    def follower(self) -> AnyNode:
        """Return a node that runs and does not lead."""
        led = self.led
        return next(node for node in self.nodes.values() if node is not led and node.runs)


class Regions:
    """All of them."""

    def __init__(
        self, folder: Path, seed: int, layout: Layout = BOTH, *, delay_ms_max: float = 0.0, **settings: Any
    ) -> None:  # fmt: skip
        """Nothing runs yet."""
        self.chance, self.layout = random.Random(seed), layout
        self.fabric = Fabric(random.Random(self.chance.random()), delay_ms_max=delay_ms_max)
        names = tuple(name for members in layout.values() for name in members)
        self.nodes: dict[str, AnyNode] = {name: self._node(name, folder, names) for name in names}
        for node in self.nodes.values():
            node.settings |= settings
        self.regions = {
            region: ClusterRegion(region, {name: self.nodes[name] for name in members})
            for region, members in layout.items()
        }
        self.eu, self.us = self.regions["eu"], self.regions["us"]

    def _node(self, name: str, folder: Path, names: tuple[str, ...]) -> AnyNode:
        kind = OnlyNode if len(self.layout[region_of(name)]) == 1 else NodeAmong
        chance = random.Random(self.chance.random())
        node = kind(name, folder / name, self.fabric, chance, names)
        node.layout = self.layout
        return node

    async def start(self) -> None:
        """Begin all, the first node of each region first; returns once eu acts, the others mirror, and all are in sync."""
        for node in self.nodes.values():
            await node.begin()
        await self.all_well()

    async def all_well(self, acting: str = PRIMARY) -> None:
        """Wait until one region acts, the others mirror, and every node is in sync with its leader."""
        await self.until(lambda: self.is_well(acting), f"{acting} acts, and all is well")

    def is_well(self, acting: str = PRIMARY) -> bool:
        """Return whether it is so."""
        return all(
            (each.acts if name == acting else each.mirrors) and each.in_sync() == len(each.nodes)
            for name, each in self.regions.items()
        )

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and fail if a running node has ended by itself."""

        def look() -> bool:
            for node in self.nodes.values():
                if node._task is not None:
                    node.check_running()
            return condition()

        try:
            await until(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.told()}") from error

    def told(self) -> str:
        """Return what each node says of itself."""
        found = []
        for name, node in self.nodes.items():
            if not node.runs:
                found.append(f"{name} is down")
            elif isinstance(node, NodeAmong) and node.member.node is None:
                found.append(f"{name} joins: {node.member._waiting.stage}")
            else:
                state, role = node.node.failover._state, node.node.role
                found.append(
                    f"{name}: speaks {speaks(node)}, {None if state is None else state.phase}, acting {role.acting}"
                    f" ({role.reason_not_acting}), {leadership_of(node)}"
                )
        return "\n".join(found)

    async def until_led(self, region: ClusterRegion, *, but: AnyNode | None = None) -> AnyNode:
        """Return who speaks for a region, once somebody other than `but` does."""
        await self.until(lambda: region.leader not in (None, but), f"a node leads {region.name}")
        return region.led

    def part(self, one: Sequence[AnyNode], two: Sequence[AnyNode], *, silent: bool = False) -> None:
        """Cut all links between two groups of nodes."""
        for a in one:
            for b in two:
                self.fabric.cut(a.name, b.name, silent=silent)

    def join(self, one: Sequence[AnyNode], two: Sequence[AnyNode]) -> None:
        """Heal all links between two groups of nodes."""
        for a in one:
            for b in two:
                self.fabric.heal(a.name, b.name)

    async def ordered(self, region: ClusterRegion, *, planned: bool) -> Operation:
        """Order a region to act, at its leader; returns the operation, which runs."""
        operations = region.led.node.operations
        return region.led.within(
            operations.begin_switch
            if planned
            else lambda: operations.begin_failover(confirmed=True)
        )

    async def take_over(self, region: ClusterRegion, *, planned: bool) -> None:
        """Let a region act; returns once it does, whichever of its nodes has ended what another one began."""
        operation = await self.ordered(region, planned=planned)

        def acts() -> bool:
            given_up = operation.status == "failed" and operation.error not in CUT_OFF
            assert not given_up, operation
            return region.acts

        await self.until(acts, f"{region.name} acts")

    async def stop(self) -> None:
        """Kill what runs."""
        for node in self.nodes.values():
            with contextlib.suppress(AssertionError, asyncio.CancelledError):
                await node.kill()


@asynccontextmanager
async def cluster_regions(
    folder: Path, seed: int, layout: Layout = BOTH, **settings: Any
) -> AsyncIterator[Regions]:
    """Run regions of several nodes that are well."""
    regions = Regions(folder, seed, layout, **settings)
    try:
        await regions.start()
        yield regions
    finally:
        await regions.stop()
