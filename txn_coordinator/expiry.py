"""When transactions time out (C24) and when idle transactional ids are forgotten (C25).

INV-TX1  time-outs run on the monotonic clock and start again at a reload: skewed clocks and slow
         takeovers never abort a transaction early (G7)
INV-TX2  only EMPTY and COMPLETE_* ids expire, and none with anything under way
Not here: the abort itself (`core`), the scan interval (`driver`).
"""

from typing import Final

from idempotency.ledger_records import TransactionRecord, TxnStatus

TIMEOUT_MAX_MS: Final = 900_000
ID_RETENTION_MS: Final = 7 * 24 * 3_600_000
assert ID_RETENTION_MS > TIMEOUT_MAX_MS, "an id must outlive its longest transaction"

_EXPIRABLE: Final = (TxnStatus.EMPTY, TxnStatus.COMPLETE_COMMIT, TxnStatus.COMPLETE_ABORT)


def timeout_is_valid(timeout_ms: int, timeout_max_ms: int) -> bool:
    """Tell whether a client may have this transaction time-out."""
    return 0 < timeout_ms <= timeout_max_ms


def id_is_expired(record: TransactionRecord, wall_ms: int, retention_ms: int) -> bool:
    """Tell whether the transactional id has been idle past its retention (wall clock)."""
    return record.status in _EXPIRABLE and wall_ms - record.last_update_ms > retention_ms
