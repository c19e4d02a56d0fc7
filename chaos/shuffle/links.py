"""The links between regions, as proxies that can be cut: one per direction of dialling.

A region knows every other one by a proxy's port only, so that a cut cuts everything between the two. A link that was
silenced delivers what was sent meanwhile when it is healed, as TCP does.

Runs an event loop in a thread of its own.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, Final, Self

_HOST: Final = "127.0.0.1"
_READ_BYTES: Final = 1 << 16
_CALL_S: Final = 10.0


class _Link:
    """What one region dials to reach another one."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._refusing = False
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, _HOST, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        self._refusing = True
        self._abort()

    def silence(self) -> None:
        self._passing.clear()

    def heal(self) -> None:
        self._refusing = False
        self._passing.set()

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        self._passing.set()

    def _abort(self) -> None:
        for each in self._ends:
            each.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        await self._passing.wait()
        try:
            if not self._refusing:
                await self._join(reader, writer)
        except* (OSError, EOFError):
            pass  # one side is down, or has hung up
        finally:
            self._ends.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection(_HOST, self._target_port)
        self._ends.add(far)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far))
                both.create_task(self._pump(far_reader, writer))
        finally:
            self._ends.discard(far)
            far.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while True:
            data = await source.read(_READ_BYTES)
            if not data:
                raise EOFError
            await self._passing.wait()
            sink.write(data)
            await sink.drain()


class PeerLinks:
    """A context manager. `ports`: (who dials, whom) -> the port to dial."""

    def __init__(self, peer_ports: Mapping[str, int]) -> None:
        """Nothing is opened before it is entered; `peer_ports`: region -> where it listens."""
        self._peer_ports = peer_ports
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._links: dict[tuple[str, str], _Link] = {}
        self.ports: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Self:
        """Open all proxies."""
        self._thread.start()
        self._do(self._open)
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Close all proxies."""
        self._each(self._links, _Link.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end_tasks())
        self._loop.close()

    @staticmethod
    async def _end_tasks() -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were aborted close

    def cut(self, one: str, other: str) -> None:
        """Break what is open between the two, refuse what is new."""
        self._each(self._between(one, other), _Link.cut)

    def silence(self, one: str, other: str) -> None:
        """Let nothing through between the two, and tell neither."""
        self._each(self._between(one, other), _Link.silence)

    def heal(self, one: str, other: str) -> None:
        """Let everything through again."""
        self._each(self._between(one, other), _Link.heal)

    def _between(self, one: str, other: str) -> dict[tuple[str, str], _Link]:
        return {pair: link for pair, link in self._links.items() if set(pair) == {one, other}}

    async def _open(self) -> None:
        for dialling in self._peer_ports:
            for target, port in self._peer_ports.items():
                if target != dialling:
                    link = _Link(port)
                    self._links[dialling, target] = link
                    self.ports[dialling, target] = await link.start()

    def _each(self, links: Mapping[tuple[str, str], _Link], what: Callable[[_Link], None]) -> None:
        async def all_of_them() -> None:
            for link in links.values():
                what(link)

        self._do(all_of_them)

    def _do(self, what: Callable[[], Awaitable[Any]]) -> None:
        async def run() -> None:
            await what()

        done: Future[None] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        done.result(_CALL_S)
