"""The rounds of an event loop without a selector: what `asyncio.BaseEventLoop` does in each, at a fraction of its price.

A life of the simulator makes hundreds of thousands of handles and timers. asyncio's own are made, compared and run by several calls of
Python each; here a handle is four slots, and a timer is the number that it is due at, which heaps compare without a call.

INV-LRD1  the order is asyncio's, also of timers that are due together, which its heap leaves to how it was built: the same pushes, pops
          and clearings of what was cancelled
What a callback raises goes to the handler of the loop, as with asyncio. There is no debug mode.

Not here: how time passes (`simulated_loop`).
"""

import asyncio
from asyncio import base_events
from asyncio.format_helpers import _format_callback_source
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Final, TypeAlias

CLEARED_FROM_COUNT: Final[int] = base_events._MIN_SCHEDULED_TIMER_HANDLES  # type: ignore[attr-defined]
CLEARED_FROM_SHARE: Final[float] = base_events._MIN_CANCELLED_TIMER_HANDLES_FRACTION  # type: ignore[attr-defined]
WAITS_S_MAX: Final[int] = base_events.MAXIMUM_SELECT_TIMEOUT  # type: ignore[attr-defined]


class Step:
    """What is to be called in the next round: an `asyncio.Handle` to whoever holds it."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    _callback: Any
    _args: tuple[Any, ...]
    _context: Context
    _cancelled: bool

    def cancel(self) -> None:
        """See `asyncio.Handle`."""
        self._cancelled = True
        self._callback, self._args = None, ()  # what it holds is let go at once, as by asyncio

    def cancelled(self) -> bool:
        """See `asyncio.Handle`."""
        return self._cancelled


class Timer(float):
    """What is to be called when it is due: an `asyncio.TimerHandle` to whoever holds it."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_loop", "_scheduled")

    _callback: Any
    _args: tuple[Any, ...]
    _context: Context
    _cancelled: bool
    _scheduled: bool
    _loop: "LoopRounds"

    def cancel(self) -> None:
        """See `asyncio.TimerHandle`."""
        if not self._cancelled:
            if self._scheduled:
                self._loop._timer_cancelled_count += 1
            self._cancelled = True
            self._callback, self._args = None, ()  # what it holds is let go at once, as by asyncio

    def cancelled(self) -> bool:
        """See `asyncio.TimerHandle`."""
        return self._cancelled

    def when(self) -> float:
        """See `asyncio.TimerHandle`."""
        return float(self)

    def __bool__(self) -> bool:
        """Return that there is one: it may be due at 0."""
        return True


Due: TypeAlias = Step | Timer


class LoopRounds(asyncio.BaseEventLoop):
    """A loop whose time is `_now_s`; who inherits it says in `_wait` how that passes."""

    _ready: deque[Due]
    _scheduled: list[Timer]
    _timer_cancelled_count: int
    _stopping: bool
    _now_s: float = 0.0

    def _wait(self, timeout_s: float | None) -> None:
        """Let time pass: nothing is ready for so long, or for ever."""
        raise NotImplementedError

    def call_soon(  # type: ignore[override]  # a `Step` is a handle to whoever gets it
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Step:
        """See asyncio."""
        self._check_closed()  # type: ignore[attr-defined]
        step = Step()
        step._callback, step._args, step._cancelled = callback, args, False
        step._context = copy_context() if context is None else context
        self._ready.append(step)
        return step

    def call_at(  # type: ignore[override]  # a `Timer` is a handle to whoever gets it
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Timer:
        """See asyncio."""
        self._check_closed()  # type: ignore[attr-defined]
        timer = Timer(when)
        timer._callback, timer._args, timer._cancelled = callback, args, False
        timer._context = copy_context() if context is None else context
        timer._loop, timer._scheduled = self, True
        heappush(self._scheduled, timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Timer:
        """See asyncio."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        self._clear_cancelled()
        ready, scheduled = self._ready, self._scheduled
        if ready or self._stopping:
            self._wait(0)
        elif scheduled:
            self._wait(min(max(0, scheduled[0] - self._now_s), WAITS_S_MAX))
        else:
            self._wait(None)
        end_s = self._now_s + self._clock_resolution  # type: ignore[attr-defined]
        while scheduled and scheduled[0] < end_s:
            timer = heappop(scheduled)
            timer._scheduled = False
            ready.append(timer)
        take = ready.popleft
        for _ in range(len(ready)):  # what these add comes in the next round
            due = take()
            if not due._cancelled:
                try:
                    due._context.run(due._callback, *due._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - the handler of the loop has it, as with asyncio
                    self._tell_of(due, error)

    def _clear_cancelled(self) -> None:
        scheduled = self._scheduled
        count = len(scheduled)
        cancelled = self._timer_cancelled_count
        if count > CLEARED_FROM_COUNT and cancelled / count > CLEARED_FROM_SHARE:
            for timer in scheduled:
                timer._scheduled = not timer._cancelled
            self._scheduled = [each for each in scheduled if not each._cancelled]
            heapify(self._scheduled)
            self._timer_cancelled_count = 0
            return
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heappop(scheduled)._scheduled = False

    def _tell_of(self, due: Due, error: BaseException) -> None:
        source = _format_callback_source(
            due._callback, due._args
        )  # no address in memory: it is in traces
        self.call_exception_handler(
            {"message": f"Exception in callback {source}", "exception": error, "handle": due}
        )
