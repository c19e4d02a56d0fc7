"""Replay of one ledger shard: its records, in order, into the table and the round.

INV-TC9  `replay` of every record of the shard, in order, gives the state that served them: last value wins, a
         tombstone removes, the stamp of a decision is the last ROUND before it, where none was compacted away (T2, C22)

Not here: which records are read (`txn_coordinator.image`, the ledger's port).
"""

from idempotency import ledger_records as lr
from idempotency.decision import DecisionId
from idempotency.identity import Round
from idempotency.ledger_records import TransactionRecord
from txn_coordinator import transitions as tr
from txn_coordinator.ports import LedgerCorrupt, LedgerPosition
from txn_coordinator.rounds import RoundGate
from txn_coordinator.shard.pairs_in_force import PairsInForce
from txn_coordinator.shard.table import TransactionTable
from txn_coordinator.states import PREPARED


class LedgerReplay:
    """Fills the table and the round of a shard before its first event."""

    def __init__(
        self, shard: int, table: TransactionTable, gate: RoundGate, pairs: PairsInForce
    ) -> None:
        """Take what is to be filled."""
        self.whole_from = 0
        """Below this offset of the ledger, records that later ones of their key superseded may be missing."""
        self._shard = shard
        self._table = table
        self._gate = gate
        self._pairs = pairs

    def take(self, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        """Take one ledger record.

        Raises:
            LedgerCorrupt: the record cannot be read, or contradicts T2; never serve from here (C22).
        """
        try:
            self._take(position, key, value)
        except lr.LedgerError as error:
            raise LedgerCorrupt(
                f"transaction ledger shard {self._shard}, offset {position.offset}: {error}; "
                "the shard is not served, restore it from another region"
            ) from error

    def _take(self, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        match lr.decode_key(key):
            case lr.RoundKey():
                if value is not None:
                    self._gate.restore(lr.decode_round_value(value).stamp, position.offset)
            case lr.TransactionKey(transactional_id=name):
                self._take_value(position, name, value)
            case lr.OrphanKey(producer_id=producer_id):
                self._take_value(position, tr.orphan_id(producer_id), value)
            case lr.PairsKey():
                if value is not None:
                    self._pairs.restore(lr.decode_pairs_value(value))
            case lr.UnknownKey():
                pass  # of a later version: INV-L2 lets it be skipped

    def _take_value(self, position: LedgerPosition, name: str, value: bytes | None) -> None:
        if value is None:
            gone = self._table.get(name)
            if gone is not None:
                self._table.forget(gone)
            return
        record = lr.decode_transaction_value(name, value)
        entry = self._table.get_or_add(name)
        self._table.install(entry, record)
        entry.decision = record.decision
        if record.status in PREPARED and record.decision is None:
            entry.decision = self._own_decision(position, record)
            assert entry.decision.offset == position.offset, f"INV-TC9: {entry.decision}"
        assert entry.decision is not None or record.status not in PREPARED, f"INV-TC9: {record}"

    def _own_decision(self, position: LedgerPosition, record: TransactionRecord) -> DecisionId:
        """Return the decision id of a PREPARE record: its own position (T6)."""
        if record.stamp is None or not self._may_be_round_of(record.stamp, position.offset):
            raise LedgerCorrupt(
                f"transaction ledger shard {self._shard}, offset {position.offset}: the decision of "
                f"{record.transactional_id!r} has stamp {record.stamp}, but the last round "
                f"before it is {self._gate.current}; the shard is not served"
            )
        return DecisionId(self._shard, position.leader_epoch, position.offset, record.stamp)

    def _may_be_round_of(self, stamp: Round, offset: int) -> bool:
        """Return whether a decision at `offset` can have been taken in round `stamp` (T2).

        1. ROUND 5, a decision, ROUND 6; its COMPLETE lies further on. 2. Compaction takes ROUND 5, since 6 is the
        newest of its key, and keeps the decision. 3. At replay the decision comes before any ROUND.
        """
        if offset < self.whole_from:
            return stamp >= self._gate.current
        return stamp == self._gate.current
