"""Many that wait for one high watermark are told in several turns of the loop, each once."""

import asyncio

from region_broker.limits import YIELD_ROWS
from region_broker.partitions.commit_waiters import CommitWaiters

COUNT = 2 * YIELD_ROWS + 1


class Waiter:
    """Notes in a list that several share what it is told."""

    def __init__(self, name: int, told: list[tuple[int, str]]) -> None:
        self.name, self.told = name, told

    def committed(self) -> None:
        self.told.append((self.name, "committed"))

    def not_committed(self, error: Exception) -> None:
        self.told.append((self.name, str(error)))


def waiting(count: int) -> tuple[CommitWaiters, list[tuple[int, str]]]:
    """Return who waits for the offsets from 1 to `count`, and what they were told."""
    waiters, told = CommitWaiters(), list[tuple[int, str]]()
    for offset in range(1, count + 1):
        waiters.notify_at(offset, Waiter(offset, told))
    return waiters, told


async def test_INV_CWT2_of_many_that_are_reached_few_are_told_in_one_turn() -> None:
    waiters, told = waiting(COUNT + 1)
    waiters.reached(COUNT)
    assert len(told) == YIELD_ROWS
    await asyncio.sleep(0)
    assert len(told) == 2 * YIELD_ROWS
    waiters.reached(COUNT + 1)
    assert len(told) == 2 * YIELD_ROWS, "it goes on by itself"
    await asyncio.sleep(0)
    assert told == [(offset, "committed") for offset in range(1, COUNT + 2)]
    assert not len(waiters)


async def test_INV_CWT2_what_fails_meanwhile_takes_nothing_back() -> None:
    waiters, told = waiting(COUNT + 1)
    waiters.reached(COUNT)
    waiters.fail(ValueError("cut"))
    assert sorted(told) == [
        *((offset, "committed") for offset in range(1, COUNT + 1)),
        (COUNT + 1, "cut"),
    ]
    waiters.notify_at(1, Waiter(1, told))
    await asyncio.sleep(0)
    assert len(told) == COUNT + 1, "what comes behind the cut was not reached"
    waiters.reached(1)
    assert told[-1] == (1, "committed")
