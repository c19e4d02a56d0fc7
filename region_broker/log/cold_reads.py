"""Reads of logs that leave the event loop to the others while the disk is waited for.

INV-CO1  the loop never waits for bytes that are not in memory: a thread reads them in (`Disk.warm`), then the loop
        reads again, from the start, so what changed meanwhile counts
INV-CO2  it ends: once WARM_TRIES_MAX times something was read in for one reading the loop waits for the disk; a machine whose memory is so
        short that what was read in is gone again has no better way. To give way (`TurnOver`) is none of these
INV-CO3  at most WARM_THREADS ranges are read in at a time, each at most as large as one answer; the others queue, one
        for each reader

Sealed batches that are opened for readers go the same way, where they are large (`SealedRange`), and indexes that have to be built again
(`built_aside`).
Not here: what is in memory (`disk`), what a reader may see (`partitions.partition`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from region_broker.log.failures import AsideRange, ColdRange
from region_broker.ports.disk import Disk

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

WARM_THREADS: Final = 4
WARM_TRIES_MAX: Final = 64

RunInThread = Callable[[Callable[[], None]], Awaitable[None]]

logger: Final = logging.getLogger(__name__)


class Reading(Protocol[T_co]):
    """A reading as a whole, from the look at where the log ends to the bytes; without `wait` it may raise ColdRange."""

    def __call__(self, *, wait: bool) -> T_co:
        """Read."""
        ...


class ColdReads:
    """One per node. Belongs to the event loop, but for its threads."""

    def __init__(self, disk: Disk, run_in_thread: RunInThread | None = None) -> None:
        """Start no thread before one is needed; none at all if `run_in_thread` is given."""
        self._disk = disk
        self._pool = ThreadPoolExecutor(WARM_THREADS, thread_name_prefix="cold-read")
        self._run = self._in_pool if run_in_thread is None else run_in_thread
        self.warmed_count = 0
        self.warmed_bytes = 0
        self.waited_count = 0
        """Readings that the loop waited for after all (INV-CO2)."""

    async def read(self, reading: Reading[T]) -> T:
        """Return what `reading` returns: called without `wait`, and again when what it lacked was read in (INV-CO1)."""
        tries = 0
        while not self.may_wait(tries):
            try:
                return reading(wait=False)
            except ColdRange as cold:
                tries += cold.is_a_try
                await self._warm(cold)
        return reading(wait=True)

    def begin(self, cold: ColdRange, then: Callable[[], None]) -> None:
        """Read in what a reading lacks, then call `then`: for who reads again without a task, `may_wait` in mind."""
        ranges = self._noted(cold)
        left = len(ranges)

        def done(future: asyncio.Future[None]) -> None:
            nonlocal left
            future.result()  # anything but an error of the disk is a mistake of ours
            left -= 1
            if left == 0:
                then()

        for each in ranges:
            self._in_pool(partial(self._read_in, each)).add_done_callback(done)

    def may_wait(self, tries: int) -> bool:
        """Return whether a reading for which so many `tries` were made waits from now on (INV-CO2)."""
        if tries < WARM_TRIES_MAX:
            return False
        self.waited_count += 1
        return True

    async def _warm(self, cold: ColdRange) -> None:
        started = [self._run(partial(self._read_in, each)) for each in self._noted(cold)]
        for each in started:
            await each

    def _noted(self, cold: ColdRange) -> tuple[ColdRange, ...]:
        ranges = (cold, *cold.others)
        self.warmed_count += len(ranges)
        self.warmed_bytes += sum(each.size_bytes for each in ranges)
        return ranges

    def _read_in(self, cold: ColdRange) -> None:
        if isinstance(cold, AsideRange):
            cold.work()
            return
        try:
            self._disk.warm(cold.path, cold.position, cold.size_bytes)
        except OSError as error:
            # The file may be gone by now. If not, the reading that follows meets the same error, and stops the log.
            logger.info("reading %s in failed: %s", cold.path, error)

    def _in_pool(self, work: Callable[[], None]) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Wait for the threads; nobody reads any more."""
        self._pool.shutdown()
