"""Turns for work that takes long: a few at once, and for each who asks one at a time, or one after the other.

INV-PFT1 who asks for a second turn while he has one waits for himself, and stands in nobody's way: whoever comes next waits for one piece of work of
         each of the others at most, however much they ask for
INV-PFT2 of what waits in turns the next one is the oldest of who has had no turn for longest, and whoever has had one stands behind all others
Not here: the work, and who counts as one (`security.identity`); locks and threads (`partitions.record_threads`, `handlers.dispatch.listing_places`).
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

_Item = TypeVar("_Item", bound=Hashable)


class FairTurns:
    """Belongs to one event loop."""

    def __init__(self, places: int) -> None:
        """Let so much work at once."""
        self._places: Final = asyncio.Semaphore(places)
        self._asking: Final[dict[str, tuple[asyncio.Lock, int]]] = {}

    def asked_for(self, who: str) -> int:
        """Return how many turns of `who` wait, or have begun."""
        return self._asking[who][1] if who in self._asking else 0

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


class InTurn(Generic[_Item]):
    """What waits, of each who asks. Nothing is awaited here, and nothing is locked."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._waiting: Final[dict[str, dict[_Item, None]]] = {}
        """In the order of their turns (INV-PFT2)."""

    def __bool__(self) -> bool:
        """Return whether anything waits."""
        return bool(self._waiting)

    def add(self, who: str, item: _Item) -> None:
        """Let one more wait."""
        self._waiting.setdefault(who, {})[item] = None

    def pop(self) -> tuple[str, _Item] | None:
        """Take out the next one, and whose it is; None where nothing waits."""
        for who, items in self._waiting.items():
            item = next(iter(items))
            self.withdraw(who, item)
            self.behind_others(who)
            return who, item
        return None

    def behind_others(self, who: str) -> None:
        """Let who came meanwhile have a turn before."""
        if items := self._waiting.pop(who, None):
            self._waiting[who] = items

    def withdraw(self, who: str, item: _Item) -> bool:
        """Let one wait no more; return whether it did."""
        items = self._waiting.get(who, {})
        if item not in items:
            return False
        del items[item]
        if not items:
            del self._waiting[who]
        return True

    def clear(self) -> list[_Item]:
        """Take out all of them."""
        left = [item for items in self._waiting.values() for item in items]
        self._waiting.clear()
        return left
