"""Raft's messages on the wire: which group one is for, and what is looked at before a core may see it.

INV-CLM1  what a core is given is a message of a known type whose numbers are in range, whose entries follow each other as
          they do in a log (INV-RE1), and whose memberships can be read; anything else ends the connection that it came on
INV-CLM2  a message is no larger than `RAFT_MESSAGE_BYTES_MAX`, and has no more elements than its type says, before it is read

A member that keeps to all this may still lie: Raft does not protect against that, nor does this.
Not here: who sent it (`region.peers.sessions`), what it means (`controller.raft`).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from region_broker.controller.raft.effects import (
    AppendAnswer,
    AppendRequest,
    Message,
    SnapshotAnswer,
    SnapshotRequest,
    VoteRequest,
)
from region_broker.controller.raft.entries import Entry, EntryKind, Member, Membership
from region_broker.controller.raft.settings import RaftSettings
from region_broker.limits import KIB, MIB
from region_broker.region.cluster.standing import NODE_IDS
from region_broker.region.peers.protocol import PeerMessage, PeerProtocolError

RAFT_MESSAGE_BYTES_MAX: Final = 8 * MIB
NUMBERS_END: Final = 2**62
"""Terms, indexes, beats and positions are below: whoever counts on from one stays in a signed 64 bits (RS22)."""
GROUP_NAME_BYTES_MAX: Final = 64

_decode: Final = msgspec.msgpack.Decoder(Message).decode
_decode_membership: Final = msgspec.msgpack.Decoder(Membership).decode
_encode: Final = msgspec.msgpack.Encoder().encode

assert 2 * RaftSettings().payload_bytes_max <= RAFT_MESSAGE_BYTES_MAX, "the largest entry must pass"
assert RaftSettings().sent_payload_bytes_max + 64 * KIB <= RAFT_MESSAGE_BYTES_MAX, (
    "as one that is sent alone"
)


class RaftNotice(PeerMessage, frozen=True, kw_only=True):
    """A message of one Raft group, which is the attachment (msgpack of `controller.raft.effects.Message`)."""

    group: str


def encode_message(message: Message) -> bytes:
    """Return a message as `decode_message` reads it."""
    data = _encode(message)
    assert len(data) <= RAFT_MESSAGE_BYTES_MAX, (
        "INV-CLM2: settings allow too much",
        len(data),
    )
    return data


def decode_raft_message(data: memoryview) -> Message:
    """Read a message; raises `PeerProtocolError` for what is none (INV-CLM1, INV-CLM2)."""
    if len(data) > RAFT_MESSAGE_BYTES_MAX:
        raise PeerProtocolError(f"a Raft message of {len(data)} bytes is too large")
    try:
        message: Message = _decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeerProtocolError(f"a Raft message is malformed: {error}") from error
    wrong = _wrong_with(message)
    if wrong:
        raise PeerProtocolError(f"a {type(message).__name__} cannot be right: {wrong}")
    return message


def _wrong_with(message: Message) -> str:
    """Return what cannot be so, empty if nothing is found."""
    if not _are_numbers(message.term):
        return "its term"
    match message:
        case AppendRequest():
            return _wrong_with_entries(message)
        case SnapshotRequest():
            return _wrong_with_piece(message)
        case VoteRequest(last_index=index, last_term=term):
            return "" if _are_numbers(index, term) else "its log's end"
        case AppendAnswer():
            numbers = (message.matched, message.hint_index, message.hint_term, message.beat)
            return "" if _are_numbers(*numbers) else "its place in the log"
        case SnapshotAnswer():
            return "" if _are_numbers(message.index, message.have_bytes) else "its place"
        case _:
            return ""


def _are_numbers(*numbers: int) -> bool:
    return all(0 <= number < NUMBERS_END for number in numbers)


def _wrong_with_entries(request: AppendRequest) -> str:
    numbers = (request.previous_index, request.previous_term, request.commit_index, request.beat)
    if not _are_numbers(*numbers):
        return "its place in the log"
    index, term = request.previous_index, request.previous_term
    if request.previous_index + len(request.entries) >= NUMBERS_END:
        return "its place in the log"
    for entry in request.entries:
        if entry.index != index + 1:
            return f"entry {entry.index} stands behind entry {index}"
        if not term <= entry.term <= request.term:
            return f"entry {entry.index} is of term {entry.term}, behind one of term {term}"
        if not _is_entry(entry):
            return f"what entry {entry.index} holds"
        index, term = entry.index, entry.term
    return "" if term <= request.term else "its term is below that of its log"


def _is_entry(entry: Entry) -> bool:
    match entry.kind:
        case EntryKind.COMMAND:
            return True  # only the state machine reads it
        case EntryKind.LEADER:
            return entry.payload == b""
        case EntryKind.MEMBERSHIP:
            return _is_membership(entry.payload)


def _is_membership(payload: bytes) -> bool:
    try:
        membership = _decode_membership(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return _may_be(membership) and bool(membership.voters)


def _may_be(membership: Membership) -> bool:
    members = (*membership.voters, *membership.learners)
    return len(set(members)) == len(members) and _are_nodes(members)


def _are_nodes(members: Iterable[Member]) -> bool:
    return all(member.node_id in NODE_IDS for member in members)


def _wrong_with_piece(request: SnapshotRequest) -> str:
    point = request.point
    if not _are_numbers(point.index, point.term, request.position):
        return "its place"
    if point.term > request.term:
        return "its snapshot is of a later term"
    if not _may_be(point.membership):
        return "its membership"
    return ""
