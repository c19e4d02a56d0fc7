"""What stands in the metadata log: entries, who votes, snapshots.

INV-RE1  entries of one log are numbered without a gap, from 1; terms never fall
INV-RE2  a member is a folder of a node, not a node: an emptied, older or exchanged folder is another member (KIP-853)
INV-RE3  one membership and the next differ in at most one voter, so that any two majorities meet (Raft thesis, 4.1)
"""

from enum import IntEnum
from typing import Annotated, Final, NewType, TypeAlias

import msgspec

from idempotency import identity

Term = NewType("Term", int)
LogIndex = NewType("LogIndex", int)

NO_TERM: Final = Term(0)
BEFORE_FIRST: Final = LogIndex(0)
MEMBERS_MAX: Final = 1_000
"""Voters, and as many learners: what names more is not read."""

Member: TypeAlias = identity.Member
"""Who votes, or follows (INV-RE2)."""


class Membership(msgspec.Struct, frozen=True):
    """Who votes, and who only follows; each sorted."""

    voters: Annotated[tuple[Member, ...], msgspec.Meta(max_length=MEMBERS_MAX)]
    learners: Annotated[tuple[Member, ...], msgspec.Meta(max_length=MEMBERS_MAX)] = ()


class EntryKind(IntEnum):
    """What an entry's payload is."""

    LEADER = 0
    """Empty: the first entry of each term, without which nothing older could commit (Raft 5.4.2, 8)."""
    COMMAND = 1
    """Bytes that only the state machine reads."""
    MEMBERSHIP = 2
    """A `Membership` as msgpack; in force from the moment it is in the log (Raft thesis, 4.1)."""


class Entry(msgspec.Struct, frozen=True):
    """One entry of the log."""

    index: LogIndex
    term: Term
    kind: EntryKind
    payload: bytes = b""


class SnapshotPoint(msgspec.Struct, frozen=True):
    """Where a snapshot stands: it holds all entries up to `index`, whose term is `term`, and who votes there."""

    index: LogIndex
    term: Term
    membership: Membership


class HardState(msgspec.Struct, frozen=True):
    """What a member must never forget: its term, and whom it voted for in it."""

    term: Term = NO_TERM
    voted_for: Member | None = None
