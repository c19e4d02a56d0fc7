"""Those who wait until the high watermark of one partition reaches an offset.

A waiter ends exactly once: reached, failed or cancelled by its own task. Waking costs O(log n) for each waiter that is
woken, nothing for the others.

INV-CWT1  who waited in vain leaves nothing to the cycle collector: a future holds the error that it ends with, that one's traceback the frame
          that waited, and this frame lets the future go
INV-CWT2  of those that one step reaches YIELD_ROWS are told in it, and the others in the next turns of the loop, whatever fails or is cut meanwhile: they
          were reached. A sync that was slow, or a follower that stood still, has tens of thousands wait

Not here: what moves the high watermark (`partition`).
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

from region_broker.limits import YIELD_ROWS


class CommitListener(Protocol):
    """One that is told, on the event loop, what became of what it waits for; it must not raise."""

    def committed(self) -> None:
        """Everything below its offset is below the high watermark."""
        ...

    def not_committed(self, error: Exception) -> None:
        """Whether it ever will be is unknown."""
        ...


class CommitFuture:
    """A listener that ends a future."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        """Create the future of the running loop."""
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def committed(self) -> None:
        """See `CommitListener`."""
        if not self.future.done():
            self.future.set_result(None)

    def not_committed(self, error: Exception) -> None:
        """See `CommitListener`."""
        if not self.future.done():
            self.future.set_exception(error)


async def when_told(notify: Callable[[CommitListener], None]) -> None:
    """Return once the listener that `notify` is given is told that it is committed; raises what it is told instead."""
    waiting = CommitFuture()
    notify(waiting)
    try:
        await waiting.future
    finally:
        del waiting  # INV-CWT1


class CommitWaiters:
    """A heap by offset."""

    __slots__ = ("_goes_on", "_heap", "_reached", "_serial")

    def __init__(self) -> None:
        """Start without waiters."""
        self._heap: list[tuple[int, int, CommitListener]] = []
        self._serial = 0
        self._goes_on = False
        self._reached = -1  # while it goes on: what was reached by then

    def __len__(self) -> int:
        """Return how many wait (cancelled ones may still be counted)."""
        return len(self._heap)

    def notify_at(self, offset: int, listener: CommitListener) -> None:
        """Notify `listener`, once, when `reached(offset)` or more is called, or of `fail`'s error."""
        self._serial += 1
        heapq.heappush(self._heap, (offset, self._serial, listener))

    def reached(self, high_watermark: int) -> None:
        """Wake all that wait for `high_watermark` or less, few of them in this step (INV-CWT2)."""
        if self._goes_on:
            self._reached = max(self._reached, high_watermark)
            return
        heap, left = self._heap, YIELD_ROWS
        while heap and heap[0][0] <= high_watermark:
            if left == 0:
                self._goes_on, self._reached = True, high_watermark
                asyncio.get_running_loop().call_soon(self._go_on)
                return
            left -= 1
            heapq.heappop(heap)[2].committed()

    def _go_on(self) -> None:
        self._goes_on = False
        reached, self._reached = self._reached, -1
        self.reached(reached)

    def fail(self, error: Exception) -> None:
        """End all waits with `error`, but for those that were reached."""
        heap, self._heap = self._heap, []
        reached, self._reached = self._reached, -1
        for offset, _, listener in heap:
            if offset <= reached:
                listener.committed()
            else:
                listener.not_committed(error)
