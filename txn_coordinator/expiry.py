"""When transactions time out (C24), when idle transactional ids are forgotten (C25), and how many there may be.

INV-TX1  time-outs run on the monotonic clock and start again at a reload: skewed clocks and slow
         takeovers never abort a transaction early (G7)
INV-TX2  only EMPTY and COMPLETE_* ids expire, and none with anything under way
A new transactional id is made only while there are fewer than the limit; one that is there is served.
Not here: the abort itself (`core`), the scan interval (`driver`).
"""

import logging
from collections.abc import Callable
from typing import Final

from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.ports import Clock
from idempotency.said_seldom import SaidSeldom

TIMEOUT_MAX_MS: Final = 900_000
ID_RETENTION_MS: Final = 7 * 24 * 3_600_000
assert ID_RETENTION_MS > TIMEOUT_MAX_MS, "an id must outlive its longest transaction"

NEW_ID_BYTES_MAX: Final = 2_100
"""Kafka takes 32,767: of as many ids as there may be those would be more than a node keeps, or one answer lists. Flink's producers make some of 1,053
characters: 1,000 of a task's name (FLINK-17691), an operator's id, and a number; two bytes for each letter of the name are enough for most."""
_log: Final = logging.getLogger(__name__)
_EXPIRABLE: Final = (TxnStatus.EMPTY, TxnStatus.COMPLETE_COMMIT, TxnStatus.COMPLETE_ABORT)


def timeout_is_valid(timeout_ms: int, timeout_max_ms: int) -> bool:
    """Return whether a client may have this transaction time-out."""
    return 0 < timeout_ms <= timeout_max_ms


def id_is_expired(record: TransactionRecord, wall_ms: int, retention_ms: int) -> bool:
    """Return whether the transactional id has been idle past its retention (wall clock)."""
    return record.status in _EXPIRABLE and wall_ms - record.last_update_ms > retention_ms


class IdLimit:
    """Keeps clients from making transactional ids without end; says so once a minute."""

    def __init__(self, clock: Clock, count_max: Callable[[], int]) -> None:
        """Allow as many of them as `count_max` tells at the moment."""
        self._count_max = count_max
        self._said = SaidSeldom(clock)

    def admits(self, transactional_id: str, count: int) -> bool:
        """Return whether a new id may be made where there are `count`."""
        if len(transactional_id.encode()) > NEW_ID_BYTES_MAX:
            self._say(transactional_id, f"it has more than {NEW_ID_BYTES_MAX} bytes")
            return False
        count_max = self._count_max()
        if count < count_max:
            return True
        self._say(
            transactional_id,
            f"there are as many as transactional_id_count_max = {count_max} allows. An id goes when nobody used it for a week: give a"
            " producer the same one at every start",
        )
        return False

    def _say(self, transactional_id: str, why: str) -> None:
        if self._said.is_due():
            _log.warning(
                "the new transactional id %.200r is refused (INVALID_REQUEST): %s. Said once a minute",
                transactional_id, why,
            )  # fmt: skip
