"""What a region that takes over must abort: the deciding part of ADOPTING (T21).

INV-TA1  every transaction that is open in a partition of the cut is ended by exactly those decisions that
         reach it: its ledger entry's, or an orphan abort where no entry's decision can
INV-TA3  after a planned switch, what its ledger entry holds as open, in all partitions where it is open, stays open (T22)
INV-TA2  an orphan abort reaches a partition only after the older decisions of the same producer id
         (`driver` sends it in a second wave)
INV-TA4  what is open is sorted out, and judged, so many transactions a turn, or all of one producer: two million may be open (INV-TX4), and a node whose
         loop stands still is fenced, as is each next one that finds all of it open still. Nothing of it changes meanwhile: this region takes no writes,
         and decides nothing before all is sorted out
Not here: appending and sending (`driver`), scanning partitions (the caller).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from idempotency.identity import ProducerId, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from idempotency.pieces import Pieces, run_paused
from txn_coordinator.events import AbortOrphan, AdoptOngoing
from txn_coordinator.serving.shard_driver import ShardDriver
from txn_coordinator.serving.turns import Turns, give_way
from txn_coordinator.states import PREPARED
from txn_coordinator.transitions import orphan_id

Found = tuple[TopicPartition, OpenTxn]
"""A transaction that is open in a partition of the cut."""
SORTED_AT_ONCE: Final = 2_000
"""So many open transactions are looked at in one step, some 2 us each."""


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


@dataclass(frozen=True, slots=True)
class SortedOut:
    """What is open in partitions of the cut."""

    by_producer: Mapping[ProducerId, Sequence[Found]]
    orphans: Sequence[AbortOrphan]
    """What no entry's decision ends: one abort per producer id, by rising producer id."""


def sort_out(
    open_in_partitions: Iterable[Found], records: Sequence[TransactionRecord]
) -> Pieces[SortedOut]:
    """Return what is open by producer id, and the orphan aborts; SORTED_AT_ONCE transactions a piece (INV-TA4)."""
    by_producer: dict[ProducerId, list[Found]] = {}
    for count, found in enumerate(open_in_partitions, 1):
        by_producer.setdefault(found[1].producer_id, []).append(found)
        if count % SORTED_AT_ONCE == 0:
            yield
    entries: dict[ProducerId, list[TransactionRecord]] = {}
    for count, record in enumerate(records, 1):
        entries.setdefault(record.producer_id, []).append(record)
        if count % SORTED_AT_ONCE == 0:
            yield
    orphans: list[AbortOrphan] = []
    count = 0
    for producer_id in sorted(by_producer):
        its_own, its_entries = by_producer[producer_id], entries.get(producer_id, ())
        orphan = _orphan_of(producer_id, its_own, its_entries)
        if orphan is not None:
            orphans.append(orphan)
        count += len(its_own) + sum(len(entry.partitions) for entry in its_entries)
        if count >= SORTED_AT_ONCE:
            count = 0
            yield
    return SortedOut(by_producer, orphans)


def _orphan_of(
    producer_id: ProducerId,
    open_in_partitions: Sequence[Found],
    records: Sequence[TransactionRecord],
) -> AbortOrphan | None:
    """Return the abort of what decisions of these, the producer's entries, do not end."""
    known = [
        (record, frozenset(record.partitions if record.status in PREPARED else ()))  # INV-TC15
        for record in records
    ]
    left = [
        (tp, found)
        for tp, found in open_in_partitions
        if not any(is_covered(record, its_own, tp, found) for record, its_own in known)
    ]
    if not left:
        return None
    newest = max(found.producer_epoch for _, found in left)
    return AbortOrphan(producer_id, newest, tuple(sorted(tp for tp, _ in left)))


def goes_on(record: TransactionRecord, found: Sequence[Found]) -> bool:
    """Return whether the ledger knows all that is open in partitions of this ongoing transaction: its producer can end it.

    Else something hangs there that the producer's own end would not reach: it is aborted with everything else of it.
    """
    known = frozenset(record.partitions)
    return all(tp in known and txn.producer_epoch == record.producer_epoch for tp, txn in found)


async def abort_open(
    shards: Sequence[ShardDriver], found: Iterable[Found], *, switched: bool
) -> tuple[int, int, list[AbortOrphan]]:
    """Queue the abort of everything open; return how many entries and orphans that are, and which have to wait.

    `switched`: after a planned switch, transactions of producers that go on stay open (INV-TA3).

    An orphan waits while an older abort of the same producer id is decided and owes markers:

    1. An administrator aborts what a producer left open in x; the primary dies before the marker. 2. The producer has
    something open in y, too. 3. A second decision in the same entry would replace the first one, and none at all
    would leave y open for ever: so the first is carried out, then the second is decided. Raises LedgerFailed.
    """
    records = [record for shard in shards for record in shard.view.records()]
    sorted_out = await run_paused(sort_out(found, records), give_way)
    for shard in shards:
        shard.expect_open()
    turns = Turns()
    aborted = await _abort_ongoing(shards, sorted_out.by_producer, turns, switched=switched)
    waiting = await abort_orphans(shards, sorted_out.orphans, turns)
    return aborted, len(sorted_out.orphans), waiting


async def _abort_ongoing(
    shards: Sequence[ShardDriver],
    by_producer: Mapping[ProducerId, Sequence[Found]],
    turns: Turns,
    *,
    switched: bool,
) -> int:
    """Queue the abort of each entry that does not go on; return how many. Raises LedgerFailed."""
    aborted = 0
    for shard in shards:
        for record in shard.view.ongoing():
            its_own = by_producer.get(record.producer_id, ())
            if not (switched and shard.view.is_in_force(record) and goes_on(record, its_own)):
                partitions = tuple(sorted(tp for tp, _ in its_own))
                shard.step(AdoptOngoing(record.transactional_id, partitions))
                aborted += 1
            # INV-TTU1: nobody else acts on what is not served
            await turns.worked(max(len(record.partitions), len(its_own)))
            shard.expect_open()
    return aborted


async def abort_orphans(
    shards: Sequence[ShardDriver], orphans: Iterable[AbortOrphan], turns: Turns
) -> list[AbortOrphan]:
    """Queue these; return those that have to wait for an older abort of the same producer id. Raises LedgerFailed."""
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
    return waiting


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
