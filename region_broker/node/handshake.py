"""Who this node is to other regions, before the failover driver that speaks for it is there.

Not here: what it says (`region.failover.driver`).
"""

from collections.abc import Callable

from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.peers.protocol import NOT_ACTING, Hello, PeerRefused


class Handshake:
    """A `PeerIdentity`; `driver` speaks once it is set, and while nothing is `refused`."""

    driver: FailoverDriver | None = None

    def __init__(self) -> None:
        """Nobody speaks yet."""
        self.refused: Callable[[], PeerRefused | None] = lambda: None
        """Why this node does not speak for its region now: another one leads it."""

    def hello(self) -> Hello:
        """See `PeerIdentity`; raises `PeerRefused` before there is a driver."""
        return self._speaker().hello()

    def learn(self, hello: Hello) -> None:
        """See `PeerIdentity`; raises `PeerRefused` before there is a driver."""
        self._speaker().learn(hello)

    def _speaker(self) -> FailoverDriver:
        if self.driver is None:
            raise PeerRefused(NOT_ACTING, "this node is starting, and does not know its region yet")
        if (refused := self.refused()) is not None:
            raise refused
        return self.driver
