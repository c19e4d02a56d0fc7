"""Deadlines of requests that wait without a task.

INV-RDL1  one timer serves all of a node: most deadlines are dropped before they come; what is due is told in the order
          of its time
Not here: what a request answers when its time is over (`produce.wait`, `fetch_wait`).
"""

import asyncio
from typing import Protocol


class Expiring(Protocol):
    """One that must be told when its time is over."""

    def expire(self) -> None:
        """The time is over; it is told once, and must not raise."""
        ...


class Deadlines:
    """Many deadlines, one timer of the running loop (INV-RDL1)."""

    __slots__ = ("_at_s", "_due_s", "_ended", "_loop", "_timer")

    def __init__(self) -> None:
        """Start without any."""
        self._due_s: dict[Expiring, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: type[Expiring] | None = None

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._due_s)

    def add(self, expiring: Expiring, timeout_s: float) -> None:
        """Notify `expiring` after that time, unless it is dropped."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        if self._ended is not None and isinstance(expiring, self._ended):
            timeout_s = 0.0
        at_s = loop.time() + timeout_s
        self._due_s[expiring] = at_s
        if self._timer is None or at_s < self._at_s:
            self._set(loop, at_s)

    def drop(self, expiring: Expiring) -> None:
        """Forget one, if it is there."""
        self._due_s.pop(expiring, None)

    def end(self, kind: type[Expiring]) -> None:
        """Let the time of all of that kind be over now, and that of each that comes: the node that they wait at is about to end."""
        self._ended = kind
        waiting = [each for each in self._due_s if isinstance(each, kind)]
        for expiring in sorted(waiting, key=self._due_s.__getitem__):
            if expiring in self._due_s:  # what ends one may end another
                self.drop(expiring)
                expiring.expire()

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
        due = [each for each, at_s in self._due_s.items() if at_s <= now_s]
        for expiring in sorted(due, key=self._due_s.__getitem__):  # the loop may have been late
            self.drop(expiring)
            expiring.expire()
        if self._due_s and self._timer is None:
            self._set(loop, min(self._due_s.values()))
