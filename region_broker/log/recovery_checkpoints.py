"""Which open segments get a recovery checkpoint, and when: so that a start after a crash never reads much.

INV-BKD1  what lies behind the recovery checkpoints of all logs is at most `UNREAD_BYTES_MAX` and one step, or
          `LOG_UNREAD_BYTES_MIN` for each log, whichever is more; or what keeps recovery checkpoints to 1/`WORTH` of
          what is appended
INV-BKD3  with each one the state is written as a snapshot, too, and the last few of the open segment stay: what is cut off behind one of
          them costs the replay of what came since, not of the whole segment, and a batch counts for what it costs to replay
INV-BKD4  what a start or a cut had to read, `LOG_UNREAD_BYTES_MIN` of a log or more, is behind a recovery checkpoint soon after: the next
          start and the next cut do not read it again. Regions that fail over to and fro would take longer each time
INV-BKD6  what it says is taken in pieces between which others are served: a log of 50,000 producers would hold the event loop for 80 ms and
          more, each time, and after a start or a cut all logs in turn
INV-BKD2  nobody who waits for an append waits for a recovery checkpoint: it is written in a thread, one at a time, and
          no clock runs

Each `STEP_BYTES` that the node has appended, the logs with most behind their recovery checkpoint get one, until little
enough is left.
Not here: what a recovery checkpoint says (`indexes.recovery_checkpoint`), how it is made durable (`sync_job`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from region_broker.log.journal.sync_job import RecoveryCheckpointOutcome, RecoveryCheckpointTarget
from region_broker.wire.cooperative_yield import run_yielding

logger: Final = logging.getLogger(__name__)

STEP_BYTES: Final = 16 << 20
UNREAD_BYTES_MAX: Final = 64 << 20
LOG_UNREAD_BYTES_MIN: Final = 1 << 20
WORTH: Final = 16

RunInThread = Callable[
    [Callable[[], RecoveryCheckpointOutcome]], Awaitable[RecoveryCheckpointOutcome]
]


class RecoveryCheckpoints:
    """One per node; `run` is its task. Belongs to the event loop."""

    def __init__(self, run_in_thread: RunInThread = asyncio.to_thread) -> None:
        """Know of no log yet."""
        self._run_in_thread = run_in_thread
        self._grown: dict[RecoveryCheckpointTarget, None] = {}
        self._read: dict[RecoveryCheckpointTarget, None] = {}
        self._since_bytes = 0
        self._last_bytes: dict[RecoveryCheckpointTarget, int] = {}
        """How large the last recovery checkpoint of each log was."""
        self._wake = asyncio.Event()

    def note_grown(self, log: RecoveryCheckpointTarget, size_bytes: int) -> None:
        """Note that a log has grown."""
        if size_bytes <= 0:
            return
        self._grown[log] = None
        self._since_bytes += size_bytes
        if self._since_bytes >= STEP_BYTES:
            self._wake.set()

    def note_read(self, log: RecoveryCheckpointTarget) -> None:
        """Note that a log was opened or cut, so that what it has behind its recovery checkpoint was read (INV-BKD4)."""
        size_bytes = log.unread_bytes
        self.note_grown(log, size_bytes)
        if size_bytes >= LOG_UNREAD_BYTES_MIN:
            self._read[log] = None
            self._wake.set()

    async def run(self) -> None:
        """Write recovery checkpoints as they are due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._since_bytes = 0
            for log in self.due():
                await self.put(log)

    def due(self) -> list[RecoveryCheckpointTarget]:
        """Return the logs to which a recovery checkpoint is to be put now: those that were read, then the one with most to read."""
        unread = {log: log.unread_bytes for log in self._grown}
        self._grown = {log: None for log, size_bytes in unread.items() if size_bytes > 0}
        self._last_bytes = {log: self._last_bytes.get(log, 0) for log in self._grown}
        found = [log for log in self._read if unread.pop(log, 0) >= LOG_UNREAD_BYTES_MIN]
        self._read.clear()
        total_bytes = sum(unread.values())
        for log in sorted(unread, key=unread.__getitem__, reverse=True):
            if total_bytes <= UNREAD_BYTES_MAX or unread[log] < LOG_UNREAD_BYTES_MIN:
                break
            if unread[log] >= WORTH * self._last_bytes[log]:
                total_bytes -= unread[log]
                found.append(log)
        return found

    async def put(self, log: RecoveryCheckpointTarget) -> None:
        """Put a recovery checkpoint at the end of `log`, unless it is being sealed, or has ended."""
        job = await run_yielding(log.begin_recovery_checkpoint())
        if job is None:
            return
        self._last_bytes[log] = job.size_bytes
        log.finish_recovery_checkpoint(job, await self._run_in_thread(job.run))
