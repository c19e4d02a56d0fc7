"""Fetches that wait: until `min_bytes` are readable, or their deadline passes; nobody polls.

INV-PU1  a wait ends at the first of: enough bytes readable, a target's partition failed or changed its role, the
        deadline
INV-PU2  a wait leaves no callback behind, however it ends

Not here: reading (the fetch handler fetches again afterwards: C38).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from idempotency.ports import Clock
from region_broker.replication.partition import Isolation, Partition


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """One partition of a waiting fetch, and where it reads."""

    partition: Partition
    offset: int
    isolation: Isolation


def readable_bytes(targets: Sequence[FetchTarget], enough: int) -> int:
    """Return how many bytes are readable over all targets; stops counting at `enough`."""
    total = 0
    for target in targets:
        total += target.partition.readable_bytes(target.offset, target.isolation, enough - total)
        if total >= enough:
            break
    return total


class _Wait:
    """One waiting fetch: a future, and what it had when it began."""

    __slots__ = ("_led", "_min_bytes", "_targets", "future")

    def __init__(self, targets: Sequence[FetchTarget], min_bytes: int) -> None:
        self._targets = targets
        self._min_bytes = min_bytes
        self._led = [target.partition.is_leader for target in targets]
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def changed(self) -> None:
        """See whether the wait is over; called by a target's partition."""
        if not self.future.done() and self._is_over():
            self.future.set_result(None)

    def _is_over(self) -> bool:
        for target, led in zip(self._targets, self._led, strict=True):
            if target.partition.is_leader != led:
                return True
        return readable_bytes(self._targets, self._min_bytes) >= self._min_bytes

    def expire(self) -> None:
        """End the wait."""
        if not self.future.done():
            self.future.set_result(None)


async def wait_readable(
    targets: Sequence[FetchTarget], *, min_bytes: int, max_wait_ms: int, clock: Clock
) -> None:
    """Return when `min_bytes` are readable over all targets, something is to be told, or `max_wait_ms` passed.

    `min_bytes` <= 0 or `max_wait_ms` <= 0 return at once; without targets the whole time is waited.
    """
    if min_bytes <= 0 or max_wait_ms <= 0 or readable_bytes(targets, min_bytes) >= min_bytes:
        return
    wait = _Wait(targets, min_bytes)
    unsubscribe = [target.partition.on_readable(wait.changed) for target in targets]
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
