"""What a seed makes likely: a swarm draws which faults there are at all, and how often, anew for each seed.

Source: Groce et al., "Swarm testing" (ISSTA 2012): runs that leave some faults out find what runs with all of them hide.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Any, Final

from chaos.shuffle.plan import Kind

SHARE_LEFT_OUT: Final = 0.4


class Weather(Enum):
    """What can trouble a region beside the actions, for a while."""

    RESET = "reset"
    """All its connections break, with what is under way."""
    SEVER = "sever"
    """They break for who opened them; what was sent arrives all the same, later than what is sent again."""
    CLOCK = "clock"
    """Its wall clock is minutes off."""
    DAYS = "days"
    """Its wall clock is days off."""
    DISK = "disk"
    """Some operations on its disk fail with EIO, or for want of room."""
    WRITES = "writes"
    """Writes to its disk fail, nothing else."""
    SYNCS = "syncs"
    """Syncs fail, and what was not synced is gone though it reads as if it were there."""
    READS = "reads"
    """Reads fail."""
    FULL = "full"
    """Its disk has no room."""
    SLOW = "slow"
    """Each job of its disk takes up to a second."""
    PAUSE = "pause"
    """Its process gets no step, as after SIGSTOP; then all that was due happens at once."""
    BAR = "bar"
    """It cannot open connections to another region, which can still open them to it."""
    MUTE = "mute"
    """What it sends to another region does not arrive, what that one sends does."""


class Disaster(Enum):
    """What strikes in the middle of load, with an operator who acts at once (`disasters`)."""

    POWER_GOES = "power-goes"
    """Who acts loses power, and is started."""
    PRIMARY_LOST = "primary-lost"
    """Who acts is killed, another region takes over at once, and it returns."""
    CUT_OFF = "cut-off"
    """Who acts cannot be reached and goes on, another region takes over, and they meet."""


_NOTHING: Final[dict[str, dict[str, Any]]] = {
    "power": {"power_share": 0.0},
    "delay": {"delay_ms_max": 0.0},
    "late": {"late_share": 0.0},
    "cold": {"cold_chance": 0.0},
    "slow-jobs": {"job_s_max": 0.002},
}
"""The faults that are there all the time, and how none of each is said."""
LASTING: Final = tuple(_NOTHING)
FLIP: Final = "flip"
"""A bit of a file flips while its region is down (`flips`)."""
FAULTS: Final = (
    *(kind.value for each in (Kind, Weather, Disaster) for kind in each),
    FLIP,
    *LASTING,
)
assert len(FAULTS) == len(set(FAULTS)), "a name stands for two faults"


@dataclass(frozen=True, slots=True)
class Rates:
    """`weights`: action -> how likely it is; `weather` alike. `power_share`: of kills, those by a power cut.

    Delays in ms each way; `late_share`: of what is sent, how much takes seconds. `job_s_max`: how slow the disks are;
    `pace_s`: how long a writer rests, `weather_rest_s` how long the weather does."""

    weights: dict[Kind, float]
    weather: dict[Weather, float]
    weather_rest_s: float
    power_share: float
    delay_ms_max: float
    late_share: float
    cold_chance: float
    tidemark_interval_ms: int
    job_s_max: float
    pace_s: float

    def without(self, faults: Collection[str]) -> "Rates":
        """Return them with none of these, of the faults that are there all the time (`LASTING`)."""
        changes = {key: value for name in LASTING if name in faults for key, value in _NOTHING[name].items()}  # fmt: skip
        return replace(self, **changes)


def draw_rates(chance: Random) -> Rates:
    """Draw the rates of a seed; at least one kind of fault is there."""
    weights = {kind: _weight(chance) for kind in Kind}
    weights[Kind.RETURN] = max(weights[Kind.RETURN], 1.0)
    weights[Kind.HEAL] = max(weights[Kind.HEAL], 1.0)
    weather = {kind: _weight(chance) for kind in Weather}
    weather[Weather.RESET] = max(weather[Weather.RESET], 0.1)
    return Rates(
        weights=weights,
        weather=weather,
        weather_rest_s=chance.choice((1.5, 5.0, 15.0)),
        power_share=chance.choice((0.0, 0.3, 1.0)),
        delay_ms_max=chance.choice((0.5, 2.0, 20.0)),
        late_share=chance.choice((0.0, 0.0, 0.001, 0.01)),
        cold_chance=chance.choice((0.0, 0.2)),
        tidemark_interval_ms=chance.choice((20, 300, 2_000)),
        job_s_max=chance.choice((0.002, 0.05, 0.3)),
        pace_s=chance.choice((0.02, 0.2)),
    )


def _weight(chance: Random) -> float:
    return 0.0 if chance.random() < SHARE_LEFT_OUT else chance.uniform(0.2, 3.0)
