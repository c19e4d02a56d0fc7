"""One connection to a peer region's node: requests out, answers matched by correlation id.

Requests leave in the order `begin` was called. Every request ends: with its answer, `PeerRefused`, or `PeerUnreachable`
that says whether it was sent (bytes that are no frame end the connection and so all requests on it). After the
connection ended nothing is sent on it; there is no reconnecting here, the owner opens another one.

The connection is served by `run`, which its owner keeps in a task group of its own; cancelling it closes
the connection. Or use `opened`, which does both.
Not here: back-off (the link driver, the forwarder), what messages mean.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import msgspec

from region_broker.ports.network import Buffer, ByteStream, Network
from region_broker.region.peers.protocol import (
    PEER_FRAME_BYTES_MAX,
    PREFACE,
    AnyMessage,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    PeerIdentity,
    PeerMessage,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    Refusal,
    decode_message,
    encode_frame,
)

READ_BYTES: Final = 256 * 1024
# The answer to a handshake holds the lineage: the positions of every log, once per takeover.
HANDSHAKE_ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
CONNECT_TIMEOUT_S: Final = 5.0
Awaited = TypeVar("Awaited")


class PeerClient:
    """Requests over one stream. Create with `connect`, serve with `run`, begin with `handshake`."""

    def __init__(self, stream: ByteStream, identity: PeerIdentity) -> None:
        """Speak on `stream`, which is open and unused."""
        self._stream = stream
        self._identity = identity
        self._reader = FrameReader(HANDSHAKE_ANSWER_BYTES_MAX)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._correlation_id = 0
        self._ended: str | None = None
        stream.write(PREFACE)

    @classmethod
    async def connect(
        cls, network: Network, address: tuple[str, int], identity: PeerIdentity
    ) -> "PeerClient":
        """Open a stream to `address`; raises `PeerUnreachable` when that fails."""
        host, port = address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                stream = await network.connect(host, port)
        except TimeoutError as error:
            reason = f"{host}:{port} took no connection within {CONNECT_TIMEOUT_S:.0f} s"
            raise PeerUnreachable(reason, sent=False) from error
        except OSError as error:
            raise PeerUnreachable(f"cannot reach {host}:{port}: {error}", sent=False) from error
        return cls(stream, identity)

    @property
    def ended(self) -> str | None:
        """Return why the connection ended, None while it stands."""
        return self._ended

    async def handshake(self) -> Hello:
        """Say Hello and return the peer's; raises `PeerRefused` where the peer will not talk.

        What the peer says about region epoch and lineage is handed to the identity in either case.
        """
        # Without the lineage: a listener takes only small hellos, and asks back for what is news.
        handshake = msgspec.structs.replace(self._identity.hello(), lineage=())
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                answer = await self.call(handshake, Hello)
        except TimeoutError as error:
            self._end(
                f"{self._stream.peer} did not make its handshake within {CONNECT_TIMEOUT_S:.0f} s"
            )
            raise PeerUnreachable(str(self._ended), sent=False) from error
        self._identity.learn(answer)
        if answer.refused:
            raise PeerRefused(answer.refused_code, answer.refused)
        self._reader.bytes_max = PEER_FRAME_BYTES_MAX
        return answer

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

    async def _finish(
        self, correlation_id: int, answered: asyncio.Future[Frame], answer_type: type[AnyMessage]
    ) -> tuple[AnyMessage, memoryview]:
        try:
            frame = await answered
        finally:
            self._waiting.pop(correlation_id, None)
        if frame.kind is FrameKind.REFUSAL:
            refusal = self._decode(frame, Refusal)
            raise PeerRefused(refusal.code, refusal.reason)
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
        if frame.kind is FrameKind.REQUEST:
            raise PeerProtocolError("the peer sent a request where only answers may come")
        answered = self._waiting.get(frame.correlation_id)
        # A caller that was cancelled has left: its answer is nobody's.
        if answered is not None and not answered.done():
            answered.set_result(frame)

    def _end(self, reason: str) -> None:
        if self._ended is not None:
            return
        self._ended = reason
        self._stream.close()
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(PeerUnreachable(reason, sent=True))
                # Retrieved here: one whose caller never awaits it must not warn at collection.
                answered.exception()

    def close(self) -> None:
        """Close the connection; all waiting requests end with `PeerUnreachable`."""
        self._end("the connection was closed here")


class _Lazily(Generic[Awaited]):
    """Awaits what `make` returns, made when it is awaited: one that is dropped leaves no coroutine."""

    def __init__(self, make: Callable[[], Awaitable[Awaited]]) -> None:
        self._make = make

    def __await__(self) -> Generator[object, None, Awaited]:
        return self._make().__await__()


@asynccontextmanager
async def opened(
    network: Network, address: tuple[str, int], identity: PeerIdentity
) -> AsyncIterator[tuple[PeerClient, Hello]]:
    """Connect, make the handshake, and yield (client, the peer's Hello); close at the end.

    Raises `PeerUnreachable` or `PeerRefused`.
    """
    client = await PeerClient.connect(network, address, identity)
    serving = asyncio.get_running_loop().create_task(client.run(), name="peer-client")
    try:
        yield client, await client.handshake()
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
