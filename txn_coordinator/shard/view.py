"""What a driver may ask a shard's core: named questions, none of which changes anything.

INV-TC11  what a driver learns is a record, a verdict or a number, never a part of the core that it could change

Not here: the state itself (`table`, `txn_coordinator.rounds`), what changes it (`txn_coordinator.core`).
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from idempotency.decision import DecisionId
from idempotency.identity import ProducerEpoch, ProducerId, Round, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import transitions as tr
from txn_coordinator.events import AddPartitionsReceived
from txn_coordinator.rounds import RoundGate
from txn_coordinator.shard.decisions import SpareIds
from txn_coordinator.shard.join_requests import judge_join
from txn_coordinator.shard.pairs_in_force import PairsInForce
from txn_coordinator.shard.server_decisions import may_expire
from txn_coordinator.shard.table import TransactionTable, missing_partitions
from txn_coordinator.states import PREPARED
from txn_coordinator.verdicts import TxnVerdict


class ShardView:
    """The questions about one ledger shard."""

    def __init__(
        self,
        table: TransactionTable,
        gate: RoundGate,
        ids: SpareIds,
        *,
        pairs: PairsInForce,
        id_retention_ms: int,
    ) -> None:
        """Take what is asked about."""
        self._table = table
        self._gate = gate
        self._ids = ids
        self._pairs = pairs
        self._id_retention_ms = id_retention_ms

    # ---- transactional ids

    @property
    def id_count(self) -> int:
        """Number of entries, orphans included."""
        return len(self._table.entries)

    def record_of(self, transactional_id: str) -> TransactionRecord | None:
        """Return the current value of a transactional id, or of an orphan."""
        entry = self._table.get(transactional_id)
        return None if entry is None else entry.record

    def record_of_producer(self, producer_id: ProducerId) -> TransactionRecord | None:
        """Return the current value of the transactional id that has this producer id."""
        entry = self._table.find(None, producer_id)
        return None if entry is None else entry.record

    def records(self) -> Iterator[TransactionRecord]:
        """Yield the current values, orphans included."""
        return (entry.record for entry in self._table.entries.values())

    @property
    def status_counts(self) -> Mapping[TxnStatus, int]:
        """How many ids are in which state, orphans left out (INV-TC16)."""
        return MappingProxyType(self._table.status_counts)

    def is_pending(self, transactional_id: str) -> bool:
        """Return whether a transition of this transactional id is appended, and not durable yet."""
        entry = self._table.get(transactional_id)
        return entry is not None and entry.pending is not None

    def expired(self, wall_ms: int) -> list[str]:
        """Return the ids that may be forgotten (C25)."""
        return [
            name
            for name, entry in self._table.entries.items()
            if may_expire(entry, wall_ms, self._id_retention_ms)
        ]

    # ---- transactions

    @property
    def ongoing_count(self) -> int:
        """Number of open transactions."""
        return self._table.ongoing_count

    @property
    def partition_count(self) -> int:
        """Partitions of all transactions that are open, or decided and not complete."""
        return self._table.partition_count

    def ongoing(self) -> list[TransactionRecord]:
        """Return the values with an open transaction."""
        return [entry.record for entry in self._table.ongoing()]

    def is_in_force(self, record: TransactionRecord) -> bool:
        """Return whether the entry's own producer may go on with its pair (T22)."""
        return not self._pairs.is_foreign(record)

    def prepared(self) -> list[tuple[TransactionRecord, DecisionId | None]]:
        """Return the values that are decided and not complete, each with its decision."""
        return [(entry.record, entry.decision) for entry in self._table.prepared()]

    def timed_out(self, now_ms: int) -> list[str]:
        """Return the ids whose transaction is past its time-out (C24)."""
        return [
            entry.record.transactional_id
            for entry in self._table.ongoing()
            if entry.pending is None and entry.deadline_ms < now_ms
        ]

    def verify(
        self,
        transactional_id: str | None,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        tp: TopicPartition,
    ) -> TxnVerdict | None:
        """Return whether `tp` is in the producer's ongoing transaction (C27); None: no such producer here."""
        entry = self._table.find(transactional_id, producer_id)
        if entry is None:
            return None
        record = entry.record
        if self._pairs.is_foreign(record):
            return TxnVerdict.FENCED_BY_TAKEOVER
        if entry.pending is not None and entry.pending.status in PREPARED:
            return TxnVerdict.CONCURRENT  # being decided: what comes now came too late for it
        if record.status in PREPARED and _may_be_next(record, producer_id, producer_epoch):
            return TxnVerdict.CONCURRENT
        if record.producer_id != producer_id:
            return TxnVerdict.UNKNOWN_PRODUCER_MAPPING
        if record.producer_epoch != producer_epoch:
            return TxnVerdict.FENCED
        if entry.has(tp):
            return TxnVerdict.OK
        return TxnVerdict.NOT_IN_TRANSACTION

    def has_joined(self, request: AddPartitionsReceived) -> bool:
        """Return whether the partitions are durably in the ongoing transaction already (C26)."""
        entry = self._table.get(request.transactional_id)
        if entry is None or entry.pending is not None:
            return False
        record = entry.record
        return (
            record.status is TxnStatus.ONGOING
            and judge_join(record, request, is_foreign=self._pairs.is_foreign(record)) is None
            and not missing_partitions(entry, request.partitions)
        )

    # ---- rounds and stocks

    @property
    def round(self) -> Round:
        """The round that the shard is in."""
        return self._gate.current

    @property
    def round_offset(self) -> int:
        """Ledger offset of the first ROUND record of that round (L), -1 until it is known."""
        return self._gate.current_offset

    @property
    def held_count(self) -> int:
        """Number of decisions whose markers wait for a release."""
        return self._gate.held_count

    @property
    def spare_id_count(self) -> int:
        """Producer ids in stock; the driver keeps it above 0, since any event may use one."""
        return len(self._ids)


def _may_be_next(
    record: TransactionRecord, producer_id: ProducerId, producer_epoch: ProducerEpoch
) -> bool:
    """Return whether the pair may begin a transaction once the markers are written (P6)."""
    current = (record.producer_id, record.producer_epoch)
    return (producer_id, producer_epoch) in (current, tr.pair_for_next(record))
