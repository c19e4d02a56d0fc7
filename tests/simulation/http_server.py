"""Asyncio protocols on the simulated network: the node's HTTP server runs as in production, and its bytes travel like all others.

INV-SHT1  what an answer holds is of the seed: its Date is simulated time, and `/metrics` has no figures of the machine and no
          times at which counters were made
INV-SHT2  what a protocol raises goes to the loop's handler of exceptions, as asyncio's own transports have it
INV-SHT3  a connection ends for its protocol when it ends for the site, or its process, a step after its last bytes at the earliest

Not here: what is asked (`swarm.workloads.http`), TLS.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from unittest import mock

from aiohttp import web_response
from prometheus_client import CollectorRegistry, ProcessCollector, metrics
from typing_extensions import override

from region_broker.ports.network import READ_AHEAD_BYTES, ByteStream, Listener, Network

Factory = Callable[[], asyncio.BaseProtocol]


class StreamTransport(asyncio.Transport):
    """An `asyncio.Transport` over one simulated connection."""

    def __init__(self, stream: ByteStream, place: tuple[str, int]) -> None:
        """Serve `stream`, which came to `place`."""
        super().__init__({"peername": (stream.peer, 0), "sockname": place})
        self._stream = stream
        self._protocol: Any = None
        self._closing = False
        self._draining: asyncio.Task[None] | None = None
        self._reads = asyncio.Event()
        self._reads.set()

    @override
    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    @override
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    @override
    def is_closing(self) -> bool:
        return self._closing

    @override
    def close(self) -> None:
        self._closing = True
        self._reads.set()
        self._stream.close()

    @override
    def abort(self) -> None:
        self._closing = True
        self._reads.set()
        self._stream.abort()

    @override
    def pause_reading(self) -> None:
        self._reads.clear()

    @override
    def resume_reading(self) -> None:
        self._reads.set()

    @override
    def write(self, data: Any) -> None:
        if self._closing:
            return
        self._stream.write(data)
        if not self._stream.has_room and self._draining is None:
            self._protocol.pause_writing()
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        with contextlib.suppress(OSError):  # whoever reads is told
            await self._stream.drain()
        self._draining = None
        self._protocol.resume_writing()

    async def serve(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand what comes to the protocol, or to the one that it lets have the connection, until the end."""
        self._protocol = protocol
        error: Exception | None = None
        try:
            protocol.connection_made(self)
            await self._read()
        except OSError as broken:
            error = broken
        except Exception as raised:  # noqa: BLE001 - as asyncio: the connection ends, the loop's handler is told
            error = raised
            told = {"message": "a protocol failed", "exception": raised}
            asyncio.get_running_loop().call_exception_handler(told)
        finally:
            self.close()
            self._protocol.connection_lost(error)

    async def _read(self) -> None:
        while not self._closing:
            await self._reads.wait()
            chunk = await self._stream.read(READ_AHEAD_BYTES)
            if not chunk:
                return
            if not self._closing:
                self._protocol.data_received(chunk)
            await asyncio.sleep(
                0
            )  # as asyncio, which reads once in a step: what the protocol began then has begun


class _Socket:
    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place

    def getsockname(self) -> tuple[str, int]:
        return self._place


class StreamServer:
    """What `create_server` returns, as far as aiohttp uses it; a connection that is open stays when it is closed."""

    def __init__(self, listener: Listener) -> None:
        """Be the server of `listener`."""
        self._listener = listener
        self.sockets = (_Socket((listener.host, listener.port)),)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


async def bind(network: Network, factory: Factory, host: str, port: int) -> StreamServer:
    """Listen at a place; raises OSError where it is taken."""

    async def serve(stream: ByteStream) -> None:
        await StreamTransport(stream, (host, port)).serve(factory())

    return StreamServer(await network.listen(host, port, serve))


def without_the_machine(registry: CollectorRegistry) -> None:
    """Take out of a node's metrics what the machine says of the process (INV-SHT1)."""
    for collector in tuple(registry._collector_to_names):
        if isinstance(collector, ProcessCollector):
            registry.unregister(collector)


@contextlib.contextmanager
def answers_of_the_seed(wall_s: Callable[[], float]) -> Iterator[None]:
    """Let answers hold simulated time (INV-SHT1)."""

    def date() -> str:
        return format_datetime(datetime.fromtimestamp(int(wall_s()), UTC), usegmt=True)

    with (
        mock.patch.object(web_response, "rfc822_formatted_time", date),
        mock.patch.object(metrics, "_use_created", False),
    ):
        yield
