"""How much of the log's file an event may take, before it is given to the core (INV-RT4, INV-RK2).

INV-RN1  what a core persists for one event is never more than is said here
INV-RN2  commands leave room for some dozens of elections: else nobody could lead where all disks are full
Not here: what happens to an event that finds no room (`carrying`).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from region_broker.controller.raft.durable import CHANGE_BYTES_MAX, ENTRY_BYTES_MAX
from region_broker.controller.raft.effects import (
    AppendRequest,
    Event,
    MembershipAsked,
    PassedOn,
    PeerLost,
    Proposed,
    ReadAsked,
    Received,
    SnapshotRequest,
    TransferAsked,
)
from region_broker.controller.raft.entries import Entry, EntryKind, Membership

SNAPSHOT_SPARE_BYTES: Final = 1024 * 1024
"""What must be free on the volume besides a piece of a snapshot before it is taken."""

SPARE_BYTES: Final = 16 * 1024
"""What must be there for a command besides what it takes (INV-RN2)."""


def log_bytes(event: Event, membership: Membership) -> int:
    """Return how much the core may persist for an event while `membership` is in force.

    Nearly every event can raise the term, give a vote, or make a leader, who begins with one entry, or two: `membership`.
    """
    if isinstance(event, ReadAsked | TransferAsked | PeerLost):
        return 0
    needed_bytes = 2 * (CHANGE_BYTES_MAX + ENTRY_BYTES_MAX) + _encoded_bytes(membership)
    match event:
        case Proposed(payload=payload):
            needed_bytes += ENTRY_BYTES_MAX + len(payload)
        case MembershipAsked(membership=wanted):
            needed_bytes += ENTRY_BYTES_MAX + _encoded_bytes(wanted)
        case Received(message=PassedOn(payload=payload)):
            needed_bytes += ENTRY_BYTES_MAX + len(payload)
        case Received(message=AppendRequest(entries=entries)):
            needed_bytes += entries_bytes(entries)
        case _:
            pass
    return needed_bytes


def has_command(event: Event) -> bool:
    """Return whether an event is more than what keeps a leader, or makes one."""
    match event:
        case Proposed() | MembershipAsked() | Received(message=PassedOn()):
            return True
        case Received(message=AppendRequest(entries=entries)):
            return any(entry.kind is not EntryKind.LEADER for entry in entries)
        case _:
            return False


def entries_bytes(entries: Iterable[Entry]) -> int:
    """Return how much entries take at most."""
    return sum(ENTRY_BYTES_MAX + len(entry.payload) for entry in entries)


def volume_bytes(event: Event) -> int:
    """Return how much must be free on the volume for an event, besides what it takes of the log."""
    if isinstance(event, Received) and isinstance(event.message, SnapshotRequest):
        return len(event.message.data) + SNAPSHOT_SPARE_BYTES
    return 0


def _encoded_bytes(membership: Membership) -> int:
    return len(msgspec.msgpack.encode(membership))
