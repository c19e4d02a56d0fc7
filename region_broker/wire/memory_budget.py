"""The memory that requests and answers of all connections may hold, kept by not reading sockets.

INV-MB1  while the budget is full, a connection that holds more than FREE_HELD_BYTES is not read, but for one whose
         turn it is: so the frame in hand, when the budget is full of halves of frames, still gets its other half
INV-MB2  a turn is for one frame, and ends when that one is answered, or handed back, or begins and is small, or its connection holds nothing
         that counts, is left unread by a quota, or is gone, or the budget has room again
INV-MB3  what is held never goes over the budget by more than one frame, beside what is being answered, and what was held
         already when the budget was made smaller
INV-MB4  what is not begun, parts of frames and whole ones that wait, takes ANSWERS_PART of the budget from no answer: whoever
         sends large frames, and ends none, keeps nobody from reading
Not here: sockets and who is cut off (`wire.server`), what one connection may hold (`wire.connection`).
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from idempotency.ports import Clock
from region_broker.limits import FREE_HELD_BYTES, REQUEST_MEMORY_BYTES_DEFAULT

ANSWERS_PART: Final = 4
"""One part in so many of the budget is left to what was begun: answers, and the requests that they are for."""


@dataclass(slots=True, eq=False)
class Share:
    """What one connection holds, and since when it has the turn (-1: it has not).

    `not_begun_bytes`: what of it was read, and is no request that was begun.
    """

    held_bytes: int = 0
    not_begun_bytes: int = 0
    turn_since_ms: int = -1
    turn_is_spent: bool = False  # the frame that it was for has begun

    @property
    def counted_bytes(self) -> int:
        """Return what counts: small holdings do not, so that small requests are always served."""
        return self.held_bytes if self.held_bytes > FREE_HELD_BYTES else 0

    @property
    def counted_not_begun_bytes(self) -> int:
        """Return what counts of what is not begun."""
        return self.not_begun_bytes if self.held_bytes > FREE_HELD_BYTES else 0


class MemoryBudget:
    """Counts what all connections hold, in bytes, and says who may read on."""

    def __init__(self, bytes_max: int = REQUEST_MEMORY_BYTES_DEFAULT) -> None:
        """Create an empty budget of `bytes_max`."""
        assert bytes_max > 0, bytes_max
        self._bytes_max = bytes_max
        self._held_bytes = 0
        self._not_begun_bytes = 0
        self._turn: Share | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def held_bytes(self) -> int:
        """Return what is held now by connections that hold more than FREE_HELD_BYTES."""
        return self._held_bytes

    @property
    def left_bytes(self) -> int:
        """Return how much room there is for answers; 0 when there is none (INV-MB4)."""
        begun_bytes = self._held_bytes - self._not_begun_bytes
        kept_bytes = self._answers_bytes - begun_bytes
        return max(0, self._bytes_max - self._held_bytes, kept_bytes)

    @property
    def full(self) -> bool:
        """Return whether there is no room to read more of large requests."""
        if self._held_bytes >= self._bytes_max:
            return True
        return self._not_begun_bytes >= self._bytes_max - self._answers_bytes

    @property
    def _answers_bytes(self) -> int:
        return self._bytes_max // ANSWERS_PART

    def resize(self, bytes_max: int) -> None:
        """Count against another budget from now on; a smaller one takes nothing away, it is read less until it fits."""
        assert bytes_max > 0, bytes_max
        before = self._want
        self._bytes_max = bytes_max
        self._note_room(before)

    def hold(self, share: Share, held_bytes: int, not_begun_bytes: int = 0) -> None:
        """Note that a connection now holds `held_bytes` (0: it is gone), of which some are of no request that was begun."""
        assert 0 <= not_begun_bytes <= held_bytes, (not_begun_bytes, held_bytes)
        if held_bytes <= FREE_HELD_BYTES >= share.held_bytes:
            share.held_bytes, share.not_begun_bytes = held_bytes, not_begun_bytes
            return  # it did not count, and does not
        before = self._want
        self._held_bytes -= share.counted_bytes
        self._not_begun_bytes -= share.counted_not_begun_bytes
        share.held_bytes, share.not_begun_bytes = held_bytes, not_begun_bytes
        self._held_bytes += share.counted_bytes
        self._not_begun_bytes += share.counted_not_begun_bytes
        assert 0 <= self._not_begun_bytes <= self._held_bytes
        if self._turn is share and not share.counted_bytes:
            self._end_turn()
        self._note_room(before)

    @property
    def _want(self) -> tuple[bool, bool]:
        """Return whether there is no room to read, and none to answer."""
        return self.full, self.left_bytes == 0

    def _note_room(self, before: tuple[bool, bool]) -> None:
        """Wake who waits for room where there is some again."""
        was_full, was_without_answers = before
        if was_full and not self.full:
            self._end_turn()
            self._wake()
        elif was_without_answers and self.left_bytes:
            self._wake()

    def spend_turn(self, share: Share) -> bool:
        """Note that a request of a connection begins; return whether its frame is what the turn was for: `end_turn` when it is answered."""
        if self._turn is not share or share.turn_is_spent:
            return False
        share.turn_is_spent, share.turn_since_ms = True, -1
        return True

    def end_turn(self, share: Share) -> None:
        """Let another one have the turn, if this one has it (INV-MB2)."""
        if self._turn is share:
            self._end_turn()

    def may_read(self, share: Share, now_ms: int, *, unfinished: bool) -> bool:
        """Return whether a connection may be read; `unfinished`: a part of a frame is what was read last."""
        if not self.full or not share.counted_bytes:
            return True
        if not unfinished:
            return False
        if self._turn is None:
            self._turn = share
            share.turn_since_ms = now_ms
        return self._turn is share and not share.turn_is_spent

    async def changed(self) -> None:
        """Return when it is worth to ask again."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    async def wait_room(self, clock: Clock, max_wait_ms: int) -> bool:
        """Return True once there is room for an answer, False when there is none after `max_wait_ms`."""
        if self.left_bytes > 0:
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
            self._turn.turn_since_ms, self._turn.turn_is_spent = -1, False
            self._turn = None
            self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
