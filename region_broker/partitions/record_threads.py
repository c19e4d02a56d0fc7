"""The few threads that look into records: they unpack, compress, and search batches that may hold a million of them.

INV-RTH1  whatever clients send, RECORD_THREADS batches that are produced, and LOOKUP_THREADS that are searched by time, are unpacked at once at
         most, and what waits for them holds nothing but its place: what each takes is bounded (DECOMPRESSED_BYTES_MAX, ZSTD_WINDOW_BYTES_MAX), so
         together they are, and logins, syncs and deletions have other threads
INV-RTH2  those who ask take turns in the threads of each kind, and lookups have threads of their own: whoever asks for much of either
         keeps a batch that others produce from the threads for no longer than one of his takes
INV-RTH3  the end of a node waits for none of them, and its logs are closed before they end: what they do changes nothing but what they return, and
         may take half a minute. The process itself ends when what they have begun has
INV-RTH4  no thread is idle while a batch waits, however busy the event loop is, and whoever asks: a thread that is done takes the next one itself.
         What is given up in its turn keeps the thread until it is done, and so nobody gets another one by leaving
INV-RTH5  what is given up before its turn leaves nothing behind: what was handed to the threads for it is used by whoever comes next
Not here: what is done with a batch (`record_rules`, `time_lookup`).
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from region_broker.limits import LOOKUP_THREADS, RECORD_THREADS
from region_broker.ports.fair_turns import InTurn

_Result = TypeVar("_Result")


class _Piece(Generic[_Result]):
    """One batch's work, and what is made of it."""

    __slots__ = ("_work", "made")

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work = work
        self.made: Future[_Result] = Future()

    def do(self) -> None:
        """Do it, unless nobody waits for it any more."""
        made = self.made
        if not made.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:  # noqa: BLE001 - it is handed on, to who asked
            made.set_exception(error)
            del made, self  # the error holds this frame: no cycle
        else:
            made.set_result(result)


class RecordThreads:
    """The threads of one kind: two kinds per node."""

    def __init__(self, name: str, count: int) -> None:
        """Start no thread before one is needed."""
        self._pool: Final = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock: Final = threading.Lock()
        self._waiting: Final[InTurn[_Piece[Any]]] = InTurn()
        """INV-RTH2"""
        self._spare = 0
        """Turns that the threads have before them beyond those for what waits (INV-RTH5)."""

    async def run(
        self, asked_by: str, work: Callable[[], _Result], *, turn_within_s: float | None = None
    ) -> _Result:
        """Return what `work` returns, or raise what it raises; what is cancelled before its turn is not begun.

        Raises `TimeoutError` where its turn has not come within `turn_within_s`: that is not begun either.
        """
        loop = asyncio.get_running_loop()
        piece = _Piece(work)
        with self._lock:
            if self._spare:
                self._spare -= 1
            else:
                _ = loop.run_in_executor(self._pool, self._take_turn)  # whosever it is by then
            self._waiting.add(asked_by, piece)
        late = None
        if turn_within_s is not None:
            late = loop.call_later(turn_within_s, self._give_up, asked_by, piece)
        try:
            return await asyncio.wrap_future(piece.made)
        finally:
            if late is not None:
                late.cancel()
            self._withdraw(asked_by, piece)
            del piece  # an error that it has holds this frame: no cycle

    def close(self) -> None:
        """Begin nothing any more, and wait for nothing (INV-RTH3)."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = self._waiting.clear()
            self._spare = 0  # whoever comes now is told that it is closed
        for piece in left:
            piece.made.cancel()

    def _take_turn(self) -> None:
        """Do what is next, in a thread; there is nothing where it was withdrawn."""
        with self._lock:
            found = self._waiting.pop()
            if found is None:
                self._spare = max(self._spare - 1, 0)
                return
        asked_by, piece = found
        piece.do()
        del found, piece  # as in `do`
        with self._lock:
            self._waiting.behind_others(asked_by)  # whoever came meanwhile has waited for this one

    def _give_up(self, asked_by: str, piece: _Piece[Any]) -> None:
        if self._withdraw(asked_by, piece):
            piece.made.set_exception(TimeoutError("its turn in the threads has not come in time"))

    def _withdraw(self, asked_by: str, piece: _Piece[Any]) -> bool:
        """Return whether it waited still; it does not any more."""
        with self._lock:
            is_withdrawn = self._waiting.withdraw(asked_by, piece)
            self._spare += is_withdrawn
        return is_withdrawn


def produce_threads() -> RecordThreads:
    """Return those for batches that are produced."""
    return RecordThreads("records", RECORD_THREADS)


def lookup_threads() -> RecordThreads:
    """Return those for batches that are searched by time."""
    return RecordThreads("lookups", LOOKUP_THREADS)
