"""Who this node is to other regions, before the failover driver that speaks for it is there.

Not here: what it says (`region.failover.driver`).
"""

from collections.abc import Callable
from typing import Final

from geo_replicator.folder_life import FolderIdentity
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.peers.protocol import (
    NOT_ACTING,
    STARTS_WITH_HISTORY,
    STARTS_WITH_QUORUM,
    STARTS_WITHOUT_HISTORY,
    Hello,
    PeerRefused,
)

_STARTS: Final = "this node is starting, and does not know its region yet"


class Handshake:
    """A `PeerIdentity`; `driver` speaks once it is set, and while nothing is `refused`."""

    driver: FailoverDriver | None = None
    identity: Callable[[], FolderIdentity] | None = None
    """What the folder of this node, which is starting, says of itself (T32); None where nobody asks for that."""

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
            raise self._not_yet()
        if (refused := self.refused()) is not None:
            raise refused
        return self.driver

    def _not_yet(self) -> PeerRefused:
        """Return what is answered meanwhile: who asks for a birth has to know whether there is history here."""
        if self.identity is None:
            return PeerRefused(NOT_ACTING, _STARTS)
        identity = self.identity()
        if identity.history is not None:
            return PeerRefused(STARTS_WITH_HISTORY, _STARTS)
        return PeerRefused(
            STARTS_WITH_QUORUM if identity.founds else STARTS_WITHOUT_HISTORY, _STARTS
        )
