"""Where clients meet a region of several nodes, and who looks at the view of the one that mirrors.

Clients ask for the node that leads; now and then they find just any node, and go by what that answers.
"""

import random
from collections.abc import Mapping
from typing import Any, Final, cast

from typing_extensions import override

from region_broker.node import Node
from tests.simulation.cluster_regions import AnyNode, ClusterRegion, leader_epoch_of
from tests.simulation.kafka_client import Connection
from tests.simulation.region_pair import Region
from tests.simulation.regions_swarm.stage import Stage
from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.stage import Stage as OtherStage
from tests.simulation.view_audit import Auditor

ANY_SHARE: Final = 0.05
CALL_S: Final = 2.0
READ_EVERY_S: Final = 0.2


class Spot:
    """Stands for a region where clients ask for its port."""

    def __init__(self, region: ClusterRegion, chance: random.Random, any_share: float) -> None:
        """Find nodes of `region`; any one of them with that chance."""
        self._region, self._chance, self._any_share = region, chance, any_share
        self.settings: dict[str, Any] = {}
        self.name = region.name
        self.met: AnyNode | None = None
        """Whom it named last."""

    @property
    def kafka_port(self) -> int:
        """Return the port of who leads now."""
        found = self._region.leader
        if found is None or self._chance.random() < self._any_share:
            found = self._chance.choice(list(self._region.nodes.values()))
        self.met = found
        return found.kafka_port

    @property
    def leader(self) -> AnyNode | None:
        """Return who leads now."""
        return self._region.leader

    @property
    def node(self) -> Node:
        """Return the node that leads."""
        return self._region.led.node


def spots(stage: Stage, what: str, any_share: float = 0.0) -> Mapping[str, Region]:
    """Return the ways to each region."""
    chance = stage.plan.stream("spots", what)
    return {
        name: cast("Region", Spot(region, random.Random(chance.random()), any_share))
        for name, region in stage.regions.items()
    }


class _AuditedStage:
    """What an `Auditor` sees of a stage."""

    def __init__(self, stage: Stage, regions: Mapping[str, Region]) -> None:
        self._stage = stage
        self.regions = regions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)


class RegionAuditor(Auditor):
    """Looks at the view of a mirror at the node that leads it, whichever that is: the view goes on with the next one (INV-TKO1).

    Not at one that was deposed and is cut off from those who know: it shows what it had reached, as a deposed leader does in Kafka,
    whose clients take no leader of an older leader epoch than they have heard of, either (KIP-320).
    """

    def __init__(self, stage: Stage, name: str) -> None:
        """Nothing is asked before `run`."""
        self._spots = spots(stage, f"auditor {name}")
        self._leader_epoch = 0
        super().__init__(cast("OtherStage", _AuditedStage(stage, self._spots)), name)

    @override
    async def _look(self, connection: Connection) -> None:
        spot = cast("Spot", self._spots[self.name])
        if spot.leader is not spot.met:
            raise ConnectionAbortedError("another node leads")
        leader_epoch = leader_epoch_of(spot.leader) if spot.leader is not None else 0
        if leader_epoch < self._leader_epoch:
            raise ConnectionAbortedError("this one was deposed")
        self._leader_epoch = leader_epoch
        await super()._look(connection)


def clients_of(stage: Stage) -> Clients:
    """Return all clients; none has begun."""
    ways = spots(stage, "clients", ANY_SHARE)
    return Clients(stage.fabric, ways, stage.plan.stream("clients"), stage.plan.pace_s)


def hasten(clients: Clients) -> None:
    """Let no client wait for long: nodes stand still."""
    for writer in clients.writers:
        writer.call_s = CALL_S
    for bank in clients.banks:
        bank.teller.call_s = CALL_S
    for watcher in clients.watchers:
        watcher.call_s, watcher.rest_s = CALL_S, READ_EVERY_S
    for processor in clients.processors:
        processor.call_s = CALL_S
