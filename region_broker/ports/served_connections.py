"""What a listener serves: a task for each connection, and what one of them raised (INV-PN5).

Whoever accepts connections, a real socket or a simulated one, keeps them here, so both end alike.
Not here: how a connection comes (`ports.system.network`), what it means (`OnConnection`).
"""

import asyncio
from collections.abc import Callable
from contextvars import Context

from region_broker.ports.network import ByteStream, OnConnection


class ServedConnections:
    """The connections of one listener, from `serve` to their end; closed for good by `close`."""

    def __init__(self, on_connection: OnConnection, stop_accepting: Callable[[], None]) -> None:
        """Serve each connection by `on_connection`; `stop_accepting` is called at each close."""
        self._on_connection = on_connection
        self._stop_accepting = stop_accepting
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order they came
        self._failures: list[BaseException] = []
        self._closed = asyncio.Event()

    def serve(self, stream: ByteStream, context: Context | None = None) -> None:
        """Serve a new connection, in `context` (None: in the caller's)."""
        task = asyncio.get_running_loop().create_task(self._run(stream), context=context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    async def _run(self, stream: ByteStream) -> None:
        await self._on_connection(stream)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        failure = task.exception()
        if failure is not None:
            self._failures.append(failure)
            self.close()

    def cancel(self) -> None:
        """End what is served, as the death of the process does, in the order the connections came."""
        for task in tuple(self._tasks):
            task.cancel()

    def close(self) -> None:
        """Stop accepting; connections already accepted go on."""
        self._closed.set()
        self._stop_accepting()

    async def wait_closed(self) -> None:
        """Return once closed and all are served; raise what serving one of them raised, at once (INV-PN5).

        `on_connection` handles every failure of its peer itself, so what is raised here is a bug of ours (an
        AssertionError, say), or our disk: the caller lets it end the process.
        """
        await self._closed.wait()
        while self._tasks and not self._failures:
            await asyncio.wait(tuple(self._tasks), return_when=asyncio.FIRST_COMPLETED)
        if self._failures:
            raise self._failures[0]
