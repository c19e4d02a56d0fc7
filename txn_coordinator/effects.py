"""What a coordinator core asks its driver to do.

Effects of one step are carried out in order, and the ledger records among them reach the ledger before those of any
later step (T2).
Not here: how (`driver`).
"""

import msgspec

from idempotency.decision import DecisionId
from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    Round,
    TopicPartition,
)
from idempotency.ledger_records import PairsRecord, TransactionRecord
from txn_coordinator.verdicts import TxnVerdict


class AppendRecord(msgspec.Struct, frozen=True):
    """Append the entry's new value; report `RecordDurable` only if `report`."""

    record: TransactionRecord
    report: bool


class AppendTombstone(msgspec.Struct, frozen=True):
    """Append the removal of `transactional_id`, then report `RecordDurable`."""

    transactional_id: str


class AppendRound(msgspec.Struct, frozen=True):
    """Append ROUND{round}; its offset is L of the round (T2)."""

    round: Round


class AppendPairs(msgspec.Struct, frozen=True):
    """Append what says since when pairs are in force (T22)."""

    record: PairsRecord


class Answer(msgspec.Struct, frozen=True):
    """The one answer to a request."""

    request_id: int
    verdict: TxnVerdict
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


class Held(msgspec.Struct, frozen=True):
    """The request waits in the core; report `HoldExpired` when the hold limit has passed."""

    request_id: int
    transactional_id: str


class SendMarkers(msgspec.Struct, frozen=True):
    """Write the outcome of `decision` to `partitions`; report `MarkerConfirmed` for each."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    decision: DecisionId
    partitions: tuple[TopicPartition, ...]
    tv2: bool


TxnEffect = AppendRecord | AppendTombstone | AppendRound | AppendPairs | Answer | Held | SendMarkers
