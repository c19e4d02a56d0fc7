"""What a shard decides, as the next record of an entry: stamped with the round, the region and the time.

INV-TC4  the stamp of a decision is the round current in the step that appends it (T2)

Not here: whether it may be decided (the requests), how the records are built (`transitions`).
"""

from collections import deque

from idempotency.identity import (
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    TopicPartition,
)
from idempotency.ledger_records import TransactionRecord
from idempotency.producer_ids import ProducerIdBlock
from txn_coordinator import transitions as tr
from txn_coordinator.rounds import RoundGate
from txn_coordinator.shard.pairs_in_force import PairsInForce
from txn_coordinator.shard.step import Step


class SpareIds:
    """Producer ids in stock, never given out before (C11)."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        """Start with none."""
        self._ids: deque[ProducerId] = deque()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._ids)

    def grant(self, first: ProducerId, count: int) -> None:
        """Put `count` more in stock."""
        self._ids.extend(ProducerIdBlock(first, count))

    def take(self) -> ProducerId:
        """Take one out."""
        assert self._ids, "the driver keeps producer ids in stock"
        return self._ids.popleft()


class Decisions:
    """Builds the records that a shard of this region appends."""

    __slots__ = ("_gate", "_ids", "_pairs", "_step")

    def __init__(self, pairs: PairsInForce, gate: RoundGate, ids: SpareIds, step: Step) -> None:
        """Take what stamps a decision."""
        self._pairs = pairs
        self._gate = gate
        self._ids = ids
        self._step = step

    def is_foreign(self, record: TransactionRecord) -> bool:
        """Return whether the entry's pair was given out before this region acted, and is not in force (T22)."""
        return self._pairs.is_foreign(record)

    def bump(
        self, record: TransactionRecord, *, timeout_ms: int, keep_last: bool
    ) -> TransactionRecord:
        """Give the entry's producer its next epoch."""
        return tr.bump_epoch(record, self._stamp(), timeout_ms=timeout_ms, keep_last=keep_last)

    def rotate(
        self, record: TransactionRecord, *, timeout_ms: int, retry_epoch: ProducerEpoch
    ) -> TransactionRecord:
        """Give the entry a new producer id."""
        return tr.rotate_producer_id(
            record,
            self._stamp(),
            producer_id=self._ids.take(),
            timeout_ms=timeout_ms,
            retry_epoch=retry_epoch,
        )

    def join(
        self, record: TransactionRecord, partitions: tuple[TopicPartition, ...], *, tv: int
    ) -> TransactionRecord:
        """Let partitions join the transaction."""
        return tr.join_partitions(record, self._stamp(), partitions=partitions, tv=tv)

    def end(self, record: TransactionRecord, *, commit: bool, tv: int) -> TransactionRecord:
        """Decide as the client asked."""
        rotates = tv >= 2 and tr.is_exhausted(record.producer_epoch)
        decision = tr.Decision(
            commit=commit,
            tv=tv,
            round=self._gate.current,
            next_producer_id=self._ids.take() if rotates else NO_PRODUCER_ID,
        )
        return tr.prepare_end(record, self._stamp(), decision)

    def new_producer(
        self, record: TransactionRecord, producer_epoch: ProducerEpoch
    ) -> TransactionRecord:
        """Decide an abort that gives its producer a new producer id (T22)."""
        return tr.prepare_new_producer(
            record,
            self._stamp(),
            producer_epoch=producer_epoch,
            round_=self._gate.current,
            next_producer_id=self._ids.take(),
        )

    def fence(
        self, record: TransactionRecord, *, keep_last: bool, rotates: bool = True
    ) -> TransactionRecord:
        """Decide an abort of what is open, with the epoch bumped; `rotates`: with a new producer id if that was the last."""
        rotates = rotates and tr.fence_needs_producer_id(record) and not self.is_foreign(record)
        return tr.prepare_fence(
            record,
            self._step.wall_ms,
            round_=self._gate.current,
            next_producer_id=self._ids.take() if rotates else NO_PRODUCER_ID,
            keep_last=keep_last,
        )

    def orphan(
        self,
        record: TransactionRecord,
        pair: ProducerPair,
        partitions: tuple[TopicPartition, ...],
    ) -> TransactionRecord:
        """Decide the abort of what no transactional id knows of (T21)."""
        return tr.prepare_orphan(
            record,
            self._step.wall_ms,
            round_=self._gate.current,
            pair=pair,
            partitions=partitions,
        )

    def _stamp(self) -> tr.Stamp:
        return tr.Stamp(self._step.wall_ms, self._pairs.region_epoch)
