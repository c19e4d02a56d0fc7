"""Those who wait until the high watermark of one partition reaches an offset.

INV-CW1  a waiter ends exactly once: reached, failed or cancelled by its own task
INV-CW2  waking costs O(log n) for each waiter that is woken, nothing for the others

Not here: what moves the high watermark (`partition`).
"""

import asyncio
import heapq


class CommitWaiters:
    """A heap by offset."""

    __slots__ = ("_heap", "_serial")

    def __init__(self) -> None:
        """Start without waiters."""
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._serial = 0

    def __len__(self) -> int:
        """Return how many wait (cancelled ones may still be counted)."""
        return len(self._heap)

    def add(self, offset: int) -> asyncio.Future[None]:
        """Return a future that ends when `reached(offset)` or more is called, or with `fail`'s error."""
        future = asyncio.get_running_loop().create_future()
        self._serial += 1
        heapq.heappush(self._heap, (offset, self._serial, future))
        return future

    def reached(self, high_watermark: int) -> None:
        """Wake all that wait for `high_watermark` or less."""
        heap = self._heap
        while heap and heap[0][0] <= high_watermark:
            future = heapq.heappop(heap)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """End all waits with `error`."""
        heap, self._heap = self._heap, []
        for _, _, future in heap:
            if not future.done():
                future.set_exception(error)
