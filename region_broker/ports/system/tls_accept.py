"""A listening socket that speaks TLS: the handshake of each connection, bounded in time and number, before anybody is told of it.

INV-PTA2  who may not connect costs no handshake: that is asked before it, of the address alone
INV-PTA1  whom a handshake refuses is sent the alert that says why, before the connection ends

A handshake that fails ends its connection and is told by one call, never by an exception of the loop. Who is turned away costs an
accept and a close.
Sockets are accepted here, as asyncio and uvloop take one context for all connections of a server, and no limit of handshakes.
Not here: how many there may be, and the words for failures (`ports.handshakes`).
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from typing_extensions import override

from region_broker.ports.addresses import network_of
from region_broker.ports.handshakes import (
    CLOSE_TIMEOUT_S,
    DEFAULT_HANDSHAKES,
    OTHER,
    TEXTS,
    TOO_MANY,
    HandshakeLimits,
    HandshakePlaces,
    Place,
    reason_of,
    text_of,
)
from region_broker.ports.network import (
    Admits,
    FailedHandshake,
    OnFailedHandshake,
    TlsContexts,
    everybody,
    unheard,
)

_ACCEPTED_AT_ONCE: Final = 100
_ACCEPT_AGAIN_S: Final = 0.1
_UNREAD_BYTES_MAX: Final = 1 << 16
_log: Final = logging.getLogger("tidemark.tls")


class _TellsWhy(ssl.SSLObject):
    """Leaves the alert of a handshake that fails with its error: the protocols of asyncio and uvloop throw away what they have not sent."""

    _outgoing: ssl.MemoryBIO

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> "_TellsWhy":  # fmt: skip
        made: _TellsWhy = super()._create(incoming, outgoing, *args, **more)  # type: ignore[misc]  # of `ssl`, for such classes
        made._outgoing = outgoing
        return made

    @override
    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            error.alert = self._outgoing.read()  # type: ignore[attr-defined]
            raise


def _say_why(connection: socket.socket, error: OSError) -> None:
    """Send the alert of a handshake that has failed, and close (INV-PTA1)."""
    with connection, suppress(OSError):  # who has left is told nothing
        if alert := getattr(error, "alert", b""):
            connection.send(alert)
            # What has come and is not read has the system reset the connection, and the other side may not read the alert then.
            connection.shutdown(socket.SHUT_WR)
            connection.recv(_UNREAD_BYTES_MAX)


class TlsServer:
    """Accepts connections of one port, and lets `make` serve what is inside TLS."""

    def __init__(
        self, contexts: TlsContexts, make: Callable[[], asyncio.BaseProtocol],
        on_failed: OnFailedHandshake = unheard, bounds: HandshakeLimits = DEFAULT_HANDSHAKES,
        *, admits: Admits = everybody,
    ) -> None:  # fmt: skip
        """Speak by `contexts`; nothing is bound yet."""
        self._contexts = contexts
        self._make = make
        self._on_failed = on_failed
        self._bounds = bounds
        self._admits = admits
        self._places = HandshakePlaces(bounds)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._sockets: list[socket.socket] = []

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """Return what is bound, as `asyncio.Server` does."""
        return tuple(self._sockets)

    @property
    def under_way(self) -> int:
        """Return how many handshakes are under way."""
        return len(self._places)

    async def bind(self, host: str, port: int, backlog: int) -> None:
        """Bind and start accepting; OSError when the port cannot be had."""
        loop = asyncio.get_running_loop()
        # Resolved and bound as every other port is; it never serves.
        server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
        try:
            self._sockets = [
                socket.socket(fileno=os.dup(bound.fileno())) for bound in server.sockets
            ]
        finally:
            server.close()
        for listening in self._sockets:
            listening.setblocking(False)
            listening.listen(backlog)
            loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Stop accepting, and end the handshakes that are under way; connections behind theirs go on."""
        loop = asyncio.get_running_loop()
        listening, self._sockets = self._sockets, []
        for each in listening:
            loop.remove_reader(each)
            each.close()
        for task in tuple(self._tasks):
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                came, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor is left, say: what waits is accepted later
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_ACCEPT_AGAIN_S, self._accept_again, listening)
                _log.warning("no connection can be accepted for a moment: %s", error)
                return
            came.setblocking(False)
            self._begin(came, address)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _begin(self, came: socket.socket, address: Any) -> None:
        """Make the handshake of a connection, if there is a place for it."""
        host = str(address[0])
        if not self._admits(host):  # INV-PTA2: whoever says so has told of it
            came.close()
            return
        peer = f"{host}:{address[1]}"
        running: list[asyncio.Task[None]] = []

        def give_way() -> None:
            for task in running:
                task.cancel()
            self._on_failed(FailedHandshake(peer, TOO_MANY, TEXTS[TOO_MANY]))

        loop = asyncio.get_running_loop()
        place = self._places.take(network_of(host), loop.time(), give_way)
        if place is None:
            self._on_failed(FailedHandshake(peer, TOO_MANY, TEXTS[TOO_MANY]))
            came.close()
            return
        task = loop.create_task(self._shake(came, peer), name="tls-handshake")
        running.append(task)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._ended(ended, place, came))

    def _ended(self, task: asyncio.Task[None], place: Place, came: socket.socket) -> None:
        self._places.leave(place)
        del self._tasks[task]
        if task.cancelled():
            came.close()  # its transport has one of its own, or is closed
            return
        task.result()  # a bug of ours: the loop tells it

    async def _shake(self, came: socket.socket, peer: str) -> None:
        context = self._contexts.context()
        context.sslobject_class = _TellsWhy
        try:
            still_open = came.dup()  # its transport closes its own before it tells of the failure
        except OSError as error:  # no descriptor is left
            came.close()
            self._on_failed(FailedHandshake(peer, OTHER, f"{TEXTS[OTHER]} on this side: {error}"))
            return
        with still_open:
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._make, came, ssl=context,
                    ssl_handshake_timeout=self._bounds.timeout_s, ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
                )  # fmt: skip
            except OSError as error:
                _say_why(still_open, error)
                self._on_failed(FailedHandshake(peer, reason_of(error), text_of(error)))
