"""What a seed does to a region of three nodes: its character, and fault after fault, each drawn from a stream of its own.

Most seeds disturb a minority at a time, some all; some leave a region in peace between two faults, and are held to a time then.
Not here: what a fault does (`faults`).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.simulation.node_faults import drawn
from tests.simulation.node_faults.drawn import (
    LEADER_SHARE,
    OF_DISKS,
    OF_FOLDERS,
    SMALL_SEGMENT_BYTES,
    Drawn,
)


class Fault(StrEnum):
    """What can happen to a node, between two of them, or to all."""

    KILL = "kill"
    POWER = "power"
    DRAIN = "drain"
    PAUSE = "pause"
    CUT = "cut"
    HUSH = "hush"
    MUTE = "mute"
    BAR = "bar"
    RESET = "reset"
    SEVER = "sever"
    ALONE = "alone"
    WRITES = "writes"
    SYNCS = "syncs"
    READS = "reads"
    FULL = "full"
    SLOW = "slow"
    CLOCK = "clock"
    LATE = "late"
    WIPE = "wipe"
    OLDER = "older"
    ANOTHER = "another"
    HALF = "half"
    REMOVE = "remove"
    FLIP = "flip"
    ALL_POWER = "all-power"
    ALL_KILLED = "all-killed"
    ALL_PAUSED = "all-paused"
    SWAP = "swap"
    SPREAD = "spread"


OF_ALL: Final = frozenset({Fault.ALL_POWER, Fault.ALL_KILLED, Fault.ALL_PAUSED, Fault.SWAP})
NOT_DRAWN: Final = frozenset({Fault.SPREAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Gust(drawn.Gust):
    """A fault: to `victim` (None: who leads), towards `other` nodes on."""

    other: int


class Plan(Drawn):
    """Everything that a seed would do. `calm`: one fault after the other; `wild`: a majority may be disturbed."""

    kind = "cluster"

    def __init__(self, seed: int, *, without: frozenset[str] = frozenset()) -> None:
        """Draw the character; faults are drawn when they are asked for."""
        super().__init__(seed, without)
        chance = self.stream("character")
        self.calm = chance.random() < 0.25
        self.wild = not self.calm and chance.random() < 0.4
        self.rest_s = chance.choice((0.1, 0.4, 1.0))
        self.delay_ms_max = chance.choice((0.0, 0.0, 1.0, 8.0))
        self.pace_s = chance.choice((0.1, 0.2, 0.4))
        self.tidemark_interval_ms = chance.choice((20, 100, 200))
        self.segment_bytes = chance.choice((None, SMALL_SEGMENT_BYTES))
        kinds = [
            each for each in Fault if each not in NOT_DRAWN and (each not in OF_ALL or self.wild)
        ]
        kept = [each for each in kinds if chance.random() < 0.6] or [Fault.KILL]
        self.faults = self.weighed(kept, OF_DISKS | OF_FOLDERS, chance) or {Fault.KILL: 1.0}
        if self.spreads:
            self.faults[Fault.SPREAD] = 0.15

    def __str__(self) -> str:
        """Return the character."""
        how = "calm" if self.calm else "wild" if self.wild else "a minority"
        how += ", spread" if self.spreads else ""
        return f"{how}, rest {self.rest_s} s, delay {self.delay_ms_max} ms, pace {self.pace_s} s: {', '.join(self.faults)}"

    def gust(self, number: int) -> Gust:
        """Return fault `number`."""
        chance = self.stream("fault", number)
        [fault] = chance.choices(list(self.faults), list(self.faults.values()))
        victim = None if chance.random() < LEADER_SHARE else chance.randrange(3)
        return Gust(
            number=number, fault=fault, gap_s=self.gap_s(self.rest_s, chance), for_s=self.for_s(chance), victim=victim,
            other=chance.randrange(1, 3), chance=chance,
        )  # fmt: skip
