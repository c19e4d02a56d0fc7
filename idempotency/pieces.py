"""Work in pieces: a generator that yields after each piece of what would hold an event loop for long.

It needs no loop: who calls says whether the loop runs at each yield (`run_paused`) or not (`drained`).
Not here: how large a piece is.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import TypeAlias, TypeVar

_Result = TypeVar("_Result")
Pieces: TypeAlias = Generator[None, None, _Result]


def drained(pieces: Pieces[_Result]) -> _Result:
    """Return what `pieces` return, without giving way: for what is known to be short, and where no loop runs."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result


async def run_paused(pieces: Pieces[_Result], pause: Callable[[], Awaitable[None]]) -> _Result:
    """Return what `pieces` return, with a `pause` after each."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await pause()
