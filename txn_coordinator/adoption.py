"""What a region that takes over must abort: the deciding part of ADOPTING (T21).

INV-TA1  every transaction that is open in a partition of the cut is ended by exactly those decisions that
         reach it: its ledger entry's, or an orphan abort where no entry's decision can
INV-TA2  an orphan abort reaches a partition only after the older decisions of the same producer id
         (`driver` sends it in a second wave)
Not here: appending and sending (`driver`), scanning partitions (the caller).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from idempotency.identity import TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from txn_coordinator.events import AbortOrphan, AdoptOngoing
from txn_coordinator.shard_driver import ShardDriver
from txn_coordinator.states import PREPARED
from txn_coordinator.transitions import ORPHAN_PREFIX

Found = tuple[TopicPartition, OpenTxn]
"""A transaction that is open in a partition of the cut."""


class AdoptionBlocked(Exception):
    """A takeover cannot finish: a newer coordinator has written to a partition (C30)."""


@dataclass(frozen=True, slots=True)
class AdoptionReport:
    """What a takeover decided: how many transactions of each kind."""

    carried_out: int
    """Decided in the cut; their markers were sent again, under the old decision ids."""
    aborted: int
    """Open in a ledger of the cut."""
    orphans_aborted: int
    """Open in partitions only."""


def is_covered(record: TransactionRecord | None, tp: TopicPartition, found: OpenTxn) -> bool:
    """Tell whether the decision that adoption carries out for `record` ends what is open in `tp`.

    A decided transaction: only if its bumped epoch proves that the data is its own. Under TV1 the data
    may belong to the next transaction with the same epoch, whose beginning is above the cut (H9), and T6
    makes the marker void there; an orphan abort behind it ends that one, and is harmless otherwise.
    """
    if record is None:
        return False
    if record.status is TxnStatus.ONGOING:
        return found.producer_epoch <= record.producer_epoch
    decided = record.status in PREPARED and tp in record.partitions
    return decided and found.producer_epoch < record.producer_epoch


def orphans_of(
    open_in_partitions: Iterable[tuple[TopicPartition, OpenTxn]],
    records: Sequence[TransactionRecord],
) -> list[AbortOrphan]:
    """Return the orphan aborts, one per producer id, by rising producer id."""
    by_producer = {record.producer_id: record for record in records}
    epochs: dict[int, int] = {}
    partitions: dict[int, list[TopicPartition]] = {}
    for tp, found in open_in_partitions:
        producer_id = found.producer_id
        if is_covered(by_producer.get(producer_id), tp, found):
            continue
        epochs[producer_id] = max(epochs.get(producer_id, -1), found.producer_epoch)
        partitions.setdefault(producer_id, []).append(tp)
    return [
        AbortOrphan(producer_id, epochs[producer_id], tuple(sorted(partitions[producer_id])))
        for producer_id in sorted(partitions)
    ]


def abort_open(shards: Sequence[ShardDriver], found: Sequence[Found]) -> tuple[int, int]:
    """Queue the abort of everything open; return how many entries and orphans that are."""
    entries = [entry for shard in shards for entry in shard.core.entries.values()]
    named = [
        entry.record
        for entry in entries
        if not entry.record.transactional_id.startswith(ORPHAN_PREFIX)
    ]
    orphans = orphans_of(found, named)
    by_producer: dict[int, list[TopicPartition]] = {}
    for tp, txn in found:
        by_producer.setdefault(txn.producer_id, []).append(tp)
    aborted = 0
    for shard in shards:
        for entry in list(shard.core.ongoing()):
            partitions = tuple(sorted(by_producer.get(entry.record.producer_id, ())))
            shard.step(AdoptOngoing(entry.record.transactional_id, partitions))
            aborted += 1
    for orphan in orphans:
        shards[orphan.producer_id % len(shards)].step(orphan)
    return aborted, len(orphans)


def expect_complete(shards: Sequence[ShardDriver]) -> None:
    """Raise `AdoptionBlocked` if a decided transaction still owes a marker."""
    left = [entry.record for shard in shards for entry in shard.core.prepared()]
    if left:
        raise AdoptionBlocked(
            f"{len(left)} decided transactions have partitions that refuse their markers, the "
            f"first is {left[0].transactional_id!r}: a newer region epoch has written there; "
            "this region must not act, ask for the lineage"
        )
