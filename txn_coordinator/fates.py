"""Finds the fate of one transaction in the records of a ledger shard (T29).

INV-TF1  only a decision that stands in the ledger is reported; nothing is guessed
INV-TF2  a pair (producer id, epoch) names a transaction under TV2 only
Not here: `lost` (geo_replicator.lineage), positions of data records.
"""

from dataclasses import dataclass, field
from typing import Protocol

from idempotency import ledger_records as lr
from idempotency.decision import DecisionId
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator.ports import LedgerPosition
from txn_coordinator.states import PREPARED
from txn_coordinator.verdicts import Fate, FateOutcome


class Question(Protocol):
    """Reads a shard record by record, and knows the answer afterwards."""

    answer: FateOutcome

    def read(self, shard: int, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        """Take one ledger record."""
        ...


@dataclass(slots=True)
class ByDecision:
    """What did this decision id decide?"""

    decision: DecisionId
    answer: FateOutcome = field(default_factory=lambda: FateOutcome(Fate.UNKNOWN))

    def read(self, shard: int, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        """Look at the record that stands where the decision id points to."""
        wanted = (self.decision.leader_epoch, self.decision.offset)
        if shard != self.decision.shard or (position.leader_epoch, position.offset) != wanted:
            return
        record = _record(key, value)
        if record is not None and record.status in PREPARED:
            self.answer = FateOutcome(_fate(record), self.decision)


@dataclass(slots=True)
class ByPair:
    """What became of the transaction that this producer pair was used for?"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    answer: FateOutcome = field(default_factory=lambda: FateOutcome(Fate.UNKNOWN))

    def read(self, shard: int, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        """Follow the transactional id; the decision bumps the epoch under TV2."""
        record = _record(key, value)
        if record is None or record.transactional_id != self.transactional_id:
            return
        if record.producer_id != self.producer_id or record.client_tv < 2:
            return
        if record.status is TxnStatus.ONGOING and record.producer_epoch == self.producer_epoch:
            self.answer = FateOutcome(Fate.OPEN)
        elif record.status in PREPARED and record.producer_epoch == self.producer_epoch + 1:
            assert record.stamp is not None, record
            own = DecisionId(shard, position.leader_epoch, position.offset, record.stamp)
            self.answer = FateOutcome(_fate(record), record.decision or own)


def _record(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Return the transaction record, None for anything else."""
    if value is None:
        return None
    match lr.decode_key(key):
        case lr.TransactionKey(transactional_id=name):
            return lr.decode_transaction_value(name, value)
        case lr.OrphanKey():
            return lr.decode_transaction_value("", value)
        case _:
            return None


def _fate(record: TransactionRecord) -> Fate:
    return Fate.COMMITTED if record.status is TxnStatus.PREPARE_COMMIT else Fate.ABORTED
