"""The network port on asyncio's transports.

Not here: what is promised (`ports.network`), simulated networks (tests).
"""

import asyncio
import errno
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from typing_extensions import override

from region_broker.ports.handshakes import (
    CLOSE_TIMEOUT_S,
    DEFAULT_HANDSHAKES,
    TIMEOUT_S,
    HandshakeLimits,
    text_of,
)
from region_broker.ports.network import (
    READ_AHEAD_BYTES,
    WRITE_HIGH_WATER_BYTES,
    Admits,
    Buffer,
    ByteStream,
    Consume,
    Listener,
    OnConnection,
    OnFailedHandshake,
    TlsContexts,
    everybody,
    unheard,
)
from region_broker.ports.served_connections import ServedConnections
from region_broker.ports.system.sealing_turns import SealingTurns
from region_broker.ports.system.tls_accept import TlsServer

LISTEN_BACKLOG: Final = 1024
TLS_HELD_BYTES: Final = 17 * 1024
"""How much may have been taken from the socket already of what is expected: a record of TLS that is not whole yet (RFC 8446, 5.2)."""
SMALL_BYTES: Final = 1024
"""Of two chunks in a row that wait to be asked for, one is at least as large."""
WAKE_BYTES_MAX: Final = 128 * 1024
WAKE_BYTES_MIN: Final = 16 * 1024
"""Expecting less is not worth a call of the system."""


class _Stream(asyncio.BaseProtocol):
    """`ByteStream` on an asyncio transport: chunks are handed over as received; of those that wait, small ones are joined (INV-PN9)."""

    def __init__(self, on_made: Callable[["_Stream"], None] | None = None) -> None:
        """Create the protocol of a connection to come; `on_made` is called once it stands."""
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._reading_paused = False
        self._eof = False
        self._lost = False
        self._error: Exception | None = None
        self._read_waiter: asyncio.Future[bool] | None = None
        self._consume: Consume | None = None  # whoever waits in `feed`
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        self._peer = "unknown"
        self._tls: ssl.SSLObject | None = None
        self._wake_bytes = 1

    @property
    def peer(self) -> str:
        """Return ``host:port`` of the other side, for logs."""
        return self._peer

    @property
    def certificate(self) -> bytes | None:
        """See `ByteStream`."""
        return None if self._tls is None else self._tls.getpeercert(binary_form=True)

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes have come that nobody asked for yet."""
        return self._buffered_bytes

    @property
    def has_room(self) -> bool:
        """Return whether `drain` would return at once."""
        return not self._lost and self._writable.is_set()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio calls this)."""
        # uvloop's transports are no asyncio.Transport by inheritance, only by interface.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._tls = transport.get_extra_info("ssl_object")
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            self._peer = f"{name[0]}:{name[1]}"
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """Hand a chunk on, or queue it; stop reading the socket when enough is queued."""
        if self._consume is not None:
            self._feed(self._consume, data)
            return
        if self._chunks and len(data) < SMALL_BYTES and len(self._chunks[-1]) < SMALL_BYTES:
            self._chunks[-1] += data  # INV-PN9
        else:
            self._chunks.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes >= READ_AHEAD_BYTES and not self._reading_paused:
            assert self._transport is not None
            self._transport.pause_reading()
            self._reading_paused = True
        self._wake_reader()

    def expect(self, count: int) -> None:
        """See `ByteStream`. Linux tells of a socket from SO_RCVLOWAT bytes on, and of its end (socket(7)).

        A goodbye of TLS is no end yet: who sends one within what it had begun waits for ours until it closes, or gives up.
        """
        wake_bytes = min(count - TLS_HELD_BYTES, WAKE_BYTES_MAX)
        if wake_bytes < WAKE_BYTES_MIN:
            wake_bytes = 1
        if wake_bytes != self._wake_bytes and self._transport is not None:
            self._wake_bytes = wake_bytes
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes
            )

    def _peer_ended(self) -> bool:
        """Note that the peer sends no more; our side stays open for the answers still owed."""
        self._eof = True
        self._wake_reader()
        return self._tls is None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone, and wake whoever waits."""
        self._lost = True
        self._eof = True
        # Where it was raised in a write, the frames of its traceback hold whoever wrote, and this (INV-PN7).
        self._error = None if exc is None else exc.with_traceback(None)
        # Under TLS transport and stream hold each other, with what only OpenSSL counts between them: freed now (INV-PN7).
        self._transport = None
        self._writable.set()
        self._gone.set()
        self._wake_reader()

    @override
    def pause_writing(self) -> None:
        """Make `drain` wait."""
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        """Let `drain` go on."""
        self._writable.set()

    def _wake_reader(self, *, enough: bool = False) -> None:
        waiter = self._read_waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(enough)

    def _feed(self, consume: Consume, data: bytes) -> None:
        """Let whoever waits in `feed` take a chunk; the last one that it takes, or chokes on, wakes it."""
        waiter = self._read_waiter
        assert waiter is not None
        assert not self._chunks, "what came before is taken first"
        try:
            if consume(data):
                return
        except Exception as error:  # noqa: BLE001 - it goes to whoever waits in `feed`
            if not waiter.done():
                waiter.set_exception(error)
            del waiter  # the error's traceback has this frame, which would keep the error by it, and all of a connection (INV-PN7)
        self._consume = None
        self._wake_reader(enough=True)

    async def feed(self, consume: Consume) -> bool:
        """See `ByteStream`."""
        while True:
            while self._chunks:
                if not consume(self._next_chunk(READ_AHEAD_BYTES)):
                    return True
            if self._ended():
                return False
            self._consume = consume
            try:
                if await self._more():
                    return True
            finally:
                self._consume = None

    async def read(self, max_bytes: int) -> bytes:
        """Return 1 to `max_bytes` bytes, or b"" once the peer has closed; OSError when it broke."""
        assert max_bytes > 0, max_bytes
        while not self._chunks:
            if self._ended():
                return b""
            await self._more()
        return self._next_chunk(max_bytes)

    def _ended(self) -> bool:
        """Return whether the peer sends no more; OSError when the connection broke."""
        if self._eof and isinstance(self._error, OSError):
            raise _anew(self._error)
        return self._eof

    async def _more(self) -> bool:
        """Wait for a chunk, or the end; return whether whoever was fed has enough."""
        assert self._read_waiter is None, "two tasks read one stream"
        self._read_waiter = asyncio.get_running_loop().create_future()
        try:
            return await self._read_waiter
        finally:
            self._read_waiter = None

    def _next_chunk(self, max_bytes: int) -> bytes:
        chunk = self._chunks.popleft()
        if len(chunk) > max_bytes:
            self._chunks.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._buffered_bytes -= len(chunk)
        if self._reading_paused and self._buffered_bytes < READ_AHEAD_BYTES // 2:
            self._reading_paused = False
            if not self._lost and self._transport is not None:
                self._transport.resume_reading()
        return chunk

    def write(self, *buffers: Buffer) -> None:
        """Queue the buffers for sending, in order; after a failure or close they are dropped."""
        transport = self._transport
        if transport is None or self._lost or transport.is_closing():
            return
        if len(buffers) == 1:
            transport.write(buffers[0])
        else:
            transport.writelines(buffers)

    async def drain(self) -> None:
        """Wait until the send queue is short enough to go on; OSError when the connection broke."""
        if self._lost:
            raise self._broken()
        if not self._writable.is_set():
            await self._writable.wait()
            if self._lost:
                raise self._broken()

    def _broken(self) -> OSError:
        if isinstance(self._error, OSError):
            return _anew(self._error)
        return ConnectionResetError(f"the connection to {self._peer} is closed")

    def close(self) -> None:
        """Send what is queued, then close; calling it again does nothing."""
        if self._transport is not None and not self._lost:
            self._transport.close()

    def abort(self) -> None:
        """Close at once and drop what is queued: for a peer that does not read."""
        if self._transport is not None and not self._lost:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return once the connection is gone; never raises for the way it went."""
        await self._gone.wait()


class AsyncioStream(_Stream, asyncio.Protocol):
    """A stream without TLS."""

    @override
    def eof_received(self) -> bool:
        """See `_peer_ended`."""
        return self._peer_ended()


class SecuredStream(_Stream, asyncio.BufferedProtocol):
    """The same behind TLS, that lets records of TLS be opened into `room`, which it shares with others.

    asyncio and uvloop would make 256 KiB for each record, of 16 KiB at most, and shrink them: up to five times as much work as opening
    it. To uvloop nothing has room that is an `asyncio.Protocol`, too.
    """

    def __init__(self, room: memoryview, on_made: Callable[[_Stream], None] | None = None) -> None:
        """Create the protocol of a connection to come; what is in `room` is taken out in the step in which it comes."""
        super().__init__(on_made)
        self._room = room
        self._is_closing = False
        self._sealing: SealingTurns | None = None
        self._given_up: asyncio.TimerHandle | None = None

    @override
    def eof_received(self) -> bool:
        """See `_peer_ended`."""
        return self._peer_ended()

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put what comes."""
        return self._room

    @override
    def buffer_updated(self, nbytes: int) -> None:
        """Take what came; what comes while TLS says that it ends is nobody's, as behind the close of a plain connection."""
        if not self._is_closing:
            self.data_received(bytes(self._room[:nbytes]))

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio calls this)."""
        self._sealing = SealingTurns(self._send, self._on_sealed)
        super().connection_made(transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone, and forget what waits."""
        self._drop()
        self._sealing = None  # it holds the transport (INV-PN7)
        if self._given_up is not None:
            self._given_up.cancel()
        super().connection_lost(exc)

    @override
    def write(self, *buffers: Buffer) -> None:
        """See `ByteStream`; sealed in turns (INV-SLT1)."""
        if self._sealing is None or self._is_closing:
            return
        self._sealing.add(buffers)
        if self._sealing.waits:
            self._writable.clear()

    @override
    def pause_writing(self) -> None:
        """Make `drain` wait, and seal no more (INV-SLT2)."""
        super().pause_writing()
        if self._sealing is not None:
            self._sealing.pause()

    @override
    def resume_writing(self) -> None:
        """Go on with what waits; `drain` goes on behind it."""
        if self._sealing is not None:
            self._sealing.resume()

    def _send(self, piece: Buffer) -> None:
        if self._transport is None or self._transport.is_closing():
            self._drop()
        else:
            self._transport.write(piece)

    def _on_sealed(self) -> None:
        if self._sealing is not None and self._sealing.has_room:
            self._writable.set()
        if self._is_closing:
            super().close()

    @override
    def close(self) -> None:
        """See `ByteStream`. Whoever reads is told at once: the other side's goodbye may take seconds."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._sealing is not None and self._sealing.waits:
            # No longer than TLS waits for whoever takes nothing.
            self._given_up = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, self.abort)
        else:
            super().close()
        self._eof = True
        self._wake_reader()

    @override
    def abort(self) -> None:
        """See `ByteStream`."""
        self._drop()
        super().abort()

    def _drop(self) -> None:
        if self._sealing is not None:
            self._sealing.drop()


def _room() -> memoryview:
    return memoryview(bytearray(READ_AHEAD_BYTES))


class AsyncioListener:
    """`Listener` of `AsyncioNetwork`; owns the tasks that run `on_connection`."""

    def __init__(self, on_connection: OnConnection) -> None:
        """Create a listener not yet bound."""
        self._served = ServedConnections(on_connection, self._stop_accepting)
        self._server: asyncio.Server | TlsServer | None = None
        self._address = ("", 0)

    async def bind(self, host: str, port: int, backlog: int) -> None:
        """Bind and start accepting; OSError when the port cannot be had."""
        self._server = await asyncio.get_running_loop().create_server(
            self._stream, host, port, backlog=backlog
        )
        self._note_address(self._server.sockets[0])

    async def bind_secured(
        self, host: str, port: int, tls: TlsContexts, on_failed: OnFailedHandshake, bounds: HandshakeLimits, *, admits: Admits,
    ) -> None:  # fmt: skip
        """The same, speaking TLS."""
        room = _room()

        def make() -> SecuredStream:
            return SecuredStream(room, self._served.serve)

        server = TlsServer(tls, make, on_failed, bounds, admits=admits)
        await server.bind(host, port, LISTEN_BACKLOG)
        self._server = server
        self._note_address(server.sockets[0])

    def _note_address(self, bound: socket.socket) -> None:
        name = bound.getsockname()
        self._address = (str(name[0]), int(name[1]))

    def _stream(self) -> AsyncioStream:
        return AsyncioStream(self._served.serve)

    def _stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def host(self) -> str:
        """Return the address bound to."""
        return self._address[0]

    @property
    def port(self) -> int:
        """Return the port bound to (the real one when 0 was asked for)."""
        return self._address[1]

    def close(self) -> None:
        """Stop accepting; connections already accepted go on."""
        self._served.close()

    async def wait_closed(self) -> None:
        """See `Listener`."""
        # Not Server.wait_closed: since Python 3.12 it waits for the transports, which we do not own.
        await self._served.wait_closed()


class AsyncioNetwork:
    """`Network` on the running asyncio (or uvloop) event loop."""

    def __init__(self, handshakes: HandshakeLimits = DEFAULT_HANDSHAKES) -> None:
        """Bound the `handshakes` of each port that speaks TLS."""
        self._handshakes = handshakes
        self._room = _room()

    async def listen(
        self, host: str, port: int, on_connection: OnConnection,
        *, tls: TlsContexts | None = None, on_failed: OnFailedHandshake = unheard, admits: Admits = everybody,
    ) -> Listener:  # fmt: skip
        """See `Network`."""
        listener = AsyncioListener(on_connection)
        if tls is None:
            await listener.bind(host, port, LISTEN_BACKLOG)
        else:
            await listener.bind_secured(host, port, tls, on_failed, self._handshakes, admits=admits)
        return listener

    async def connect(
        self,
        host: str,
        port: int,
        *,
        tls: TlsContexts | None = None,
        server_name: str | None = None,
    ) -> ByteStream:
        """See `Network`."""
        loop = asyncio.get_running_loop()
        if tls is not None:
            try:
                _, secured = await loop.create_connection(
                    lambda: SecuredStream(self._room), host, port, ssl=tls.context(), server_hostname=server_name or host,
                    ssl_handshake_timeout=TIMEOUT_S,
                    ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
                )  # fmt: skip
            except ssl.SSLError as error:
                reason = f"no TLS with {host}:{port}: {text_of(error)}"
                raise ConnectionAbortedError(errno.ECONNABORTED, reason) from error
            return secured
        transport, stream = await loop.create_connection(AsyncioStream, host, port)
        if transport.get_extra_info("sockname") == transport.get_extra_info("peername"):
            _reset(transport)
            raise ConnectionRefusedError(
                errno.ECONNREFUSED, f"nobody listens at {host}:{port}: it was connected to itself"
            )
        return stream


def _anew(error: OSError) -> OSError:
    """Return the like of an error, to raise: one that is kept would get a traceback, and that keeps who keeps it (INV-PN7)."""
    return type(error)(*error.args)


def _reset(transport: asyncio.Transport) -> None:
    """End a connection that has the port of a listener to come, so that nothing keeps the port (`dialled_ports`)."""
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    transport.abort()
