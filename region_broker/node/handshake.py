"""Who this node is to other regions, before the failover driver that speaks for it is there.

Not here: what it says (`region.failover.driver`).
"""

from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.peers.protocol import NOT_ACTING, Hello, PeerRefused


class Handshake:
    """A `PeerIdentity`; `driver` speaks once it is set."""

    driver: FailoverDriver | None = None

    def hello(self) -> Hello:
        """See `PeerIdentity`; raises `PeerRefused` before there is a driver."""
        return self._speaker().hello()

    def learn(self, hello: Hello) -> None:
        """See `PeerIdentity`; raises `PeerRefused` before there is a driver."""
        self._speaker().learn(hello)

    def _speaker(self) -> FailoverDriver:
        if self.driver is None:
            raise PeerRefused(NOT_ACTING, "this node is starting, and does not know its region yet")
        return self.driver
