"""What happens in one sequence: a pure function of its seed and the number of regions.

INV-SHP1  the same seed gives the same actions
INV-SHP2  each sequence touches a folder or orders a takeover: kills and cuts alone are the soak's

Not here: what an action does (`chaos.shuffle.stage`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

ACTIONS_MIN: Final = 3
ACTIONS_MAX: Final = 8
PAUSE_MAX_S: Final = 1.5


class Kind(Enum):
    """What can happen; `region` and `other` are names."""

    KILL = "kill"
    RETURN = "return"
    WIPE = "wipe"
    COPY = "copy"
    RESTORE = "restore"
    SWAP = "swap"
    HALF = "half"
    CUT = "cut"
    SILENCE = "silence"
    HEAL = "heal"
    FAILOVER = "failover"
    SWITCH = "switch"
    ALONE = "alone"


class Part(Enum):
    """Which half of a folder goes."""

    METADATA = "metadata.db"
    LOGS = "logs"
    PARTITION = "one partition"


TOUCHING: Final = frozenset({Kind.WIPE, Kind.RESTORE, Kind.SWAP, Kind.HALF})
_WEIGHTS: Final = {
    Kind.KILL: 10, Kind.RETURN: 14, Kind.WIPE: 7, Kind.COPY: 8, Kind.RESTORE: 9, Kind.SWAP: 4,
    Kind.HALF: 6, Kind.CUT: 6, Kind.SILENCE: 4, Kind.HEAL: 9, Kind.FAILOVER: 12, Kind.SWITCH: 6,
    Kind.ALONE: 5,
}  # fmt: skip
_PRIMARY_SHARE: Final = 0.55


@dataclass(frozen=True, slots=True)
class Action:
    """One step. `put_back`: whether an operator who meets half a folder has the rest, or empties it."""

    kind: Kind
    region: str
    other: str
    pause_s: float
    part: Part
    put_back: bool

    def __str__(self) -> str:
        """Return it in words."""
        detail = {
            Kind.SWAP: f" with {self.other}",
            Kind.CUT: f" from {self.other}",
            Kind.SILENCE: f" from {self.other}",
            Kind.HEAL: f" with {self.other}",
            Kind.HALF: f" loses {self.part.value}" + (", kept aside" if self.put_back else ""),
        }.get(self.kind, "")
        return f"{self.kind.value} {self.region}{detail}, then {self.pause_s:.1f} s"


def draw(seed: int, regions: Sequence[str]) -> list[Action]:
    """Return the actions of a sequence (INV-SHP1)."""
    chance = Random(seed)
    count = chance.randint(ACTIONS_MIN, ACTIONS_MAX)
    while True:
        actions = _some(chance, count, regions)
        if any(each.kind in TOUCHING or each.kind is Kind.FAILOVER for each in actions):
            return actions  # INV-SHP2


def _some(chance: Random, count: int, regions: Sequence[str]) -> list[Action]:
    actions: list[Action] = []
    primary = regions[0]
    copied: set[str] = set()
    for _ in range(count):
        [kind] = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        region = primary if chance.random() < _PRIMARY_SHARE else chance.choice(regions)
        if kind in {Kind.FAILOVER, Kind.SWITCH} and region == primary:
            region = chance.choice([name for name in regions if name != primary])
        other = chance.choice([name for name in regions if name != region])
        pause_s = round(chance.uniform(0.1, PAUSE_MAX_S), 1)
        part = chance.choice(list(Part))
        put_back = chance.random() < 0.5
        if kind is Kind.RESTORE and region not in copied:
            kind = Kind.COPY  # there is nothing older yet
        if kind is Kind.COPY:
            copied.add(region)
        if kind in {Kind.FAILOVER, Kind.SWITCH}:
            primary = region
        actions.append(Action(kind, region, other, pause_s, part, put_back))
    return actions
