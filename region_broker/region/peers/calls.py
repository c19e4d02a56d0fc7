"""One connection to another node, whoever it is: requests out, answers matched by correlation id, notices that have none.

Requests leave in the order `begin` was called. Every request ends: with its answer, `PeerRefused`, or `PeerUnreachable`
that says whether it was sent (bytes that are no frame end the connection and so all requests on it). After the
connection ended nothing is sent on it; there is no reconnecting here, the owner opens another one.

The connection is served by `run`, which its owner keeps in a task group of its own; cancelling it closes
the connection.
Not here: the handshake (`client`, `node_client`), back-off (the owners), what messages mean.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, Generic, TypeVar

from region_broker.ports.network import Buffer, ByteStream, Network
from region_broker.region.peers.protocol import (
    PREFACE,
    AnyMessage,
    Frame,
    FrameKind,
    FrameReader,
    PeerMessage,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    Refusal,
    decode_message,
    encode_frame,
)
from region_broker.region.peers.speakers import Says, check_speaker

READ_BYTES: Final = 256 * 1024
Awaited = TypeVar("Awaited")


async def connected(network: Network, address: tuple[str, int], timeout_s: float) -> ByteStream:
    """Open a stream to `address`; raises `PeerUnreachable` when that fails, or takes longer."""
    host, port = address
    try:
        async with asyncio.timeout(timeout_s):
            return await network.connect(host, port)
    except TimeoutError as error:
        reason = f"{host}:{port} took no connection within {timeout_s:.0f} s"
        raise PeerUnreachable(reason, sent=False) from error
    except (OSError, OverflowError, UnicodeError) as error:  # no host has such a name, or port
        raise PeerUnreachable(f"cannot reach {host}:{port}: {error}", sent=False) from error


class PeerCalls:
    """Requests over one stream: serve it with `run`."""

    def __init__(self, stream: ByteStream, answer_bytes_max: int) -> None:
        """Speak on `stream`, which is open and unused; an answer has at most so many bytes."""
        self._stream = stream
        self._reader = FrameReader(answer_bytes_max)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._correlation_id = 0
        self._ended: str | None = None
        stream.write(PREFACE)

    @property
    def ended(self) -> str | None:
        """Return why the connection ended, None while it stands."""
        return self._ended

    async def call(self, message: PeerMessage, answer_type: type[AnyMessage]) -> AnyMessage:
        """Send `message`, return its answer; raises `PeerRefused` or `PeerUnreachable`."""
        answer, _ = await self.begin(message, answer_type)
        return answer

    def begin(
        self,
        message: PeerMessage,
        answer_type: type[AnyMessage],
        attachment: Sequence[Buffer] = (),
    ) -> Awaitable[tuple[AnyMessage, memoryview]]:
        """Send now, and return an awaitable of (answer, its attachment)."""
        if self._ended is not None:
            raise PeerUnreachable(self._ended, sent=False)
        self._correlation_id += 1
        answered: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._waiting[self._correlation_id] = answered
        self._stream.write(
            *encode_frame(FrameKind.REQUEST, self._correlation_id, message, attachment)
        )
        correlation_id = self._correlation_id
        return _Lazily(lambda: self._finish(correlation_id, answered, answer_type))

    async def drained(self) -> None:
        """Return once the stream holds little of what was sent; raises `PeerUnreachable` where the connection broke."""
        try:
            await self._stream.drain()
        except OSError as error:
            reason = f"the connection to {self._stream.peer} broke: {error}"
            self._end(reason)
            raise PeerUnreachable(reason, sent=True) from error

    async def _finish(
        self, correlation_id: int, answered: asyncio.Future[Frame], answer_type: type[AnyMessage]
    ) -> tuple[AnyMessage, memoryview]:
        try:
            frame = await answered
        finally:
            self._waiting.pop(correlation_id, None)
            del answered  # an error's traceback has this frame, which would keep the error by it, and this connection (INV-PN7)
        if frame.kind is FrameKind.REFUSAL:
            refusal = self._decode(frame, Refusal)
            raise PeerRefused(refusal.code, refusal.reason, refusal.replacement)
        return self._decode(frame, answer_type), frame.attachment

    def _decode(self, frame: Frame, message_type: type[AnyMessage]) -> AnyMessage:
        try:
            return decode_message(frame, message_type)
        except PeerProtocolError as error:
            self._end(str(error))
            raise PeerUnreachable(str(error), sent=True) from error

    async def run(self) -> None:
        """Serve answers until the connection ends; returns then, and closes it when cancelled."""
        try:
            while data := await self._stream.read(READ_BYTES):
                for frame in self._reader.feed(data):
                    self._deliver(frame)
            self._end(f"{self._stream.peer} closed the connection")
        except (OSError, PeerProtocolError) as error:
            self._end(f"the connection to {self._stream.peer} broke: {error}")
        finally:
            self._end("the connection was closed here")

    def _deliver(self, frame: Frame) -> None:
        if frame.kind in {FrameKind.REQUEST, FrameKind.NOTICE}:
            raise PeerProtocolError(
                f"the peer sent a {frame.kind.name.lower()} where only answers may come"
            )
        answered = self._waiting.get(frame.correlation_id)
        # A caller that was cancelled has left: its answer is nobody's.
        if answered is not None and not answered.done():
            answered.set_result(frame)

    def _end(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        if self._stream.has_room:
            self._stream.close()
        else:
            self._stream.abort()  # the peer takes nothing, and who waits until it does waits no more (INV-FW6)
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(PeerUnreachable(reason, sent=True))
                # Retrieved here: one whose caller never awaits it must not warn at collection.
                answered.exception()

    def _check_speaker(self, hello: Says) -> None:
        """Go on only with who its certificate says it is; else end the connection, and raise `PeerUnreachable`."""
        try:
            check_speaker(self._stream, hello)
        except PeerRefused as refused:
            reason = f"{self._stream.peer} is not who it says: {refused.reason}"
            self._end(reason)
            raise PeerUnreachable(reason, sent=False) from refused

    def close(self) -> None:
        """Close the connection; all waiting requests end with `PeerUnreachable`."""
        self._end("the connection was closed here")


class _Lazily(Generic[Awaited]):
    """Awaits what `make` returns, made when it is awaited: one that is dropped leaves no coroutine."""

    def __init__(self, make: Callable[[], Awaitable[Awaited]]) -> None:
        self._make: Callable[[], Awaitable[Awaited]] | None = make

    def __await__(self) -> Generator[object, None, Awaited]:
        make, self._make = self._make, None  # what it holds is not kept by who waits (INV-PN7)
        assert make is not None, "awaited twice"
        return make().__await__()
