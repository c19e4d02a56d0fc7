"""What keeps clients of the coordinator from taking without end: ids, and lines in the log.

Not here: the limits themselves (`txn_coordinator.expiry`), who is told what (`client_requests`).
"""

import logging
from collections.abc import Callable
from typing import Final

from idempotency.ports import Clock
from idempotency.said_seldom import SaidSeldom
from txn_coordinator.connection_order import Sender
from txn_coordinator.expiry import IdLimit

_LOG: Final = logging.getLogger(__name__)


class Admission:
    """One for all shards of a coordinator."""

    def __init__(self, clock: Clock, id_count_max: Callable[[], int]) -> None:
        """Nothing was refused yet."""
        self.ids = IdLimit(clock, id_count_max)
        self._said_late = SaidSeldom(clock)

    def was_late(self, transactional_id: str, sender: Sender) -> None:
        """Tell of a request that came over an older connection than its producer uses now (INV-TO1)."""
        if self._said_late.is_due():
            _LOG.warning(
                "a late request of %s was refused: it came on connection %d, its producer goes on over a"
                " newer one (KAFKA-17754). Said once a minute, of any id",
                transactional_id,
                sender.number,
            )
