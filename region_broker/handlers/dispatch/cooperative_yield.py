"""Cooperative yield: long work lets the event loop serve others after each piece.

INV-HW2  a handler whose work grows with its request gives way after every YIELD_ROWS rows (`CooperativeYield.row`);
         what must not be torn (a judgement and its write) is done between two yields, never across one. Before a write
         only requests give way that are too large to be read at once: they hold their connection's order (INV-HW1)
Not here: the pieces themselves (`wire.codec.pieces`, `wire.codec.requests`), a connection's order meanwhile (`dispatcher`).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Self, TypeVar

from region_broker.limits import ELEMENTS_AT_ONCE_MAX, YIELD_ROWS

_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


class CooperativeYield:
    """Counts the rows of one handler's work."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        """Count from 0."""
        self._done = 0

    @classmethod
    def of_a_write(cls) -> Self:
        """Return one for what comes before a write: the first begins where a connection's order is held."""
        yielding = cls()
        yielding._done = YIELD_ROWS - ELEMENTS_AT_ONCE_MAX
        return yielding

    async def row(self, cost: int = 1) -> None:
        """Give way if the rows done since the last time are many; `cost`: what this one counts."""
        self._done += cost
        if self._done >= YIELD_ROWS:
            self._done = 0
            await asyncio.sleep(0)


async def each_yielding(
    items: Iterable[_Item], make: Callable[[_Item], _Result], yielding: CooperativeYield
) -> list[_Result]:
    """Return what `make` makes of each item, giving way in between."""
    made: list[_Result] = []
    for item in items:
        await yielding.row()
        made.append(make(item))
    return made
