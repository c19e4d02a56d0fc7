"""What the group coordinator needs from the node: offsets ledger, ends of partitions, topics.

`ledgers.offsets_log` implements both over `Partition`. `append` is synchronous on purpose: judging
a request and appending what follows from it is one step, without an `await` between (as T2).
Not here: the meaning of the records (`offsets`).
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from idempotency.identity import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from idempotency.ports import Chance, Clock

KeyValue = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One record of the shard; `producer_id` is -1 outside transactions. `timestamp_ms`: when it was written (wall)."""

    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: ProducerId = NO_PRODUCER_ID
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class LedgerMarker:
    """The end of `producer_id`'s transaction in the shard."""

    producer_id: ProducerId
    commit: bool


LedgerEntry = LedgerRecord | LedgerMarker


class LedgerFailed(Exception):
    """The ledger shard cannot be written or read here; what was appended may or may not survive."""


@dataclass(frozen=True, slots=True)
class TxnProducer:
    """Who commits offsets in a transaction."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class Appended:
    """Where records went: base_offset, +1, .. up to (not with) next_offset; all carry `timestamp_ms` (wall)."""

    base_offset: int
    next_offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """A stretch of the shard in order, and the offset right behind the last batch that is there whole."""

    entries: Sequence[LedgerEntry]
    next_offset: int


class LedgerBatch(Protocol):
    """Records for one append, written one by one: what is large is written in pieces, before it is judged."""

    @property
    def count(self) -> int:
        """Return how many records it has."""
        ...

    @property
    def size_bytes(self) -> int:
        """Return how long it is."""
        ...

    def add(self, key: bytes, value: bytes | None) -> None:
        """Write one more record."""
        ...


class OffsetsLog(Protocol):
    """The ledger `__consumer_offsets`, by shard."""

    def batch(self) -> LedgerBatch:
        """Return a batch without records, for `append_batch`."""
        ...

    def append_batch(
        self, shard: int, batch: LedgerBatch, *, producer: TxnProducer | None = None
    ) -> Appended:
        """Append what `batch` made, as `append` does; raises `LedgerFailed`."""
        ...

    def append(
        self, shard: int, records: Sequence[KeyValue], *, producer: TxnProducer | None = None
    ) -> Appended:
        """Append one batch now, transactional if `producer`; raises `LedgerFailed`."""
        ...

    async def committed(self, shard: int, next_offset: int) -> None:
        """Return once everything below `next_offset` is durable; raises `LedgerFailed`."""
        ...

    def end_offset(self, shard: int) -> int:
        """Return the log end offset, durable or not; raises `LedgerFailed`."""
        ...

    def replay(self, shard: int) -> Iterator[LedgerSlice]:
        """Yield the shard up to its durable end; raises `LedgerFailed`, `LedgerRecordError`."""
        ...


class PartitionEnds(Protocol):
    """Where data partitions and their leader epochs end."""

    def end_after_takeover(self, tp: TopicPartition) -> int | None:
        """Return where the partition ends if this region took over, so that it may have been cut; else None."""
        ...

    def end_of_epoch(self, tp: TopicPartition, leader_epoch: LeaderEpoch) -> int | None:
        """Return the offset right behind the last record up to `leader_epoch` here, or None."""
        ...


class Topic(Protocol):
    """One topic of the region's metadata."""

    @property
    def topic_id(self) -> UUID:
        """Return its id."""
        ...

    @property
    def partition_count(self) -> int:
        """Return how many partitions it has."""
        ...

    @property
    def internal(self) -> bool:
        """Return whether it is a ledger."""
        ...


class TopicsImage(Protocol):
    """The region's metadata at one version; `topics` is another object whenever a topic changed."""

    @property
    def topics(self) -> Mapping[str, Topic]:
        """Return the topics by name."""
        ...

    @property
    def deleted(self) -> Container[UUID]:
        """Return the ids of topics that are known to have been deleted (T34)."""
        ...

    @property
    def version(self) -> int:
        """Return the version of the metadata."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPorts:
    """All that the group coordinator is given; `image` returns the topics as of now."""

    log: OffsetsLog
    ends: PartitionEnds
    clock: Clock
    chance: Chance
    image: Callable[[], TopicsImage]
