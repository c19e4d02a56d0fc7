"""Fetches that wait: until `min_bytes` are readable, or their deadline passes; nobody polls.

INV-PU1  a wait ends at the first of: enough bytes readable, a target's partition failed or changed its role, the
        deadline
INV-PU3  a change in one partition is judged by looking at that one, however many are waited for
INV-PU2  a wait leaves no callback behind, however it ends

Not here: reading (the fetch handler fetches again afterwards: C38).
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from idempotency.ports import Clock
from region_broker.replication.partition import Isolation, Partition


class FetchTarget(NamedTuple):
    """One partition of a waiting fetch, and where it reads."""

    partition: Partition
    offset: int
    isolation: Isolation

    def readable_bytes(self, enough: int) -> int:
        """Return how many bytes are readable; may stop counting at `enough`."""
        return self.partition.readable_bytes(self.offset, self.isolation, enough)


class _Wait:
    """One waiting fetch: a future, and what each partition had when it was looked at last (INV-PU3)."""

    __slots__ = ("_found", "_led", "_min_bytes", "_targets", "_total", "future")

    def __init__(self, targets: Sequence[FetchTarget], found: list[int], min_bytes: int) -> None:
        self._targets = targets
        self._min_bytes = min_bytes
        self._found = found
        self._total = sum(found)
        self._led = [target.partition.is_leader for target in targets]
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def changed(self, index: int) -> None:
        """See whether the wait is over; called by the partition of a target."""
        if self.future.done():
            return
        target = self._targets[index]
        found_bytes = target.readable_bytes(self._min_bytes)
        self._total += found_bytes - self._found[index]
        self._found[index] = found_bytes
        if target.partition.is_leader != self._led[index] or self._total >= self._min_bytes:
            self.future.set_result(None)

    def expire(self) -> None:
        """End the wait."""
        if not self.future.done():
            self.future.set_result(None)


async def wait_readable(
    targets: Sequence[FetchTarget],
    *,
    min_bytes: int,
    max_wait_ms: int,
    clock: Clock,
    quiet_count: int = 0,
) -> None:
    """Return when `min_bytes` are readable over all targets, something is to be told, or `max_wait_ms` passed.

    `min_bytes` <= 0 or `max_wait_ms` <= 0 return at once; without targets the whole time is waited. The first
    `quiet_count` targets are known to have nothing.
    """
    if min_bytes <= 0 or max_wait_ms <= 0:
        return
    found = [0] * quiet_count
    found += [target.readable_bytes(min_bytes) for target in targets[quiet_count:]]
    wait = _Wait(targets, found, min_bytes)
    if sum(found) >= min_bytes:
        return
    unsubscribe = [
        target.partition.on_readable(partial(wait.changed, index))
        for index, target in enumerate(targets)
    ]
    try:
        async with asyncio.TaskGroup() as group:
            timer = group.create_task(_expire_later(wait, max_wait_ms, clock))
            await wait.future
            timer.cancel()
    finally:
        for end in unsubscribe:
            end()


async def _expire_later(wait: _Wait, max_wait_ms: int, clock: Clock) -> None:
    await clock.sleep_ms(max_wait_ms)
    wait.expire()
