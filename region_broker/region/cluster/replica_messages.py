"""What followers and the leader of a region's logs say to each other, on a line of its own (purpose `REPLICA`).

INV-RMS1 what is given to a core has numbers in range (0 up to `NUMBERS_END`), and no more names than `LOGS_MAX`; anything else
         ends the connection that it came on
INV-RMS2 each message names the leader epoch that it was said under: one of another is refused, or changes nothing

A follower asks (`CheckReplicaLogs`, with no log: may it follow at all), fetches (`ReplicaFetch`, several at a time, answered in
order), and says in between how far it is durable (`DurableReport`, a notice). Who it is, its handshake said. A field with a default is
newer than its message: a version without it does not say it, and passes over it.
Not here: what they mean (`replication`), who answers (`replica_leading`), who asks (`replica_link`).
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Final, TypeAlias
from uuid import UUID

import msgspec

from idempotency.identity import LogKey
from region_broker.region.peers.protocol import (
    LOGS_MAX,
    Epoch,
    Offset,
    Partition,
    PeerMessage,
)

LOGS_CHECKED_AT_ONCE: Final = 1_000
Drops: TypeAlias = tuple[Offset, Offset] | None
"""As `replication.facts.Drops` has it; None to who is in sync, and from a version that does not tell."""
STARTS_MAX: Final = 100
"""Starts of leader epochs that are told of one log, the newest ones."""
NOT_LEADING: Final = "not-leading"
OTHER_LEADER_EPOCH: Final = "other-leader-epoch"
UNKNOWN_FOLLOWER: Final = "unknown-follower"
OUT_OF_RANGE: Final = "out-of-range"
CONNECTION_ENDED: Final = "connection-ended"
LEADS_ANEW: Final = "leads-anew"
OTHER_LINEAGE: Final = "other-lineage"


class AskedLog(msgspec.Struct, frozen=True, array_like=True):
    """Where does `leader_epoch` end in the leader's log? -1 where the follower's has no record."""

    topic_id: UUID
    partition: Partition
    leader_epoch: Epoch

    @property
    def key(self) -> LogKey:
        """Return which log it is."""
        return LogKey(self.topic_id, self.partition)


class FoundLog(msgspec.Struct, frozen=True, array_like=True):
    """The largest leader epoch at or below `asked` that the leader's log has, its end, and where its bytes begin (KIP-101, KIP-279).

    `held_to`: where its last batch below that end ends, which is lower where the log was cleaned (INV-RPH4); None from a version that
    does not tell. `starts`: where newer ones start, as far as the leader's log may have holes there (INV-E4); none from a version that does not tell.
    """

    topic_id: UUID
    partition: Partition
    asked: Epoch
    leader_epoch: Epoch
    end_offset: Offset
    log_start_offset: Offset
    starts: Annotated[tuple[tuple[Epoch, Offset], ...], msgspec.Meta(max_length=STARTS_MAX)] = ()
    held_to: Offset | None = None
    drops: Drops = None

    @property
    def key(self) -> LogKey:
        """Return which log it is."""
        return LogKey(self.topic_id, self.partition)


class LogPlace(msgspec.Struct, frozen=True, array_like=True):
    """An offset in a log: from where to send, up to where it is durable, or where it starts."""

    topic_id: UUID
    partition: Partition
    offset: Offset

    @property
    def key(self) -> LogKey:
        """Return which log it is."""
        return LogKey(self.topic_id, self.partition)


Asked: TypeAlias = Annotated[tuple[AskedLog, ...], msgspec.Meta(max_length=LOGS_MAX)]
Found: TypeAlias = Annotated[tuple[FoundLog, ...], msgspec.Meta(max_length=LOGS_MAX)]
Places: TypeAlias = Annotated[tuple[LogPlace, ...], msgspec.Meta(max_length=LOGS_MAX)]
Names: TypeAlias = Annotated[tuple[tuple[UUID, Partition], ...], msgspec.Meta(max_length=LOGS_MAX)]


class CheckReplicaLogs(PeerMessage, frozen=True, kw_only=True):
    """Ask where leader epochs end in the leader's logs; with no log, whether the sender may follow under `leader_epoch`.

    `lineage`: a number for the takeovers that the sender's logs were cut by (INV-LSH4).
    """

    leader_epoch: Epoch
    logs: Asked = ()
    lineage: Offset = 0


class CheckedReplicaLogs(PeerMessage, frozen=True, kw_only=True):
    """The answer; what the leader does not have, or cannot lead, is left out."""

    logs: Found


class ReplicaFetch(PeerMessage, frozen=True, kw_only=True):
    """Ask for what is new: `positions` are set, `forgotten` removed, the rest goes on where it was sent to (KIP-227).

    `durable_ends`, `log_starts`, `lacking`: as in `DurableReport`. `serves_readers`: whether consumers may be sent to the follower now.
    `taken_bytes_per_s_max`: how much it may be sent while it is not in sync; None where it sets no limit, or is of a version that does not tell.
    Answered at once when anything is there, else after `wait_ms_max`.
    """

    leader_epoch: Epoch
    positions: Places = ()
    forgotten: Names = ()
    durable_ends: Places = ()
    log_starts: Places | None = None
    serves_readers: bool = False
    lacking: Names | None = None
    bytes_max: Offset
    wait_ms_max: Offset
    taken_bytes_per_s_max: Offset | None = None


class ReplicaPart(msgspec.Struct, frozen=True, array_like=True):
    """One log's part of the attachment: `data_bytes` of it, whole batches from `position` up to `end_offset`.

    `log_start_offset`: below which the leader's log was deleted; `cleaned_below`: below which offsets may be missing; `unsent_bytes`:
    what lies behind `end_offset`, counted up to a limit; `log_end_offset`: where the leader's log ends. `kept_from`: where its bytes begin, at
    or below `log_start_offset` (INV-RFN8); None from a version that does not tell.
    """

    topic_id: UUID
    partition: Partition
    position: Offset
    end_offset: Offset
    data_bytes: Offset
    high_watermark: Offset
    log_start_offset: Offset
    cleaned_below: Offset
    log_end_offset: Offset
    unsent_bytes: Offset
    kept_from: Offset | None = None
    drops: Drops = None

    @property
    def key(self) -> LogKey:
        """Return which log it is."""
        return LogKey(self.topic_id, self.partition)


class ReplicaFetched(PeerMessage, frozen=True, kw_only=True):
    """What is new, in the attachment's order. `acts`: whether followers may serve readers, as the region takes writes, and did when this was put
    together. `takes_writes`: whether the gate of a main leader is open (INV-RGR11); True from who leads another group, or does not tell.
    """

    parts: Annotated[tuple[ReplicaPart, ...], msgspec.Meta(max_length=LOGS_MAX)]
    acts: bool = False
    takes_writes: bool = True


class DurableReport(PeerMessage, frozen=True, kw_only=True):
    """A notice: so far these logs are durable at the follower; others have not moved.

    `log_starts`: where logs start there, durably, as far as that has moved; None from a version that does not tell. `lacking`: all logs
    that have stopped there, or did not open; None where that is as it was.
    """

    leader_epoch: Epoch
    durable_ends: Places
    log_starts: Places | None = None
    lacking: Names | None = None


def places_of(offsets: Mapping[LogKey, int]) -> tuple[LogPlace, ...]:
    """Return offsets by log as they are said."""
    return tuple(LogPlace(key.topic_id, key.partition, offset) for key, offset in offsets.items())


def offsets_of(places: Places) -> dict[LogKey, int]:
    """Return what `places_of` was given."""
    return {place.key: place.offset for place in places}


def starts_of(message: ReplicaFetch | DurableReport) -> dict[LogKey, int] | None:
    """Return where logs start at the follower; None from a version that does not tell."""
    return None if message.log_starts is None else offsets_of(message.log_starts)


def names_of(keys: Collection[LogKey] | None) -> Names | None:
    """Return logs as they are named; None where nothing is said."""
    return None if keys is None else tuple((key.topic_id, key.partition) for key in keys)


def lacking_of(message: ReplicaFetch | DurableReport) -> frozenset[LogKey] | None:
    """Return which logs do not run at the follower; None where it says nothing of that."""
    if message.lacking is None:
        return None
    return frozenset(LogKey(topic_id, number) for topic_id, number in message.lacking)
