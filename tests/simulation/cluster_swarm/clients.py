"""The clients of a region of three: those of the swarm, each of which looks for the node that leads.

Whom they find may be one that stood still and thinks that it leads, or now and then just any node; they go by what it answers.
"""

import random
from collections.abc import Mapping
from typing import Any, Final, cast

from tests.simulation.bank import ACCOUNTS
from tests.simulation.bank import TOPIC as ACCOUNTS_TOPIC
from tests.simulation.cluster_swarm.logs import ClusterGrowth, ClusterTrims
from tests.simulation.cluster_swarm.rack_reader import RackReader
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.cluster_swarm.topics import TopicsLoad
from tests.simulation.node_faults.clients import ANY_SHARE
from tests.simulation.region_cluster import NAMES, Member
from tests.simulation.region_pair import Region
from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.plain_writer import PLAIN_TOPIC
from tests.simulation.swarm.processor import OUTPUT_TOPIC
from tests.simulation.swarm.workloads.groups import ClassicGroupLoad, ModernGroupLoad
from tests.simulation.swarm.workloads.setting import Reach, Setting, Workload

DOORS: Final = ("one", "two")
READ_TOPICS: Final = {PLAIN_TOPIC: len(DOORS), ACCOUNTS_TOPIC: ACCOUNTS, OUTPUT_TOPIC: len(DOORS)}
"""Names for ways to the same region: each has clients of its own."""
TRIMS_SHARE: Final = 0.7
GROWTH_SHARE: Final = 0.4


class Door:
    """Stands for a region where clients ask for its port."""

    def __init__(self, stage: Stage, chance: random.Random, any_share: float) -> None:
        """Find nodes of `stage`; any one of them with that chance."""
        self._stage, self._chance, self._any_share = stage, chance, any_share

    def _found(self) -> Member:
        acting = self._stage.acting()
        if acting and self._chance.random() >= self._any_share:
            return self._chance.choice(acting)
        return self._stage.nodes[self._chance.choice(NAMES)]

    @property
    def kafka_port(self) -> int:
        """Return the port of who leads now."""
        return self._found().kafka_port

    @property
    def settings(self) -> dict[str, Any]:
        """Return keys of the configuration, of all nodes."""
        return self._stage.settings

    @settings.setter
    def settings(self, settings: dict[str, Any]) -> None:
        self._stage.settings = settings


def doors(stage: Stage, any_share: float = 0.0) -> Mapping[str, Region]:
    """Return the ways to the region."""
    chance = stage.plan.stream("doors")
    return {
        name: cast("Region", Door(stage, random.Random(chance.random()), any_share))
        for name in DOORS
    }


def clients_of(stage: Stage) -> Clients:
    """Return all clients; none has begun."""
    plan = stage.plan
    reach = Reach(stage.fabric, doors(stage, ANY_SHARE))
    clients = Clients(stage.fabric, reach.regions, plan.stream("clients"), plan.pace_s)
    loads: dict[str, Workload] = {}
    chance = plan.stream("loads")
    for name, load in (("classic groups", ClassicGroupLoad), ("modern groups", ModernGroupLoad)):
        if chance.random() < 0.4:
            loads[name] = load(Setting(reach, random.Random(chance.random()), plan.pace_s))
    chance = plan.stream("topics")
    settings = [Setting(reach, random.Random(chance.random()), plan.pace_s) for _ in range(3)]
    loads["made topics"] = TopicsLoad(settings[0], stage)
    if chance.random() < TRIMS_SHARE:
        loads["trims"] = ClusterTrims(settings[1])
    if chance.random() < GROWTH_SHARE:
        loads["growth"] = ClusterGrowth(settings[2], stage)
    clients.workloads = loads
    rack_reach = Reach(stage.fabric, {"rack": reach.regions[DOORS[0]]})
    clients.watchers.append(RackReader(stage, rack_reach, READ_TOPICS))
    return clients
