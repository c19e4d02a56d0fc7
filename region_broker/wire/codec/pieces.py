"""Work in pieces, so that others are served in between: generators that yield after each piece, and what runs them.

Not here: what is read and written so (`piece_readers`, `struct_writers`, `fast_paths`), whose order is held meanwhile
(`handlers.dispatch.cooperative_yield`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from region_broker.limits import PIECE_ELEMENTS

_Result = TypeVar("_Result")
Pieces: TypeAlias = Generator[None, None, _Result]


def drained(pieces: Pieces[_Result]) -> _Result:
    """Return what `pieces` return, without a pause: for what is known to be short."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result


async def _next_turn() -> None:
    await asyncio.sleep(0)


async def run_yielding(
    pieces: Pieces[_Result], pause: Callable[[], Awaitable[None]] = _next_turn
) -> _Result:
    """Return what `pieces` return, with a `pause` between them: the event loop runs, unless another is given."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await pause()


@dataclass(slots=True)
class Progress:
    """Elements done since the last pause."""

    done: int = 0

    def pause_due(self) -> bool:
        """Count one element; return whether the piece is full."""
        self.done += 1
        if self.done < PIECE_ELEMENTS:
            return False
        self.done = 0
        return True
