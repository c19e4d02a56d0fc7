"""What the requests of one connection share, and what ends with it.

One object per client connection, and one per channel over which a mirror forwards such a connection's requests.
Not here: the order of requests and answers on the socket (`connection`); who reads and writes these fields, which stands at
each of them.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from region_broker.security.identity import ANONYMOUS, Identity
from region_broker.security.sasl.login import Login


class Hop(IntEnum):
    """Over what the requests of a connection have come; each hop is greater than the one before it (INV-FW8)."""

    CLIENT = 0
    """From the client itself."""
    NODE = 1
    """From another node of this region, which this one leads."""
    REGION = 2
    """From another region, for which this one acts."""


@dataclass(slots=True, eq=False)
class ConnectionState:
    """Changed on the event loop only, by the rooms that are named at each field."""

    identity: Identity = ANONYMOUS
    """Whom the connection speaks for (INV-SID1): set by whoever accepted it, or by what proved it (SASL); read by whoever authorizes."""
    must_log_in: bool = False
    """Nothing but a login is served now (INV-LGI1): set by whoever accepted the connection, cleared by its login, and set again where
    its session ends (SASL)."""
    must_log_in_since_ms: int = 0
    """Since when, by the monotonic clock (SASL; the server cuts off who takes too long)."""
    is_encrypted: bool = False
    """Set by whoever accepted the connection: whether others can hear what is said on it (SASL)."""
    login: Login = field(default_factory=Login)
    """How far it is with its login (SASL)."""
    on_first_login: Callable[[], None] = lambda: None
    """Called once it has logged in (the server: requests may be larger from then on)."""
    listener: str = ""
    """By which listener the connection came; "" where another node forwards for it."""
    met_at: Mapping[int, tuple[str, int]] | None = None
    """Where this client meets nodes, and it is told of no others; None: all of them, where everybody does (INV-LST2). Set by whoever
    accepted the connection, read by what tells clients of nodes."""
    hop: Hop = Hop.CLIENT
    """Set by whoever accepted the connection, and read by the forwarder."""
    starts: asyncio.Lock | None = None
    """Under which requests begin, first come, first served (INV-HW1); None while none is read in pieces, or waits (the dispatcher)."""
    starts_waiting: int = 0
    """Requests that wait for their turn in it (the dispatcher)."""
    produce_broken: bool = False
    """A Produce was not forwarded, or refused for a reason that may pass at any moment, so nothing sent behind it may be
    executed (INV-HD4: the dispatcher, Produce and the forwarder)."""
    produce_forwarded: int = 0
    """Produce requests that are under way to the primary region (the dispatcher)."""
    produce_executed: int = 0
    """Produce requests that are under way here (the dispatcher)."""
    appending: list[asyncio.Future[bool]] = field(default_factory=list)
    """A future for each Produce request that has not appended yet, oldest first (INV-H12: Produce); its result: what came behind it is not
    to be executed."""
    _closers: list[Callable[[], None]] = field(default_factory=list)

    def on_end(self, closer: Callable[[], None]) -> None:
        """Call `closer` when the connection has ended: what was bound to it ends with it (a forwarder's channel)."""
        self._closers.append(closer)

    def end(self) -> None:
        """Run the closers; whoever accepted the connection calls this."""
        self.on_first_login = lambda: None
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()
