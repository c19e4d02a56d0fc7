"""Transaction verdicts as Kafka error numbers, with the downgrades per version (C29).

INV-HT1  every `TxnVerdict` has exactly one number per (API, version), checked at import
Not here: Produce and TxnOffsetCommit, which answer verification with errors of their own (C27, C28).
Source: KIP-588, KIP-890, KafkaApis.scala (4.0).
"""

from dataclasses import dataclass
from typing import Final

from txn_coordinator.verdicts import TxnVerdict

INVALID_PRODUCER_EPOCH: Final = 47
PRODUCER_FENCED: Final = 90
TRANSACTION_ABORTABLE: Final = 120
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
TOPIC_AUTHORIZATION_FAILED: Final = 29
OPERATION_NOT_ATTEMPTED: Final = 55

_ERROR_OF: Final = {
    TxnVerdict.OK: 0,
    TxnVerdict.LOADING: 14,
    TxnVerdict.UNAVAILABLE: 15,
    TxnVerdict.NOT_COORDINATOR: 16,
    TxnVerdict.INVALID_REQUEST: 42,
    TxnVerdict.WRONG_DOMAIN: 42,
    TxnVerdict.FENCED_BY_TAKEOVER_FATAL: INVALID_PRODUCER_EPOCH,
    TxnVerdict.STALE_CONNECTION: INVALID_PRODUCER_EPOCH,
    TxnVerdict.INVALID_STATE: 48,
    TxnVerdict.UNKNOWN_PRODUCER_MAPPING: 49,
    TxnVerdict.INVALID_TIMEOUT: 50,
    TxnVerdict.CONCURRENT: 51,
    TxnVerdict.FENCED: PRODUCER_FENCED,
    TxnVerdict.NOT_IN_TRANSACTION: TRANSACTION_ABORTABLE,
    TxnVerdict.FENCED_BY_TAKEOVER: TRANSACTION_ABORTABLE,
}
assert set(_ERROR_OF) == set(TxnVerdict), "a transaction verdict has no Kafka error"


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
