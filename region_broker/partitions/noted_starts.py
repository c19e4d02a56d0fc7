"""Log starts that another region, or the leader, has moved: noted in one step for all logs, made durable by threads, a few logs at a time.

INV-NST1  readers are shown a start as soon as it is noted, and nobody who waits for it to be durable is told before it is
INV-NST2  what was noted and is not durable is lost by a crash, as if it had not been heard of: the link's next start goes by the tidemark that is
          reached, and is durable before (`link.reaching`), a follower's next session by what its leader says, and who takes over by
          the tidemark that it acts from (INV-NMS1)
INV-NST3  the bytes below stay until `maintain` takes them, with all else that a step may delete: one order may be over thousands of logs, and of
          one log over thousands of segments

An order of a client is made durable before it is acknowledged (`Trimming.raise_start_in_thread`).
Not here: the file (`log.indexes.log_start`), which start a log has.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final, Protocol

from region_broker.log.failures import PartitionFailed

LOGS_AT_ONCE: Final = 4


class NotedStart(Protocol):
    """Of one log; `partitions.trimming.Trimming` is one."""

    @property
    def start_is_kept(self) -> bool:
        """Whether what was noted is durable, or void."""
        ...

    async def keep_start(self) -> None:
        """Make it durable, in a thread; raises PartitionFailed."""
        ...

    def keep_start_now(self) -> None:
        """Make it durable, on the event loop; raises PartitionFailed."""
        ...


class NotedStarts:
    """One per node; `run` is its task. Belongs to the event loop."""

    def __init__(self) -> None:
        """Nothing is noted."""
        self._noted: dict[NotedStart, list[Callable[[], None]]] = {}
        self._begun = asyncio.Event()

    def note(self, start: NotedStart, then: Callable[[], None] | None = None) -> None:
        """Have a start made durable, and call `then` when it is; at once where it is already. Never, where the log stops."""
        if start.start_is_kept:
            if then is not None:
                then()
            return
        self._noted.setdefault(start, []).extend([] if then is None else [then])
        self._begun.set()

    async def run(self) -> None:
        """Make durable what is noted, until cancelled."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            await self.keep()

    async def keep(self) -> None:
        """Return once all that is noted is durable, also by others who do so meanwhile."""
        while self._noted:
            async with asyncio.TaskGroup() as tasks:
                for start in list(islice(self._noted, LOGS_AT_ONCE)):
                    tasks.create_task(self._keep(start), name="log-start")

    async def _keep(self, start: NotedStart) -> None:
        try:
            await start.keep_start()
        except PartitionFailed:  # which was said as it stopped
            self._noted.pop(start, None)
            return
        self._tell(start)

    def keep_now(self) -> None:
        """Make durable what is noted, on the event loop: the node ends."""
        for start in list(self._noted):
            with suppress(PartitionFailed):
                start.keep_start_now()
                self._tell(start)
        self._noted.clear()

    def _tell(self, start: NotedStart) -> None:
        if start.start_is_kept:  # else it was moved on meanwhile, and has its next turn
            for then in self._noted.pop(start, ()):
                then()
