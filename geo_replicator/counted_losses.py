"""What a takeover lost, counted exactly from quarantine after a region returned, and held against the statement.

INV-LO3  `unexplained` is empty, or the statement was wrong. In the region that was lost the check is an
         equality: what lies below `copied_end` is what was named, neither more nor less; what lies behind it
         is listed as not arrived
INV-LO5  a tail that diverged is no loss of the takeover that was followed at the time: it is listed by itself
INV-LO6  but for what an accepted loss named: there both histories part below the base, and the tail is found by its bytes
INV-LO7  what a takeover had cut off that was passed over, and what the histories since hold of it, is no loss
INV-LO8  after a planned switch an empty tail is exact in every region: all that was acknowledged is in the base (INV-FD5)

Not here: the statement (`loss`), what a tail holds (`tail`); reading quarantine (drivers).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from geo_replicator.lineage import LogKey
from geo_replicator.loss import LISTED_MAX, LossStatement
from geo_replicator.quarantine import CutCause
from geo_replicator.tail import LostOffsets, LostTransaction, RecordRange, Tail
from idempotency.identity import TRANSACTION_LEDGER, RegionEpoch
from idempotency.record_batch import BatchHeader


class Losses(msgspec.Struct, frozen=True, kw_only=True):
    """What was lost, from what one region had to put into quarantine for one lineage entry.

    `exact` in a region that returned: its tail is all that there was. The candidate's own quarantine, and that of
    another mirror, holds only what had been copied, so its losses are those known so far; after a planned switch there is no more. With a statement, each
    lost transaction is either one of the `named_count` that it named, or in `not_arrived`, or in `unexplained`.

    `cause` is `divergence` for what a mirror held and the primary region did not, while `lineage_epoch` was followed:
    no takeover lost that, and no statement names it. `unreadable` are the tails, with the reason, that the disk
    changed: what they held is not counted, or not whole.
    """

    domain: str
    lineage_epoch: RegionEpoch
    region: str
    exact: bool
    base_region_epoch: RegionEpoch
    base_number: int
    transactions: tuple[LostTransaction, ...]
    transaction_count: int
    records: tuple[RecordRange, ...]
    plain_record_count: int
    transactional_record_count: int
    named_count: int
    not_arrived: tuple[LostTransaction, ...]
    not_arrived_count: int
    unexplained: tuple[str, ...]
    statement: LossStatement | None = None
    cause: CutCause = CutCause.LINEAGE
    offsets: tuple[LostOffsets, ...] = ()
    offset_commit_count: int = 0
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The tails that one region moved to quarantine for one lineage entry, and one cause.

    `exact` as in `Losses`, as far as the tails say; `complete`: the region has cut all its logs, no tail is to come.
    """

    domain: str
    lineage_epoch: RegionEpoch
    region: str
    base_region_epoch: RegionEpoch
    base_number: int
    tail: Tail
    exact: bool = True
    complete: bool = True
    cause: CutCause = CutCause.LINEAGE


def count_losses(quarantined: Quarantined, statement: LossStatement | None) -> Losses:
    """Return what was lost exactly, checked against `statement` where it is known (INV-LO3)."""
    tail = quarantined.tail
    transactions, records, offsets = tail.transactions(), tuple(tail.ranges()), tail.offsets()
    assert quarantined.cause is CutCause.LINEAGE or statement is None, quarantined  # INV-LO5
    check = None if statement is None else _Check(statement, transactions, records, tail.firsts())
    # Where it is known who was lost: another mirror's tail is only what it had copied.
    of_the_lost = statement is None or quarantined.region == statement.from_region
    not_arrived = () if check is None else check.not_arrived()
    unexplained: tuple[str, ...] = ()
    if check is not None:
        whole = quarantined.complete and quarantined.region == check.statement.from_region
        whole = whole and not tail.unreadable
        unexplained = (*check.unnamed(), *(check.named_in_vain() if whole else ()))
    is_drained = statement is not None and statement.planned
    is_nothing = is_drained and not (transactions or records or offsets)  # INV-LO8
    return Losses(
        domain=quarantined.domain,
        lineage_epoch=quarantined.lineage_epoch,
        region=quarantined.region,
        exact=(is_nothing or (quarantined.exact and of_the_lost)) and not tail.unreadable,
        base_region_epoch=quarantined.base_region_epoch,
        base_number=quarantined.base_number,
        transactions=transactions[:LISTED_MAX],
        transaction_count=len(transactions),
        records=records[:LISTED_MAX],
        plain_record_count=tail.plain_record_count(),
        transactional_record_count=sum(r.record_count for r in records if r.transactional),
        named_count=0 if check is None else check.named_count(),
        not_arrived=not_arrived[:LISTED_MAX],
        not_arrived_count=len(not_arrived),
        unexplained=unexplained,
        statement=statement,
        cause=quarantined.cause,
        offsets=offsets[:LISTED_MAX],
        offset_commit_count=sum(known.commit_count for known in offsets),
        unreadable=tuple(tail.unreadable),
    )


class _Check:
    """Compares a statement with a tail, in both directions."""

    def __init__(
        self,
        statement: LossStatement,
        transactions: Sequence[LostTransaction],
        records: Sequence[RecordRange],
        firsts: Mapping[LogKey, BatchHeader],
    ) -> None:
        self.statement = statement
        self._transactions, self._records = transactions, records
        self._shards = {
            bound.partition: bound
            for bound in statement.bounds
            if bound.topic == TRANSACTION_LEDGER
        }
        self._logs = {(bound.topic_id, bound.partition): bound for bound in statement.bounds}
        # One across the cut, where a batch of the base ends: histories had parted below, and no statement speaks of this one.
        self._parted = {
            (bound.topic_id, bound.partition)
            for log, first in firsts.items()
            if (bound := self._logs.get((log.topic_id.hex, log.partition)))
            and first.base_offset < bound.cut <= first.last_offset
        }
        self._named = {transaction.decision for transaction in statement.transactions}
        # A long statement lists the first of its transactions, in the order of decisions, and counts the rest.
        listed_all = len(statement.transactions) == statement.transaction_count
        self._listed_to = None if listed_all else max(self._named, default=None)

    def not_arrived(self) -> tuple[LostTransaction, ...]:
        """Return what is lost and lies behind what had been copied: no statement could name it."""
        return tuple(lost for lost in self._transactions if not self._arrived(lost))

    def named_count(self) -> int:
        """Return how many of the lost transactions the statement named, or counted where it was too long."""
        return sum(self._arrived(lost) and self._is_named(lost) for lost in self._transactions)

    def unnamed(self) -> Iterator[str]:
        """Yield what is lost although the statement covered it, or had copied it and kept silent."""
        for lost in self._transactions:
            if why := self._why_unnamed(lost):
                yield f"commit of {lost.transactional_id} at {lost.decision} is lost{why}"
        plain = {_producer_of(named) for named in self.statement.plain}
        for record in self._records:
            key = (record.topic_id, record.partition)
            bound = None if key in self._parted else self._logs.get(key)
            if bound is None or record.first_offset >= bound.copied_end:
                continue
            where = f"{record.topic}-{record.partition} from {record.first_offset}"
            if record.first_offset < bound.cut:
                yield f"{where} is lost, but the statement covered it to {bound.cut}"
            elif (
                not record.transactional
                and _producer_of(record) not in plain
                and len(plain) < LISTED_MAX
            ):
                yield f"{where} is lost and had been copied, but the statement did not name it"

    def named_in_vain(self) -> Iterator[str]:
        """Yield what the statement named and the tail of the lost region does not hold."""
        lost = {transaction.decision for transaction in self._transactions}
        for named in self.statement.transactions:
            if named.decision not in lost:
                yield (
                    f"commit of {named.transactional_id} at {named.decision} was named, but region"
                    f" {self.statement.from_region} does not hold it"
                )
        arrived_count = sum(map(self._arrived, self._transactions))
        if self._listed_to is not None and arrived_count != self.statement.transaction_count:
            yield (
                f"{self.statement.transaction_count} commits were stated, {arrived_count} of those that"
                " are lost had been copied"
            )
        ranges: dict[tuple[str, int, int, int, bool], list[RecordRange]] = {}
        for record in self._records:
            ranges.setdefault(_producer_of(record), []).append(record)
        for stated in self.statement.plain:
            if not any(_holds(found, stated) for found in ranges.get(_producer_of(stated), ())):
                yield (
                    f"records {stated.first_offset}..{stated.last_offset} of"
                    f" {stated.topic}-{stated.partition} were named, but region"
                    f" {self.statement.from_region} does not hold them so"
                )

    def _why_unnamed(self, lost: LostTransaction) -> str:
        """Return what is wrong with that it is lost, empty if nothing is: there may be a million of them."""
        bound = self._shards.get(lost.decision.shard)
        if bound is not None and lost.decision.offset < bound.cut:
            return f", but the statement covered the ledger to {bound.cut}"
        if self._arrived(lost) and not self._is_named(lost):
            return " and had been copied, but the statement did not name it"
        return ""

    def _arrived(self, lost: LostTransaction) -> bool:
        bound = self._shards.get(lost.decision.shard)
        return bound is not None and lost.decision.offset < bound.copied_end

    def _is_named(self, lost: LostTransaction) -> bool:
        if self._listed_to is not None and lost.decision > self._listed_to:
            return True
        return lost.decision in self._named


def _producer_of(found: RecordRange) -> tuple[str, int, int, int, bool]:
    producer = found.producer_id, found.producer_epoch, found.transactional
    return found.topic_id, found.partition, *producer


def _holds(found: RecordRange, named: RecordRange) -> bool:
    return found.first_offset == named.first_offset and found.last_offset >= named.last_offset
