"""Logs of a follower that are cut below their HW, because the region mirrors another one: under way, one task each.

INV-RCT1 a log that is being cut is in no session: it is compared again once it is cut, with what is left of it
INV-RCT2 who follows another leader epoch, or leads, cuts no more by what the former leader had; a quarantine without room is said, and
         tried again

A cut waits: its tail is in quarantine, durably, before it goes (INV-LS1). The core, whose effects are carried out in one step, hears that
the log is gone, and that it is there again.
Not here: the cut itself (`region.failover.log_surgery`), which region mirrors (`node`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from idempotency.identity import LogKey
from idempotency.ports import Clock
from region_broker.partitions.partition import Partition

AGAIN_MS: Final = 1_000
CutBelow: TypeAlias = Callable[[Partition, int], Awaitable[None]]
"""Cuts a log at an offset, with what lies beyond in quarantine; stops a log that cannot be cut. Raises OSError: try again."""

_log: Final = logging.getLogger("tidemark.replication")


@dataclass(slots=True, eq=False)
class _UnderWay:
    partition: Partition
    meets_at: int
    cut: CutBelow
    task: asyncio.Task[None] | None = None
    has_begun: bool = False
    is_given_up: bool = False


class ReplicaCuts:
    """`run` owns the tasks; `ended` is told after each cut."""

    def __init__(self, clock: Clock, ended: Callable[[], None]) -> None:
        """Cut nothing yet."""
        self._clock = clock
        self._ended = ended
        self._under_way: dict[LogKey, _UnderWay] = {}
        self._waiting: deque[_UnderWay] = deque()
        self._begins = asyncio.Event()

    def __contains__(self, key: LogKey) -> bool:
        """Return whether a log is being cut (INV-RCT1)."""
        return key in self._under_way

    def begin(self, partition: Partition, meets_at: int, cut: CutBelow) -> None:
        """Cut a log that has left the session."""
        self._under_way[partition.key] = begun = _UnderWay(partition, meets_at, cut)
        self._waiting.append(begun)
        self._begins.set()

    def stop(self) -> None:
        """Cut no more (INV-RCT2); what a thread has begun ends first, and only then the log may be in a session (INV-RCT1)."""
        for key, each in tuple(self._under_way.items()):
            each.is_given_up = True
            if not each.has_begun:  # nor will it: what is cancelled before its first step takes none, and would end nothing here
                del self._under_way[key]
            if each.task is not None:
                each.task.cancel()

    async def run(self) -> None:
        """Carry out what is begun, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._begins.wait()
                self._begins.clear()
                while self._waiting:
                    each = self._waiting.popleft()
                    if self._is_under_way(each):
                        each.task = tasks.create_task(self._carry_out(each))

    def _is_under_way(self, each: _UnderWay) -> bool:
        return self._under_way.get(each.partition.key) is each

    async def _carry_out(self, each: _UnderWay) -> None:
        each.has_begun = True
        try:
            await self._cut(each)
        except asyncio.CancelledError:
            if not each.is_given_up:  # the node ends
                raise
        del self._under_way[each.partition.key]
        self._ended()

    async def _cut(self, each: _UnderWay) -> None:
        while True:
            try:
                await each.cut(each.partition, each.meets_at)
            except OSError as error:
                _log.error("%s is to be cut at %d, and waits: %s", each.partition.tp, each.meets_at, error)  # fmt: skip
            else:
                return
            await self._clock.sleep_ms(AGAIN_MS)
