"""Who this node is to other regions, before the failover driver that speaks for it is there.

Not here: what it says (`region.failover.driver`).
"""

from collections.abc import Callable
from typing import Final

from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.peers.protocol import (
    NOT_ACTING,
    STARTS_WITH_HISTORY,
    STARTS_WITHOUT_HISTORY,
    Hello,
    PeerRefused,
)

_STARTS: Final = "this node is starting, and does not know its region yet"


class Handshake:
    """A `PeerIdentity`; `driver` speaks once it is set."""

    driver: FailoverDriver | None = None
    has_history: Callable[[], bool] | None = None
    """Whether the folder of this node, which is starting, has history (T32); None where nobody asks for that."""

    def hello(self) -> Hello:
        """See `PeerIdentity`; raises `PeerRefused` before there is a driver."""
        return self._speaker().hello()

    def learn(self, hello: Hello) -> None:
        """See `PeerIdentity`; raises `PeerRefused` before there is a driver."""
        self._speaker().learn(hello)

    def _speaker(self) -> FailoverDriver:
        if self.driver is None:
            raise self._not_yet()
        return self.driver

    def _not_yet(self) -> PeerRefused:
        """Return what is answered meanwhile: who asks for a birth has to know whether there is history here."""
        if self.has_history is None:
            return PeerRefused(NOT_ACTING, _STARTS)
        found = STARTS_WITH_HISTORY if self.has_history() else STARTS_WITHOUT_HISTORY
        return PeerRefused(found, _STARTS)
