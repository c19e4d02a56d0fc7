"""What a seed does to two regions of several nodes: its character, and fault after fault, each drawn from a stream of its own.

Not here: what a fault does (`faults`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.simulation.cluster_regions import BOTH, MIRROR_OF_ONE, PRIMARY_OF_ONE, Layout
from tests.simulation.node_faults import drawn
from tests.simulation.node_faults.drawn import (
    LEADER_SHARE,
    OF_DISKS,
    OF_FOLDERS,
    SMALL_SEGMENT_BYTES,
    Drawn,
)


class Fault(StrEnum):
    """What can happen to a node, between nodes, to a region, or between both regions; and what an operator orders."""

    KILL = "kill"
    POWER = "power"
    PAUSE = "pause"
    CUT = "cut"
    HUSH = "hush"
    ALONE = "alone"
    RESET = "reset"
    MUTE = "mute"
    BAR = "bar"
    SEVER = "sever"
    LATE = "late"
    DRAIN = "drain"
    WRITES = "writes"
    SYNCS = "syncs"
    READS = "reads"
    FULL = "full"
    SLOW = "slow"
    CLOCK = "clock"
    WIPE = "wipe"
    OLDER = "older"
    ANOTHER = "another"
    HALF = "half"
    REMOVE = "remove"
    FLIP = "flip"
    SWAP = "swap"
    REGION_KILLED = "region-killed"
    REGION_POWER = "region-power"
    PARTED = "parted"
    SILENT = "silent"
    FAILOVER = "failover"
    SWITCH = "switch"
    LOST = "lost"
    SPREAD = "spread"
    VISIT = "visit"


OF_REGIONS: Final = frozenset({Fault.REGION_KILLED, Fault.REGION_POWER, Fault.LOST})
OF_LINKS: Final = frozenset({Fault.PARTED, Fault.SILENT})
ORDERS: Final = frozenset({Fault.FAILOVER, Fault.SWITCH})
TRIMS_SHARE: Final = 0.6
RETAINS_SHARE: Final = 0.6
ACCESS_SHARE: Final = 0.6
OF_SPREADS: Final = frozenset({Fault.SPREAD, Fault.VISIT})
"""What happens only where leaders are spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gust(drawn.Gust):
    """A fault: in one region (0 or 1), to its node `victim` (None: who leads)."""

    region: int


class Plan(Drawn):
    """Everything that a seed would do. `wild`: a majority of a region may be disturbed at a time."""

    kind = "regions"

    def __init__(self, seed: int, *, without: frozenset[str] = frozenset()) -> None:
        """Draw the character; faults are drawn when they are asked for."""
        super().__init__(seed, without)
        chance = self.stream("character")
        self.layout: Layout = chance.choice((BOTH, BOTH, BOTH, MIRROR_OF_ONE, PRIMARY_OF_ONE))
        self.wild = chance.random() < 0.3
        self.rest_s = chance.choice((0.1, 0.4, 1.0))
        self.delay_ms_max = chance.choice((0.0, 0.0, 1.0, 8.0))
        self.pace_s = chance.choice((0.1, 0.2, 0.4))
        self.tidemark_interval_ms = chance.choice((20, 100, 200))
        self.segment_bytes = chance.choice((None, SMALL_SEGMENT_BYTES))
        kept = [
            each
            for each in Fault
            if each not in OF_SPREADS and (chance.random() < 0.65 or each in ORDERS)
        ]
        rare = OF_REGIONS | OF_DISKS | OF_FOLDERS | {Fault.SWAP}
        self.faults = self.weighed(kept, rare, chance) or {Fault.KILL: 1.0}
        if self.spreads:
            self.faults |= {Fault.SPREAD: 0.3, Fault.VISIT: 0.15}
        self.trims = self.stream("trims").random() < TRIMS_SHARE
        self.changes_access = self.stream("access").random() < ACCESS_SHARE
        self.retains = self.stream("retains").random() < RETAINS_SHARE

    def __str__(self) -> str:
        """Return the character."""
        nodes = "+".join(str(len(each)) for each in self.layout.values())
        how = "wild" if self.wild else "a minority"
        how += ", spread" if self.spreads else ""
        how += ", access changes" if self.changes_access else ""
        return f"{nodes}, {how}, rest {self.rest_s} s, delay {self.delay_ms_max} ms, pace {self.pace_s} s: {', '.join(self.faults)}"

    def gust(self, number: int) -> Gust:
        """Return fault `number`."""
        chance = self.stream("fault", number)
        [fault] = chance.choices(list(self.faults), list(self.faults.values()))
        victim = None if chance.random() < LEADER_SHARE else chance.randrange(3)
        return Gust(
            number=number, fault=fault, gap_s=self.gap_s(self.rest_s, chance), for_s=self.for_s(chance), region=chance.randrange(2),
            victim=victim, chance=chance,
        )  # fmt: skip
