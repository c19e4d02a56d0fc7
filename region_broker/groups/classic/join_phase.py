"""How long a group waits for its members to join, all of them or those of its first generation (KIP-62, KIP-134).

INV-GF1  the first phase of a group ends when a whole delay has passed without a newcomer, or the longest rebalance time-out
         of its members, or when all of them have gone; every other one when all are here, or that time-out has passed
Not here: what ends with the phase (`group`).
"""

from dataclasses import dataclass

from region_broker.groups.classic.membership import Roster


@dataclass(slots=True)
class JoinPhase:
    """Until when PREPARING_REBALANCE waits; `initial_left_ms` is set for a group's first phase."""

    deadline_ms: int
    initial_left_ms: int | None = None
    newcomer: bool = False

    @classmethod
    def first(cls, timeout_ms: int, delay_ms: int, *, now_ms: int) -> "JoinPhase":
        """Return the phase of a group that was empty."""
        return cls(now_ms + delay_ms, max(timeout_ms - delay_ms, 0))

    def waits(self, roster: Roster, now_ms: int) -> bool:
        """Return whether somebody is waited for, or may still come."""
        if self.initial_left_ms is not None:
            due = self.deadline_ms <= now_ms and not self.newcomer
            gone = not roster.members and not roster.invited
            return not (due or gone)
        absent = any(member.join_token is None for member in roster.members.values())
        return absent or bool(roster.invited)

    def extended(self, delay_ms: int, *, now_ms: int) -> "JoinPhase | None":
        """Return the phase that follows at the deadline of a first one while newcomers arrive; None: it is over."""
        if not self.initial_left_ms or not self.newcomer:
            return None
        step_ms = min(delay_ms, self.initial_left_ms)
        return JoinPhase(now_ms + step_ms, self.initial_left_ms - step_ms)
