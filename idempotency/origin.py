"""Where a mirrored batch came from, and the cursor that takes each one in once.

INV-O1  A mirrored log holds the origin's batches at the origin's offsets: the next batch to take in
        starts exactly at the mirror's log end.
INV-O2  A batch that arrives again is skipped, one that leaves a hole is refused: neither changes the
        cursor. Bytes of an older region epoch are never taken in behind newer ones (T23, T31).

Not here: truncating to a lineage base (geo_replicator.lineage), copying (geo_replicator.link.core).
"""

from dataclasses import dataclass
from enum import Enum, auto

from idempotency.fencing import region_epoch_of
from idempotency.identity import RegionName, TopicPartition
from idempotency.record_batch import BatchHeader


@dataclass(frozen=True, slots=True)
class Origin:
    """One position in one partition of the region that wrote it."""

    region: RegionName
    tp: TopicPartition
    offset: int


class Arrival(Enum):
    """What to do with a mirrored batch."""

    APPLY = auto()
    ALREADY_APPLIED = auto()
    """All of it is in the mirror: skip it."""
    OVERLAP = auto()
    """It starts inside and ends behind the mirror's log: the two logs differ, reconcile (T23)."""
    GAP = auto()
    """Batches before it are missing: fetch from the cursor again."""
    STALE_REGION_EPOCH = auto()
    """Written under an older region epoch than the mirror's last batch: a deposed region (T31)."""


class ApplyOnceCursor:
    """The position up to which one mirrored partition was taken in."""

    __slots__ = ("_last_leader_epoch", "_next_offset")

    def __init__(self, next_offset: int = 0, last_leader_epoch: int = -1) -> None:
        """Start at the mirror's log end, with the leader epoch of its last batch (-1: empty)."""
        self._next_offset = next_offset
        self._last_leader_epoch = last_leader_epoch

    @property
    def next_offset(self) -> int:
        """Offset of the next batch to take in."""
        return self._next_offset

    @property
    def last_leader_epoch(self) -> int:
        """Leader epoch of the newest batch taken in."""
        return self._last_leader_epoch

    def judge(self, header: BatchHeader) -> Arrival:
        """Say what to do with a batch; changes nothing."""
        if header.next_offset <= self._next_offset:
            return Arrival.ALREADY_APPLIED
        if header.base_offset < self._next_offset:
            return Arrival.OVERLAP
        if header.base_offset > self._next_offset:
            return Arrival.GAP
        if region_epoch_of(header.leader_epoch) < region_epoch_of(self._last_leader_epoch):
            return Arrival.STALE_REGION_EPOCH
        return Arrival.APPLY

    def advance(self, header: BatchHeader) -> None:
        """Note that the batch is in the mirror's log."""
        assert self.judge(header) is Arrival.APPLY, (header, self._next_offset)
        self._next_offset = header.next_offset
        self._last_leader_epoch = max(self._last_leader_epoch, header.leader_epoch)
