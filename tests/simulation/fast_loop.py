"""An event loop whose time jumps to the next timer whenever nothing is left to do: a day in a few minutes.

INV-FL1  time stands still while anything runs: a callback, a job in a thread, or what `hold` stands around
INV-FL2  it jumps to the next timer and never beyond

Threads of others than the loop's executors must be held by whoever knows of them (SQLite's here).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from typing_extensions import override


class FastLoop(asyncio.SelectorEventLoop):
    """Use it with `asyncio.Runner(loop_factory=FastLoop)`."""

    def __init__(self) -> None:
        """Start at the machine's time."""
        self._jumped_s = 0.0
        self._running_jobs = 0
        super().__init__()

    @override
    def time(self) -> float:
        """Return the loop's time in s."""
        return super().time() + self._jumped_s

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Let time pass as the machine's does."""
        self._running_jobs += 1
        try:
            yield
        finally:
            self._running_jobs -= 1

    def held(self, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return `work` with time held while it runs."""

        async def run(*arguments: Any) -> Any:
            with self.hold():
                return await work(*arguments)

        return run

    @override
    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """See `asyncio`: time is held until the job is done."""
        self._running_jobs += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _future: asyncio.Future[Any]) -> None:
        self._running_jobs -= 1

    def _run_once(self) -> None:
        if not self._ready and self._scheduled and not self._running_jobs:  # type: ignore[attr-defined]
            gap_s = self._scheduled[0].when() - self.time()  # type: ignore[attr-defined]
            if gap_s > 0:
                self._jumped_s += gap_s
        super()._run_once()  # type: ignore[misc]


class LoopClock:
    """`Clock` by the time of the running loop."""

    __slots__ = ()
    _WALL_START_MS = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self._WALL_START_MS + self.monotonic_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(max(0.0, duration_ms) / 1000)
