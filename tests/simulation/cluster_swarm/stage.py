"""Three nodes of a region, who of them leads, and what was wrong.

Not here: what runs (`node_faults.stage`), faults (`faults`), clients (`clients`), the judgement (`life`, `watch`).
"""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from region_broker.controller.cluster_commands import PreferSpread
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from tests.simulation.cluster_swarm.plan import Plan
from tests.simulation.network import Fabric
from tests.simulation.node_faults.stage import NodesStage
from tests.simulation.region_cluster import NAMES, Member
from tests.simulation.routed_connection import RoutedConnection
from tests.simulation.spread_facts import (
    hasten_spread,
    in_sync_everywhere,
    is_spread_as_wanted,
    leader_port_of,
)
from tests.simulation.trace import Trace


class Stage(NodesStage[Member]):
    """Everything that faults are done to."""

    def __init__(self, plan: Plan, trace: Trace, say: Callable[[str], None] | None) -> None:
        """Plan the nodes; nothing is started. `say` gets what happens, a line each."""
        chance = plan.stream("stage")
        self.plan = plan
        fabric = Fabric(random.Random(chance.random()), delay_ms_max=plan.delay_ms_max)
        self.settings: dict[str, Any] = {
            "tidemark_interval_ms": plan.tidemark_interval_ms,
            "retention_check_interval_ms": 1_000,
        }
        nodes = {
            name: Member(name, Path("/simulated") / name, fabric, random.Random(chance.random()), NAMES)
            for name in NAMES
        }  # fmt: skip
        for member in nodes.values():
            member.settings = self.settings
        if plan.spreads:
            fabric.leader_of, fabric.routed = self.leader_port, RoutedConnection
        super().__init__(nodes, fabric, trace, say, chance)
        if plan.spreads:
            for member in nodes.values():
                hasten_spread(member)

    def leader_port(self, topic: str, partition: int, _near: int = 0) -> int | None:
        """Return where the leader of a partition is met, as who leads the main group tells in Metadata; None where that one leads all."""
        image = self.image()
        ports = [node.kafka_port for node in self.nodes.values()]
        return None if image is None else leader_port_of(image, topic, partition, ports)

    # -- who runs ----------------------------------------------------------------------------------

    def serving(self) -> list[Member]:
        """Return the nodes that run and are joined together."""
        return [
            self.nodes[name]
            for name in NAMES
            if name in self.running and self.nodes[name].member.node is not None
        ]

    def acting(self) -> list[Member]:
        """Return who takes writes, as each says; several where one stands still."""
        return [member for member in self.serving() if member.node.role.acting]

    def image(self) -> MetadataImage | None:
        """Return the metadata of who leads, if exactly one does."""
        acting = [member for member in self.acting() if member.name not in self.paused]
        return acting[0].node.storage.metadata.image if len(acting) == 1 else None

    def in_sync(self) -> int:
        """Return how many are in sync in every replica group, as who leads knows."""
        image = self.image()
        return 0 if image is None else len(in_sync_everywhere(image))

    def is_well(self) -> bool:
        """Return whether all three run, one leads, all are in sync with it, and leaders are spread where they are to be."""
        self.check_ends()
        image = self.image()
        if image is None or len(self.serving()) != 3 or self.in_sync() != 3 or self.disturbed:
            return False
        return is_spread_as_wanted(image)

    async def order_spread(self, *, wanted: bool) -> None:
        """Have an operator order that leaders are spread, or are not."""
        for member in self.acting():
            if member.name not in self.paused:
                with suppress(CommandRefused, MetadataUnwritable):
                    await member.as_process(
                        member.node.storage.metadata.apply(PreferSpread(wanted))
                    )
                return

    @override
    def told_state(self) -> str:
        """Return what each node says of itself."""
        found = []
        for name in NAMES:
            member = self.nodes[name]
            if name not in self.running:
                found.append(f"{name} is down")
                continue
            if member.member.node is None:
                quorum = member.member._begun.metadata.quorum
                found.append(f"{name} is joining ({quorum})")
                continue
            node = member.node
            leadership = node.storage.metadata.image.leadership
            found.append(
                f"{name}: acting {node.role.acting} ({node.role.reason_not_acting}), {leadership}, failed"
                f" {node.storage.partitions.failures()}, nodes"
                f" {[(n.node_id, str(n.incarnation)[:4], n.is_eligible) for n in node.storage.metadata.image.nodes.values()]}"
            )
        return "; ".join(found)
