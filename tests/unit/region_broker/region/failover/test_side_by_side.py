"""Several logs at once: bounded, in order, and the names of those that the disk refuses."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from region_broker.region.failover.side_by_side import LOGS_AT_ONCE, LogWork, side_by_side

COUNT = 5 * LOGS_AT_ONCE + 1


class Counted:
    """Counts what is under way."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.most = 0

    def work(self, number: int, error: OSError | None = None) -> LogWork[int]:
        """Take the fewer turns the later it comes, so that work ends out of order."""

        async def run() -> int:
            self.begun.append(number)
            self.most = max(self.most, len(self.begun) - len(self.ended))
            for _ in range(COUNT - number):
                await asyncio.sleep(0)
            self.ended.append(number)
            if error is not None:
                raise error
            return 10 * number

        return LogWork(f"orders-{number} is not cut", run)


async def test_INV_SBS1_a_few_run_at_once_and_results_come_in_order() -> None:
    counted = Counted()
    assert await side_by_side(map(counted.work, range(COUNT))) == [10 * n for n in range(COUNT)]
    assert counted.most == LOGS_AT_ONCE
    assert counted.ended != sorted(counted.ended)


async def test_INV_SBS4_the_loop_turns_between_logs_that_wait_for_nothing() -> None:
    done = most_in_a_turn = 0

    async def run() -> None:
        nonlocal done
        done += 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(side_by_side(LogWork("a log", each) for each in [run] * COUNT))
        while done < COUNT:
            before = done
            await asyncio.sleep(0)
            most_in_a_turn = max(most_in_a_turn, done - before)
    assert most_in_a_turn <= LOGS_AT_ONCE


async def test_nothing_to_do_is_done_at_once() -> None:
    assert await side_by_side(()) == []


@pytest.mark.parametrize("error", [OSError(28, "no space left on device"), OSError()], ids=repr)
async def test_INV_SBS2_the_refused_are_named_and_no_other_is_begun(error: OSError) -> None:
    counted = Counted()
    works = [counted.work(number, error if number in {0, 1} else None) for number in range(COUNT)]
    with pytest.raises(OSError, match="orders-1 is not cut") as raised:
        await side_by_side(works)
    assert (str(error) or repr(error)) in str(raised.value)
    assert "orders-0 is not cut" in str(raised.value)
    assert counted.begun == sorted(counted.ended)
    assert len(counted.begun) < 2 * LOGS_AT_ONCE


async def test_INV_SBS3_what_is_cancelled_has_ended_when_its_caller_goes_on() -> None:
    ended = 0

    async def run() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended += 1

    runs: list[Callable[[], Awaitable[None]]] = [run] * COUNT
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(side_by_side(LogWork("a log", each) for each in runs))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        working.cancel()
        await asyncio.wait([working])
        assert ended == LOGS_AT_ONCE
