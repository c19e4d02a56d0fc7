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
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from region_broker.limits import LOOKUP_THREADS, RECORD_THREADS

_Result = TypeVar("_Result")
_Waiting: TypeAlias = dict[Future[Any], Callable[[], None]]


class RecordThreads:
    """The threads of one kind: two kinds per node."""

    def __init__(self, name: str, count: int) -> None:
        """Start no thread before one is needed."""
        self._pool: Final = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._lock: Final = threading.Lock()
        self._waiting: Final[dict[str, _Waiting]] = {}
        """What waits of each who asks; whose turn is next stands first (INV-RTH2)."""
        self._spare = 0
        """Turns that the threads have before them beyond those for what waits (INV-RTH5)."""

    async def run(
        self, asked_by: str, work: Callable[[], _Result], *, turn_within_s: float | None = None
    ) -> _Result:
        """Return what `work` returns, or raise what it raises; what is cancelled before its turn is not begun.

        Raises `TimeoutError` where its turn has not come within `turn_within_s`: that is not begun either.
        """
        loop = asyncio.get_running_loop()
        made: Future[_Result] = Future()
        with self._lock:
            if self._spare:
                self._spare -= 1
            else:
                _ = loop.run_in_executor(self._pool, self._take_turn)  # whosever it is by then
            self._waiting.setdefault(asked_by, {})[made] = partial(_do, made, work)
        late = None
        if turn_within_s is not None:
            late = loop.call_later(turn_within_s, self._give_up, asked_by, made)
        try:
            return await asyncio.wrap_future(made)
        finally:
            if late is not None:
                late.cancel()
            self._withdraw(asked_by, made)
            del made  # an error that it has holds this frame: no cycle

    def close(self) -> None:
        """Begin nothing any more, and wait for nothing (INV-RTH3)."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            left = [made for waiting in self._waiting.values() for made in waiting]
            self._waiting.clear()
            self._spare = 0  # whoever comes now is told that it is closed
        for made in left:
            made.cancel()

    def _take_turn(self) -> None:
        """Do what is next, in a thread; there is nothing where it was withdrawn."""
        with self._lock:
            asked_by = next(iter(self._waiting), None)
            if asked_by is None:
                self._spare = max(self._spare - 1, 0)
                return
            waiting = self._waiting[asked_by]
            work = waiting.pop(next(iter(waiting)))
            self._behind_others(asked_by)
        work()
        del work  # as in `_do`
        with self._lock:
            self._behind_others(asked_by)  # whoever came meanwhile has waited for this one

    def _behind_others(self, asked_by: str) -> None:
        waiting = self._waiting.pop(asked_by, None)
        if waiting:
            self._waiting[asked_by] = waiting

    def _give_up(self, asked_by: str, made: Future[_Result]) -> None:
        if self._withdraw(asked_by, made):
            made.set_exception(TimeoutError("its turn in the threads has not come in time"))

    def _withdraw(self, asked_by: str, made: Future[_Result]) -> bool:
        """Return whether it waited still; it does not any more."""
        with self._lock:
            waiting = self._waiting.get(asked_by, {})
            is_withdrawn = waiting.pop(made, None) is not None
            self._spare += is_withdrawn
            if is_withdrawn and not waiting:
                del self._waiting[asked_by]
        return is_withdrawn


def _do(made: Future[_Result], work: Callable[[], _Result]) -> None:
    if not made.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is handed on, to who asked
        made.set_exception(error)
        del made  # the error holds this frame: no cycle
    else:
        made.set_result(result)


def produce_threads() -> RecordThreads:
    """Return those for batches that are produced."""
    return RecordThreads("records", RECORD_THREADS)


def lookup_threads() -> RecordThreads:
    """Return those for batches that are searched by time."""
    return RecordThreads("lookups", LOOKUP_THREADS)
