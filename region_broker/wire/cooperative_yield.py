"""Cooperative yield: long work lets the event loop serve others after each piece of it.

INV-HW2  a handler whose work grows with its request gives way after every YIELD_ROWS rows (`CooperativeYield.row`);
         what must not be torn (a judgement and its write) is done between two yields, never across one. Before a write
         only requests give way that are too large to be read at once: they hold their connection's order (INV-HW1)
INV-HW3  who looks up a group or a transactional id counts `look_up_rows` of it beside its row: its hash is summed by the letter
Work that waits for nothing is a generator that yields after each piece (`Pieces`): it needs no loop, and who calls says
whether the loop runs at each yield (`run_yielding`) or not (`drained`). Work that awaits anyway counts its rows
(`CooperativeYield.row`). Both give way in one place; a generator counts with `CooperativeYield.due`, or, on a fast path, by
the number of its loop.
Not here: whose order is held meanwhile (`handlers.dispatch.dispatcher`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, Self, TypeVar

from idempotency.pieces import Pieces, run_paused
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, YIELD_ROWS

_LETTERS_PER_ROW: Final = 128  # of a hash (`idempotency.java_hash`): 8 us
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


async def give_way() -> None:
    """Let the event loop serve others."""
    await asyncio.sleep(0)


def look_up_rows(name: str) -> int:
    """Return for how many rows the hash of a group or transactional id counts: none for a short one (INV-HW3)."""
    return len(name) // _LETTERS_PER_ROW


class CooperativeYield:
    """Counts the rows of one piece of work since it last gave way."""

    __slots__ = ("_done", "_rows")

    def __init__(self, rows: int = YIELD_ROWS) -> None:
        """Count from 0; a piece is full after so many rows."""
        self._done = 0
        self._rows = rows

    @classmethod
    def of_a_write(cls) -> Self:
        """Return one for what comes before a write: the first begins where a connection's order is held."""
        yielding = cls()
        yielding._done = YIELD_ROWS - ELEMENTS_AT_ONCE_MAX
        return yielding

    def due(self, cost: int = 1) -> bool:
        """Count a row, which counts for `cost`; return whether the piece is full, and begin the next one if so."""
        self._done += cost
        if self._done < self._rows:
            return False
        self._done = 0
        return True

    async def row(self, cost: int = 1) -> None:
        """Count a row, and give way if the piece is full."""
        if self.due(cost):
            await give_way()


async def each_yielding(
    items: Iterable[_Item], make: Callable[[_Item], _Result], yielding: CooperativeYield
) -> list[_Result]:
    """Return what `make` makes of each item, giving way in between."""
    made: list[_Result] = []
    for item in items:
        await yielding.row()
        made.append(make(item))
    return made


def run_yielding(
    pieces: Pieces[_Result], pause: Callable[[], Awaitable[None]] = give_way
) -> Coroutine[Any, Any, _Result]:
    """Return what `pieces` return, giving way after each, or with another `pause`."""
    return run_paused(pieces, pause)
