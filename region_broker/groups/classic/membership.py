"""Who is in a group: members, static instances, ids handed out but not yet used, the protocol vote.

Each static instance id maps to exactly one present member (KIP-345). An id in `invited` is never also a member.
`leader` is None or a present member.
Not here: states and time (`group`).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from region_broker.groups.messages import (
    AnswerJoin,
    AnswerSync,
    Effect,
    JoinedMember,
    JoinRequest,
    MemberIdentity,
    SyncOutcome,
)
from region_broker.groups.records import GroupValue, MemberValue
from region_broker.groups.verdicts import GroupVerdict


@dataclass(slots=True, kw_only=True)
class Member:
    """One member. A token is set while its request waits; deadlines are monotonic ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    session_deadline_ms: int
    assignment: bytes = b""
    join_token: int | None = None
    sync_token: int | None = None
    is_new: bool = True

    @property
    def is_static(self) -> bool:
        """Return whether it brought an instance id."""
        return self.instance_id is not None

    @property
    def waits(self) -> bool:
        """Return whether we owe it an answer: then its session cannot run out."""
        return self.join_token is not None or self.sync_token is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return its metadata for that protocol, empty if it has none."""
        return next((raw for name, raw in self.protocols if name == protocol_name), b"")

    def update(self, request: JoinRequest) -> None:
        """Take over what a new join says."""
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.protocols = request.protocols

    def fail_join(self, verdict: GroupVerdict, *, member_id: str) -> list[Effect]:
        """Refuse its join, if one waits."""
        token, self.join_token = self.join_token, None
        return [] if token is None else [AnswerJoin.refusing(token, member_id, verdict)]

    def fail_sync(self, verdict: GroupVerdict) -> list[Effect]:
        """Refuse its sync, if one waits."""
        token, self.sync_token = self.sync_token, None
        return [] if token is None else [AnswerSync(token, SyncOutcome(verdict=verdict))]


@dataclass(slots=True)
class Roster:
    """The members in order of arrival; `invited` are ids that MEMBER_ID_REQUIRED gave out."""

    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    invited: dict[str, int] = field(default_factory=dict)  # id -> deadline, monotonic ms
    leader: str | None = None

    def __len__(self) -> int:
        """Count the members, without those only invited."""
        return len(self.members)

    def add(self, member: Member) -> None:
        """Add a member that is not there; the first one leads."""
        assert member.member_id not in self.members, member.member_id
        self.members[member.member_id] = member
        self.invited.pop(member.member_id, None)
        if member.instance_id is not None:
            assert member.instance_id not in self.instances, member.instance_id
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        """Remove a present member; if it led, the longest present one leads."""
        member = self.members.pop(member_id)
        if member.instance_id is not None:
            assert self.instances[member.instance_id] == member_id, member.instance_id
            del self.instances[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, instance_id: str, new_member_id: str) -> Member:
        """Give the static member a new id; it keeps its place, assignment and leadership."""
        old_member_id = self.instances[instance_id]
        assert new_member_id not in self.members, new_member_id
        member = self.members[old_member_id]
        self.members = {
            (new_member_id if known == old_member_id else known): value
            for known, value in self.members.items()
        }
        member.member_id = new_member_id
        self.instances[instance_id] = new_member_id
        if self.leader == old_member_id:
            self.leader = new_member_id
        return member

    def holder_of(self, instance_id: str | None) -> str | None:
        """Return the member that is this instance; who brings none is no instance, the empty text is one (INV-GG7)."""
        return None if instance_id is None else self.instances.get(instance_id)

    def identify(self, identity: MemberIdentity) -> GroupVerdict:
        """Judge who speaks: OK, UNKNOWN_MEMBER, or FENCED_INSTANCE (KIP-345)."""
        if identity.instance_id is not None:
            current = self.instances.get(identity.instance_id)
            if current is None:
                return GroupVerdict.UNKNOWN_MEMBER
            if current != identity.member_id:
                return GroupVerdict.FENCED_INSTANCE
        if identity.member_id not in self.members:
            return GroupVerdict.UNKNOWN_MEMBER
        return GroupVerdict.OK

    def common_protocols(self) -> list[str]:
        """Return the protocol names that every member has, in the first member's order."""
        listed = [[name for name, _ in member.protocols] for member in self.members.values()]
        if not listed:
            return []
        return [name for name in listed[0] if all(name in names for names in listed[1:])]

    def supports(self, protocols: Iterable[tuple[str, bytes]], *, without: str | None) -> bool:
        """Return whether these protocols share one with all members (`without`: the one replaced)."""
        offered = {name for name, _ in protocols}
        others = [m for m in self.members.values() if m.member_id != without]
        if not others:
            return bool(offered)
        names = [{name for name, _ in member.protocols} for member in others]
        return bool(offered.intersection(*names))

    def vote(self) -> str:
        """Return the common protocol that most members like best; ties: the oldest member's order."""
        common = self.common_protocols()
        assert common, "a member was let in without a common protocol"
        votes = Counter(
            next(name for name, _ in member.protocols if name in common)
            for member in self.members.values()
        )
        return max(common, key=lambda name: votes[name])  # the first of the best

    def rebalance_timeout_ms(self) -> int:
        """Return the longest that any member wants the others to wait."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def told_to_leader(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return the members with their metadata for the selected protocol."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol_name))
            for member in self.members.values()
        )

    def values(
        self, protocol_name: str | None, assignments: dict[str, bytes] | None
    ) -> tuple[MemberValue, ...]:
        """Return what is persisted of the members; `assignments` replaces those they have."""
        return tuple(
            MemberValue(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.session_timeout_ms,
                subscription=member.metadata(protocol_name),
                assignment=(
                    member.assignment
                    if assignments is None
                    else assignments.get(member.member_id, b"")
                ),
            )
            for member in self.members.values()
        )

    @classmethod
    def restore(cls, value: GroupValue, *, now_ms: int) -> "Roster":
        """Return the persisted members, each with a fresh session."""
        roster = cls()
        for kept in value.members:
            member = Member(
                member_id=kept.member_id,
                instance_id=kept.instance_id,
                client_id=kept.client_id,
                client_host=kept.client_host,
                session_timeout_ms=kept.session_timeout_ms,
                rebalance_timeout_ms=kept.rebalance_timeout_ms,
                protocols=((value.protocol_name or "", kept.subscription),),
                session_deadline_ms=now_ms + kept.session_timeout_ms,
                assignment=kept.assignment,
                is_new=False,
            )
            roster.add(member)
        if value.leader in roster.members:
            roster.leader = value.leader
        return roster
