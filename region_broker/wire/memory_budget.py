"""The memory that requests and answers of all connections may hold, kept by not reading sockets.

INV-MB1  while the budget is full, a connection that holds more than FREE_HELD_BYTES is not read, but for one whose
         turn it is: so the frame in hand, when the budget is full of halves of frames, still gets its other half
INV-MB2  a turn ends when its connection holds nothing that counts, or is gone, or the budget has room again
INV-MB3  what is held never goes over the budget by more than one frame, beside what is being answered, and what was held
         already when the budget was made smaller
Not here: sockets and who is cut off (`wire.server`), what one connection may hold (`wire.connection`).
"""

import asyncio
from dataclasses import dataclass

from idempotency.ports import Clock
from region_broker.limits import FREE_HELD_BYTES, REQUEST_MEMORY_BYTES_DEFAULT


@dataclass(slots=True, eq=False)
class Share:
    """What one connection holds, and since when it has the turn (-1: it has not)."""

    held_bytes: int = 0
    turn_since_ms: int = -1

    @property
    def counted_bytes(self) -> int:
        """Return what counts: small holdings do not, so that small requests are always served."""
        return self.held_bytes if self.held_bytes > FREE_HELD_BYTES else 0


class MemoryBudget:
    """Counts what all connections hold, in bytes, and says who may read on."""

    def __init__(self, bytes_max: int = REQUEST_MEMORY_BYTES_DEFAULT) -> None:
        """Create an empty budget of `bytes_max`."""
        assert bytes_max > 0, bytes_max
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._turn: Share | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def held_bytes(self) -> int:
        """Return what is held now by connections that hold more than FREE_HELD_BYTES."""
        return self._held_bytes

    @property
    def left_bytes(self) -> int:
        """Return how much room there is; 0 when full."""
        return max(0, self._bytes_max - self._held_bytes)

    @property
    def full(self) -> bool:
        """Return whether there is no room."""
        return self._held_bytes >= self._bytes_max

    def resize(self, bytes_max: int) -> None:
        """Count against another budget from now on; a smaller one takes nothing away, it is read less until it fits."""
        assert bytes_max > 0, bytes_max
        was_full = self.full
        self._bytes_max = bytes_max
        if was_full and not self.full:
            self._end_turn()
            self._wake()

    def hold(self, share: Share, held_bytes: int) -> None:
        """Note that a connection now holds `held_bytes` (0: it is gone)."""
        assert held_bytes >= 0, held_bytes
        if held_bytes <= FREE_HELD_BYTES >= share.held_bytes:
            share.held_bytes = held_bytes  # it did not count, and does not
            return
        was_full = self.full
        before_bytes = share.counted_bytes
        share.held_bytes = held_bytes
        self._held_bytes += share.counted_bytes - before_bytes
        assert self._held_bytes >= 0, self._held_bytes
        if self._turn is share and not share.counted_bytes:
            self._end_turn()
        if was_full and not self.full:
            self._end_turn()
            self._wake()

    def may_read(self, share: Share, now_ms: int, *, unfinished: bool) -> bool:
        """Return whether a connection may be read; `unfinished`: all that it holds is a part of one frame."""
        if not self.full or not share.counted_bytes:
            return True
        if not unfinished:
            return False
        if self._turn is None:
            self._turn = share
            share.turn_since_ms = now_ms
        return self._turn is share

    async def changed(self) -> None:
        """Return when it is worth to ask again."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def wait_room(self, clock: Clock, max_wait_ms: int) -> bool:
        """Return True once there is room, False when there is none after `max_wait_ms`."""
        if not self.full:
            return True
        deadline_ms = clock.monotonic_ms() + max_wait_ms
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(self._wake_later(clock, max_wait_ms))
            while self.left_bytes == 0 and clock.monotonic_ms() < deadline_ms:
                await self.changed()
            timer.cancel()
        return self.left_bytes > 0

    async def _wake_later(self, clock: Clock, wait_ms: int) -> None:
        await clock.sleep_ms(wait_ms)
        self._wake()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.turn_since_ms = -1
            self._turn = None
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
