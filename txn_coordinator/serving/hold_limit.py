"""How long a request may wait in a core: parked requests by age, and when each is to be sent away.

INV-THL1  of very many that have waited too long at the same time, so many go at once as `Turns` says; others are served in between

A request is timed from the first time it was parked, however often it is parked again, and told to expire at most once;
one that was answered is not.

Not here: what the core does with one that has expired (`core`).
"""

import asyncio
from collections import deque
from collections.abc import Callable

from idempotency.ports import Clock
from txn_coordinator.events import HoldExpired
from txn_coordinator.serving.turns import Turns


class HoldLimit:
    """The waiting requests of one shard. The limit is the same for all, so order is by age."""

    def __init__(self, clock: Clock, limit_ms: int, expire: Callable[[HoldExpired], None]) -> None:
        """Nothing expires before `run`."""
        self._clock = clock
        self._limit_ms = limit_ms
        self._expire = expire
        self._by_age: deque[tuple[int, HoldExpired]] = deque()
        self._held: set[int] = set()
        self._wake = asyncio.Event()

    def hold(self, expiry: HoldExpired) -> None:
        """Start the time of a request, once."""
        if expiry.request_id in self._held:
            return
        self._held.add(expiry.request_id)
        self._by_age.append((self._clock.monotonic_ms() + self._limit_ms, expiry))
        self._wake.set()

    def answered(self, request_id: int) -> None:
        """Note that a request waits no longer."""
        self._held.discard(request_id)

    async def run(self) -> None:
        """Tell which have waited too long, until cancelled."""
        turns = Turns()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._by_age:
                deadline_ms, expiry = self._by_age.popleft()
                if expiry.request_id not in self._held:
                    continue  # answered meanwhile
                remaining_ms = deadline_ms - self._clock.monotonic_ms()
                if remaining_ms > 0:
                    await self._clock.sleep_ms(remaining_ms)
                if expiry.request_id in self._held:
                    self._expire(expiry)
                    await turns.worked(0)
