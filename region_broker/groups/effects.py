"""What a group is asked and what it wants done: the vocabulary between `group` and `coordinator`.

A `token` names one waiting request of the driver; the group gives it back exactly once, in an
`AnswerJoin` or `AnswerSync`. A `ticket` names one ledger write; the driver gives it back to
`Group.stored` once the record is durable.
Not here: decisions (`group`), futures and ledgers (`coordinator`).
"""

from dataclasses import dataclass

from region_broker.groups.records import GroupValue
from region_broker.groups.verdicts import GroupVerdict


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
