"""What is done in each round, by a seed: each case comes as often as any other of its kind.

INV-DRP1  half of the rounds are failovers (of an odd number one more), in an order of chance; a seed is the same drill again
INV-DRP2  a region loses one node of its three at a time, but for the region that is killed as a whole: with two dead it has
          no quorum

Not here: how it is done (`stage`, `play`).
"""

import enum
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeVar

from chaos.nodes.plan import Fault

Item = TypeVar("Item")


class Kind(enum.Enum):
    """What a round is."""

    FAILOVER = "the primary region is killed as a whole, and the other one takes over by order"
    PAIR = "a node of either region is hurt at once; the same region goes on"


class Role(enum.Enum):
    """Which node of a region is meant."""

    LEADER = "leads its region"
    FOLLOWER = "follows in it"


class Way(enum.Enum):
    """How the order is given."""

    HTTP = "POST /v1/region/failover"
    COMMAND = "tidemark region failover"


@dataclass(frozen=True, slots=True)
class Blow:
    """One node of a region is hurt."""

    fault: Fault
    role: Role

    def __str__(self) -> str:
        """Return it in two words."""
        return f"{self.fault.name.lower()} {self.role.name.lower()}"


@dataclass(frozen=True, slots=True)
class Round:
    """One round. `acting`, `mirror`: what the nodes of either region suffer; None: nothing.

    `load_s`: how long clients write before, and after the blows. `runner_dies`: the node that carries out the failover is killed
    as soon as it has the order. `switch`: whether a planned switch follows, once all are back.
    """

    number: int
    kind: Kind
    acting: Blow | None
    mirror: Blow | None
    load_s: float
    way: Way = Way.HTTP
    runner_dies: bool = False
    switch: bool = False

    def __str__(self) -> str:
        """Return what it is, as figures are grouped."""
        sides = f"{self.acting or 'nothing'} | {self.mirror or 'nothing'}"
        runner = ", then the node that runs the step" if self.runner_dies else ""
        return f"{self.kind.name.lower()}: {sides}{runner}"


BLOWS: Final = (Fault.KILL, Fault.PAUSE)
"""What pairs are made of, if nothing else is wanted."""
_KILLS = tuple(Blow(Fault.KILL, role) for role in Role)
_FAILOVERS: tuple[tuple[Blow | None, Blow | None], ...] = (
    *product(_KILLS, _KILLS),
    *((blow, None) for blow in _KILLS),
)
"""A node dead on either side; or none in the region that takes over, which loses the one that runs the step (INV-DRP2)."""


def rounds(
    seed: int, count: int, kinds: Sequence[Kind] = tuple(Kind), switch_share: float = 0.2,
    faults: Sequence[Fault] = BLOWS,
) -> Iterator[Round]:  # fmt: skip
    """Deal out kinds in turns of chance, and the cases of each in an order of chance, again and again. `faults`: of pairs."""
    blows = [Blow(fault, role) for fault, role in product(faults, Role)]
    all_cases: dict[Kind, Sequence[tuple[Blow | None, Blow | None]]] = {
        Kind.FAILOVER: _FAILOVERS, Kind.PAIR: list(product(blows, blows)),
    }  # fmt: skip
    chance = random.Random(seed)
    dealt: list[Kind] = []
    cases: dict[Kind, list[tuple[Blow | None, Blow | None]]] = {kind: [] for kind in Kind}
    for number in range(1, count + 1):
        if not dealt:
            dealt = _shuffled(kinds, chance) if number < count else [kinds[0]]
        kind = dealt.pop()
        if not cases[kind]:
            cases[kind] = _shuffled(all_cases[kind], chance)
        acting, mirror = cases[kind].pop()
        runner_dies = kind is Kind.FAILOVER and mirror is None
        yield Round(
            number, kind, acting, mirror, chance.uniform(1.0, 2.5),
            way=Way.HTTP if runner_dies else chance.choice(list(Way)),
            runner_dies=runner_dies, switch=chance.random() < switch_share,
        )  # fmt: skip


def _shuffled(items: Sequence[Item], chance: random.Random) -> list[Item]:
    shuffled = list(items)
    chance.shuffle(shuffled)
    return shuffled
