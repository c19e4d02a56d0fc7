"""What troubles one life, drawn from its seed: each fault has its own rate, and many lives leave some out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

NEVER = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Times in simulated ms; means of times between two faults, 0 for never; the others are shares of 1."""

    members: int
    first_voters: int
    delay_ms: int
    loss: float
    duplication: float
    lateness: float
    """How often a message comes when elections may have passed since."""
    late_sync: float
    """How often a driver takes more events before it carries out what one asked for."""
    leaders: float
    """How often a fault is a leader's."""
    crash_ms: int
    pause_ms: int
    cut_ms: int
    jump_ms: int
    client_ms: int
    membership_ms: int
    transfer_ms: int
    append_entries: int
    snapshot_entries: int
    kept_entries: int
    trouble_ms: int = 4_000

    @classmethod
    def of(cls, chance: Random, members: int | None) -> "Plan":
        """Draw a plan; `members`: so many, else 1 to 7."""
        count = members or chance.choice((1, 2, 3, 3, 3, 4, 5, 5, 6, 7))
        return cls(
            members=count,
            first_voters=count if chance.random() < 0.5 else chance.randint(1, count),
            delay_ms=chance.choice((1, 10, 30, 100)),
            loss=chance.choice((0.0, 0.02, 0.1, 0.3)),
            duplication=chance.choice((0.0, 0.05, 0.3)),
            lateness=chance.choice((0.0, 0.01, 0.05)),
            late_sync=chance.choice((0.0, 0.2, 0.7)),
            leaders=chance.choice((0.1, 0.5, 0.9)),
            crash_ms=chance.choice((NEVER, 120, 300, 1_000)),
            pause_ms=chance.choice((NEVER, 200, 600, 1_500)),
            cut_ms=chance.choice((NEVER, 100, 300, 1_000)),
            jump_ms=chance.choice((NEVER, 100, 500)),
            client_ms=chance.choice((5, 15, 40)),
            membership_ms=chance.choice((NEVER, NEVER, 30, 100, 400)),
            transfer_ms=chance.choice((NEVER, 60, 300)),
            append_entries=chance.choice((1, 4, 20)),
            snapshot_entries=chance.choice((3, 10, 40)),
            kept_entries=chance.choice((0, 1, 5)),
        )


Bent = Callable[[Plan], Plan]


def as_drawn(plan: Plan) -> Plan:
    """Leave a plan as it was drawn."""
    return plan


def _cut_off_leaders(plan: Plan) -> Plan:
    return replace(
        plan, members=5, first_voters=5, leaders=0.9, crash_ms=150, pause_ms=NEVER, cut_ms=100, jump_ms=100,
        client_ms=5, membership_ms=NEVER, transfer_ms=NEVER, snapshot_entries=40,
    )  # fmt: skip


def stale_tails(plan: Plan) -> Plan:
    """Let leaders of five be cut off with entries of their own, and come back: Figure 8 of the paper."""
    return replace(
        _cut_off_leaders(plan),
        delay_ms=100,
        loss=0.02,
        lateness=0.0,
        late_sync=0.0,
        append_entries=1,
    )


def changing_voters(plan: Plan) -> Plan:
    """Let leaders and memberships change all the time."""
    return replace(
        plan, members=4, first_voters=3, leaders=0.9, crash_ms=NEVER, pause_ms=NEVER, cut_ms=100,
        jump_ms=100, client_ms=15, membership_ms=20, transfer_ms=60,
    )  # fmt: skip


def old_answers(plan: Plan) -> Plan:
    """Let answers come when their leader was deposed, and leads again."""
    return replace(
        _cut_off_leaders(plan),
        delay_ms=30,
        loss=0.0,
        lateness=0.2,
        duplication=0.3,
        append_entries=4,
    )


def late_pieces(plan: Plan) -> Plan:
    """Let snapshots be small and many, and come late and twice."""
    return replace(
        plan, members=3, first_voters=3, lateness=0.2, duplication=0.3, loss=0.1, snapshot_entries=3, kept_entries=0,
        client_ms=40, membership_ms=NEVER, cut_ms=300,
    )  # fmt: skip


BENT: Final = (as_drawn, stale_tails, changing_voters, old_answers, late_pieces)
