"""Turns for work that takes long: a few at once, and for each who asks one at a time.

INV-PFT1 who asks for a second turn while he has one waits for himself, and stands in nobody's way: whoever comes next waits for one piece of work of
         each of the others at most, however much they ask for
Not here: the work, and who counts as one (`security.sasl.desk`); threads that take their next work themselves (`partitions.record_threads`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final


class FairTurns:
    """Belongs to one event loop."""

    def __init__(self, places: int) -> None:
        """Let so much work at once."""
        self._places: Final = asyncio.Semaphore(places)
        self._asking: Final[dict[str, tuple[asyncio.Lock, int]]] = {}

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Work within, for `who`."""
        lock, count = self._asking.get(who, (asyncio.Lock(), 0))
        self._asking[who] = lock, count + 1
        try:
            async with lock, self._places:
                yield
        finally:
            lock, count = self._asking.pop(who)
            if count > 1:
                self._asking[who] = lock, count - 1
