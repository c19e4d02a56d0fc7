"""Work in pieces: a generator that yields after each piece of what would hold an event loop for long.

It needs no loop: who calls says whether the loop runs at each yield (`region_broker.wire.cooperative_yield`) or not (`drained`).
Not here: how large a piece is.
"""

from collections.abc import Generator
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
