"""The few threads that look into records: they unpack, compress, and search batches that may hold a million of them.

INV-RTH1  whatever clients send, RECORD_THREADS batches that are produced, and LOOKUP_THREADS that are searched by time, are unpacked at once at
         most, and what waits for them holds nothing but its place: what each takes is bounded (DECOMPRESSED_BYTES_MAX, ZSTD_WINDOW_BYTES_MAX), so
         together they are, and logins, syncs and deletions have other threads
INV-RTH2  each who asks has one batch at a time in the threads of each kind, and lookups have threads of their own: whoever asks for
         much of either keeps a batch that others produce from the threads for no longer than one of his takes (INV-PFT1)
INV-RTH3  the end of a node waits for none of them: what they do changes nothing but what they return, and may take half a minute
Not here: what is done with a batch (`record_rules`, `time_lookup`).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from region_broker.limits import LOOKUP_THREADS, RECORD_THREADS
from region_broker.ports.fair_turns import FairTurns

_Result = TypeVar("_Result")


class RecordThreads:
    """The threads of one kind: two kinds per node."""

    def __init__(self, name: str, count: int) -> None:
        """Start no thread before one is needed."""
        self._pool: Final = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._turns: Final = FairTurns(count)

    async def run(self, asked_by: str, work: Callable[[], _Result]) -> _Result:
        """Return what `work` returns, or raise what it raises; what is cancelled before its turn is not begun."""
        async with self._turns.turn(asked_by):
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Begin nothing any more, and wait for nothing (INV-RTH3)."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def produce_threads() -> RecordThreads:
    """Return those for batches that are produced."""
    return RecordThreads("records", RECORD_THREADS)


def lookup_threads() -> RecordThreads:
    """Return those for batches that are searched by time."""
    return RecordThreads("lookups", LOOKUP_THREADS)
