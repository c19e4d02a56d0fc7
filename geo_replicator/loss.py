"""What a takeover loses, bounded before it acts (the statement), and what the tail of a log holds.

INV-LO1  everything that a statement calls covered is below the cut; everything that may be lost is at or
        beyond it, and is either named (it was copied) or lies behind `copied_end` (it never arrived)
INV-LO2  a lost transaction is one with a commit decision beyond L: its PREPARE_COMMIT record, not its
        markers, says so; data of undecided or aborted transactions beyond D was never committed, and neither were
        the group offsets that they staged
INV-LO4  what was cut off twice is counted once, and what lay at the same offsets under other bytes is counted, too

Words: a *plain* record is one outside any transaction. Not here: what was lost in the end (`counted_losses`), reading
logs and quarantine (drivers).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from idempotency.identity import (
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    RegionEpoch,
    Round,
    SequenceNumber,
)
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.record_batch import BatchHeader

LISTED_MAX: Final = 10_000


class DecisionFacts(msgspec.Struct, frozen=True, order=True):
    """Where a commit was decided: the position of its PREPARE record (rule T6) and its round."""

    shard: int
    leader_epoch: LeaderEpoch
    offset: int
    stamp: Round


class LostTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction with a commit decision beyond the cut."""

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


class UndoneChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a topic that was heard of and that no tidemark reached covers: it is not carried out."""

    topic: str
    change: str


class LogBound(msgspec.Struct, frozen=True, kw_only=True):
    """One log at the moment of the statement: covered below `cut`, known below `copied_end`, open behind.

    `stopped` says why it cannot be read here: then nothing of it is known by name. `shown_end` is how far of it was
    shown to readers, -1 where that is not told: behind it lies what was copied and confirmed by no tidemark.
    """

    topic: str
    topic_id: str
    partition: int
    cut: int
    copied_end: int
    stopped: str = ""
    shown_end: int = -1

    @property
    def trouble(self) -> str:
        """Return what is wrong with the log in this region, empty if nothing is."""
        if self.stopped:
            return (
                f"{self.topic}-{self.partition} has stopped here: what it holds from {self.cut} to {self.copied_end}"
                f" cannot be named, and it serves nobody until the node restarts ({self.stopped})"
            )
        if self.copied_end < self.cut:
            return f"{self.topic}-{self.partition} lacks {self.copied_end} to {self.cut} of the tidemark itself"
        return ""


class LossStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What acting now at this tidemark would lose, at most.

    `age_ms` is how long ago the tidemark was published, by the two regions' wall clocks.
    `last_heard_ms` is how long this region has not heard the old one; -1 if it never did. `accepted`: it is what
    `from_region` holds beyond `to_region`, as it said itself, and an operator gave that up (T33).
    """

    domain: str
    from_region: str
    to_region: str
    region_epoch: RegionEpoch
    tidemark_region_epoch: RegionEpoch
    tidemark_number: int
    age_ms: int
    last_heard_ms: int
    made_wall_ms: int
    planned: bool
    bounds: tuple[LogBound, ...]
    transactions: tuple[LostTransaction, ...]
    transaction_count: int
    plain: tuple[RecordRange, ...]
    plain_record_count: int
    open_bound: str
    offsets: tuple[LostOffsets, ...] = ()
    offset_commit_count: int = 0
    topic_changes: tuple[UndoneChange, ...] = ()
    accepted: bool = False

    @property
    def base(self) -> TidemarkPoint:
        """Return the tidemark that is acted from; it is the base of the takeover's entry in the lineage."""
        return TidemarkPoint(self.tidemark_region_epoch, self.tidemark_number)

    def names_diverged(self, region: str, log: LogKey, first_offset: int) -> bool:
        """Return whether this is what `region` held beyond a region that accepted its loss (INV-LO6)."""
        return (
            self.accepted
            and self.from_region == region
            and any(
                (bound.topic_id, bound.partition) == (log.topic_id.hex, log.partition)
                and bound.cut <= first_offset < bound.copied_end
                for bound in self.bounds
            )
        )


@dataclass(frozen=True, slots=True)
class TailBatch:
    """One batch of a data partition beyond the cut."""

    log: LogKey
    topic: str
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class TailDecision:
    """One record of a transaction ledger beyond the cut, with its position."""

    shard: int
    leader_epoch: LeaderEpoch
    offset: int
    record: TransactionRecord


@dataclass(frozen=True, slots=True)
class TailCommit:
    """One committed offset in the offsets ledger beyond the cut, with its position; `header` is of its batch."""

    shard: int
    offset: int
    header: BatchHeader
    group_id: str
    topic: str
    partition: int
    committed_offset: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Everything beyond a cut: data batches in offset order per partition, ledger records per shard.

    `group_batches` are batches of the offsets ledger: commits of group offsets, and group state; `commits` the former.
    `unreadable` are the logs, with the reason, of which nobody can say what they hold.
    """

    batches: Sequence[TailBatch]
    decisions: Sequence[TailDecision]
    group_batches: Sequence[TailBatch] = ()
    unreadable: Sequence[str] = ()
    commits: Sequence[TailCommit] = ()


def lost_transactions(decisions: Iterable[TailDecision]) -> tuple[LostTransaction, ...]:
    """Return the commit decisions among `decisions`, by decision (INV-LO2), each once (INV-LO4)."""
    lost = {
        LostTransaction(
            transactional_id=str(decision.record.transactional_id),
            producer_id=decision.record.producer_id,
            producer_epoch=decision.record.producer_epoch,
            decision=DecisionFacts(
                shard=decision.shard,
                leader_epoch=decision.leader_epoch,
                offset=decision.offset,
                stamp=Round(-1) if decision.record.stamp is None else decision.record.stamp,
            ),
            partitions=tuple(sorted(str(tp) for tp in decision.record.partitions)),
            decided_wall_ms=decision.record.last_update_ms,
        )
        for decision in decisions
        if decision.record.status is TxnStatus.PREPARE_COMMIT
    }
    return tuple(sorted(lost, key=lambda transaction: transaction.decision))


def record_ranges(
    batches: Iterable[TailBatch], committed: Iterable[LostTransaction] = ()
) -> tuple[RecordRange, ...]:
    """Return the ranges per partition and producer of the data (not marker) `batches`, in log order.

    One range each, unless tails overlap: a log that was cut, grew, and was cut again further below (INV-LO4).
    """
    committed_producers = {
        (transaction.producer_id, transaction.producer_epoch) for transaction in committed
    }
    ranges: dict[tuple[LogKey, ProducerId, ProducerEpoch, bool], list[RecordRange]] = {}
    for batch in _once(batches):
        header = batch.header
        if header.is_control:
            continue
        key = (batch.log, header.producer_id, header.producer_epoch, header.is_transactional)
        known = ranges.setdefault(key, [])
        if known and header.base_offset > known[-1].last_offset:
            known[-1] = _extended(known[-1], header)
        else:
            known.append(_range_of(batch, committed_producers))
    return tuple(found for key in sorted(ranges) for found in ranges[key])


def lost_offsets(
    commits: Iterable[TailCommit], committed: Iterable[LostTransaction] = ()
) -> tuple[LostOffsets, ...]:
    """Return what groups committed, by themselves or in transactions `committed`, each commit once (INV-LO4)."""
    committed_producers = {
        (transaction.producer_id, transaction.producer_epoch) for transaction in committed
    }
    seen: set[tuple[int, int, BatchHeader]] = set()
    found: dict[tuple[str, str, int], LostOffsets] = {}
    for commit in commits:
        header, place = commit.header, (commit.shard, commit.offset, commit.header)
        producer = (header.producer_id, header.producer_epoch)
        if place in seen or (header.is_transactional and producer not in committed_producers):
            continue
        seen.add(place)
        key = (commit.group_id, commit.topic, commit.partition)
        before = found.get(key)
        found[key] = LostOffsets(
            group_id=commit.group_id,
            topic=commit.topic,
            partition=commit.partition,
            commit_count=1 if before is None else before.commit_count + 1,
            last_offset=commit.committed_offset,
        )
    return tuple(found[key] for key in sorted(found))


def _once(batches: Iterable[TailBatch]) -> Iterator[TailBatch]:
    """Yield each batch that two tails hold only once; batches of one tail come in offset order."""
    ends: dict[LogKey, int] = {}
    seen: dict[LogKey, set[BatchHeader]] = {}
    for batch in batches:
        known = seen.setdefault(batch.log, set())
        if batch.header.base_offset < ends.get(batch.log, 0) and batch.header in known:
            continue
        ends[batch.log] = max(ends.get(batch.log, 0), batch.header.next_offset)
        known.add(batch.header)
        yield batch


def _extended(known: RecordRange, header: BatchHeader) -> RecordRange:
    return msgspec.structs.replace(
        known,
        last_offset=header.last_offset,
        record_count=known.record_count + header.record_count,
        last_sequence=header.last_sequence,
    )


def _range_of(batch: TailBatch, committed_producers: set[ProducerPair]) -> RecordRange:
    header = batch.header
    producer = (header.producer_id, header.producer_epoch)
    return RecordRange(
        topic=batch.topic,
        topic_id=batch.log.topic_id.hex,
        partition=batch.log.partition,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        first_offset=header.base_offset,
        last_offset=header.last_offset,
        record_count=header.record_count,
        first_sequence=header.base_sequence,
        last_sequence=header.last_sequence,
        transactional=header.is_transactional,
        committed=producer in committed_producers if header.is_transactional else None,
    )


@dataclass(frozen=True, slots=True)
class Takeover:
    """Who would take over from whom, and what is known of the old region's silence."""

    domain: str
    from_region: str
    to_region: str
    region_epoch: RegionEpoch
    planned: bool
    last_heard_ms: int


def make_statement(
    takeover: Takeover,
    cut: Cut,
    bounds: Sequence[LogBound],
    tail: Tail,
    *,
    now_wall_ms: int,
    topic_changes: Sequence[UndoneChange] = (),
) -> LossStatement:
    """Return what acting at `cut` loses at most (INV-LO1). `bounds` are this region's logs."""
    transactions = lost_transactions(tail.decisions)
    plain = tuple(known for known in record_ranges(tail.batches) if not known.transactional)
    offsets = lost_offsets(tail.commits, transactions)
    return LossStatement(
        domain=takeover.domain,
        from_region=takeover.from_region,
        to_region=takeover.to_region,
        region_epoch=takeover.region_epoch,
        tidemark_region_epoch=cut.point.region_epoch,
        tidemark_number=cut.point.number,
        age_ms=max(0, now_wall_ms - cut.published_wall_ms) if cut.published_wall_ms else -1,
        last_heard_ms=takeover.last_heard_ms,
        made_wall_ms=now_wall_ms,
        planned=takeover.planned,
        bounds=tuple(bounds),
        transactions=transactions[:LISTED_MAX],
        transaction_count=len(transactions),
        plain=plain[:LISTED_MAX],
        plain_record_count=sum(known.record_count for known in plain),
        open_bound="; ".join([_open_bound(takeover, cut), *troubles(bounds), *tail.unreadable]),
        topic_changes=tuple(topic_changes),
        offsets=offsets[:LISTED_MAX],
        offset_commit_count=sum(known.commit_count for known in offsets),
    )


def troubles(bounds: Iterable[LogBound]) -> list[str]:
    """Return what is wrong with these logs, so that they cannot be stated whole."""
    return [bound.trouble for bound in bounds if bound.trouble]


def _open_bound(takeover: Takeover, cut: Cut) -> str:
    if takeover.planned:
        return f"nothing: region {takeover.from_region} was drained at {cut.point}"
    heard = (
        f"was last heard {takeover.last_heard_ms} ms ago"
        if takeover.last_heard_ms >= 0
        else "was not heard since this node started"
    )
    return (
        f"whatever region {takeover.from_region} acknowledged that never arrived here: every record"
        " at or behind the end of its log's copy here (copied_end in -o json), ledgers of groups and"
        " transactions too, and every topic or config that it created, changed or deleted since. A topic's growth or deletion that no tidemark"
        f" covers is undone. It {heard}; what it acknowledged since is unknown"
        " until it returns, and then listed by: tidemark region losses"
    )
