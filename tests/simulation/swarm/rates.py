"""What a seed makes likely: a swarm draws which faults there are at all, and how often, anew for each seed.

Source: Groce et al., "Swarm testing" (ISSTA 2012): runs that leave some faults out find what runs with all of them hide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.shuffle.plan import Action, Kind, Part

KINDS: Final = tuple(Kind)
SHARE_LEFT_OUT: Final = 0.4
PAUSE_S: Final = (0.2, 4.0)
HOME_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Rates:
    """`weights`: action -> how likely it is. Shares are of the moments at which it could happen;
    delays in ms each way; `job_s_max`: how slow the disk is; `pace_s`: how long a writer rests."""

    weights: dict[Kind, float]
    power_share: float
    delay_ms_max: float
    cold_chance: float
    reset_share: float
    clock_share: float
    disk_share: float
    tidemark_interval_ms: int
    job_s_max: float
    pace_s: float


def draw_rates(chance: Random) -> Rates:
    """Draw the rates of a seed; at least one kind of fault is there."""
    weights = {
        kind: 0.0 if chance.random() < SHARE_LEFT_OUT else chance.uniform(0.2, 3.0)
        for kind in KINDS
    }
    weights[Kind.RETURN] = max(weights[Kind.RETURN], 1.0)
    weights[Kind.HEAL] = max(weights[Kind.HEAL], 1.0)
    return Rates(
        weights=weights,
        power_share=chance.choice((0.0, 0.3, 1.0)),
        delay_ms_max=chance.choice((0.5, 2.0, 20.0)),
        cold_chance=chance.choice((0.0, 0.2)),
        reset_share=chance.choice((0.0, 0.1, 0.5)),
        clock_share=chance.choice((0.0, 0.3)),
        disk_share=chance.choice((0.0, 0.0, 0.1)),
        tidemark_interval_ms=chance.choice((20, 300, 2_000)),
        job_s_max=chance.choice((0.002, 0.05, 0.3)),
        pace_s=chance.choice((0.02, 0.2)),
    )


def draw_action(chance: Random, rates: Rates, regions: Sequence[str], acting: str) -> Action:
    """Draw what happens next, and how long it is left to itself."""
    [kind] = chance.choices(list(rates.weights), list(rates.weights.values()))
    region = acting if chance.random() < HOME_SHARE else chance.choice(regions)
    if kind in {Kind.FAILOVER, Kind.SWITCH}:
        region = chance.choice([name for name in regions if name != acting])
    other = chance.choice([name for name in regions if name != region])
    return Action(
        kind, region, other, round(chance.uniform(*PAUSE_S), 1), chance.choice(list(Part)),
        put_back=chance.random() < 0.5,
    )  # fmt: skip
