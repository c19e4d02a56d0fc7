"""Which open segments get a bookmark, and when: so that a start after a crash never reads much.

INV-BKD1  what lies behind the bookmarks of all logs is at most `UNREAD_BYTES_MAX` and one step, or `LOG_UNREAD_BYTES_MIN`
          for each log, whichever is more; or what keeps bookmarks to 1/`WORTH` of what is appended
INV-BKD2  nobody who waits for an append waits for a bookmark: it is written in a thread, one at a time, and no clock runs

Each `STEP_BYTES` that the node has appended, the logs with most behind their bookmark get one, until little enough is left.
Not here: what a bookmark says (`side_files.bookmark`), how it is made durable (`sync_job`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from region_broker.log.sync_job import BookmarkOutcome, BookmarkTarget

logger: Final = logging.getLogger(__name__)

STEP_BYTES: Final = 16 << 20
UNREAD_BYTES_MAX: Final = 64 << 20
LOG_UNREAD_BYTES_MIN: Final = 1 << 20
WORTH: Final = 16

RunInThread = Callable[[Callable[[], BookmarkOutcome]], Awaitable[BookmarkOutcome]]


class Bookmarks:
    """One per node; `run` is its task. Belongs to the event loop."""

    def __init__(self, run_in_thread: RunInThread = asyncio.to_thread) -> None:
        """Know of no log yet."""
        self._run_in_thread = run_in_thread
        self._grown: dict[BookmarkTarget, None] = {}
        self._since_bytes = 0
        self._last_bytes: dict[BookmarkTarget, int] = {}
        """How large the last bookmark of each log was."""
        self._wake = asyncio.Event()

    def note_grown(self, log: BookmarkTarget, size_bytes: int) -> None:
        """Note that a log has grown, or was found with that much to read."""
        if size_bytes <= 0:
            return
        self._grown[log] = None
        self._since_bytes += size_bytes
        if self._since_bytes >= STEP_BYTES:
            self._wake.set()

    async def run(self) -> None:
        """Write bookmarks as they are due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._since_bytes = 0
            for log in self.due():
                await self.put(log)

    def due(self) -> list[BookmarkTarget]:
        """Return the logs to which a bookmark is to be put now, the one with most to read first."""
        unread = {log: log.unread_bytes for log in self._grown}
        self._grown = {log: None for log, size_bytes in unread.items() if size_bytes > 0}
        self._last_bytes = {log: self._last_bytes.get(log, 0) for log in self._grown}
        total_bytes = sum(unread.values())
        found = []
        for log in sorted(self._grown, key=unread.__getitem__, reverse=True):
            if total_bytes <= UNREAD_BYTES_MAX or unread[log] < LOG_UNREAD_BYTES_MIN:
                break
            if unread[log] >= WORTH * self._last_bytes[log]:
                total_bytes -= unread[log]
                found.append(log)
        return found

    async def put(self, log: BookmarkTarget) -> None:
        """Put a bookmark at the end of `log`, unless it is being sealed, or has ended."""
        job = log.begin_bookmark()
        if job is None:
            return
        self._last_bytes[log] = job.size_bytes
        log.finish_bookmark(job, await self._run_in_thread(job.run))
