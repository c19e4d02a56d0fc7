"""What the Kafka port asks of quotas: whether a request may be begun, and what it is charged as it is.

Not here: quotas themselves (`security.quotas`), what becomes of a connection meanwhile (`wire.server`).
"""

from collections.abc import Callable
from typing import Protocol

from region_broker.security.quotas.lines import Place
from region_broker.security.quotas.throttles import Meter
from region_broker.wire.connection import Incoming


class RequestQuotas(Protocol):
    """Quotas of clients, while there are any."""

    def hold(self, incoming: Incoming, go: Callable[[], None]) -> Place | None:
        """Keep a request from being begun until `go` is called, as those who share its limits owe something; None: it may begin."""
        ...

    def hold_unread(self, meter: Meter, go: Callable[[], None]) -> Place | None:
        """Do so for a connection whose last request was charged by `meter`, before more is read of it."""
        ...

    def charge(self, incoming: Incoming) -> None:
        """Charge a request that begins, which may throttle it."""
        ...
