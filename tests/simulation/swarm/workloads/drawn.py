"""Which workloads a seed has, beside those that every seed has (`swarm.clients`); each is monitored over HTTP.

Source: Groce et al., "Swarm testing" (ISSTA 2012), as for the faults (`swarm.rates`).
"""

import random
from collections.abc import Callable
from typing import Final

from tests.simulation.swarm.workloads.compaction import CompactionLoad
from tests.simulation.swarm.workloads.groups import (
    ClassicGroupLoad,
    ExactClassicGroupLoad,
    ExactModernGroupLoad,
    ModernGroupLoad,
)
from tests.simulation.swarm.workloads.growth import GrowthLoad
from tests.simulation.swarm.workloads.java import JavaLoad
from tests.simulation.swarm.workloads.lists import ListsLoad
from tests.simulation.swarm.workloads.monitor import MonitorLoad
from tests.simulation.swarm.workloads.setting import Reach, Setting, Workload
from tests.simulation.swarm.workloads.trims import TrimsLoad

LOADS: Final[dict[str, Callable[[Setting], Workload]]] = {
    "trims": TrimsLoad,
    "compaction": CompactionLoad,
    "growth": GrowthLoad,
    "lists": ListsLoad,
    "classic groups": ClassicGroupLoad,
    "modern groups": ModernGroupLoad,
    "exact-classic groups": ExactClassicGroupLoad,
    "exact-modern groups": ExactModernGroupLoad,
    "java producers": JavaLoad,
}
SHARE: Final = 0.2
"""How many of the seeds have a workload."""


def draw_workloads(reach: Reach, seed: int, pace_s: float) -> dict[str, Workload]:
    """Return the workloads of a seed, by name."""
    monitored = Setting(reach, random.Random(f"monitors in {seed}"), pace_s)
    found: dict[str, Workload] = {"monitors": MonitorLoad(monitored)}
    for name, load in LOADS.items():
        chance = random.Random(f"{name} in {seed}")  # INV-SWW1
        if chance.random() < SHARE:
            found[name] = load(Setting(reach, chance, pace_s))
    return found
