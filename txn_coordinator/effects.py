"""What a coordinator core asks its driver to do.

INV-TE1  effects of one step are carried out in order, and the ledger records among them reach the
         ledger before those of any later step (T2)
Not here: how (`driver`).
"""

from dataclasses import dataclass

from idempotency.decision import DecisionId
from idempotency.identity import TopicPartition
from idempotency.ledger_records import TransactionRecord
from txn_coordinator.verdicts import TxnVerdict


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """Append the entry's new value; report `RecordDurable` only if `report`."""

    record: TransactionRecord
    report: bool


@dataclass(frozen=True, slots=True)
class AppendTombstone:
    """Append the removal of `transactional_id`, then report `RecordDurable`."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class AppendRound:
    """Append ROUND{round}; its offset is L of the round (T2)."""

    round: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The one answer to a request."""

    request_id: int
    verdict: TxnVerdict
    producer_id: int = -1
    producer_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Held:
    """The request waits in the core; report `HoldExpired` when the hold limit has passed."""

    request_id: int
    transactional_id: str


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Write the outcome of `decision` to `partitions`; report `MarkerConfirmed` for each."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    decision: DecisionId
    partitions: tuple[TopicPartition, ...]
    tv2: bool


TxnEffect = AppendRecord | AppendTombstone | AppendRound | Answer | Held | SendMarkers
