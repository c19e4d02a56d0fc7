"""What a connection to the HTTP port says first: a request, or something that is no HTTP at all.

INV-HFB1  bytes that begin no HTTP request close the connection at once, with the reason in the log; a Kafka client that
          was given the wrong port would else wait for an answer until its own time-out
INV-HFB2  a connection that says nothing is closed, too, after `silence_ms`
INV-HFB3  `CONNECTIONS_MAX` are open at once, `OF_AN_ADDRESS_MAX` of one address: descriptors are left to the files of partitions, which
          stop for good where they get none. At the bound the oldest that has said nothing gives way, else who comes is sent away
INV-HFB4  of what is sent away a line is told in `TOLD_EACH_S`, which says how many it stands for: a flood fills no log

Not here: requests (`app`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web

from region_broker.ports.addresses import network_of
from region_broker.ports.network import OnFailedHandshake, TlsContexts, unheard
from region_broker.ports.system.tls_accept import TlsServer

CONNECTIONS_MAX: Final = 1_000
OF_AN_ADDRESS_MAX: Final = 250
TOLD_EACH_S: Final = 1.0
_log: Final = logging.getLogger("tidemark.http")


class OpenConnections:
    """Counts the connections of one port (INV-HFB3), and tells of those that are sent away (INV-HFB4)."""

    def __init__(self) -> None:
        """None is open."""
        self._of_address: Counter[str] = Counter()
        self._silent: dict[FirstBytes, None] = {}  # in the order they came
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
            oldest = next(iter(self._silent), None)
            if oldest is None:
                self.tell(f"{CONNECTIONS_MAX} connections to the HTTP port are open already")
                return False
            oldest.give_way()
        self._of_address[address] += 1
        self._count += 1
        self._silent[connection] = None
        return True

    def has_spoken(self, connection: "FirstBytes") -> None:
        """Let a connection give way no more."""
        self._silent.pop(connection, None)

    def left(self, connection: "FirstBytes", address: str) -> None:
        """Note that one that was counted has ended."""
        self._silent.pop(connection, None)
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


class FirstBytes(asyncio.Protocol):
    """Waits for the first bytes, then lets the HTTP protocol that `serve` makes have the connection, or closes it."""

    def __init__(
        self, serve: Callable[[], asyncio.Protocol], silence_ms: int, opened: OpenConnections
    ) -> None:
        """Nothing is connected yet."""
        self._serve = serve
        self._silence_ms = silence_ms
        self._opened = opened
        self._address: str | None = None
        self._transport: asyncio.Transport | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._http: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait."""
        self._transport = cast("asyncio.Transport", transport)
        address = _host_of(self._transport)
        if not self._opened.enter(self, address):
            self._transport.abort()
            return
        self._address = address
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(self._silence_ms / 1000, self._transport.close)

    def give_way(self) -> None:
        """End, now; its place is another one's."""
        assert self._transport is not None, "it was counted"
        self._leave()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Judge the first bytes: each HTTP method begins with a letter, a Kafka frame with a length."""
        if self._http is not None:
            self._http.data_received(data)
            return
        if self._address is None or self._transport is None:
            return  # it was sent away, or has gone
        self._stop_waiting()
        self._opened.has_spoken(self)
        if not data[:1].isalpha():
            self._opened.tell(
                f"bytes from {self._address} on the HTTP port are no HTTP: a Kafka client that was given the wrong port?"
            )
            self._transport.close()
            return
        self._http = self._serve()
        self._http.connection_made(self._transport)
        self._http.data_received(data)

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return None if self._http is None else self._http.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting, and hold nothing that holds this connection (INV-PN7)."""
        self._leave()
        http, self._http, self._transport = self._http, None, None
        if http is not None:
            # Without the error: aiohttp would give it to whoever waits to write, and the frames of its traceback hold what holds it.
            http.connection_lost(None)

    def _leave(self) -> None:
        """Give its place back."""
        self._stop_waiting()
        if self._address is not None:
            self._opened.left(self, self._address)
            self._address = None

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None


def _host_of(transport: asyncio.Transport) -> str:
    peer: Any = transport.get_extra_info("peername")
    return network_of(str(peer[0])) if isinstance(peer, tuple) else ""


class FirstBytesSite(web.BaseSite):
    """Binds one address, and looks at what each connection says first."""

    def __init__(
        self, runner: web.BaseRunner, host: str, port: int, silence_ms: int,
        *, tls: TlsContexts | None = None, on_failed: OnFailedHandshake = unheard,
    ) -> None:  # fmt: skip
        """Nothing is bound yet; with `tls` the first bytes are those inside of it."""
        super().__init__(runner)
        self._tls = tls
        self._on_failed = on_failed
        self._address = (host, port)
        self._silence_ms = silence_ms

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
            return FirstBytes(serve, self._silence_ms, opened)

        if self._tls is not None:
            secured = TlsServer(self._tls, begin, self._on_failed)
            await secured.bind(host, port, self._backlog)
            # aiohttp asks it for its sockets, and closes it.
            self._server = cast("asyncio.Server", secured)
            return
        self._server = await asyncio.get_running_loop().create_server(
            begin, host, port, backlog=self._backlog
        )
