"""What is asked of groups and what they answer or want done: the vocabulary of this package.

A `token` names one waiting request of the driver; the group gives it back exactly once, in an
`AnswerJoin` or `AnswerSync`. A `ticket` names one ledger write; the driver gives it back to
`Group.stored` once the record is durable.
Not here: decisions (`group`), futures and ledgers (`coordinator`), Kafka's shapes (`handlers`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, TopicPartition
from region_broker.groups.records import GroupValue
from region_broker.groups.verdicts import GroupVerdict


@dataclass(frozen=True, slots=True)
class Sight:
    """Which topics who asks may see. `since`: another object whenever that may be another answer."""

    sees: Callable[[str], bool]
    since: object


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A member wants into the next generation; `new_member_id` is what it is called if it is new."""

    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_know_member_id: bool = False  # v4+ without instance id: KIP-394
    may_skip_assignment: bool = False  # v9+: KIP-814
    sight: Sight | None = None  # None: all topics


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """One member as the leader is told."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOutcome:
    """The answer to a join; `members` only for the leader."""

    verdict: GroupVerdict
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader brings everyone's."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOutcome:
    """The answer to a sync."""

    verdict: GroupVerdict
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Who claims to speak; `instance_id` for static members (KIP-345)."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class AnswerJoin:
    """Answer the waiting join `token`."""

    token: int
    outcome: JoinOutcome

    @classmethod
    def refusing(cls, token: int, member_id: str, verdict: GroupVerdict) -> "AnswerJoin":
        """Return the answer that this member is not let in."""
        return cls(token, JoinOutcome(verdict=verdict, member_id=member_id))


@dataclass(frozen=True, slots=True)
class AnswerSync:
    """Answer the waiting sync `token`."""

    token: int
    outcome: SyncOutcome


@dataclass(frozen=True, slots=True)
class Store:
    """Append the group's metadata to the ledger, then call `Group.stored(ticket)`."""

    ticket: int
    value: GroupValue


Effect = AnswerJoin | AnswerSync | Store


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """One partition of a commit; `leader_epoch` is that of the last record read, or -1.

    `topic_id` is the topic's when the request came; None: whatever has the name.
    """

    tp: TopicPartition
    committed_offset: int
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """Offsets of one group; generation -1 and no member: a simple consumer or an admin client."""

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    who: MemberIdentity = field(default_factory=lambda: MemberIdentity(""))
    generation: int = -1  # of a group of the new protocol: the member's epoch
    knows_epochs: bool = True  # whether its version can mean a member's epoch


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """`verdict` for the whole; `refused` names partitions with a verdict of their own.

    Everything else was committed and is durable.
    """

    verdict: GroupVerdict
    refused: Mapping[TopicPartition, GroupVerdict] = field(default_factory=dict)

    def of(self, tp: TopicPartition) -> GroupVerdict:
        """Return the verdict of one partition."""
        return self.refused.get(tp, self.verdict)


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """One partition of an answer: OK with -1 when nothing is committed, or UNSTABLE_OFFSET."""

    tp: TopicPartition
    verdict: GroupVerdict
    committed_offset: int = -1
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """The offsets of one group, durable ones only."""

    verdict: GroupVerdict
    offsets: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveOutcome:
    """`verdict` for the whole; one of `members` for each one that was to leave."""

    verdict: GroupVerdict
    members: tuple[GroupVerdict, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One group in a list."""

    group_id: str
    protocol_type: str
    state: str
    kind: str = "classic"


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """One member in a description."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One group; metadata and assignments are shown in a stable group only."""

    verdict: GroupVerdict
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()
    message: str | None = None


CLAMPED_NAMED_MAX: Final = 100
"""So many of the offsets that a takeover clamps are named: each is a line of the log."""


@dataclass(frozen=True, slots=True)
class ClampedOffset:
    """One offset that pointed past the cut (T26).

    `transactional` ones cannot point past it unless the client committed a place it never read.
    """

    group_id: str
    tp: TopicPartition
    committed_offset: int
    clamped_to: int
    transactional: bool


@dataclass(slots=True)
class ClampReport:
    """What a takeover did to groups and offsets; of a million offsets only the first are kept, and told."""

    clamped: list[ClampedOffset] = field(default_factory=list)
    """The first CLAMPED_NAMED_MAX of them."""
    clamped_count: int = 0
    emptied: list[str] = field(default_factory=list)

    def note_clamped(self, offset: ClampedOffset) -> None:
        """Count one more offset, and keep it if it is one of the first."""
        self.clamped_count += 1
        if len(self.clamped) < CLAMPED_NAMED_MAX:
            self.clamped.append(offset)
