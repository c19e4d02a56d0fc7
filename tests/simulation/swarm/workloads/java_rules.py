"""What the Java client's producer does with sequences, epochs and retries while several requests are in flight; no I/O.

A batch takes its sequence when it is drained, and keeps it in every retry. Retried batches go in the order of their
sequences, one at a time, before anything new. Of refusals for a wrong sequence only that of the batch that is next
counts (KAFKA-5494): all others are tried again. Where it counts, an idempotent producer takes its next epoch by itself
and writes the sequences of what is open anew from 0 (KIP-360); a transaction must be aborted. Behind a batch that was
given up nothing new is drained until those after it have shown whether it is in the log.

Source: TransactionManager.java (`canRetry`, `handleFailedBatch`, `maybeResolveSequences`), RecordAccumulator.java
(`shouldStopDrainBatchesForPartition`, `insertInSequenceOrder`) and Sender.java (`sendProducerData`) of Kafka 3 and 4.
Not here: connections and what is noted (`java`, `java_transactions`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from idempotency.identity import ProducerEpoch, ProducerPair
from tests.simulation.pipeliner import RETRIED as RETRIED_BY_ALL

NO_SEQUENCE: Final = -1
RETRIED: Final = RETRIED_BY_ALL | {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.network_exception,
    ErrorCode.not_coordinator,
    ErrorCode.not_enough_replicas_after_append,
}


@dataclass(eq=False, slots=True)
class Batch:
    """Some records of one partition, by number. `rewritten`: it has other sequences than when it was last drained."""

    partition: int
    numbers: range
    created_s: float
    producer: ProducerPair | None = None
    sequence: int = NO_SEQUENCE
    retried: bool = False
    rewritten: bool = False
    done: bool = False

    @property
    def last_sequence(self) -> int:
        """Return the sequence of its last record."""
        return self.sequence + len(self.numbers) - 1


@dataclass(slots=True)
class Lane:
    """What the producer knows of one partition. `unacked`: all that have a sequence and no outcome, in that order;
    `waiting`: all that are not on the wire, those with a sequence first."""

    producer: ProducerPair | None = None
    next_sequence: int = 0
    last_acked: int = NO_SEQUENCE
    unacked: list[Batch] = field(default_factory=list)
    waiting: list[Batch] = field(default_factory=list)
    unresolved: int | None = None
    """The sequence behind a batch that was given up, while nobody knows whether that one is in the log."""
    rewrites: bool = False

    def begin(self, producer: ProducerPair) -> None:
        """Number from 0 as another producer, first of all what has no outcome yet."""
        self.producer, self.next_sequence, self.last_acked = producer, 0, NO_SEQUENCE
        self.unresolved, self.rewrites = None, False
        for batch in self.unacked:
            self._number(batch)
            batch.rewritten = True

    def take(self, producer: ProducerPair) -> Batch | None:
        """Return what is sent next, None if that must wait."""
        if not self.waiting:
            return None
        first = self.waiting[0]
        if first.sequence == NO_SEQUENCE:
            if self.producer != producer and not self.unacked:
                self.begin(producer)
            if self.producer != producer or self.unresolved is not None:
                return None
            self._number(first)
            self.unacked.append(first)
        elif first is not self.unacked[0]:
            return None
        first.rewritten = False
        return self.waiting.pop(0)

    def _number(self, batch: Batch) -> None:
        batch.producer, batch.sequence = self.producer, self.next_sequence
        self.next_sequence += len(batch.numbers)

    def retry(self, batch: Batch) -> None:
        """Put it back where its sequence belongs."""
        batch.retried = True
        before = (each for each in self.waiting if NO_SEQUENCE < each.sequence < batch.sequence)
        self.waiting.insert(sum(1 for _ in before), batch)

    def end(self, batch: Batch) -> None:
        """Keep it no longer."""
        batch.done = True
        for batches in (self.unacked, self.waiting):
            if batch in batches:
                batches.remove(batch)

    def close_gap(self, batch: Batch) -> None:
        """Let those behind a batch that is not in the log move up."""
        self.next_sequence -= len(batch.numbers)
        for each in self.unacked:
            if each.sequence > batch.sequence:
                each.sequence -= len(batch.numbers)
                each.rewritten = True

    @property
    def open(self) -> int:
        """Return how many batches have no outcome yet."""
        return len(self.unacked) + sum(1 for each in self.waiting if each.sequence == NO_SEQUENCE)


class JavaRules:
    """All partitions of one producer. `abortable`: why the transaction must be aborted, empty if it need not."""

    def __init__(self, *, transactional: bool) -> None:
        """Have no producer id yet."""
        self._transactional = transactional
        self._lanes: dict[int, Lane] = {}
        self.producer: ProducerPair | None = None
        self.abortable = ""
        self.bumps, self.expired = 0, 0
        self.gaps: list[str] = []
        """What was answered as if something before it were missing, though nothing had been given up."""

    @property
    def open(self) -> int:
        """Return how many batches have no outcome yet."""
        return sum(lane.open for lane in self._lanes.values())

    def begin(self, producer: ProducerPair) -> None:
        """Go on as this producer; nothing may be open where the rules are those of transactions."""
        assert not self._transactional or not self.open
        if producer != self.producer and self._transactional:
            self._lanes.clear()
        self.producer, self.abortable = producer, ""

    def append(self, batch: Batch) -> None:
        """Let it be sent when its turn comes."""
        self._lanes.setdefault(batch.partition, Lane()).waiting.append(batch)

    def drain(self) -> Mapping[int, Batch]:
        """Return what may be sent now, one batch of a partition at most."""
        assert self.producer is not None
        found = {number: lane.take(self.producer) for number, lane in self._lanes.items()}
        return {number: batch for number, batch in found.items() if batch is not None}

    def settle(self, created_before_s: float) -> Iterator[Batch]:
        """Give up what is older, then take another epoch if one is needed; return what was given up."""
        for lane in self._lanes.values():
            for batch in [*lane.unacked, *lane.waiting]:
                if batch.created_s < created_before_s and not batch.done:
                    self._give_up(lane, batch)
                    yield batch
            if lane.unresolved is not None and not lane.unacked:
                if lane.next_sequence != lane.last_acked + 1:
                    self._spoil(lane, "what was given up has no outcome")
                lane.unresolved = None
        if any(lane.rewrites for lane in self._lanes.values()):
            self._bump()

    def _give_up(self, lane: Lane, batch: Batch) -> None:
        lane.end(batch)
        self.expired += 1
        if self._transactional:
            self.abortable = "given up"
        if batch.retried:
            lane.unresolved = max(lane.unresolved or 0, batch.last_sequence + 1)

    def _spoil(self, lane: Lane, why: str) -> None:
        if self._transactional:
            self.abortable = why
        else:
            lane.rewrites = True

    def _bump(self) -> None:
        assert self.producer is not None
        self.producer = self.producer[0], ProducerEpoch(self.producer[1] + 1)
        self.bumps += 1
        for lane in self._lanes.values():
            if lane.rewrites:
                lane.begin(self.producer)

    def acknowledge(self, batch: Batch) -> bool:
        """Note a success; return whether it had no outcome before."""
        lane = self._lanes.get(batch.partition)
        is_first = not batch.done
        if lane is not None:
            if batch.producer == lane.producer:
                lane.last_acked = max(lane.last_acked, batch.last_sequence)
            lane.end(batch)
        return is_first

    def refuse(self, batch: Batch, error: ErrorCode) -> None:
        """Try it again, or let it fail."""
        lane = self._lanes.get(batch.partition)
        if batch.done or lane is None:
            return
        if self._may_retry(lane, batch, error):
            lane.retry(batch)
            return
        lane.end(batch)
        self._spoil(lane, error.name)
        if self._transactional:
            lane.close_gap(batch)

    def _may_retry(self, lane: Lane, batch: Batch, error: ErrorCode) -> bool:
        if error is ErrorCode.out_of_order_sequence_number:
            is_next = batch.sequence == lane.last_acked + 1
            if lane.unresolved is None and (batch.rewritten or not is_next):
                return True
            if self._transactional:
                return False
            if lane.unresolved in (None, batch.sequence):
                self._note_gap(lane, batch, error)
                lane.rewrites = True
            return True
        if error is ErrorCode.unknown_producer_id and not self._transactional:
            if not batch.rewritten:
                self._note_gap(lane, batch, error)
                lane.rewrites = True
            return True
        return error in RETRIED

    def _note_gap(self, lane: Lane, batch: Batch, error: ErrorCode) -> None:
        if lane.unresolved is None:
            self.gaps.append(f"{batch.numbers} as {batch.producer}/{batch.sequence}: {error.name}")

    def drop_unsent(self) -> None:
        """Forget what was never drained: the transaction is aborted."""
        for lane in self._lanes.values():
            for batch in [each for each in lane.waiting if each.sequence == NO_SEQUENCE]:
                lane.end(batch)
