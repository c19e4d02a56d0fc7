"""An event loop on simulated time: one thread, no sockets, and the same order of events in every process.

INV-SIL1  time passes only by STEP_S for each round of callbacks, and by jumping to the next timer when nothing is left
         to do: what runs takes no time of the machine
INV-SIL2  a job for a thread runs in the loop's own thread, as one step, somewhat after it was asked for; its result
         comes somewhat later again. One that is cancelled before its step never runs
INV-SIL3  tasks and futures hash by when they were made, not by where they lie in memory: a set of them has one order
INV-SIL4  when no callback, timer or job is left, `Stalled` is raised: nothing would ever happen again
INV-SIL5  while a process is paused, none of its callbacks, timers and jobs runs; when it goes on, all that was due happens
         at once, in the order in which it was due. What others send it is kept for it meanwhile, as by the kernel
INV-SIL6  nothing but the chance that was handed in decides, as `only_the_seed` says

Chance is handed in. Not here: what a network or a disk does (`network`, `disk`).
"""

import asyncio
import gc
import heapq
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, Final, TypeVar

from typing_extensions import override

from tests.simulation.http_server import answers_of_the_seed
from tests.simulation.loop_rounds import Due, LoopRounds, Step, Timer
from tests.simulation.only_the_seed import only_the_seed

T = TypeVar("T")
STEP_S: Final = 1e-4
JOB_S_MAX: Final = 0.002
INLINE_S_MAX: Final = 0.01
PROCESS: Final[ContextVar[str]] = ContextVar("PROCESS", default="")
"""Whose process runs, in everything that it starts; empty for what is none of the simulated ones."""
BIND: Final[ContextVar[Callable[..., Awaitable[object]]]] = ContextVar("BIND")
"""How the process that runs listens with an asyncio protocol: (factory, host, port)."""
WALL_START_MS: Final = 1_700_000_000_000
COLLECT_ROUNDS: Final = 50_000


class Stalled(Exception):
    """Nothing is left that could happen."""


class _NumberedTask(asyncio.Task[Any]):
    """A task that hashes by its number (INV-SIL3)."""

    def __init__(self, coroutine: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _NumberedFuture(asyncio.Future[Any]):
    """A future that hashes by its number (INV-SIL3)."""

    __slots__ = ("_number",)
    _number: int

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(LoopRounds):
    """Use it with `asyncio.Runner(loop_factory=...)`."""

    def __init__(self, chance: random.Random) -> None:
        """Begin at time 0."""
        super().__init__()
        self.job_s_max = JOB_S_MAX
        """How long a job waits for its thread, and again its result for the loop, at most: a disk may be slow."""
        self.slow: dict[str, float] = {}
        """The same for processes whose disk is slower."""
        self._paused: set[str] = set()
        self._held: deque[Due] = deque()
        self._in_job = False
        self._chance = chance
        self._rounds = 0
        self._numbers = count()
        self.set_task_factory(self._numbered_task)

    def _numbered_task(
        self, _loop: asyncio.AbstractEventLoop, coroutine: Any, *, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return _NumberedTask(coroutine, number=next(self._numbers), loop=self, context=context)

    @override
    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        future = _NumberedFuture(loop=self)
        future._number = next(self._numbers)
        return future

    @override
    def time(self) -> float:
        """Return the simulated seconds since the loop began."""
        return self._now_s

    @override
    def run_forever(self) -> None:
        """Run until stopped; raises `NotOfTheSeed` where anything else could have decided (INV-SIL6)."""
        with only_the_seed(), answers_of_the_seed(lambda: WALL_START_MS / 1000 + self._now_s):
            super().run_forever()

    @override
    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int
    ) -> object:
        """Listen in the simulated network, at the site of the process that runs."""
        assert backlog > 0
        return await BIND.get()(factory, host, port)

    @override
    def _wait(self, timeout_s: float | None) -> None:
        """Let time jump (INV-SIL1)."""
        self._rounds += 1
        if not self._rounds % COLLECT_ROUNDS:
            gc.collect()
        if timeout_s is None:
            raise Stalled("no callback, timer or job is left")
        self._now_s += timeout_s + STEP_S

    def pass_s(self, duration_s: float) -> None:
        """Let time pass."""
        self._now_s += duration_s

    def pause(self, process: str) -> None:
        """Let a process stand still from now on (INV-SIL5)."""
        if not self._paused:
            self.call_soon = self._call_soon_or_hold  # type: ignore[method-assign]  # only now: it costs
        self._paused.add(process)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if self._stands(handle):
                self._held.append(handle)
                handle = _left_out()  # the loop has counted how many there are
            self._ready.append(handle)
        self._held += sorted(each for each in self._scheduled if self._stands(each))
        self._scheduled = [each for each in self._scheduled if not self._stands(each)]
        heapq.heapify(self._scheduled)

    def resume(self, process: str) -> None:
        """Let it go on."""
        self._paused.discard(process)
        if not self._paused:
            self.__dict__.pop("call_soon", None)
        held, self._held = self._held, deque()
        for handle in held:
            if self._stands(handle):
                self._held.append(handle)
            elif isinstance(handle, Timer):
                heapq.heappush(self._scheduled, handle)
            else:
                self._ready.append(handle)

    def _stands(self, due: Due) -> bool:
        return due._context.get(PROCESS, "") in self._paused

    def _call_soon_or_hold(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        step = super().call_soon(callback, *args, context=context)
        if self._stands(step):
            self._held.append(self._ready.pop())
        return step

    def _write_to_self(self) -> None:
        """Wake the loop from another thread: there is none."""

    @override
    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` in a step of its own (INV-SIL2)."""
        future = self.create_future()
        self.call_later(self._job_s(), self._run_job, future, func, args)
        return future

    def _job_s(self) -> float:
        longest_s = self.slow.get(PROCESS.get(), self.job_s_max) if self.slow else self.job_s_max
        return self._chance.uniform(0, longest_s)

    def _run_job(
        self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if future.cancelled():
            return
        delay_s = self._job_s()
        self._in_job = True
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - whoever awaits the job gets it, as from a thread
            self.call_later(delay_s, _fail, future, error)
        else:
            self.call_later(delay_s, _answer, future, result)
        finally:
            self._in_job = False

    def wait_for_disk(self) -> None:
        """Let time pass as a disk makes whoever waits for it: everything waits where that is no job for a thread."""
        if not self._in_job:
            self.pass_s(min(self._job_s(), INLINE_S_MAX))


def _left_out() -> Step:
    step = Step()
    step._cancelled = True
    step._context = Context()  # of no process: another one may be paused before it is passed over
    return step


def _answer(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class LoopClock:
    """`Clock` by the time of the running loop."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return int(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        """See `Clock`."""
        return WALL_START_MS + self.monotonic_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(max(0.0, duration_ms) / 1000)


def run_simulated(main: Coroutine[Any, Any, T], seed: object) -> T:
    """Run `main` on a loop of its own, with the chance of `seed`; return its result."""
    gc.collect()
    gc.freeze()  # what was there before is none of its objects
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(random.Random(repr(seed)))) as runner:
        return runner.run(main)
