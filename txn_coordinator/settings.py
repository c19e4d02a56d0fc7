"""Limits and intervals of the transaction coordinator.

Not here: where a node's configuration sets them (region_broker.node).
"""

from dataclasses import dataclass

from idempotency.identity import OFFSETS_LEDGER
from txn_coordinator import expiry


@dataclass(slots=True)
class TxnSettings:
    """Limits and intervals of the coordinator, in ms.

    `TransactionCoordinator.limit` changes some of them while it serves: who holds this reads a value when it needs it.
    """

    hold_limit_ms: int = 2_000
    scan_interval_ms: int = 1_000
    id_scan_interval_ms: int = 3_600_000
    timeout_max_ms: int = expiry.TIMEOUT_MAX_MS
    id_retention_ms: int = expiry.ID_RETENTION_MS
    id_count_max: int = 50_000
    """Transactional ids: a request that would make one more is INVALID_REQUEST."""
    offsets_topic: str = OFFSETS_LEDGER
    connection_order: bool = True
    """Refuse what TV1 clients sent before they went on over another connection (KAFKA-17754)."""
