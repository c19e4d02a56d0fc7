"""The lines that an operator reads of aborts that no client asked for: whose, why, and what was in it.

INV-TAL1  every abort that the producer did not ask for itself is one line with its transactional id, producer id and
          epoch: the same that DescribeTransactions, `tidemark txn describe` and `tidemark log dump` show
Not here: aborts by the producer (`__transaction_state` has them), what a takeover aborts (`adoption` reports it).
"""

import logging
from typing import Final

from idempotency.ledger_records import TransactionRecord

_LOG: Final = logging.getLogger(__name__)
_PARTITIONS_SHOWN_MAX: Final = 20


def tell_timed_out(record: TransactionRecord) -> None:
    """Tell that a transaction was open for longer than its producer allowed."""
    _LOG.warning(
        "the transaction of %s is aborted: its producer did not end it within %d ms",
        record.transactional_id, record.timeout_ms, extra=_fields(record),
    )  # fmt: skip


def tell_replaced(record: TransactionRecord) -> None:
    """Tell that a producer began anew over an open transaction."""
    _LOG.info(
        "the open transaction of %s is aborted: a producer began anew with its id",
        record.transactional_id, extra=_fields(record),
    )  # fmt: skip


def tell_ordered(record: TransactionRecord) -> None:
    """Tell that an administrator ended a transaction."""
    _LOG.warning(
        "the transaction of %s was aborted by an administrator; its producer is fenced",
        record.transactional_id, extra=_fields(record),
    )  # fmt: skip


def _fields(record: TransactionRecord) -> dict[str, object]:
    shown = [f"{tp.topic}-{tp.partition}" for tp in record.partitions[:_PARTITIONS_SHOWN_MAX]]
    return {
        "transactional_id": record.transactional_id,
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "started_ms": record.start_ms,
        "partition_count": len(record.partitions),
        "partitions": shown,
    }
