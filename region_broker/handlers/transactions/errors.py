"""Transaction verdicts as Kafka error numbers, with the downgrades per version (C29).

Every `TxnVerdict` has exactly one number per (API, version), checked at import.
Not here: Produce and TxnOffsetCommit, which answer verification with errors of their own (C27, C28).
Source: KIP-588, KIP-890, KafkaApis.scala (4.0).
"""

from dataclasses import dataclass
from typing import Final

from idempotency.ledger_records import TxnStatus
from txn_coordinator.verdicts import TxnVerdict

UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
PRODUCER_FENCED: Final = 90
TRANSACTION_ABORTABLE: Final = 120
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
TOPIC_AUTHORIZATION_FAILED: Final = 29
OPERATION_NOT_ATTEMPTED: Final = 55
TRANSACTIONAL_ID_NOT_FOUND: Final = 105

STATE_NAMES: Final = {
    TxnStatus.EMPTY: "Empty",
    TxnStatus.ONGOING: "Ongoing",
    TxnStatus.PREPARE_COMMIT: "PrepareCommit",
    TxnStatus.PREPARE_ABORT: "PrepareAbort",
    TxnStatus.COMPLETE_COMMIT: "CompleteCommit",
    TxnStatus.COMPLETE_ABORT: "CompleteAbort",
    TxnStatus.DEAD: "Dead",
    TxnStatus.PREPARE_EPOCH_FENCE: "PrepareEpochFence",
}
"""Kafka's names of the states (TransactionState.java), as DescribeTransactions and ListTransactions say them."""
assert set(STATE_NAMES) == set(TxnStatus), "a state of a transaction has no name"

_ERROR_OF: Final = {
    TxnVerdict.OK: 0,
    TxnVerdict.LOADING: 14,
    TxnVerdict.UNAVAILABLE: 15,
    TxnVerdict.NOT_COORDINATOR: 16,
    TxnVerdict.INVALID_REQUEST: INVALID_REQUEST,
    TxnVerdict.WRONG_DOMAIN: INVALID_REQUEST,
    TxnVerdict.FENCED_BY_TAKEOVER_FATAL: INVALID_PRODUCER_EPOCH,
    TxnVerdict.STALE_CONNECTION: INVALID_PRODUCER_EPOCH,
    TxnVerdict.UNPROVEN_CONNECTION: 14,  # repeated at once; Produce and TxnOffsetCommit have their own
    TxnVerdict.INVALID_STATE: INVALID_TXN_STATE,
    TxnVerdict.UNKNOWN_PRODUCER_MAPPING: 49,
    TxnVerdict.INVALID_TIMEOUT: 50,
    TxnVerdict.CONCURRENT: 51,
    TxnVerdict.FENCED: PRODUCER_FENCED,
    TxnVerdict.NOT_IN_TRANSACTION: TRANSACTION_ABORTABLE,
    TxnVerdict.FENCED_BY_TAKEOVER: TRANSACTION_ABORTABLE,
}
assert set(_ERROR_OF) == set(TxnVerdict), "a transaction verdict has no Kafka error"


def error_number(verdict: TxnVerdict) -> int:
    """Return the Kafka error number of `verdict` for APIs that know all of them in every version."""
    return _ERROR_OF[verdict]


@dataclass(frozen=True, slots=True)
class ErrorVersions:
    """From which version on clients of an API know the newer errors."""

    producer_fenced_since: int
    abortable_since: int

    def error_of(self, verdict: TxnVerdict, version: int) -> int:
        """Return the Kafka error number of `verdict` in an answer of `version`."""
        error_code = _ERROR_OF[verdict]
        if error_code == PRODUCER_FENCED and version < self.producer_fenced_since:
            return INVALID_PRODUCER_EPOCH
        if error_code == TRANSACTION_ABORTABLE and version < self.abortable_since:
            return INVALID_PRODUCER_EPOCH  # T22: the producer has to be built anew
        return error_code
