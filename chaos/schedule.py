"""What a soak does to two regions, drawn from a seed: a pure function, so that a seed says everything.

The same seed gives the same rounds; nothing but the seed goes in. Every kind of round comes before any comes a second
time: a short run meets them all it can.

Not here: how a round is played (`chaos.plays`), how it is judged (`chaos.soak_judge`).
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


class Kind(enum.Enum):
    """What happens in a round."""

    PRIMARY_KILLED = "the primary is killed, the mirror takes over, the old primary returns"
    MIRROR_KILLED = "the mirror is killed and started again"
    PRIMARY_KILLED_BRIEFLY = "the primary is killed and started again, nobody takes over"
    PRIMARY_PAUSED = "the primary is stopped for a while and goes on"
    MIRROR_PAUSED = "the mirror is stopped for a while and goes on"
    CANDIDATE_KILLED = (
        "the primary is killed, the candidate too while it takes over; the order is given again"
    )
    FAILOVER_ALIVE = "the mirror takes over while the primary is alive"
    FAILOVER_PAUSED = (
        "the mirror takes over while the primary is stopped; the primary wakes up later"
    )
    SWITCH = "planned switch"
    SWITCH_TWICE = "planned switch there and back"
    SWITCH_CANDIDATE_KILLED = "the mirror is killed in the middle of a planned switch to it"
    SWITCH_PRIMARY_KILLED = "the primary is killed in the middle of a planned switch away from it"
    FAILOVERS_IN_A_ROW = (
        "the primary is killed, the other takes over, the primary returns and takes over again"
    )
    BOTH_KILLED = "both regions are killed and started again"


@dataclass(frozen=True, slots=True)
class Round:
    """One round. `pause_s` before the fault, `gap_s` between its parts."""

    number: int
    kind: Kind
    pause_s: float
    gap_s: float
    topic_churn: bool

    def __str__(self) -> str:
        """Return one line for the log."""
        churn = ", topics come and go" if self.topic_churn else ""
        return (
            f"round {self.number}: {self.kind.name} after {self.pause_s:.2f} s,"
            f" gap {self.gap_s:.2f} s{churn}"
        )


def rounds(seed: int) -> Iterator[Round]:
    """Return the rounds of `seed`, without end."""
    random = Random(seed)
    number = 0
    while True:
        kinds = list(Kind)
        random.shuffle(kinds)
        for kind in kinds:
            number += 1
            yield Round(
                number=number,
                kind=kind,
                pause_s=random.uniform(0.2, 1.5),
                gap_s=_gap_s(kind, random),
                topic_churn=random.random() < 0.3,
            )


def _gap_s(kind: Kind, random: Random) -> float:
    match kind:
        case Kind.CANDIDATE_KILLED | Kind.SWITCH_CANDIDATE_KILLED | Kind.SWITCH_PRIMARY_KILLED:
            return random.uniform(0.0, 0.5)
        case Kind.PRIMARY_PAUSED | Kind.MIRROR_PAUSED | Kind.FAILOVER_PAUSED:
            return random.uniform(1.0, 10.0)
        case _:
            return random.uniform(0.0, 2.0)
