"""Where clients meet a region of several nodes, and who looks at the view of the one that mirrors.

Clients ask for the node that leads; now and then they find just any node, and go by what that answers.
"""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from typing_extensions import override

from region_broker.node import Node
from tests.simulation.cluster_regions import AnyNode, ClusterRegion, leader_epoch_of
from tests.simulation.kafka_client import Connection
from tests.simulation.node_faults.clients import ANY_SHARE
from tests.simulation.region_pair import Region
from tests.simulation.regions_swarm.logs import RegionTrims, RetainedLoad
from tests.simulation.regions_swarm.stage import Stage
from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.stage import Stage as OtherStage
from tests.simulation.swarm.workloads.setting import Reach, Setting
from tests.simulation.view_audit import Auditor


class Spot:
    """Stands for a region where clients ask for its port."""

    def __init__(
        self, region: ClusterRegion, chance: random.Random, any_share: float, may_meet: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Find nodes of `region`, while they may be met; any one of them with that chance."""
        self._region, self._chance, self._any_share = region, chance, any_share
        self._may_meet = may_meet
        self.settings: dict[str, Any] = {}
        self.name = region.name
        self.met: AnyNode | None = None
        """Whom it named last."""

    @property
    def kafka_port(self) -> int:
        """Return the port of who leads now; raises ConnectionRefusedError while no client comes here."""
        if not self._may_meet():
            raise ConnectionRefusedError(f"clients write elsewhere than at {self.name} now")
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


def spots(
    stage: Stage, what: str, any_share: float = 0.0, *, writes: bool = False
) -> Mapping[str, Region]:
    """Return the ways to each region; `writes`: of clients that write, which do not do so through each region at all times."""
    chance = stage.plan.stream("spots", what)
    return {
        name: cast("Region", Spot(region, random.Random(chance.random()), any_share, _meeting(stage, name, writes)))
        for name, region in stage.regions.items()
    }  # fmt: skip


def _meeting(stage: Stage, name: str, writes: bool) -> Callable[[], bool]:
    return partial(stage.may_write_at, name) if writes else lambda: True


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
    plan = stage.plan
    ways = spots(stage, "clients", ANY_SHARE, writes=True)
    clients = Clients(stage.fabric, ways, plan.stream("clients"), plan.pace_s)
    clients.read_regions = spots(stage, "readers", ANY_SHARE)
    reach = Reach(stage.fabric, ways)
    if plan.trims:
        setting = Setting(reach, plan.stream("trimming"), plan.pace_s)
        clients.workloads["trims"] = RegionTrims(setting, Reach(stage.fabric, clients.read_regions))
    if plan.retains:
        clients.workloads["retention"] = RetainedLoad(
            Setting(reach, plan.stream("retained"), plan.pace_s)
        )
    return clients
