"""What a core may be given (INV-CLM1, INV-CLM2): every field out of its range is found, and what a core sends passes."""

from typing import Any
from uuid import UUID

import msgspec
import pytest

from region_broker.controller.raft.effects import (
    ENTRIES_MAX,
    AppendAnswer,
    AppendRequest,
    BeginElection,
    Message,
    SnapshotAnswer,
    SnapshotRequest,
    VoteAnswer,
    VoteRequest,
)
from region_broker.controller.raft.entries import (
    MEMBERS_MAX,
    Entry,
    EntryKind,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.memberships import membership_payload
from region_broker.controller.raft.settings import RaftSettings
from region_broker.region.cluster.raft_messages import (
    RAFT_MESSAGE_BYTES_MAX,
    decode_raft_message,
    encode_message,
)
from region_broker.region.peers.protocol import PeerProtocolError
from tests.fixtures.region_nodes import member

TWO_TO_62 = 2**62
VOTERS = Membership((member(1), member(2)), (member(3),))


def index(number: int) -> LogIndex:
    return LogIndex(number)


def entry(at: int, term: int, kind: EntryKind = EntryKind.COMMAND, payload: bytes = b"x") -> Entry:
    return Entry(index(at), Term(term), kind, payload)


APPEND = AppendRequest(
    Term(5), index(6), Term(3),
    (entry(7, 3), entry(8, 5, EntryKind.LEADER, b""), entry(9, 5, EntryKind.MEMBERSHIP, membership_payload(VOTERS))),
    index(4), 9,
)  # fmt: skip
PIECE = SnapshotRequest(Term(5), SnapshotPoint(index(6), Term(5), VOTERS), 0, b"piece", last=False)
SOUND: list[Message] = [
    VoteRequest(Term(1), index(0), Term(0), pre=True),
    VoteRequest(Term(TWO_TO_62 - 1), index(TWO_TO_62 - 1), Term(TWO_TO_62 - 1), pre=False, by_order=True),
    VoteAnswer(Term(1), pre=False, granted=True),
    AppendRequest(Term(1), index(0), Term(0), (), index(0), 0),
    APPEND,
    AppendAnswer(Term(1), False, index(0), index(3), Term(1), 7),
    PIECE,
    SnapshotRequest(Term(5), SnapshotPoint(index(0), Term(0), Membership(())), 9, b"", last=True),
    SnapshotAnswer(Term(1), index(3), 0, done=True),
    BeginElection(Term(4)),
]  # fmt: skip


@pytest.mark.parametrize("message", SOUND, ids=repr)
def test_what_a_core_sends_comes_through_as_it_was(message: Message) -> None:
    assert decode_raft_message(memoryview(encode_message(message))) == message


def test_the_largest_that_settings_allow_comes_through() -> None:
    settings = RaftSettings()
    large = entry(1, 1, payload=bytes(settings.payload_bytes_max))
    whole = AppendRequest(Term(1), index(0), Term(0), (large,), index(0), 0)
    assert decode_raft_message(memoryview(encode_message(whole))) == whole


NUMBERS = [
    (VoteRequest(Term(1), index(2), Term(1), pre=False), ("term", "last_index", "last_term")),
    (VoteAnswer(Term(1), pre=False, granted=True), ("term",)),
    (APPEND, ("term", "previous_index", "previous_term", "commit_index", "beat")),
    (AppendAnswer(Term(1), True, index(2), index(0), Term(0), 7), ("term", "matched", "hint_index", "hint_term", "beat")),
    (PIECE, ("term", "position")),
    (SnapshotAnswer(Term(1), index(3), 0, done=True), ("term", "index", "have_bytes")),
    (BeginElection(Term(4)), ("term",)),
]  # fmt: skip


def refusal_of(message: Message) -> str:
    """Return why a message is not taken."""
    with pytest.raises(PeerProtocolError) as caught:
        decode_raft_message(memoryview(msgspec.msgpack.encode(message)))
    return str(caught.value)


@pytest.mark.parametrize("number", [-1, TWO_TO_62, 2**64 - 1])
@pytest.mark.parametrize(
    ("message", "field"), [(message, field) for message, fields in NUMBERS for field in fields]
)
def test_INV_CLM1_RS22_numbers_out_of_range_are_refused(
    message: Message, field: str, number: int
) -> None:
    assert "cannot be right" in refusal_of(msgspec.structs.replace(message, **{field: number}))


def append(*entries: Entry, **other: Any) -> AppendRequest:
    """Return entries behind entry 6 of term 3, from a leader of term 5."""
    return msgspec.structs.replace(APPEND, entries=entries, **other)


def piece(at: int = 6, term: int = 5, membership: Membership = VOTERS) -> SnapshotRequest:
    return msgspec.structs.replace(PIECE, point=SnapshotPoint(index(at), Term(term), membership))


TWICE = Membership((member(1),), (member(1),))
NOBODY_S = Membership((Member(-1, UUID(int=1)),))
REFUSED: dict[str, Message] = {
    "INV-RE1 a gap": append(entry(8, 3)),
    "INV-RE1 a gap inside": append(entry(7, 3), entry(9, 3)),
    "INV-RE1 one twice": append(entry(7, 3), entry(7, 3)),
    "INV-RE1 a term that falls": append(entry(7, 2)),
    "INV-RE1 a term that falls inside": append(entry(7, 4), entry(8, 3)),
    "a term above the leader's": append(entry(7, 6)),
    "a log above the leader's term": append(previous_term=Term(6)),
    "entries beyond the last index": append(entry(TWO_TO_62, 3), previous_index=index(TWO_TO_62 - 1)),
    "a leader's entry that holds something": append(entry(7, 3, EntryKind.LEADER, b"x")),
    "a membership that is none": append(entry(7, 3, EntryKind.MEMBERSHIP, b"\xc1")),
    "a membership of nobody": append(entry(7, 3, EntryKind.MEMBERSHIP, membership_payload(Membership(())))),
    "a membership with one twice": append(entry(7, 3, EntryKind.MEMBERSHIP, membership_payload(TWICE))),
    "a membership of no node": append(entry(7, 3, EntryKind.MEMBERSHIP, membership_payload(NOBODY_S))),
    "a snapshot of a later term": piece(term=6),
    "a snapshot before all": piece(at=-1),
    "a snapshot of no term": piece(term=-1),
    "a snapshot's membership with one twice": piece(membership=TWICE),
    "a snapshot's membership of no node": piece(membership=NOBODY_S),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_INV_CLM1_what_no_log_holds_is_refused(name: str) -> None:
    assert "cannot be right" in refusal_of(REFUSED[name])


def test_INV_CLM2_more_elements_than_there_can_be_are_not_read() -> None:
    entries = tuple(entry(7 + place, 3) for place in range(ENTRIES_MAX + 1))
    assert f"length <= {ENTRIES_MAX}" in refusal_of(append(*entries))
    members = tuple(map(member, range(1, MEMBERS_MAX + 2)))
    assert f"length <= {MEMBERS_MAX}" in refusal_of(piece(membership=Membership(members)))
    payload = membership_payload(Membership(members))
    assert "what entry 7 holds" in refusal_of(append(entry(7, 3, EntryKind.MEMBERSHIP, payload)))


def test_INV_CLM2_what_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(PeerProtocolError, match="too large"):
        decode_raft_message(memoryview(bytes(RAFT_MESSAGE_BYTES_MAX + 1)))
    with pytest.raises(AssertionError, match="INV-CLM2"):
        encode_message(append(entry(7, 3, payload=bytes(RAFT_MESSAGE_BYTES_MAX))))


def without(message: Message, field: str) -> dict[str, Any]:
    """Return a message as a map, without a field."""
    whole: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    del whole[field]
    return whole


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x91" * 10_000, msgspec.msgpack.encode({"type": "Init", "term": 1}),
        msgspec.msgpack.encode({"term": 1}), msgspec.msgpack.encode(without(APPEND, "beat")),
        msgspec.msgpack.encode({**without(PIECE, "position"), "position": 1.0}),
        msgspec.msgpack.encode({"type": "BeginElection", "term": "1"}),
        msgspec.msgpack.encode({"type": "BeginElection", "term": 2**64 - 1}),
        msgspec.msgpack.encode(APPEND) + b"\x00",
        msgspec.msgpack.encode(append(entry(7, 3))).replace(b"\xa4kind\x01", b"\xa4kind\x09"),
    ],
    ids=[
        "nothing", "no msgpack", "deep", "RS22 a name of a method", "no type", "a field is missing", "another type",
        "a number as a text", "64 bits", "bytes behind it", "a kind that nobody knows",
    ],
)  # fmt: skip
def test_INV_CLM1_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        decode_raft_message(memoryview(data))
