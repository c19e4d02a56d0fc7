"""What a seed draws for lives of nodes: chance by name, faults by weight, and whether an operator has leaders spread (ADR 53).

Not here: which faults there are (`cluster_swarm.plan`, `regions_swarm.plan`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

OF_DISKS: Final = frozenset({"writes", "syncs", "reads", "full", "slow"})
OF_FOLDERS: Final = frozenset({"wipe", "older", "another", "half", "remove", "flip"})
"""What takes a folder: only of one of several nodes, where all of them are in sync, for two folders must survive."""
RARE_WEIGHT: Final = 0.4
SPREAD: Final = "spread"
SPREAD_SHARE: Final = 0.6
SMALL_SEGMENT_BYTES: Final = 8_192
LEADER_SHARE: Final = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Gust:
    """A fault: after `gap_s`, to `victim` (None: who leads), for `for_s`."""

    number: int
    fault: StrEnum
    gap_s: float
    for_s: float
    victim: int | None
    chance: Random


class Drawn:
    """What one seed draws for lives of a kind."""

    kind: str
    """Part of the name of each chance."""

    def __init__(self, seed: int, without: frozenset[str]) -> None:
        """Draw whether leaders are spread."""
        self.seed, self._without = seed, without
        self.spreads = self.stream(SPREAD).random() < SPREAD_SHARE and SPREAD not in without
        """Whether an operator has leaders spread."""

    def stream(self, *what: object) -> Random:
        """Return the chance of something, by its name."""
        return Random(repr((self.seed, self.kind, *what)))

    def weighed(
        self, kept: Iterable[StrEnum], rare: frozenset[str], chance: Random
    ) -> dict[StrEnum, float]:
        """Return how often each fault comes; those of `rare` come less often."""
        return {
            each: chance.uniform(0.2, 1.0) * (RARE_WEIGHT if each in rare else 1.0)
            for each in kept
            if each.value not in self._without
        }

    def gap_s(self, rest_s: float, chance: Random) -> float:
        """Return how long nothing happens before a fault."""
        return chance.uniform(0, 2 * rest_s)

    def for_s(self, chance: Random) -> float:
        """Return how long a fault lasts."""
        return chance.choice((0.1, 0.5, 1.2, 3.0, 6.0)) * chance.uniform(0.5, 1.5)
