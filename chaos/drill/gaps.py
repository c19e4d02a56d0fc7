"""How long each client stood still, by phase: pure sums over the times of answered commits.

INV-DRG1  a standstill is cut where a phase ends: what an outage took does not count against what came after it

Not here: who commits (`chaos.drill.clients`), what happens meanwhile (`chaos.drill.play`).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Phase:
    """A span of a drill. `outage`: no region could act in it, so nobody is expected to commit."""

    name: str
    began_s: float
    ended_s: float
    outage: bool = False


def longest_gap_s(commits_s: Sequence[float], phase: Phase) -> float:
    """Return the longest time within a phase without an answered commit; `commits_s` ascends."""
    first = bisect_left(commits_s, phase.began_s)
    inside = commits_s[first : bisect_left(commits_s, phase.ended_s)]
    return max(
        after - before for before, after in pairwise([phase.began_s, *inside, phase.ended_s])
    )


def gaps_s(
    commits_s: Mapping[str, Sequence[float]], phases: Sequence[Phase]
) -> dict[str, dict[str, float]]:
    """Return the longest standstill by phase and client."""
    return {
        phase.name: {client: longest_gap_s(times, phase) for client, times in commits_s.items()}
        for phase in phases
    }
