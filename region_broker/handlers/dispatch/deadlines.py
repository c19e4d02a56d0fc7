"""Deadlines of requests that wait without a task.

INV-RDL1  one timer serves all of a node: most deadlines are dropped before they come; what is due is told in the order
          of its time
INV-RDL2  a deadline costs a few steps however many wait, and next to none where it is dropped before the timer fires; one that was dropped
          holds nothing of its request, and takes no more room than those that count, and SPARE
INV-RDL3  of what is due YIELD_ROWS are told in one turn of the loop, and the others in the next ones, however late the timer was
Not here: what a request answers when its time is over (`produce.wait`, `fetch_wait`).
"""

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final, Protocol

from region_broker.limits import YIELD_ROWS
from region_broker.ports.turn_budget import TurnBudget

SPARE: Final = 1_000


class Expiring(Protocol):
    """One that must be told when its time is over."""

    def expire(self) -> None:
        """The time is over; it is told once, and must not raise."""
        ...


class Deadlines:
    """Many deadlines, one timer of the running loop (INV-RDL1)."""

    __slots__ = (
        "_at_s", "_count", "_ended", "_fresh_s", "_heap", "_loop", "_numbers", "_timer", "_waiting", "turns",
    )  # fmt: skip

    def __init__(self, turns: TurnBudget | None = None) -> None:
        """Start without any; what waited for them goes on in `turns`."""
        self.turns: Final = turns or TurnBudget()
        # What came since the timer fired: most of it is dropped before it does again, and needs no order.
        self._fresh_s: dict[Expiring, float] = {}
        # What came before that, by the number that says in which order; the heap has numbers of some that were dropped, too.
        self._heap: list[tuple[float, int]] = []
        self._waiting: dict[int, Expiring] = {}
        self._numbers: dict[Expiring, int] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: type[Expiring] | None = None

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._fresh_s) + len(self._waiting)

    def add(self, expiring: Expiring, timeout_s: float) -> None:
        """Notify `expiring` after that time, unless it is dropped."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if self._ended is not None and isinstance(expiring, self._ended):
            timeout_s = 0.0
        at_s = loop.time() + timeout_s
        if expiring in self._numbers:
            self.drop(expiring)
        self._fresh_s[expiring] = at_s
        if self._timer is None or at_s < self._at_s:
            self._set(loop, at_s)

    def drop(self, expiring: Expiring) -> None:
        """Forget one, if it is there."""
        if self._fresh_s.pop(expiring, None) is not None:
            return
        number = self._numbers.pop(expiring, None)
        if number is None:
            return
        del self._waiting[number]
        if len(self._heap) > 2 * len(self._waiting) + SPARE:  # INV-RDL2
            self._heap = [entry for entry in self._heap if entry[1] in self._waiting]
            heapq.heapify(self._heap)

    def end(self, kind: type[Expiring]) -> None:
        """Let the time of all of that kind be over now, and that of each that comes: the node that they wait at is about to end."""
        self._ended = kind
        self._sort()
        numbers = (number for _, number in sorted(self._heap))
        self._expire([each for each in numbers if isinstance(self._waiting.get(each), kind)])

    def _set(self, loop: asyncio.AbstractEventLoop, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at_s = at_s
        self._timer = loop.call_at(at_s, self._fire)

    def _fire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        # A timer may fire a moment early: what is due by the time it was set for is due.
        now_s = max(loop.time(), self._at_s)
        self._sort()
        due: list[int] = []
        while self._heap and self._heap[0][0] <= now_s and len(due) < YIELD_ROWS:
            _, number = heapq.heappop(self._heap)  # the loop may have been late
            if number in self._waiting:
                due.append(number)
        self._expire(due)
        self._sort()
        while self._heap and self._heap[0][1] not in self._waiting:
            heapq.heappop(self._heap)
        self._set_for_first(loop)

    def _set_for_first(self, loop: asyncio.AbstractEventLoop) -> None:
        """Come back for the first one of the heap, which may be due (INV-RDL3), also where a later one that came meanwhile has set the timer."""
        if self._heap and (self._timer is None or self._heap[0][0] < self._at_s):
            self._set(loop, self._heap[0][0])

    def _sort(self) -> None:
        """Give what came lately its place in the heap."""
        for expiring, at_s in self._fresh_s.items():
            self._count += 1
            self._numbers[expiring] = self._count
            self._waiting[self._count] = expiring
            heapq.heappush(self._heap, (at_s, self._count))
        self._fresh_s.clear()

    def _expire(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            expiring = self._waiting.get(number)
            if expiring is not None:  # not dropped, perhaps by what ended before it
                self.drop(expiring)
                expiring.expire()
