"""Those who wait until the high watermark of one partition reaches an offset.

A waiter ends exactly once: reached, failed or cancelled by its own task. Waking costs O(log n) for each waiter that is
woken, nothing for the others.

INV-CWT1  who waited in vain leaves nothing to the cycle collector: a future holds the error that it ends with, that one's traceback the frame
          that waited, and this frame lets the future go

Not here: what moves the high watermark (`partition`).
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol


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

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        """Start without waiters."""
        self._heap: list[tuple[int, int, CommitListener]] = []
        self._serial = 0

    def __len__(self) -> int:
        """Return how many wait (cancelled ones may still be counted)."""
        return len(self._heap)

    def notify_at(self, offset: int, listener: CommitListener) -> None:
        """Notify `listener`, once, when `reached(offset)` or more is called, or of `fail`'s error."""
        self._serial += 1
        heapq.heappush(self._heap, (offset, self._serial, listener))

    def reached(self, high_watermark: int) -> None:
        """Wake all that wait for `high_watermark` or less."""
        heap = self._heap
        while heap and heap[0][0] <= high_watermark:
            heapq.heappop(heap)[2].committed()

    def fail(self, error: Exception) -> None:
        """End all waits with `error`."""
        heap, self._heap = self._heap, []
        for _, _, listener in heap:
            listener.not_committed(error)
