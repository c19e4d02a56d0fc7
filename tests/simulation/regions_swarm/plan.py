"""What a seed does to two regions of several nodes: its character, and fault after fault, each drawn from a stream of its own.

Not here: what a fault does (`faults`).
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from tests.simulation.cluster_regions import BOTH, MIRROR_OF_ONE, PRIMARY_OF_ONE, Layout


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


OF_REGIONS: Final = frozenset({Fault.REGION_KILLED, Fault.REGION_POWER, Fault.LOST})
OF_LINKS: Final = frozenset({Fault.PARTED, Fault.SILENT})
ORDERS: Final = frozenset({Fault.FAILOVER, Fault.SWITCH})
OF_DISKS: Final = frozenset({Fault.WRITES, Fault.SYNCS, Fault.READS, Fault.FULL, Fault.SLOW})
OF_FOLDERS: Final = frozenset(
    {Fault.WIPE, Fault.OLDER, Fault.ANOTHER, Fault.HALF, Fault.REMOVE, Fault.FLIP}
)
"""What takes a folder: only of a node of several, where all of them are in sync, for two folders must survive."""
SMALL_SEGMENT_BYTES: Final = 8_192
LEADER_SHARE: Final = 0.55


@dataclass(frozen=True, slots=True)
class Gust:
    """A fault: after `gap_s`, in one region (0 or 1), to its node `victim` (None: who leads), for `for_s`."""

    number: int
    fault: Fault
    gap_s: float
    for_s: float
    region: int
    victim: int | None
    chance: Random


class Plan:
    """Everything that a seed would do. `wild`: a majority of a region may be disturbed at a time."""

    def __init__(self, seed: int, *, without: frozenset[str] = frozenset()) -> None:
        """Draw the character; faults are drawn when they are asked for."""
        self.seed = seed
        chance = self.stream("character")
        self.layout: Layout = chance.choice((BOTH, BOTH, BOTH, MIRROR_OF_ONE, PRIMARY_OF_ONE))
        self.wild = chance.random() < 0.3
        self.rest_s = chance.choice((0.1, 0.4, 1.0))
        self.delay_ms_max = chance.choice((0.0, 0.0, 1.0, 8.0))
        self.pace_s = chance.choice((0.1, 0.2, 0.4))
        self.tidemark_interval_ms = chance.choice((20, 100, 200))
        self.segment_bytes = chance.choice((None, SMALL_SEGMENT_BYTES))
        kept = [each for each in Fault if chance.random() < 0.65 or each in ORDERS]
        rare = OF_REGIONS | OF_DISKS | OF_FOLDERS | {Fault.SWAP}
        self.faults = {
            each: chance.uniform(0.2, 1.0) * (0.4 if each in rare else 1.0)
            for each in kept
            if each.value not in without
        } or {Fault.KILL: 1.0}

    def __str__(self) -> str:
        """Return the character."""
        nodes = "+".join(str(len(each)) for each in self.layout.values())
        how = "wild" if self.wild else "a minority"
        return f"{nodes}, {how}, rest {self.rest_s} s, delay {self.delay_ms_max} ms, pace {self.pace_s} s: {', '.join(self.faults)}"

    def stream(self, *what: object) -> Random:
        """Return the chance of something, by its name."""
        return Random(repr((self.seed, "regions", *what)))

    def gust(self, number: int) -> Gust:
        """Return fault `number`."""
        chance = self.stream("fault", number)
        [fault] = chance.choices(list(self.faults), list(self.faults.values()))
        victim = None if chance.random() < LEADER_SHARE else chance.randrange(3)
        return Gust(
            number, fault, chance.uniform(0, 2 * self.rest_s), chance.choice((0.1, 0.5, 1.2, 3.0, 6.0)) * chance.uniform(0.5, 1.5),
            chance.randrange(2), victim, chance,
        )  # fmt: skip
