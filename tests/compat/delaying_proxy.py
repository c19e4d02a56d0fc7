"""A proxy on loopback that loses a client's connection while one of its requests is still on the way.

What a NAT table, a load balancer or a paused host does: the client sees its connection break and goes on over a
new one; the bytes that it had sent arrive later. The proxy frames requests as Kafka does and changes none.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

PRODUCE, END_TXN = 0, 26
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")


@dataclass
class Held:
    """A request that did not arrive yet, and the connection to the broker that it will arrive on."""

    frame: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class DelayingProxy:
    """Carries frames; `hold_next` withholds one request and cuts its client off."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.port = 0
        self.connections = 0
        self.held: asyncio.Future[Held] = asyncio.get_running_loop().create_future()
        self.before_next: int | None = None
        """Release what is held when the next request of this API comes, ahead of it."""
        self.cut_every = 0
        """Break every connection at its n-th request, by turns before it arrived and after (0: never)."""
        self.cuts = 0
        self._wanted: int | None = None

    def hold_next(self, api_key: int) -> None:
        """Withhold the next request of this API, and break the connection that it came on."""
        self._wanted = api_key
        self.held = asyncio.get_running_loop().create_future()

    async def release(self) -> bytes:
        """Let the withheld request arrive, on the connection it was sent on; return its answer."""
        held = await self.held
        held.writer.write(held.frame)
        try:
            (size,) = _SIZE.unpack(await held.reader.readexactly(4))
            answer = await held.reader.readexactly(size)
        except asyncio.IncompleteReadError:
            answer = b""  # the broker closed the connection instead
        held.writer.close()
        return answer

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client connection."""
        self.connections += 1
        # Connected upstream at once, so that the broker sees connections in the order of the client's.
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        answers = asyncio.get_running_loop().create_task(_copy(up_reader, writer))
        try:
            held = await self._requests(reader, Held(b"", up_reader, up_writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            held = None
        answers.cancel()
        with suppress(asyncio.CancelledError, ConnectionError):
            await answers
        writer.transport.abort()
        if held is None:
            up_writer.close()
        else:
            self.held.set_result(held)

    async def _requests(self, reader: asyncio.StreamReader, up: Held) -> Held | None:
        """Carry requests until one is withheld."""
        seen = 0
        while True:
            size = await reader.readexactly(4)
            body = await reader.readexactly(_SIZE.unpack(size)[0])
            api_key, _version, _correlation = _HEAD.unpack_from(body)
            if api_key == self._wanted:
                self._wanted = None
                up.frame = size + body
                return up
            if api_key == self.before_next:
                self.before_next = None
                await self.release()
            seen += 1
            cut = self.cut_every > 0 and seen == self.cut_every
            self.cuts += cut
            if not cut or self.cuts % 2:
                up.writer.write(size + body)
                await up.writer.drain()
            if cut:
                return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry answers back."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@asynccontextmanager
async def delaying_proxy(upstream_port: int) -> AsyncIterator[DelayingProxy]:
    """Run a proxy in front of a broker."""
    proxy = DelayingProxy(upstream_port)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
