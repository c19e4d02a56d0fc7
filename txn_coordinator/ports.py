"""What the coordinator needs from the process around it: a ledger, a way to partitions, id blocks.

INV-TP2  `MarkerChannel.write` may be repeated with the same decision; partitions ignore repeats (T6)
INV-TP3  a producer id block is returned once, in all lives of all folders of a region (C11)
Not here: the implementations (`region_broker.ledgers`).
"""

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Protocol

import msgspec

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from idempotency.producer_ids import ProducerIdBlock


class LedgerFailed(Exception):
    """The ledger shard takes no more writes, or was resigned; the message says why.

    What was appended and not confirmed has an unknown outcome until the ledger is loaded again.
    """


class LedgerCorrupt(LedgerFailed):
    """A ledger record cannot be read: the shard must not be served from a partial state (C22)."""


class IdsUnavailable(Exception):
    """No producer id block can be taken now; the message says why. Nothing was given out."""


class LedgerPosition(msgspec.Struct, frozen=True):
    """Where a ledger record stands: leader epoch of its batch, and its offset."""

    leader_epoch: LeaderEpoch
    offset: int


class DurableListener(Protocol):
    """One that is told what became of an append."""

    def committed(self) -> None:
        """It is below the high watermark."""
        ...

    def not_committed(self, error: Exception) -> None:
        """Whether it ever will be is unknown."""
        ...


class TransactionLog(Protocol):
    """The shards of `__transaction_state`."""

    @property
    def shard_count(self) -> int:
        """Number of shards, fixed for the life of the domain."""
        ...

    def append(self, shard: int, records: Sequence[tuple[bytes, bytes | None]]) -> LedgerPosition:
        """Append (key, value) records; return the first one's position, the rest follow densely.

        A value of None is a tombstone. Raises LedgerFailed if nothing was written.
        """
        ...

    def notify_committed(self, shard: int, offset: int, listener: DurableListener) -> None:
        """Notify `listener` once the record at `offset` is below the high watermark, or can no longer be waited for."""
        ...

    async def committed(self, shard: int, offset: int) -> None:
        """Return once the record at `offset` is below the high watermark; raises LedgerFailed."""
        ...

    def whole_from(self, shard: int) -> int:
        """Return the offset below which records may be missing that later ones of their key superseded."""
        ...

    async def load(self, shard: int) -> Iterator[tuple[LedgerPosition, bytes, bytes | None]]:
        """Settle; return rows that replay to the state of all records: perhaps an image of most (INV-LIM1).

        Raises LedgerFailed, the iterator too.
        """
        ...


class MarkerResult(Enum):
    """What became of a marker (C32)."""

    DONE = auto()
    """Below the high watermark, and applied to group state where it must be; also for repeats."""
    GONE = auto()
    """The partition was deleted: it leaves the set (C33)."""
    SUPERSEDED = auto()
    """The partition knows a newer producer epoch: nothing of this decision is open there."""
    FENCED = auto()
    """A newer coordinator has spoken to the partition: this one must stop (C30)."""
    STOPPED = auto()
    """The partition takes nothing until this process ends: the marker stays owed, and nobody need wait for it."""
    RETRY = auto()
    """Not now; try again after a pause."""


class MarkerOrder(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The outcome of one decision, to be written to each of `partitions`."""

    transactional_id: str
    partitions: tuple[TopicPartition, ...]
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    coordinator_epoch: CoordinatorEpoch
    decision: DecisionId
    tv2: bool = False
    """The epoch was bumped by this decision: what is open under it is a later transaction (KIP-1228)."""
    attempt: int = 1
    listener: "MarkerListener"


class MarkerListener(Protocol):
    """One that is told what became of each marker of an order."""

    @property
    def closed(self) -> bool:
        """Whether the order is no longer ours to carry out."""
        ...

    def marked(self, order: MarkerOrder, tp: TopicPartition, result: MarkerResult) -> None:
        """Note what became of the marker of one partition."""
        ...


class MarkerChannel(Protocol):
    """The way to partitions."""

    def write(self, orders: Sequence[MarkerOrder]) -> None:
        """Write the markers now, in order, those of one partition together.

        A listener hears DONE once its marker is below the high watermark (C35, P14).
        """
        ...


class IdBlocks(Protocol):
    """Where producer ids come from."""

    async def next_block(self) -> ProducerIdBlock:
        """Return a block that was never returned before, in any life (C11); raises IdsUnavailable."""
        ...
