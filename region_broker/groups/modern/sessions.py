"""Until when members of one group must be heard, and must have given back what they shall.

INV-NE1  a member is due when its session ended, or when it has been asked for the same partitions at the
         same epoch for its whole rebalance time-out (KIP-848)
A member of the classic protocol is due too when it did not join after it was told to, or did not sync after it joined,
within its rebalance time-out.

Deadlines are in memory only: after a load they all begin anew.
Not here: what happens to a member that is due (`heartbeat.fence`), timers (`groups.timers`).
"""

from dataclasses import dataclass, field

from region_broker.groups.modern.assignors.assignment import Partitions
from region_broker.groups.modern.records import MemberMetadata
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.modern.states import MemberState


@dataclass(slots=True)
class _Deadlines:
    """Those of one member, monotonic ms; None: nothing is awaited."""

    session_ms: int
    revoke_ms: int | None = None
    revokes: tuple[int, Partitions] | None = None
    join_ms: int | None = None
    sync_ms: int | None = None

    def earliest_ms(self) -> int:
        wanted = (self.session_ms, self.revoke_ms, self.join_ms, self.sync_ms)
        return min(each for each in wanted if each is not None)


@dataclass(slots=True)
class Sessions:
    """The deadlines of all members of a group, by member id."""

    session_timeout_ms: int
    members: dict[str, _Deadlines] = field(default_factory=dict)

    @classmethod
    def begin(cls, group: ConsumerGroup, session_timeout_ms: int, *, now_ms: int) -> "Sessions":
        """Give every member of a loaded group a fresh session."""
        sessions = cls(session_timeout_ms)
        for member_id in group.metadata:
            sessions.heard(group, member_id, now_ms=now_ms)
        return sessions

    def heard(self, group: ConsumerGroup, member_id: str, *, now_ms: int) -> int:
        """Note a member that was heard and what it must give back; return its next deadline."""
        member = group.metadata[member_id]
        session_ms = now_ms + self._timeout_ms(member)
        kept = self.members.setdefault(member_id, _Deadlines(session_ms))
        kept.session_ms = session_ms
        current = group.current_of(member_id)
        if current.state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
            kept.revokes = kept.revoke_ms = None
        elif kept.revokes != (current.member_epoch, current.revoking):
            kept.revokes = (current.member_epoch, current.revoking)
            kept.revoke_ms = now_ms + max(member.rebalance_timeout_ms, 0)
        return kept.earliest_ms()

    def _timeout_ms(self, member: MemberMetadata) -> int:
        classic = member.classic
        return self.session_timeout_ms if classic is None else classic.session_timeout_ms

    def forget(self, group: ConsumerGroup) -> None:
        """Forget members that are not there any more."""
        for member_id in [each for each in self.members if each not in group.metadata]:
            del self.members[member_id]

    def expect_join(self, member_id: str, deadline_ms: int) -> int:
        """Await a join of a classic member, unless one is awaited; return the next deadline."""
        kept = self.members[member_id]
        if kept.join_ms is None:
            kept.join_ms = deadline_ms
        return kept.earliest_ms()

    def joined(self, member_id: str, sync_deadline_ms: int) -> int:
        """Note a join of a classic member, and await its sync; return the next deadline."""
        kept = self.members[member_id]
        kept.join_ms, kept.sync_ms = None, sync_deadline_ms
        return kept.earliest_ms()

    def synced(self, member_id: str) -> None:
        """Note a sync of a classic member."""
        self.members[member_id].sync_ms = None

    def due(self, *, now_ms: int) -> list[str]:
        """Return the members whose time is over."""
        return [each for each, kept in self.members.items() if kept.earliest_ms() <= now_ms]

    def next_deadline_ms(self) -> int | None:
        """Return when a member may be due next, None without members."""
        return min((kept.earliest_ms() for kept in self.members.values()), default=None)
