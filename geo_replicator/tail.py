"""What lies beyond a cut, counted while it is read: records by producer, offsets by group, and each lost transaction.

INV-LO2  a lost transaction is one with a commit decision beyond L: its PREPARE_COMMIT record, not its
        markers, says so; data of undecided or aborted transactions beyond D was never committed, and neither were
        the group offsets that they staged. What a decision commits has the epoch before the record's under transactions v2 (KIP-890);
        under v1 it has the record's own, and so may the producer's next transaction, which is taken for a part of it
INV-LO4  what was cut off twice is counted once, and what lay at the same offsets under other bytes is counted, too
INV-LO10 a tail takes memory, and what is said of it takes time, by its producers, groups and lost transactions, and not by its
        batches: of these only what tells them apart is kept, where a log was cut off twice. Nor by transactions that are not
        lost: a statement keeps nothing of transactional records (`plain_only`), and decisions are taken before what transactions
        staged for groups. Where losses are listed, each producer epoch is a producer: each TV2 transaction has one (KIP-890).
        A driver makes statements and lists of losses in a thread, as they sort groups, plain producers and lost transactions, and
        no sort is of very many at once: others run between two steps of Python only (`in_order`)

1. A mirror's tidemark stands, and its logs grow for an hour. 2. It is to take over, and its leader holds each batch behind the
cut, and goes through all of them in one step of its loop. 3. It is fenced for that, and the next one that leads does the same. So it was with what it kept of each transaction.
Words: a *plain* record is one outside any transaction. Not here: what the statement makes of it (`loss`), and the count
(`counted_losses`), reading logs and quarantine (drivers).
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import merge
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from idempotency.identity import (
    LeaderEpoch,
    LogKey,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    Round,
    SequenceNumber,
)
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.record_batch import BatchHeader


class DecisionFacts(msgspec.Struct, frozen=True, order=True):
    """Where a commit was decided: the position of its PREPARE record (rule T6) and its round."""

    shard: int
    leader_epoch: LeaderEpoch
    offset: int
    stamp: Round


class LostTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction with a commit decision beyond the cut; `producer_epoch` as in what it wrote."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    decision: DecisionFacts
    partitions: tuple[str, ...]
    decided_wall_ms: int


class RecordRange(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one producer in one partition beyond the cut; offsets inclusive, sequences of its ends.

    `producer_id` is -1 for producers without idempotence. `committed` is None for plain records, else
    whether a commit decision of that producer lies beyond the cut too.
    """

    topic: str
    topic_id: str
    partition: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: int
    last_offset: int
    record_count: int
    first_sequence: SequenceNumber
    last_sequence: SequenceNumber
    transactional: bool
    committed: bool | None = None


class LostOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """Commits of one group for one partition beyond the cut: it reads on from an older offset.

    `last_offset` is what the last of them committed.
    """

    group_id: str
    topic: str
    partition: int
    commit_count: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class TailDecision:
    """One record of a transaction ledger beyond the cut, with its position."""

    shard: int
    leader_epoch: LeaderEpoch
    offset: int
    record: TransactionRecord


class GroupCommit(NamedTuple):
    """One committed offset in a batch of the offsets ledger."""

    group_id: str
    topic: str
    partition: int
    committed_offset: int


_Row = TypeVar("_Row")
_SORTED_AT_ONCE: Final = 5_000
_RangeKey: TypeAlias = tuple[ProducerId, ProducerEpoch, bool]


class Tail:
    """Everything beyond a cut: batches are taken log by log and tail by tail, those of one tail in offset order.

    Decisions come first, before any commit of a group: what was staged counts where its transaction is known as lost.
    `unreadable` are the logs, with the reason, of which nobody can say what they hold; `statuses` what the records of transaction
    ledgers say; `has_group_batches`: group state, or offsets that groups committed.
    """

    def __init__(self, told_twice: Container[LogKey] = (), *, plain_only: bool = False) -> None:
        """Nothing lies there yet; of the logs `told_twice` more than one tail is taken (INV-LO4).

        `plain_only`: no ranges of transactional records are asked for (INV-LO10).
        """
        self.unreadable: list[str] = []
        self.statuses: set[TxnStatus] = set()
        self.has_group_batches = False
        self._told_twice = told_twice
        self._plain_only = plain_only
        self._logs: dict[LogKey, _LogTail] = {}
        self._batches: dict[LogKey, _KnownBatches] = {}
        self._transactions: dict[LostTransaction, None] = {}
        self._committed: set[ProducerPair] = set()
        self._offsets: dict[tuple[str, str, int], _Commits] = {}

    @property
    def has_records(self) -> bool:
        """Return whether any batch of a data partition lies there."""
        return bool(self._logs)

    def take_data(self, log: LogKey, topic: str, header: BatchHeader) -> None:
        """Take a batch of a data partition, which is no marker."""
        if self._is_known(log, header):
            return
        taken = self._logs.get(log)
        if taken is None:
            taken = self._logs[log] = _LogTail(log, topic, header)
        if not (self._plain_only and header.is_transactional):
            taken.take(header)

    def take_commits(
        self, log: LogKey, header: BatchHeader, commits: Iterable[GroupCommit]
    ) -> None:
        """Take a batch of the offsets ledger, with the offsets that groups commit in it."""
        self.has_group_batches = True
        if self._is_known(log, header):
            return
        producer = header.producer_id, header.producer_epoch
        if header.is_transactional and producer not in self._committed:
            return
        for group_id, topic, partition, committed_offset in commits:
            taken = self._offsets.setdefault((group_id, topic, partition), _Commits())
            taken.commit_count += 1
            taken.committed_offset = committed_offset

    def take_decision(self, decision: TailDecision) -> None:
        """Take a record of a transaction ledger (INV-LO2)."""
        assert not self.has_group_batches, "staged offsets were judged without it"
        self.statuses.add(decision.record.status)
        if decision.record.status is TxnStatus.PREPARE_COMMIT:
            lost = _lost_transaction(decision)
            self._transactions[lost] = None
            self._committed.add((lost.producer_id, lost.producer_epoch))

    def transactions(self) -> tuple[LostTransaction, ...]:
        """Return the commit decisions, in their order, each once (INV-LO2, INV-LO4)."""
        return tuple(in_order(self._transactions, lambda transaction: transaction.decision))

    def ranges(self) -> Iterator[RecordRange]:
        """Yield the ranges per partition and producer, in log order.

        One range each, unless tails overlap: a log that was cut, grew, and was cut again further below (INV-LO4).
        """
        for key in sorted(self._logs):
            yield from self._logs[key].ranges(self._committed)

    def plain_record_count(self) -> int:
        """Return how many records outside any transaction lie there."""
        return sum(log.plain_record_count() for log in self._logs.values())

    def offsets(self) -> tuple[LostOffsets, ...]:
        """Return what groups committed, by themselves or in lost transactions, each commit once (INV-LO4)."""
        return tuple(
            LostOffsets(
                group_id=group_id,
                topic=topic,
                partition=partition,
                commit_count=commits.commit_count,
                last_offset=commits.committed_offset,
            )
            for (group_id, topic, partition), commits in in_order(
                self._offsets.items(), lambda taken: taken[0]
            )
        )

    def firsts(self) -> Mapping[LogKey, BatchHeader]:
        """Return the first batch that was taken of each data partition."""
        return {key: log.first for key, log in self._logs.items()}

    def _is_known(self, log: LogKey, header: BatchHeader) -> bool:
        if log not in self._told_twice:
            return False
        return not self._batches.setdefault(log, _KnownBatches()).is_new(header)


class _KnownBatches:
    """The batches of one log that were taken: 16 bytes of each, in runs of ascending offsets."""

    def __init__(self) -> None:
        self._runs: list[tuple[array[int], array[int]]] = []

    def is_new(self, header: BatchHeader) -> bool:
        """Return whether no tail had this very batch before, and take note of it."""
        offset, told_by = header.base_offset, hash(header)
        for offsets, hashes in self._runs:
            at = bisect_left(offsets, offset)
            if at < len(offsets) and (offsets[at], hashes[at]) == (offset, told_by):
                return False
        if not self._runs or offset <= self._runs[-1][0][-1]:
            self._runs.append((array("q"), array("q")))
        offsets, hashes = self._runs[-1]
        offsets.append(offset)
        hashes.append(told_by)
        return True


@dataclass(slots=True)
class _Records:
    """A `RecordRange` that still grows."""

    first_offset: int
    last_offset: int
    record_count: int
    first_sequence: SequenceNumber
    last_sequence: SequenceNumber


class _LogTail:
    """What of one data partition lies beyond the cut."""

    def __init__(self, log: LogKey, topic: str, first: BatchHeader) -> None:
        self.first = first
        self._log = log
        self._topic = topic
        self._ranges: dict[_RangeKey, list[_Records]] = {}

    def take(self, header: BatchHeader) -> None:
        """Take a batch: it goes on with the last range of its producer, or begins one."""
        key = header.producer_id, header.producer_epoch, header.is_transactional
        known = self._ranges.setdefault(key, [])
        if known and header.base_offset > known[-1].last_offset:
            last = known[-1]
            last.last_offset, last.last_sequence = header.last_offset, header.last_sequence
            last.record_count += header.record_count
        else:
            first, count = header.base_sequence, header.record_count
            known.append(
                _Records(header.base_offset, header.last_offset, count, first, header.last_sequence)
            )

    def plain_record_count(self) -> int:
        """Return how many records are outside any transaction."""
        return sum(
            found.record_count
            for (_, _, is_transactional), ranges in self._ranges.items()
            if not is_transactional
            for found in ranges
        )

    def ranges(self, committed: Container[ProducerPair]) -> Iterator[RecordRange]:
        """Yield the ranges by producer; `committed` are those with a commit decision beyond the cut."""
        for key in in_order(self._ranges, lambda key: key):
            producer_id, producer_epoch, is_transactional = key
            pair = producer_id, producer_epoch
            for found in self._ranges[key]:
                yield RecordRange(
                    topic=self._topic,
                    topic_id=self._log.topic_id.hex,
                    partition=self._log.partition,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    first_offset=found.first_offset,
                    last_offset=found.last_offset,
                    record_count=found.record_count,
                    first_sequence=found.first_sequence,
                    last_sequence=found.last_sequence,
                    transactional=is_transactional,
                    committed=pair in committed if is_transactional else None,
                )


@dataclass(slots=True)
class _Commits:
    """What was committed of one group for one partition: how often, and the last of it."""

    commit_count: int = 0
    committed_offset: int = -1


def in_order(rows: Iterable[_Row], place: Callable[[_Row], Any]) -> Iterator[_Row]:
    """Yield the rows sorted by `place`, a few thousand of them in one sort: a thread that sorts all lets no other one run."""
    unsorted = list(rows)
    runs = (
        sorted(unsorted[at : at + _SORTED_AT_ONCE], key=place)
        for at in range(0, len(unsorted), _SORTED_AT_ONCE)
    )
    return merge(*runs, key=place)


def _epoch_of_data(committing: TransactionRecord) -> ProducerEpoch:
    """Return the epoch of what a PREPARE_COMMIT commits (INV-LO2)."""
    bumped = committing.client_tv >= 2
    return committing.last_producer_epoch if bumped else committing.producer_epoch


def _lost_transaction(decision: TailDecision) -> LostTransaction:
    record = decision.record
    return LostTransaction(
        transactional_id=str(record.transactional_id),
        producer_id=record.producer_id,
        producer_epoch=_epoch_of_data(record),
        decision=DecisionFacts(
            shard=decision.shard,
            leader_epoch=decision.leader_epoch,
            offset=decision.offset,
            stamp=Round(-1) if record.stamp is None else record.stamp,
        ),
        partitions=tuple(sorted(str(tp) for tp in record.partitions)),
        decided_wall_ms=record.last_update_ms,
    )
