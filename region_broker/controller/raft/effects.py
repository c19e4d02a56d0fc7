"""What a core asks of its driver, and what it is told: messages between members, events, effects.

The driver's duties stand in the package docstring.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final, TypeAlias

import msgspec

from region_broker.controller.raft.entries import (
    Entry,
    HardState,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)

ENTRIES_MAX: Final = 4_096
"""Entries of one message, beyond what any settings ask for: more are not read at all."""
MESSAGE_BYTES: Final = 256
ENTRY_BYTES: Final = 128
"""What a message, and an entry, take beside payloads: about, here and on the wire."""


class VoteRequest(msgspec.Struct, frozen=True, tag=True):
    """Asks for a vote. `pre`: asks whether it would be given, and changes nothing (PreVote, Raft thesis 9.6).

    `by_order`: the leader told the candidate to begin (leadership transfer, thesis 3.10), so a fresh leader is no reason to refuse.
    """

    term: Term
    last_index: LogIndex
    last_term: Term
    pre: bool
    by_order: bool = False


class VoteAnswer(msgspec.Struct, frozen=True, tag=True):
    """`term`: of whoever answers; for a granted pre-vote, the term that was asked for."""

    term: Term
    pre: bool
    granted: bool


class AppendRequest(msgspec.Struct, frozen=True, tag=True):
    """Entries behind `previous_index`, or none: a heartbeat. `beat`: rises with each round of heartbeats, for ReadIndex."""

    term: Term
    previous_index: LogIndex
    previous_term: Term
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=ENTRIES_MAX)]
    commit_index: LogIndex
    beat: int


class AppendAnswer(msgspec.Struct, frozen=True, tag=True):
    """`matched`: if it was taken, how far the log is the leader's (previous_index + entries, never the log's own end).

    If not: `hint_index` and `hint_term` are where the leader should look next (the conflicting term's end, thesis 5.3).
    """

    term: Term
    taken: bool
    matched: LogIndex
    hint_index: LogIndex
    hint_term: Term
    beat: int


class SnapshotRequest(msgspec.Struct, frozen=True, tag=True):
    """A piece of the snapshot at `point`, from byte `position`; `last`: there is no more."""

    term: Term
    point: SnapshotPoint
    position: int
    data: bytes
    last: bool


class SnapshotAnswer(msgspec.Struct, frozen=True, tag=True):
    """How many bytes of the snapshot at `index` the follower has."""

    term: Term
    index: LogIndex
    have_bytes: int
    done: bool


class BeginElection(msgspec.Struct, frozen=True, tag=True):
    """The leader asks a member that has its whole log to take over at once."""

    term: Term


class PassedOn(msgspec.Struct, frozen=True, tag=True):
    """A caller at a member that does not lead wants `payload` committed; nobody answers, whoever asked sees it in its own log.

    It may arrive twice, or late: what the payload asks for must be told apart by whoever applies it. `term`: what the sender knows;
    nothing follows from it.
    """

    term: Term
    payload: bytes


class JoinAsked(msgspec.Struct, frozen=True, tag=True):
    """A folder that is in no membership asks to be taken in; again and again, until it is. `term`: as in `PassedOn`."""

    term: Term


Message: TypeAlias = (
    VoteRequest
    | VoteAnswer
    | AppendRequest
    | AppendAnswer
    | SnapshotRequest
    | SnapshotAnswer
    | BeginElection
    | PassedOn
    | JoinAsked
)


def message_bytes(message: Message) -> int:
    """Return about how many bytes a message holds."""
    match message:
        case AppendRequest(entries=entries):
            return MESSAGE_BYTES + sum(ENTRY_BYTES + len(entry.payload) for entry in entries)
        case SnapshotRequest(data=data):
            return MESSAGE_BYTES + len(data)
        case PassedOn(payload=payload):
            return MESSAGE_BYTES + len(payload)
        case _:
            return MESSAGE_BYTES


NOBODY: Final = -1
"""The ticket of a wish that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived from `sender`, whom the connection proved."""

    sender: Member
    message: Message


@dataclass(frozen=True, slots=True)
class Proposed:
    """A caller wants `payload` committed; the answer names `ticket`."""

    ticket: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReadAsked:
    """A caller wants to read what is committed by now (ReadIndex, thesis 6.4)."""

    ticket: int


@dataclass(frozen=True, slots=True)
class MembershipAsked:
    """A caller wants one member added, promoted, demoted or removed: the whole membership as it should be (INV-RE3)."""

    ticket: int
    membership: Membership


@dataclass(frozen=True, slots=True)
class TransferAsked:
    """A caller wants another voter to lead."""

    ticket: int
    target: Member


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed, nothing else."""


@dataclass(frozen=True, slots=True)
class PeerLost:
    """A connection with a member has ended: if that one leads, it may be gone."""

    member: Member


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """The state machine's image at `point` is durable; the log up to there may go."""

    point: SnapshotPoint


Event: TypeAlias = (
    Received
    | Proposed
    | ReadAsked
    | MembershipAsked
    | TransferAsked
    | Ticked
    | PeerLost
    | Snapshotted
)


@dataclass(frozen=True, slots=True)
class Persist:
    """Make durable, in this order: the hard state if given; cut the log behind `cut_behind` if given; append `entries`."""

    hard_state: HardState | None
    cut_behind: LogIndex | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a message to a member, at most once; it may be lost."""

    target: Member
    message: Message


@dataclass(frozen=True, slots=True)
class SendSnapshot:
    """Read the piece of the newest durable snapshot from `position` and send it to `target` as a `SnapshotRequest` of `term`.

    Where the snapshot does not reach `position`, it is the first piece: a newer snapshot took the place of the one that was begun.
    """

    target: Member
    term: Term
    position: int


@dataclass(frozen=True, slots=True)
class KeepSnapshotPiece:
    """Write the piece at `position`; `last`: make the snapshot durable, load it in place of the state machine, and drop the
    whole log. The core is already behind it.
    """

    point: SnapshotPoint
    position: int
    data: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class DropLog:
    """The log up to `up_to` is in a durable snapshot: it may go."""

    up_to: LogIndex


@dataclass(frozen=True, slots=True)
class Committed:
    """Apply these to the state machine, in order."""

    entries: tuple[Entry, ...]


class Outcome(Enum):
    """What became of a caller's wish."""

    DONE = "done"
    NOT_LEADER = "this member does not lead: nothing was appended"
    LOST = "this member led and does no more: it may have been committed, or not"
    BUSY = "another change of the kind is under way, or too much waits"
    REFUSED = "not one step from the present membership, a voter that lacks too much, or too large: nothing was changed"


@dataclass(frozen=True, slots=True)
class Answered:
    """The wish `ticket` is settled. `index`: of the committed entry, or from where a read is current."""

    ticket: int
    outcome: Outcome
    index: LogIndex
    leader: Member | None


class Role(Enum):
    """What a member is. A learner follows, and never asks for votes."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """This member is `role` in `term`; `leader`: whom it knows of."""

    role: Role
    term: Term
    leader: Member | None


@dataclass(frozen=True, slots=True)
class Joining:
    """This leader was asked by `member` to be taken in. `displaces`: another folder of its node that is in the membership,
    and silent.
    """

    member: Member
    displaces: Member | None


Effect: TypeAlias = (
    Persist
    | Send
    | SendSnapshot
    | KeepSnapshotPiece
    | DropLog
    | Committed
    | Answered
    | RoleChanged
    | Joining
)
