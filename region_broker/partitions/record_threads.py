"""The few threads that look into records: they unpack, compress, and search batches that may hold a million of them.

INV-RTH1  whatever clients send, RECORD_THREADS batches at most are unpacked at once, and what waits for them holds nothing but its place:
         what each takes is bounded (DECOMPRESSED_BYTES_MAX, ZSTD_WINDOW_BYTES_MAX), so together they are, and logins, syncs and
         deletions have other threads
Not here: what is done with a batch (`record_rules`, `time_lookup`).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from region_broker.limits import RECORD_THREADS

_Result = TypeVar("_Result")


class RecordThreads:
    """One per node."""

    def __init__(self) -> None:
        """Start no thread before one is needed."""
        self._pool: Final = ThreadPoolExecutor(RECORD_THREADS, thread_name_prefix="records")

    def run(self, work: Callable[[], _Result]) -> asyncio.Future[_Result]:
        """Return what `work` will return, or raise; what is cancelled before its turn is not begun."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for what runs; what has not begun never will."""
        self._pool.shutdown(cancel_futures=True)
