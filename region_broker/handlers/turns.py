"""Long work in turns: the event loop serves others after each piece, and a connection keeps its order meanwhile.

INV-HW1  while a request of a connection is decoded in pieces, none behind it on that connection is begun; the handler
         of the one is begun before the next is decoded (INV-HD1)
INV-HW2  a handler whose work grows with its request gives way after every TURN_ROWS rows (`Turns.row`); what must
         not be torn (a write, a judgement) is done between two turns, never across them
Not here: the pieces themselves (`wire.piecewise`, `wire.kio_codec`).
"""

import asyncio
from typing import Any, Final, TypeVar

from region_broker.limits import TURN_ROWS
from region_broker.wire.piecewise import Pieces

_Result = TypeVar("_Result")
_ORDER: Final = "order-of-starts"


async def in_turns(pieces: Pieces[_Result]) -> _Result:
    """Return what `pieces` return, with the event loop running between them."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await asyncio.sleep(0)


class Turns:
    """Counts the rows of one handler's work."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        """Count from 0."""
        self._done = 0

    async def row(self, cost: int = 1) -> None:
        """Give way if the rows done since the last time are many; `cost`: what this one counts."""
        self._done += cost
        if self._done >= TURN_ROWS:
            self._done = 0
            await asyncio.sleep(0)


def order_of_starts(connection_state: dict[str, Any], *, make: bool = False) -> asyncio.Lock | None:
    """Return the lock under which requests of a connection begin, first come, first served (INV-HW1).

    None when the connection never needed one (and not `make`): only what is read in pieces brings it in.
    """
    if make:
        connection_state.setdefault(_ORDER, asyncio.Lock())
    lock: asyncio.Lock | None = connection_state.get(_ORDER)
    return lock
