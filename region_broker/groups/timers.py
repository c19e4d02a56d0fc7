"""One deadline per name over the Clock port, without polling.

`on_due(name)` runs once for each armed deadline, at or after it, never before. Re-arming later is free: the earlier
wake-up finds nothing due and arms the new deadline.

INV-GTM1  one task sleeps, until the first deadline, and holds nothing of the request that armed it; deadlines that were taken back take no
          more room than those that count, and `SPARE` besides: whoever makes groups and lets them go fills no memory meanwhile
INV-GTM2  what is armed anew, while it is woken, for a time that has passed already is woken in a later turn of the loop: clients name some of the
          times that deadlines are made of, and a name that is due again and again would let nobody else be served
Not here: what is due (`coordinator`).
"""

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context
from typing import Final

from idempotency.ports import Clock

SPARE: Final = 1_000


class DeadlineTimers:
    """Wakes names at their deadlines (monotonic ms); owned by one event loop."""

    def __init__(self, clock: Clock, on_due: Callable[[str], None]) -> None:
        """Take the clock and what to call; `on_due` may arm again."""
        self._clock = clock
        self._on_due = on_due
        self._heap: list[tuple[int, str]] = []
        self._armed: dict[str, int] = {}
        self._sleeper: asyncio.Task[None] | None = None
        self._wakes_ms = 0
        self._tasks: asyncio.TaskGroup | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the timers in `tasks` from now on."""
        self._tasks = tasks
        self._sleep_if_needed()

    def stop(self) -> None:
        """Spawn no more sleepers; that of the task group ends with it."""
        self._tasks = self._sleeper = None

    def arm(self, name: str, deadline_ms: int) -> None:
        """Wake `name` at `deadline_ms` unless it is woken earlier anyway."""
        known = self._armed.get(name)
        if known is not None and known <= deadline_ms:
            return
        self._armed[name] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, name))
        if len(self._heap) > 2 * len(self._armed) + SPARE:  # INV-GTM1
            self._heap = [(due_ms, each) for each, due_ms in self._armed.items()]
            heapq.heapify(self._heap)
        self._sleep_if_needed()

    def disarm(self, name: str) -> None:
        """Forget the deadline of `name`."""
        self._armed.pop(name, None)

    def _sleep_if_needed(self) -> None:
        while self._heap and self._armed.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # disarmed, or armed anew
        if self._tasks is None or not self._heap:
            return
        deadline_ms = self._heap[0][0]
        if self._sleeper is None or deadline_ms < self._wakes_ms:
            if self._sleeper is not None:
                self._sleeper.cancel()
            self._wakes_ms = deadline_ms
            # A context of its own: what is done when it wakes is done for nobody who armed it, and holds nobody's request.
            self._sleeper = Context().run(self._tasks.create_task, self._sleep_until(deadline_ms))

    async def _sleep_until(self, deadline_ms: int) -> None:
        while (left_ms := deadline_ms - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep_ms(left_ms)
        self._sleeper = None
        self._fire()

    def _fire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        due: list[tuple[int, str]] = []
        while self._heap and self._heap[0][0] <= now_ms:
            due.append(heapq.heappop(self._heap))
        for deadline_ms, name in due:  # INV-GTM2
            if self._armed.get(name) == deadline_ms:
                del self._armed[name]
                self._on_due(name)
        self._sleep_if_needed()
