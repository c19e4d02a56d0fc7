"""What a region keeps of a tail that the world went on without: keys, provenance, and what to move.

INV-Q2  a tail is in quarantine before its log is cut (T20); moving it again changes nothing
INV-Q3  nothing below the cut is ever moved
INV-Q4  names prove nothing: offsets are given out again after a cut, under the same epoch too. Only equal bytes are
        the same tail; others that have its name stand beside it, as its next `edition`
INV-Q5  between the nodes of a region a tail goes by its `identity`: name, cause, size and CRC, which were made of its bytes
A quarantined tail is keyed {domain, topic id, partition, lineage entry, first, last offset}, holds whole batches
verbatim, and never changes.

Not here: bytes and files (`region_broker.region.failover.quarantine_store`), what was lost (`counted_losses`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from geo_replicator.lineage import Cut, LogKey
from idempotency.identity import RegionEpoch


class CutCause(StrEnum):
    """Why a tail was cut off: who acts began from a base below it, or its bytes differ from the primary region's."""

    LINEAGE = "lineage"
    DIVERGENCE = "divergence"


class QuarantineKey(NamedTuple):
    """The name of one quarantined tail; offsets are inclusive."""

    domain: str
    topic_id: UUID
    partition: int
    lineage_epoch: RegionEpoch
    first_offset: int
    last_offset: int

    @property
    def log(self) -> LogKey:
        """Return the log that the tail was cut off."""
        return LogKey(self.topic_id, self.partition)

    def covers(self, other: "QuarantineKey") -> bool:
        """Return True where this tail spans the offsets of `other`, and was cut off by the same entry.

        A restart after lost unsynced bytes may find a shorter tail than the one it moved before. Whether it is the
        same one only its bytes say (INV-Q4).
        """
        return (
            self.domain == other.domain
            and self.log == other.log
            and self.lineage_epoch == other.lineage_epoch
            and self.first_offset <= other.first_offset
            and self.last_offset >= other.last_offset
        )


class TailIdentity(NamedTuple):
    """What two copies of one tail share, whatever node they are on, and no two tails (INV-Q5)."""

    key: QuarantineKey
    cause: CutCause
    byte_count: int
    crc32c: int


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What the JSON beside a quarantined tail says: whence, why, and how to check it.

    `edition` counts the tails of one name, from 0 on (INV-Q4). `lineage_epoch` is the entry that cut the tail off, or
    the one that was followed when it diverged.
    """

    domain: str
    topic: str
    topic_id: UUID
    partition: int
    lineage_epoch: RegionEpoch
    first_offset: int
    last_offset: int
    region: str
    region_epoch: RegionEpoch
    acting_region: str
    base_region_epoch: RegionEpoch
    base_number: int
    byte_count: int
    batch_count: int
    crc32c: int
    moved_wall_ms: int
    format: str = "kafka-record-batches-v2"
    cause: CutCause = CutCause.LINEAGE
    edition: int = 0

    @property
    def key(self) -> QuarantineKey:
        """Return the key that this provenance belongs to."""
        return QuarantineKey(
            self.domain,
            self.topic_id,
            self.partition,
            self.lineage_epoch,
            self.first_offset,
            self.last_offset,
        )

    @property
    def identity(self) -> TailIdentity:
        """Return what each copy of this tail shares (INV-Q5)."""
        return TailIdentity(self.key, self.cause, self.byte_count, self.crc32c)


class CopyDamaged(Exception):
    """What was sent as a copy of a tail is not what its provenance says."""


class ProvenanceUnreadable(Exception):
    """A provenance file is not what `encode_provenance` writes."""


def encode_provenance(provenance: Provenance) -> bytes:
    """Return indented JSON: people read it."""
    return msgspec.json.format(msgspec.json.encode(provenance), indent=2) + b"\n"


def decode_provenance(data: bytes) -> Provenance:
    """Parse `encode_provenance`; raises `ProvenanceUnreadable`."""
    try:
        return msgspec.json.decode(data, type=Provenance)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProvenanceUnreadable(f"not a quarantine provenance: {error}") from error


@dataclass(frozen=True, slots=True)
class LogExtent:
    """One log as it stands: where it begins, where it ends."""

    key: LogKey
    topic: str
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LogCut:
    """Cut `log` to `position`; `moves_tail` where bytes lie beyond it.

    `lacks` where its first offset lies above the cut: what is left agrees with nobody, it must be copied anew.
    """

    log: LogExtent
    position: int
    lacks: bool = False

    @property
    def moves_tail(self) -> bool:
        """Return True where the log runs past its position."""
        return self.log.end_offset > self.position


def plan_cut(logs: Iterable[LogExtent], cut: Cut) -> list[LogCut]:
    """Return what to do to each log so that nothing runs past `cut` (INV-Q3), by log key.

    A log that the cut does not name is younger than it (T15): all of it goes, and it stays empty. So does one that
    starts above its position: it was trimmed since, and nothing of it is in the cut (T13, T14).
    """
    plan = []
    for log in sorted(logs, key=lambda extent: extent.key):
        position = max(cut.position_of(log.key), log.start_offset)
        named = log.key in cut.positions
        lacks = named and cut.position_of(log.key) < log.start_offset
        planned = LogCut(log, position if named else log.start_offset, lacks)
        assert planned.position >= log.start_offset, f"INV-Q3: {planned}"
        assert not named or planned.position >= cut.position_of(log.key), f"INV-Q3: {planned}"
        plan.append(planned)
    return plan
