"""What a connection to the HTTP port says first: a request, or something that is no HTTP at all.

INV-HFB1  bytes that begin no HTTP request close the connection at once, with the reason in the log; a Kafka client that
          was given the wrong port would else wait for an answer until its own time-out
INV-HFB2  a connection that says nothing is closed, too, after `silence_ms`
INV-HFB3  `CONNECTIONS_MAX` are open at once, `OF_AN_ADDRESS_MAX` of one address: descriptors are left to the files of partitions, which
          stop for good where they get none. At the bound the one gives way that has had no request under way for longest, whatever it has
          said; those of this machine, and those that somebody was known on, last. Where all are served, who comes is sent away. A request
          is under way once it is let in and read: who is refused, or takes his time to send or to read, holds no place by that
INV-HFB4  of what is sent away a line is told in `TOLD_EACH_S`, which says how many it stands for: a flood fills no log
INV-HFB5  who takes no answer for `write_timeout_ms`, nor lets the connection end, is cut off before twice that: neither aiohttp nor a
          transport that closes gives up, and what waits behind the answer would be held for as long
INV-HFB6  `unended_bytes_max` come without an empty line, which a head ends with: of what comes behind nothing is taken, so nobody makes the parser keep a longer one

Not here: requests (`app`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

from aiohttp import web

from region_broker.limits import KIB, WRITE_TIMEOUT_MS
from region_broker.ports.addresses import network_of
from region_broker.ports.network import OnFailedHandshake, TlsContexts, unheard
from region_broker.ports.system.tls_accept import TlsServer
from region_broker.security.identity import acl_host
from region_broker.security.login import is_this_machine

CONNECTIONS_MAX: Final = 1_000
OF_AN_ADDRESS_MAX: Final = 250
TOLD_EACH_S: Final = 1.0
_EMPTY_LINE: Final = b"\r\n\r\n"
_log: Final = logging.getLogger("tidemark.http")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of one connection: how long it may say nothing at first, and take nothing, and how much may come without an empty line."""

    silence_ms: int
    write_timeout_ms: int = WRITE_TIMEOUT_MS
    unended_bytes_max: int = 96 * KIB


class OpenConnections:
    """Counts the connections of one port (INV-HFB3), and tells of those that are sent away (INV-HFB4)."""

    def __init__(self) -> None:
        """None is open."""
        self._of_address: Counter[str] = Counter()
        # Which have no request under way, for longest first: of strangers, and of those that go last.
        self._resting: tuple[dict[FirstBytes, None], dict[FirstBytes, None]] = ({}, {})
        self._count = 0
        self._told_s = -TOLD_EACH_S
        self._untold = 0

    def enter(self, connection: "FirstBytes", address: str) -> bool:
        """Count a connection that has said nothing yet; False: it is not counted, and to be closed."""
        if self._of_address[address] >= OF_AN_ADDRESS_MAX:
            self.tell(
                f"{address} has {OF_AN_ADDRESS_MAX} connections to the HTTP port open already"
            )
            return False
        if self._count >= CONNECTIONS_MAX:
            longest = next(chain.from_iterable(self._resting), None)
            if longest is None:
                self.tell(f"{CONNECTIONS_MAX} connections to the HTTP port are open already")
                return False
            self.tell(
                f"{CONNECTIONS_MAX} connections to the HTTP port are open: the idlest is closed"
            )
            longest.give_way()
        self._of_address[address] += 1
        self._count += 1
        self.rests(connection)
        return True

    def rests(self, connection: "FirstBytes") -> None:
        """Let a connection give way, from now on behind all others of its kind."""
        self._resting[connection.goes_last][connection] = None

    def is_served(self, connection: "FirstBytes") -> None:
        """Let a connection give way no more."""
        for resting in self._resting:
            resting.pop(connection, None)

    def left(self, connection: "FirstBytes", address: str) -> None:
        """Note that one that was counted has ended."""
        self.is_served(connection)
        self._count -= 1
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def tell(self, why: str) -> None:
        """Log why a connection is closed, now and then."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._told_s + TOLD_EACH_S:
            self._untold += 1
            return
        self._told_s, untold, self._untold = now_s, self._untold, 0
        _log.warning("%s (%d more connections were closed since the last line)", why, untold)


class Unended:
    """Takes what comes as long as an empty line is in it often enough (INV-HFB6).

    Whether bytes are of a head or of a body is not asked, so this reads no HTTP beside the parser: within a head there is no empty line.
    """

    def __init__(self, bytes_max: int) -> None:
        """Nothing has come."""
        self._bytes_max = bytes_max
        self._since_bytes = 0  # the last empty line
        self._last = b""  # three bytes: an empty line may come in pieces
        self._too_long = False

    def is_too_long(self) -> bool:
        """Return whether nothing is taken any more."""
        return self._too_long

    def taken(self, data: bytes) -> bytes:
        """Return as much of `data` as is taken, and note where that is not all of it."""
        if self._too_long:
            return b""
        before = len(self._last)
        joined = self._last + data
        since = (
            -self._since_bytes
        )  # where the last empty line ended, counted from the beginning of `data`
        while len(data) - since > self._bytes_max:
            bound = since + self._bytes_max
            found = joined.rfind(_EMPTY_LINE, max(0, since + before), bound + before)
            if found < 0:
                self._too_long = True
                return data[:bound]
            since = found + len(_EMPTY_LINE) - before
        found = joined.rfind(_EMPTY_LINE, max(0, since + before))
        if found >= 0:
            since = found + len(_EMPTY_LINE) - before
        self._since_bytes = len(data) - since
        self._last = joined[-len(_EMPTY_LINE) + 1 :]
        return data


class FirstBytes(asyncio.Protocol):
    """Waits for the first bytes, then lets the HTTP protocol that `serve` makes have the connection, or closes it."""

    def __init__(
        self, serve: Callable[[], asyncio.Protocol], bounds: Bounds, opened: OpenConnections
    ) -> None:
        """Nothing is connected yet."""
        self._serve = serve
        self._bounds = bounds
        self._opened = opened
        self.goes_last = False
        """Whether strangers give way before (INV-HFB3)."""
        self._address: str | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = (
            None  # of silence at first, then of answers that are not taken
        )
        self._http: asyncio.Protocol | None = None
        self._unended = Unended(bounds.unended_bytes_max)
        self._writing_is_paused = False
        self._was_stuck = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait."""
        self._transport = cast("asyncio.Transport", transport)
        peer = _peer_of(self._transport)
        address, self.goes_last = network_of(peer), is_this_machine(acl_host(peer))
        if not self._opened.enter(self, address):
            self._transport.abort()
            return
        self._address = address
        self._look_in(self._bounds.silence_ms, self._end_of_silence)

    def give_way(self) -> None:
        """End, now; its place is another one's."""
        assert self._transport is not None, "it was counted"
        self._leave()
        self._transport.abort()

    def request_began(self, *, is_known: bool) -> None:
        """Hold the place while a request that was let in is under way; `is_known`: it was said who asks."""
        if self._address is not None:
            self._opened.is_served(self)
            self.goes_last = self.goes_last or is_known

    def request_ended(self) -> None:
        """Hold the place no more."""
        if self._address is not None:
            self._opened.rests(self)

    def data_received(self, data: bytes) -> None:
        """Judge the first bytes: each HTTP method begins with a letter, a Kafka frame with a length."""
        if self._http is not None:
            self._pass_on(data)
            return
        if self._address is None or self._transport is None:
            return  # it was sent away, or has gone
        self._look_in(self._bounds.write_timeout_ms, self._look_for_progress)
        if not data[:1].isalpha():
            self._opened.tell(
                f"bytes from {self._address} on the HTTP port are no HTTP: a Kafka client that was given the wrong port?"
            )
            self._transport.close()
            return
        self._http = self._serve()
        self._http.connection_made(self._transport)
        self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        assert self._http is not None, "it is served"
        if self._unended.is_too_long():
            return
        self._http.data_received(self._unended.taken(data))
        if self._unended.is_too_long():
            self._opened.tell(
                f"a request of {self._address} has no end within {self._bounds.unended_bytes_max} bytes"
            )

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return None if self._http is None else self._http.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._writing_is_paused = True
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._writing_is_paused = self._was_stuck = False
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and hold nothing that holds this connection (INV-PN7)."""
        self._leave()
        http, self._http, self._transport = self._http, None, None
        if http is not None:
            # Without the error: aiohttp would give it to whoever waits to write, and the frames of its traceback hold what holds it.
            http.connection_lost(None)
            _free_unanswered(http)

    def _leave(self) -> None:
        """Give its place back."""
        self._stop_waiting()
        if self._address is not None:
            self._opened.left(self, self._address)
            self._address = None

    def _look_in(self, time_ms: int, look: Callable[[], None]) -> None:
        self._stop_waiting()
        self._timer = asyncio.get_running_loop().call_later(time_ms / 1000, look)

    def _end_of_silence(self) -> None:
        assert self._transport is not None, "the timer ends with it"
        self._look_in(self._bounds.write_timeout_ms, self._look_for_progress)
        self._transport.close()

    def _look_for_progress(self) -> None:
        """Cut off whom nothing was sent to since the last look, although there was something (INV-HFB5)."""
        assert self._transport is not None, "the timer ends with it"
        stuck = self._writing_is_paused or self._transport.is_closing()
        if stuck and self._was_stuck:
            self._opened.tell(
                f"{self._address} took no answer for {self._bounds.write_timeout_ms} ms, and is cut off"
            )
            self._stop_waiting()
            self._transport.abort()
            return
        self._was_stuck = stuck
        self._look_in(self._bounds.write_timeout_ms, self._look_for_progress)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _free_unanswered(http: asyncio.Protocol) -> None:
    """Leave nothing to the cycle collector of what could not be read and was not answered, behind a request that ended the connection (INV-HPL2)."""
    for message, _body in getattr(http, "_messages", ()):  # aiohttp's own, and nobody is told of it
        error = getattr(message, "exc", None)
        if error is not None:
            error.__traceback__ = None


def _peer_of(transport: asyncio.Transport) -> str:
    peer: Any = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


def connection_of(transport: asyncio.Transport | None) -> FirstBytes | None:
    """Return what a request came over; None where it has ended, or is no connection to such a port."""
    protocol = None if transport is None else transport.get_protocol()
    return protocol if isinstance(protocol, FirstBytes) else None


class FirstBytesSite(web.BaseSite):
    """Binds one address, and looks at what each connection says first."""

    def __init__(
        self, runner: web.BaseRunner, host: str, port: int, bounds: Bounds,
        *, tls: TlsContexts | None = None, on_failed: OnFailedHandshake = unheard,
    ) -> None:  # fmt: skip
        """Nothing is bound yet; with `tls` the first bytes are those inside of it."""
        super().__init__(runner)
        self._tls = tls
        self._on_failed = on_failed
        self._address = (host, port)
        self._bounds = bounds

    @property
    def name(self) -> str:
        """The address, as aiohttp shows it."""
        host, port = self._address
        return f"{'http' if self._tls is None else 'https'}://{host}:{port}"

    async def start(self) -> None:
        """Bind; raises OSError when the address is not free."""
        await super().start()
        serve = self._runner.server
        assert serve is not None
        host, port = self._address
        opened = OpenConnections()

        def begin() -> FirstBytes:
            return FirstBytes(serve, self._bounds, opened)

        if self._tls is not None:
            secured = TlsServer(self._tls, begin, self._on_failed)
            await secured.bind(host, port, self._backlog)
            # aiohttp asks it for its sockets, and closes it.
            self._server = cast("asyncio.Server", secured)
            return
        self._server = await asyncio.get_running_loop().create_server(
            begin, host, port, backlog=self._backlog
        )
