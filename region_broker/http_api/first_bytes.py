"""What a connection to the HTTP port says first: a request, or something that is no HTTP at all.

INV-HFB1  bytes that begin no HTTP request close the connection at once, with the reason in the log; a Kafka client that
          was given the wrong port would else wait for an answer until its own time-out
INV-HFB2  a connection that says nothing is closed, too, after `silence_ms`

Not here: requests (`app`).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from aiohttp import web

from region_broker.ports.network import OnFailedHandshake, TlsContexts, unheard
from region_broker.ports.system.tls_accept import TlsServer

_log: Final = logging.getLogger("tidemark.http")


class FirstBytes(asyncio.Protocol):
    """Waits for the first bytes, then lets the HTTP protocol that `serve` makes have the connection, or closes it."""

    def __init__(self, serve: Callable[[], asyncio.Protocol], silence_ms: int) -> None:
        """Nothing is connected yet."""
        self._serve = serve
        self._silence_ms = silence_ms
        self._transport: asyncio.Transport | None = None
        self._silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait."""
        self._transport = cast("asyncio.Transport", transport)
        loop = asyncio.get_running_loop()
        self._silence = loop.call_later(self._silence_ms / 1000, self._transport.close)

    def data_received(self, data: bytes) -> None:
        """Judge the first bytes: each HTTP method begins with a letter, a Kafka frame with a length."""
        assert self._transport is not None
        self._stop_waiting()
        if not data[:1].isalpha():
            _log.warning(
                "bytes from %s on the HTTP port are no HTTP: a Kafka client that was given the wrong port?",
                self._transport.get_extra_info("peername"),
            )
            self._transport.close()
            return
        http = self._serve()
        self._transport.set_protocol(http)
        http.connection_made(self._transport)
        http.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None


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
        if self._tls is not None:
            secured = TlsServer(
                self._tls, lambda: FirstBytes(serve, self._silence_ms), self._on_failed
            )
            await secured.bind(host, port, self._backlog)
            # aiohttp asks it for its sockets, and closes it.
            self._server = cast("asyncio.Server", secured)
            return
        self._server = await asyncio.get_running_loop().create_server(
            lambda: FirstBytes(serve, self._silence_ms), host, port, backlog=self._backlog
        )
