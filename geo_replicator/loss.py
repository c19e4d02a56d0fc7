"""What a take-over loses: bounded before it acts (the statement), exact after the old region returned.

INV-LO1  everything that a statement calls covered is below the cut; everything that may be lost is at or
        beyond it, and is either named (it was copied) or lies behind `copied_end` (it never arrived)
INV-LO2  a lost transaction is one with a commit decision beyond L: its PREPARE_COMMIT record, not its
        markers, says so; data of undecided or aborted transactions beyond D was never committed
INV-LO3  `unexplained` is empty, or the statement was wrong

Words: a *plain* record is one outside any transaction. Not here: reading logs and quarantine (drivers).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from geo_replicator.lineage import Cut, LogKey
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.record_batch import BatchHeader

LISTED_MAX: Final = 10_000


class DecisionFacts(msgspec.Struct, frozen=True, order=True):
    """Where a commit was decided: the position of its PREPARE record (rule T6) and its round."""

    shard: int
    leader_epoch: int
    offset: int
    stamp: int


class LostTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction with a commit decision beyond the cut."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
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
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_offset: int
    record_count: int
    first_sequence: int
    last_sequence: int
    transactional: bool
    committed: bool | None = None


class LogBound(msgspec.Struct, frozen=True, kw_only=True):
    """One log at the moment of the statement: covered below `cut`, known below `copied_end`, open behind."""

    topic: str
    topic_id: str
    partition: int
    cut: int
    copied_end: int


class LossStatement(msgspec.Struct, frozen=True, kw_only=True):
    """What acting now at this tidemark would lose, at most.

    `age_ms` is how long ago the tidemark was published, by the two regions' wall clocks.
    `last_heard_ms` is how long this region has not heard the old one; -1 if it never did.
    """

    domain: str
    from_region: str
    to_region: str
    region_epoch: int
    tidemark_region_epoch: int
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


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """What was lost, from what one region had to put into quarantine for one lineage entry.

    `exact` in a region that returned: its tail is all that there was. The taker's own quarantine holds
    only what had been copied, so its losses are those known so far.
    """

    domain: str
    lineage_epoch: int
    region: str
    exact: bool
    base_region_epoch: int
    base_number: int
    transactions: tuple[LostTransaction, ...]
    transaction_count: int
    records: tuple[RecordRange, ...]
    plain_record_count: int
    transactional_record_count: int
    unexplained: tuple[str, ...]
    statement: LossStatement | None = None


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
    leader_epoch: int
    offset: int
    record: TransactionRecord


@dataclass(frozen=True, slots=True)
class Tail:
    """Everything beyond a cut: data batches in offset order per partition, ledger records per shard.

    `group_batches` are batches of the offsets ledger: commits of group offsets, and group state.
    """

    batches: Sequence[TailBatch]
    decisions: Sequence[TailDecision]
    group_batches: Sequence[TailBatch] = ()


def lost_transactions(decisions: Iterable[TailDecision]) -> tuple[LostTransaction, ...]:
    """Return the commit decisions among `decisions`, by decision (INV-LO2)."""
    lost = [
        LostTransaction(
            transactional_id=str(decision.record.transactional_id),
            producer_id=decision.record.producer_id,
            producer_epoch=decision.record.producer_epoch,
            decision=DecisionFacts(
                shard=decision.shard,
                leader_epoch=decision.leader_epoch,
                offset=decision.offset,
                stamp=-1 if decision.record.stamp is None else decision.record.stamp,
            ),
            partitions=tuple(sorted(str(tp) for tp in decision.record.partitions)),
            decided_wall_ms=decision.record.last_update_ms,
        )
        for decision in decisions
        if decision.record.status is TxnStatus.PREPARE_COMMIT
    ]
    return tuple(sorted(lost, key=lambda transaction: transaction.decision))


def record_ranges(
    batches: Iterable[TailBatch], committed: Iterable[LostTransaction] = ()
) -> tuple[RecordRange, ...]:
    """Return one range per partition and producer of the data (not marker) `batches`, in log order."""
    committed_producers = {
        (transaction.producer_id, transaction.producer_epoch) for transaction in committed
    }
    ranges: dict[tuple[LogKey, int, int, bool], RecordRange] = {}
    for batch in batches:
        header = batch.header
        if header.is_control:
            continue
        key = (batch.log, header.producer_id, header.producer_epoch, header.is_transactional)
        ranges[key] = _extend(ranges.get(key), batch, committed_producers)
    return tuple(ranges[key] for key in sorted(ranges))


def _extend(
    known: RecordRange | None, batch: TailBatch, committed_producers: set[tuple[int, int]]
) -> RecordRange:
    header = batch.header
    if known is not None:
        assert header.base_offset > known.last_offset, (header, known)
        return msgspec.structs.replace(
            known,
            last_offset=header.last_offset,
            record_count=known.record_count + header.record_count,
            last_sequence=header.last_sequence,
        )
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
    region_epoch: int
    planned: bool
    last_heard_ms: int


def make_statement(
    takeover: Takeover, cut: Cut, bounds: Sequence[LogBound], tail: Tail, *, now_wall_ms: int
) -> LossStatement:
    """Return what acting at `cut` loses at most (INV-LO1). `bounds` are this region's logs."""
    transactions = lost_transactions(tail.decisions)
    plain = tuple(known for known in record_ranges(tail.batches) if not known.transactional)
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
        open_bound=_open_bound(takeover, cut),
    )


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
        f" at or behind copied_end of its log. It {heard}; what it acknowledged since is unknown"
        " until it returns, and then listed by: tidemark region losses"
    )


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The tails that one region moved to quarantine for one lineage entry."""

    domain: str
    lineage_epoch: int
    region: str
    base_region_epoch: int
    base_number: int
    tail: Tail
    exact: bool = True


def count_losses(quarantined: Quarantined, statement: LossStatement | None) -> Losses:
    """Return what was lost exactly, checked against `statement` where it is known (INV-LO3)."""
    transactions = lost_transactions(quarantined.tail.decisions)
    records = record_ranges(quarantined.tail.batches, transactions)
    return Losses(
        domain=quarantined.domain,
        lineage_epoch=quarantined.lineage_epoch,
        region=quarantined.region,
        exact=quarantined.exact,
        base_region_epoch=quarantined.base_region_epoch,
        base_number=quarantined.base_number,
        transactions=transactions[:LISTED_MAX],
        transaction_count=len(transactions),
        records=records[:LISTED_MAX],
        plain_record_count=sum(r.record_count for r in records if not r.transactional),
        transactional_record_count=sum(r.record_count for r in records if r.transactional),
        unexplained=() if statement is None else _unexplained(statement, transactions, records),
        statement=statement,
    )


def _unexplained(
    statement: LossStatement,
    transactions: Sequence[LostTransaction],
    records: Sequence[RecordRange],
) -> tuple[str, ...]:
    shards = {b.partition: b for b in statement.bounds if b.topic.startswith("__transaction_state")}
    named = {transaction.decision for transaction in statement.transactions}
    found = []
    for transaction in transactions:
        bound = shards.get(transaction.decision.shard)
        if bound is None:
            continue
        where = f"commit of {transaction.transactional_id} at {transaction.decision}"
        if transaction.decision.offset < bound.cut:
            found.append(f"{where} is lost, but the statement covered the ledger to {bound.cut}")
        elif transaction.decision.offset < bound.copied_end and transaction.decision not in named:
            found.append(f"{where} is lost and had been copied, but the statement did not name it")
    cuts = {(b.topic_id, b.partition): b.cut for b in statement.bounds}
    for lost in records:
        cut = cuts.get((lost.topic_id, lost.partition), 0)
        if lost.first_offset < cut:
            where = f"{lost.topic}-{lost.partition} from {lost.first_offset}"
            found.append(f"{where} is lost, but the statement covered it to {cut}")
    return tuple(found)
