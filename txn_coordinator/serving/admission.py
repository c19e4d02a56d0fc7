"""What keeps clients of the coordinator from taking without end: ids, partitions, the disk, and lines in the log.

INV-TAD1 while the disk has no room but for what ends transactions (INV-DRM1), no transaction begins or grows, but by the offsets that end it,
         and no pair is given out, but to end what is open: UNAVAILABLE, after which clients ask again
Not here: the limits themselves (`txn_coordinator.expiry`, `partition_limit`), who is told what (`client_requests`).
"""

import logging
from collections.abc import Callable
from typing import Final

from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.ports import Clock
from idempotency.said_seldom import SaidSeldom
from txn_coordinator.connection_order import Sender
from txn_coordinator.expiry import IdLimit
from txn_coordinator.partition_limit import (
    OPEN_PARTITIONS_MAX,
    SMALL_TRANSACTION_PARTITIONS,
    TRANSACTION_PARTITIONS_MAX,
)
from txn_coordinator.states import PREPARED
from txn_coordinator.verdicts import TxnVerdict

_LOG: Final = logging.getLogger(__name__)


class Admission:
    """One for all shards of a coordinator."""

    def __init__(self, clock: Clock, id_count_max: Callable[[], int]) -> None:
        """Nothing was refused yet."""
        self.no_room: Callable[[], str | None] = lambda: None
        """Tells why the disk of the ledger takes only what ends transactions; set where it may be full."""
        self._ids = IdLimit(clock, id_count_max)
        self._said_late = SaidSeldom(clock)
        self._said_many = SaidSeldom(clock)
        self._said_full = SaidSeldom(clock)

    def of_init(
        self, transactional_id: str, present: TransactionRecord | None, id_count: int
    ) -> TxnVerdict:
        """Return whether a pair may be given to a transactional id; there are `id_count` of them."""
        if present is None and not self._ids.admits(transactional_id, id_count):
            return TxnVerdict.INVALID_REQUEST
        ends = present is not None and (_is_open(present) or present.status in PREPARED)
        return TxnVerdict.OK if ends or self.no_room() is None else TxnVerdict.UNAVAILABLE

    def of_join(
        self, present: TransactionRecord | None, *, ends: bool, joining: int, open_count: int
    ) -> TxnVerdict:
        """Return whether so many partitions may join, where all transactions have `open_count`; `ends`: by offsets only."""
        if present is None:
            return TxnVerdict.OK  # the core says that there is no such id
        if self.no_room() is not None and not (ends and _is_open(present)):
            return TxnVerdict.UNAVAILABLE
        if open_count + joining <= OPEN_PARTITIONS_MAX or (ends and _is_open(present)):
            return TxnVerdict.OK
        already = len(present.partitions) if _is_open(present) else 0
        if (
            already + joining <= SMALL_TRANSACTION_PARTITIONS
        ):  # who has many keeps nobody out who has few
            return TxnVerdict.OK
        if self._said_full.is_due():
            _LOG.warning(
                "partitions that are to join the transaction of %.200r are refused for now: those that are open have %d, and may have"
                " %d together. Fewer producers at once, or transactions that end sooner, make room. Said once a minute, of any id",
                present.transactional_id, open_count, OPEN_PARTITIONS_MAX,
            )  # fmt: skip
        return TxnVerdict.UNAVAILABLE

    def joined(self, transactional_id: str, verdict: TxnVerdict) -> TxnVerdict:
        """Return what the core said to partitions that were to join, and tell of those that were too many (INV-TX3)."""
        if verdict is TxnVerdict.INVALID_REQUEST and self._said_many.is_due():
            _LOG.warning(
                "partitions that were to join the transaction of %.200r are refused (INVALID_REQUEST): one transaction has %d at most."
                " Let several producers write to them. Said once a minute, of any id",
                transactional_id, TRANSACTION_PARTITIONS_MAX,
            )  # fmt: skip
        return verdict

    def was_late(self, transactional_id: str, sender: Sender) -> None:
        """Tell of a request that came over an older connection than its producer uses now (INV-TO1)."""
        if self._said_late.is_due():
            _LOG.warning(
                "a late request of %s was refused: it came on connection %d, its producer goes on over a"
                " newer one (KAFKA-17754). Said once a minute, of any id",
                transactional_id,
                sender.number,
            )


def _is_open(record: TransactionRecord) -> bool:
    return record.status is TxnStatus.ONGOING
