"""Verdicts on a produced batch as Kafka error numbers, with the downgrades per version (C27-C29).

Every `AppendVerdict` and every `TxnVerdict` has exactly one number per version, checked at import.
Not here: the other APIs of transactions (`transactions.errors`).
Source: KIP-890, KafkaApis.scala (4.0).
"""

from typing import Final

from kio.schema.errors import ErrorCode

from region_broker.partitions.admission import AppendVerdict
from txn_coordinator.verdicts import TxnVerdict

_ABORTABLE_SINCE: Final = 11
_TV2_SINCE: Final = 12

ERROR_OF_VERDICT: Final = {
    AppendVerdict.APPENDED: ErrorCode.none,
    AppendVerdict.DUPLICATE: ErrorCode.none,
    AppendVerdict.OUT_OF_ORDER_SEQUENCE: ErrorCode.out_of_order_sequence_number,
    AppendVerdict.STALE_PRODUCER_EPOCH: ErrorCode.invalid_producer_epoch,
    AppendVerdict.INVALID_TXN_STATE: ErrorCode.invalid_txn_state,
    AppendVerdict.CORRUPT: ErrorCode.corrupt_message,
    AppendVerdict.INVALID_RECORD: ErrorCode.invalid_record,
    AppendVerdict.TOO_LARGE: ErrorCode.message_too_large,
    AppendVerdict.LARGER_THAN_SEGMENT: ErrorCode.record_list_too_large,
    AppendVerdict.INVALID_TIMESTAMP: ErrorCode.invalid_timestamp,
    AppendVerdict.NOT_LEADER: ErrorCode.not_leader_or_follower,
    AppendVerdict.STORAGE_FAILED: ErrorCode.kafka_storage_error,
    AppendVerdict.COORDINATOR_FENCED: ErrorCode.transaction_coordinator_fenced,
    AppendVerdict.MARKER_ALREADY_APPLIED: ErrorCode.invalid_record,
    AppendVerdict.UNSUPPORTED_MAGIC: ErrorCode.unsupported_for_message_format,
    AppendVerdict.KEY_NOT_HERE: ErrorCode.policy_violation,
    AppendVerdict.TOO_MANY_PRODUCERS: ErrorCode.policy_violation,
}
assert set(ERROR_OF_VERDICT) == set(AppendVerdict)

# C28: coordinator errors that pass become NOT_ENOUGH_REPLICAS, which every client retries without
# refreshing its metadata.
_ERROR_OF_VERIFICATION: Final = {
    TxnVerdict.OK: ErrorCode.none,
    TxnVerdict.LOADING: ErrorCode.not_enough_replicas,
    TxnVerdict.NOT_COORDINATOR: ErrorCode.not_enough_replicas,
    TxnVerdict.UNAVAILABLE: ErrorCode.not_enough_replicas,
    TxnVerdict.CONCURRENT: ErrorCode.not_enough_replicas,
    TxnVerdict.FENCED: ErrorCode.invalid_producer_epoch,  # C29, and C6: not PRODUCER_FENCED on Produce
    TxnVerdict.STALE_CONNECTION: ErrorCode.invalid_producer_epoch,
    TxnVerdict.UNPROVEN_CONNECTION: ErrorCode.not_enough_replicas,
    TxnVerdict.FENCED_BY_TAKEOVER: ErrorCode.invalid_producer_epoch,
    TxnVerdict.FENCED_BY_TAKEOVER_FATAL: ErrorCode.invalid_producer_epoch,
    TxnVerdict.UNKNOWN_PRODUCER_MAPPING: ErrorCode.invalid_producer_id_mapping,
    TxnVerdict.INVALID_STATE: ErrorCode.invalid_txn_state,
    TxnVerdict.INVALID_TIMEOUT: ErrorCode.invalid_txn_state,
    TxnVerdict.INVALID_REQUEST: ErrorCode.invalid_request,
    TxnVerdict.NOT_IN_TRANSACTION: ErrorCode.invalid_txn_state,
    TxnVerdict.WRONG_DOMAIN: ErrorCode.invalid_topic_exception,
}
assert set(_ERROR_OF_VERIFICATION) == set(TxnVerdict)


def verification_error(verdict: TxnVerdict, version: int) -> ErrorCode:
    """Return the error of Produce `version` for a verification verdict (C27-C29, T22)."""
    if version >= _ABORTABLE_SINCE and verdict in (
        TxnVerdict.NOT_IN_TRANSACTION,
        TxnVerdict.FENCED_BY_TAKEOVER,
    ):
        return ErrorCode.transaction_abortable
    if version >= _TV2_SINCE and verdict is TxnVerdict.CONCURRENT:
        return ErrorCode.concurrent_transactions
    return _ERROR_OF_VERIFICATION[verdict]
