"""What one ledger shard says: every transactional id's value, the round, and indexes over them.

INV-TC1  at most one transition of an entry is pending (C14)
INV-TC2  `record` is what the ledger holds below the high watermark, except COMPLETE_*, which is
         applied when appended (see `shard_steps.ShardSteps._complete`)
INV-TC9  `replay` of every record of the shard, in order, gives the state that served them: last value wins, a
         tombstone removes, the stamp of a decision is the last ROUND before it, where none was compacted away (T2, C22)

Not here: what events do to it (`core`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from idempotency import ledger_records as lr
from idempotency.decision import DecisionId
from idempotency.identity import TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import expiry
from txn_coordinator import transitions as tr
from txn_coordinator.connection_order import Arrival, ConnectionOrder, Sender
from txn_coordinator.effects import Answer
from txn_coordinator.events import AddPartitionsReceived, Request
from txn_coordinator.markers import MarkerFanout
from txn_coordinator.ports import LedgerCorrupt, LedgerPosition
from txn_coordinator.rounds import RoundGate
from txn_coordinator.states import PREPARED
from txn_coordinator.verdicts import TxnVerdict


@dataclass(slots=True)
class Entry:
    """State of one transactional id."""

    record: TransactionRecord
    pending: TransactionRecord | None = None
    answers: list[Answer] = field(default_factory=list)
    """Answers to give once `pending` is durable."""
    parked: list[Request] = field(default_factory=list)
    """Requests that arrived while something was under way, in order of arrival."""
    fanout: MarkerFanout | None = None
    decision: DecisionId | None = None
    """Of the current or the last decided transaction."""
    deadline_ms: int = 0
    """Monotonic time at which an ongoing transaction is aborted."""
    connections: ConnectionOrder | None = None
    """Of the process, not of the ledger; None until the first request that is fenced by it."""

    def unpark(self, request_id: int) -> bool:
        """Forget a parked request; return whether it was parked."""
        for index, request in enumerate(self.parked):
            if request.request_id == request_id:
                del self.parked[index]
                return True
        return False

    def admits(self, pair: tuple[int, int], sender: Sender, *, aborting: bool) -> bool:
        """Tell whether a coordinator request of `pair` came in order (INV-TO1), and note it.

        A pair that is not in force is let through: its epoch is what refuses it (INV-TO2).
        """
        if pair != (self.record.producer_id, self.record.producer_epoch):
            return True
        if self.connections is None:
            self.connections = ConnectionOrder()
        order = self.connections.of(pair)
        if not order.admit(sender):
            return False
        if aborting:
            order.aborting(sender)
        return True

    def admits_data(self, tp: TopicPartition, arrival: Arrival) -> bool:
        """Tell whether data of the pair in force may be written now (INV-TO4)."""
        order = self.connections
        if order is None:
            return True
        pair = (self.record.producer_id, self.record.producer_epoch)
        return order.of(pair).admit_data(tp, arrival)


class ShardState:
    """All transactional ids of one ledger shard."""

    def __init__(
        self,
        shard: int,
        *,
        region_epoch: int,
        timeout_max_ms: int = expiry.TIMEOUT_MAX_MS,
        id_retention_ms: int = expiry.ID_RETENTION_MS,
    ) -> None:
        """Start empty; `replay` fills it before the first event."""
        self.shard = shard
        self.region_epoch = region_epoch
        self.gate = RoundGate()
        self.whole_from = 0
        """Below this offset of the ledger, records that later ones of their key superseded may be missing."""
        self.entries: dict[str, Entry] = {}
        self.timeout_max_ms = timeout_max_ms
        self.id_retention_ms = id_retention_ms
        self._by_producer_id: dict[int, str] = {}
        self._ongoing: dict[str, Entry] = {}

    # ---- replay

    def replay(self, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        """Take one ledger record.

        Raises:
            LedgerCorrupt: the record cannot be read, or contradicts T2; never serve from here (C22).
        """
        try:
            self._replay(position, key, value)
        except lr.LedgerError as error:
            raise LedgerCorrupt(
                f"transaction ledger shard {self.shard}, offset {position.offset}: {error}; "
                "the shard is not served, restore it from another region"
            ) from error

    def _replay(self, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        match lr.decode_key(key):
            case lr.RoundKey():
                if value is not None:
                    self.gate.restore(lr.decode_round_value(value).stamp, position.offset)
            case lr.TransactionKey(transactional_id=name):
                self._replay_value(position, name, value)
            case lr.OrphanKey(producer_id=producer_id):
                self._replay_value(position, tr.orphan_id(producer_id), value)
            case lr.UnknownKey():
                pass  # of a later version: INV-L2 lets it be skipped

    def _replay_value(self, position: LedgerPosition, name: str, value: bytes | None) -> None:
        entry = self.entries.get(name)
        if value is None:
            if entry is not None:
                self._forget(entry)
            return
        record = lr.decode_transaction_value(name, value)
        if entry is None:
            entry = self.entries[name] = Entry(tr.unborn(name))
        self._install(entry, record)
        entry.decision = record.decision
        if record.status in PREPARED and record.decision is None:
            entry.decision = self._own_decision(position, record)

    def _own_decision(self, position: LedgerPosition, record: TransactionRecord) -> DecisionId:
        """Return the decision id of a PREPARE record: its own position (T6)."""
        if record.stamp is None or not self._may_be_round_of(record.stamp, position.offset):
            raise LedgerCorrupt(
                f"transaction ledger shard {self.shard}, offset {position.offset}: the decision of "
                f"{record.transactional_id!r} has stamp {record.stamp}, but the last round "
                f"before it is {self.gate.current}; the shard is not served"
            )
        return DecisionId(self.shard, position.leader_epoch, position.offset, record.stamp)

    def _may_be_round_of(self, stamp: int, offset: int) -> bool:
        """Tell whether a decision at `offset` can have been taken in round `stamp` (T2).

        1. ROUND 5, a decision, ROUND 6; its COMPLETE lies further on. 2. Compaction takes ROUND 5, since 6 is the
        newest of its key, and keeps the decision. 3. At replay the decision comes before any ROUND.
        """
        if offset < self.whole_from:
            return stamp >= self.gate.current
        return stamp == self.gate.current

    def restart_timers(self, now_ms: int) -> None:
        """Give every open transaction its full time-out again (G7)."""
        for entry in self._ongoing.values():
            entry.deadline_ms = now_ms + entry.record.timeout_ms

    # ---- reading

    def is_foreign(self, record: TransactionRecord) -> bool:
        """Tell whether the entry's pair was given out before this region acted (T22)."""
        return 0 <= record.region_epoch < self.region_epoch

    def ongoing(self) -> Iterator[Entry]:
        """Yield the entries with an open transaction."""
        return iter(self._ongoing.values())

    def prepared(self) -> Iterator[Entry]:
        """Yield the entries that are decided and not complete."""
        return (entry for entry in self.entries.values() if entry.record.status in PREPARED)

    @property
    def ongoing_count(self) -> int:
        """Number of open transactions."""
        return len(self._ongoing)

    def timed_out(self, now_ms: int) -> list[str]:
        """Return the ids whose transaction is past its time-out (C24)."""
        return [
            name
            for name, entry in self._ongoing.items()
            if entry.pending is None and entry.deadline_ms < now_ms
        ]

    def expired(self, wall_ms: int) -> list[str]:
        """Return the ids that may be forgotten (C25)."""
        return [name for name, entry in self.entries.items() if self._may_expire(entry, wall_ms)]

    def _may_expire(self, entry: Entry, wall_ms: int) -> bool:
        idle = entry.pending is None and not entry.parked
        return idle and expiry.id_is_expired(entry.record, wall_ms, self.id_retention_ms)

    def entry_of(self, transactional_id: str | None, producer_id: int) -> Entry | None:
        """Return the entry of the transactional id, or of the producer id if there is none given."""
        name = transactional_id
        if name is None:
            name = self._by_producer_id.get(producer_id)
        return self.entries.get(name) if name is not None else None

    def verify(
        self, entry: Entry, producer_id: int, producer_epoch: int, tp: TopicPartition
    ) -> TxnVerdict:
        """Tell whether `tp` is in the producer's ongoing transaction (C27); changes nothing."""
        record = entry.record
        if self.is_foreign(record):
            return TxnVerdict.FENCED_BY_TAKEOVER
        if entry.pending is not None and entry.pending.status in PREPARED:
            return TxnVerdict.CONCURRENT  # being decided: what comes now came too late for it
        if record.status in PREPARED and _may_be_next(record, producer_id, producer_epoch):
            return TxnVerdict.CONCURRENT
        if record.producer_id != producer_id:
            return TxnVerdict.UNKNOWN_PRODUCER_MAPPING
        if record.producer_epoch != producer_epoch:
            return TxnVerdict.FENCED
        if record.status is TxnStatus.ONGOING and tp in record.partitions:
            return TxnVerdict.OK
        return TxnVerdict.NOT_IN_TRANSACTION

    def has_joined(self, request: AddPartitionsReceived) -> bool:
        """Tell whether the partitions are durably in the ongoing transaction already (C26)."""
        entry = self.entries.get(request.transactional_id)
        if entry is None or entry.pending is not None:
            return False
        record = entry.record
        return (
            record.status is TxnStatus.ONGOING
            and self._judge_join(record, request) is None
            and not missing_partitions(record, request.partitions)
        )

    def _judge_join(
        self, record: TransactionRecord, request: AddPartitionsReceived
    ) -> TxnVerdict | None:
        if self.is_foreign(record):
            return TxnVerdict.FENCED_BY_TAKEOVER
        if record.producer_id != request.producer_id:
            return TxnVerdict.UNKNOWN_PRODUCER_MAPPING
        if record.producer_epoch != request.producer_epoch:
            return TxnVerdict.FENCED
        return None

    # ---- changing

    def _install(self, entry: Entry, record: TransactionRecord) -> None:
        """Make `record` the entry's value, and keep the indexes."""
        name = record.transactional_id
        if entry.record.producer_id != record.producer_id:
            self._unindex(entry.record)
        if not name.startswith(tr.ORPHAN_PREFIX):
            self._by_producer_id[record.producer_id] = name
        entry.record = record
        if record.status is TxnStatus.ONGOING:
            self._ongoing[name] = entry
        else:
            self._ongoing.pop(name, None)

    def _unindex(self, record: TransactionRecord) -> None:
        if self._by_producer_id.get(record.producer_id) == record.transactional_id:
            del self._by_producer_id[record.producer_id]

    def _forget(self, entry: Entry) -> None:
        name = entry.record.transactional_id
        self._unindex(entry.record)
        self._ongoing.pop(name, None)
        del self.entries[name]


def missing_partitions(
    record: TransactionRecord, partitions: tuple[TopicPartition, ...]
) -> tuple[TopicPartition, ...]:
    """Return those of `partitions` that the ongoing transaction does not have, each once."""
    known = record.partitions if record.status is TxnStatus.ONGOING else ()
    return tuple(tp for tp in dict.fromkeys(partitions) if tp not in known)


def _may_be_next(record: TransactionRecord, producer_id: int, producer_epoch: int) -> bool:
    """Tell whether the pair may begin a transaction once the markers are written (P6)."""
    current = (record.producer_id, record.producer_epoch)
    return (producer_id, producer_epoch) in (current, tr.pair_for_next(record))
