"""The network port: byte streams in and out, and the real one on asyncio.

INV-PN5  what serving one connection raises ends the listener, and is told at once, however long other peers stay
INV-PN6  with TLS a stream is handed over after its handshake only, and what others do before or in theirs harms nobody else's
INV-PN7  a connection that has ended is freed at once, with and without TLS: the cycle collector runs too seldom for what OpenSSL holds
INV-PN8  whoever expects much (`expect`) is not told of every few bytes, and of all that came where the stream ends before: a client that
         hands TLS each record by itself had the node look at its socket for each of them
INV-PN9  what was not asked for yet takes little more memory than it has bytes, however small the pieces in which it came
Bytes arrive in the order written, whole or not at all up to the moment of failure. A reader that is not asked for bytes
holds at most about READ_AHEAD_BYTES: then the socket is left unread and TCP pushes back on the peer. `drain` returns
only while less than WRITE_HIGH_WATER_BYTES wait to be sent, or raises. An error of the peer or of the network is an
OSError; a closed peer is b"" from `read`, False from `feed`.
With TLS a peer that closes for writing has closed: TLS knows no half of it.
Not here: frames (`wire.framing`), what a connection means (`wire.connection`), which certificates count (`security`).
"""

from collections.abc import Awaitable, Callable
from ssl import SSLContext
from typing import Final, NamedTuple, Protocol, TypeAlias

READ_AHEAD_BYTES: Final = 256 * 1024
WRITE_HIGH_WATER_BYTES: Final = 1024 * 1024

Buffer: TypeAlias = bytes | bytearray | memoryview


class ByteStream(Protocol):
    """One connection: an ordered stream of bytes in both directions."""

    @property
    def peer(self) -> str:
        """Return ``host:port`` of the other side, for logs."""
        ...

    @property
    def certificate(self) -> bytes | None:
        """Return the certificate that the other side proved to have (DER), None without TLS or where it showed none."""
        ...

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes have come that nobody asked for yet."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether `drain` would return at once."""
        ...

    async def read(self, max_bytes: int) -> bytes:
        """Return 1 to `max_bytes` bytes, or b"" once the peer has closed; OSError when it broke."""
        ...

    async def feed(self, consume: "Consume") -> bool:
        """Hand each chunk to `consume`, in the very step in which it comes, until that returns False.

        Returns whether more may come: False once the peer has closed. OSError when it broke; raises what `consume`
        raises. Here no task is woken for each chunk, as it is in `read`.
        """
        ...

    def expect(self, count: int) -> None:
        """Ask not to be told of every few bytes: `count` more are certain to come, unless the stream ends; 0: nobody knows."""
        ...

    def write(self, *buffers: Buffer) -> None:
        """Queue the buffers for sending, in order; after a failure or close they are dropped."""
        ...

    async def drain(self) -> None:
        """Wait until the send queue is short enough to go on; OSError when the connection broke."""
        ...

    def close(self) -> None:
        """Send what is queued, then close; calling it again does nothing."""
        ...

    def abort(self) -> None:
        """Close at once and drop what is queued: for a peer that does not read."""
        ...

    async def wait_closed(self) -> None:
        """Return once the connection is gone; never raises for the way it went."""
        ...


Consume: TypeAlias = Callable[[bytes], bool]
"""Takes a chunk that has come; returns whether it takes the next one, too."""
OnConnection: TypeAlias = Callable[[ByteStream], Awaitable[None]]


class Listener(Protocol):
    """A bound port that accepts connections until closed."""

    @property
    def host(self) -> str:
        """Return the address bound to."""
        ...

    @property
    def port(self) -> int:
        """Return the port bound to (the real one when 0 was asked for)."""
        ...

    def close(self) -> None:
        """Stop accepting; connections already accepted go on."""
        ...

    async def wait_closed(self) -> None:
        """Return once closed and every `on_connection` has ended; raise what one of them raised, at once (INV-PN5)."""
        ...


class TlsContexts(Protocol):
    """What one side of TLS goes by; each new connection asks for the newest."""

    def context(self) -> SSLContext:
        """Return the context for a connection that begins now."""
        ...


class FailedHandshake(NamedTuple):
    """A connection that came to nothing: of whom, a word for metrics (of a fixed set), and a text for people."""

    peer: str
    reason: str
    text: str


OnFailedHandshake: TypeAlias = Callable[[FailedHandshake], None]


def unheard(_failed: FailedHandshake) -> None:
    """Take no note of a handshake that failed."""


Admits: TypeAlias = Callable[[str], bool]
"""Says of an address whether a connection of it may make a handshake."""


def everybody(_host: str) -> bool:
    """Let whoever comes make a handshake."""
    return True


class Network(Protocol):
    """Where streams come from."""

    async def listen(
        self, host: str, port: int, on_connection: OnConnection,
        *, tls: TlsContexts | None = None, on_failed: OnFailedHandshake = unheard, admits: Admits = everybody,
    ) -> Listener:  # fmt: skip
        """Bind `host`:`port` (0: any free port); OSError when that fails (port in use, no right).

        `tls`: speak TLS as its server. `on_failed` is told of each handshake that failed, in the step in which it does. `admits` is asked
        before each, with the address that it comes from.
        """
        ...

    async def connect(
        self,
        host: str,
        port: int,
        *,
        tls: TlsContexts | None = None,
        server_name: str | None = None,
    ) -> ByteStream:
        """Open a connection; OSError when the peer cannot be reached, or with `tls` is not who it should be.

        `server_name`: whose certificate is expected where the contexts look at names; None: that of `host`.
        """
        ...
