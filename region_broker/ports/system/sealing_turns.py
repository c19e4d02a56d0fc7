"""What a connection of TLS has to send: sealed so much in one turn of the event loop, and only while the other side takes it.

INV-SLT1  one large answer holds the loop for no longer than TURN_BYTES take to be sealed and handed to the system; others are served in between
INV-SLT2  what the other side does not take yet is not sealed: it waits as it was given, and once, in the order in which it was written
Not here: who waits for room (`network`), the records of TLS (`ssl`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from region_broker.ports.network import Buffer

PIECE_BYTES: Final = 128 * 1024
"""What goes through TLS goes in pieces of this: each is on its way, and opened by the other side, while the next one is sealed. More than uvloop lets
wait for the end of the loop's turn (64 KiB), so it is sent at once; what is smaller is joined, as each piece is a record, or several, of TLS."""
TURN_BYTES: Final = 4 * PIECE_BYTES
"""Some 1 ms."""


def in_pieces(buffers: Iterable[Buffer], piece_bytes: int = PIECE_BYTES) -> Iterator[Buffer]:
    """Return the same bytes in pieces of `piece_bytes`, but for the last one; what lies in several buffers is copied."""
    held: list[Buffer] = []
    room_bytes = piece_bytes
    for buffer in buffers:
        view = memoryview(buffer)
        while view:
            held.append(view[:room_bytes])
            view = view[room_bytes:]
            room_bytes -= len(held[-1])
            if not room_bytes:
                yield _one(held)
                held, room_bytes = [], piece_bytes
    if held:
        yield _one(held)


def _one(held: list[Buffer]) -> Buffer:
    return held[0] if len(held) == 1 else b"".join(held)


class SealingTurns:
    """Hands `write` of a transport what waits; `on_sealed` is called whenever nothing does any more."""

    __slots__ = ("_is_due", "_is_paused", "_next", "_on_sealed", "_waiting", "_write")

    def __init__(self, write: Callable[[Buffer], None], on_sealed: Callable[[], None]) -> None:
        """Hold nothing yet."""
        self._write = write
        self._on_sealed = on_sealed
        self._waiting: deque[Iterator[Buffer]] = deque()
        self._next: Buffer | None = None  # of what waits; None: nothing does
        self._is_due = False
        self._is_paused = False

    @property
    def waits(self) -> bool:
        """Return whether something is not sealed yet."""
        return self._next is not None

    @property
    def has_room(self) -> bool:
        """Return whether what is written now is sealed now."""
        return self._next is None and not self._is_paused

    def add(self, buffers: Iterable[Buffer]) -> None:
        """Seal them, now or behind what waits."""
        self._waiting.append(in_pieces(buffers))
        if self._next is None:
            self._next = self._piece()
        if not self._is_due:
            self._seal()

    def pause(self) -> None:
        """Seal nothing more: the other side takes no more now."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        if not self._is_due:
            self._seal()

    def drop(self) -> None:
        """Forget what waits."""
        self._waiting.clear()
        self._next = None

    def _piece(self) -> Buffer | None:
        while self._waiting:
            if (piece := next(self._waiting[0], None)) is not None:
                return piece
            self._waiting.popleft()
        return None

    def _turn(self) -> None:
        self._is_due = False
        self._seal()

    def _seal(self) -> None:
        room_bytes = TURN_BYTES
        while (piece := self._next) is not None and room_bytes > 0 and not self._is_paused:
            self._next = self._piece()
            room_bytes -= len(piece)
            self._write(piece)
        if self._next is None:
            self._on_sealed()
        elif not self._is_paused:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._turn)
