"""What a region that takes over must abort: the deciding part of ADOPTING (T21).

INV-TA1  every transaction that is open in a partition of the cut is ended by exactly those decisions that
         reach it: its ledger entry's, or an orphan abort where no entry's decision can
INV-TA3  after a planned switch, what its ledger entry holds as open, in all partitions where it is open, stays open (T22)
INV-TA2  an orphan abort reaches a partition only after the older decisions of the same producer id
         (`driver` sends it in a second wave)
Not here: appending and sending (`driver`), scanning partitions (the caller).
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from idempotency.identity import NO_PRODUCER_EPOCH, ProducerEpoch, ProducerId, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from txn_coordinator.events import AbortOrphan, AdoptOngoing
from txn_coordinator.serving.shard_driver import ShardDriver
from txn_coordinator.serving.turns import Turns
from txn_coordinator.states import PREPARED
from txn_coordinator.transitions import orphan_id

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
    kept_open: int = 0
    """Open in a ledger whose producers may go on."""


def is_covered(
    record: TransactionRecord, known: Container[TopicPartition], tp: TopicPartition, found: OpenTxn
) -> bool:
    """Return whether the decision that adoption carries out for `record`, whose partitions are `known`, ends what is open in `tp`.

    A decided transaction: only if its bumped epoch proves that the data is its own. Under TV1 the data
    may belong to the next transaction with the same epoch, whose beginning is above the cut (H9), and T6
    makes the marker void there; an orphan abort behind it ends that one, and is harmless otherwise.
    """
    if record.status is TxnStatus.ONGOING:
        return found.producer_epoch <= record.producer_epoch
    decided = record.status in PREPARED and tp in known
    return decided and found.producer_epoch < record.producer_epoch


def orphans_of(
    open_in_partitions: Iterable[tuple[TopicPartition, OpenTxn]],
    records: Sequence[TransactionRecord],
) -> list[AbortOrphan]:
    """Return the orphan aborts, one per producer id, by rising producer id."""
    by_producer: dict[ProducerId, list[tuple[TransactionRecord, frozenset[TopicPartition]]]] = {}
    for record in records:
        known = frozenset(record.partitions if record.status in PREPARED else ())  # INV-TC15
        by_producer.setdefault(record.producer_id, []).append((record, known))
    epochs: dict[ProducerId, ProducerEpoch] = {}
    partitions: dict[ProducerId, list[TopicPartition]] = {}
    for tp, found in open_in_partitions:
        producer_id = found.producer_id
        its_own = by_producer.get(producer_id, ())
        if any(is_covered(record, known, tp, found) for record, known in its_own):
            continue
        epochs[producer_id] = max(epochs.get(producer_id, NO_PRODUCER_EPOCH), found.producer_epoch)
        partitions.setdefault(producer_id, []).append(tp)
    return [
        AbortOrphan(producer_id, epochs[producer_id], tuple(sorted(partitions[producer_id])))
        for producer_id in sorted(partitions)
    ]


def goes_on(record: TransactionRecord, found: Sequence[Found]) -> bool:
    """Return whether the ledger knows all that is open in partitions of this ongoing transaction: its producer can end it.

    Else something hangs there that the producer's own end would not reach: it is aborted with everything else of it.
    """
    known = frozenset(record.partitions)
    return all(tp in known and txn.producer_epoch == record.producer_epoch for tp, txn in found)


async def abort_open(
    shards: Sequence[ShardDriver], found: Sequence[Found], *, switched: bool
) -> tuple[int, int, list[AbortOrphan]]:
    """Queue the abort of everything open; return how many entries and orphans that are, and which have to wait.

    `switched`: after a planned switch, transactions of producers that go on stay open (INV-TA3).

    An orphan waits while an older abort of the same producer id is decided and owes markers:

    1. An administrator aborts what a producer left open in x; the primary dies before the marker. 2. The producer has
    something open in y, too. 3. A second decision in the same entry would replace the first one, and none at all
    would leave y open for ever: so the first is carried out, then the second is decided. Raises LedgerFailed.
    """
    records = [record for shard in shards for record in shard.view.records()]
    orphans = orphans_of(found, records)
    by_producer: dict[ProducerId, list[Found]] = {}
    for tp, txn in found:
        by_producer.setdefault(txn.producer_id, []).append((tp, txn))
    aborted = 0
    turns = Turns()
    for shard in shards:
        for record in shard.view.ongoing():
            its_own = by_producer.get(record.producer_id, ())
            if switched and shard.view.is_in_force(record) and goes_on(record, its_own):
                continue
            partitions = tuple(sorted(tp for tp, _ in its_own))
            shard.step(AdoptOngoing(record.transactional_id, partitions))
            aborted += 1
            await turns.worked(
                len(record.partitions)
            )  # INV-TTU1: nobody else acts on what is not served
            shard.expect_open()
    waiting: list[AbortOrphan] = []
    for orphan in orphans:
        shard = shards[orphan.producer_id % len(shards)]
        decided = shard.view.record_of(orphan_id(orphan.producer_id))
        if decided is not None and decided.status in PREPARED:
            waiting.append(orphan)
        else:
            shard.step(orphan)
            await turns.worked(len(orphan.partitions))
            shard.expect_open()
    return aborted, len(orphans), waiting


def expect_complete(shards: Sequence[ShardDriver]) -> None:
    """Raise `AdoptionBlocked` if a decided transaction still owes a marker that its partition refuses.

    One that is owed to a partition which has stopped is sent when that is loaded again: nobody else waits for it.
    """
    left = [
        record
        for shard in shards
        for record, decision in shard.view.prepared()
        if decision not in shard.owed
    ]
    if left:
        raise AdoptionBlocked(
            f"{len(left)} decided transactions have partitions that refuse their markers, the "
            f"first is {left[0].transactional_id!r}: a newer region epoch has written there; "
            "this region must not act, ask for the lineage"
        )
