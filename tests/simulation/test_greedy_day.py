"""Slow, idle and greedy clients on a loop whose time jumps: a short piece of `greedy_day`, which plays a whole one."""

import asyncio
from pathlib import Path

import pytest

from tests.simulation.fast_loop import FastLoop
from tests.simulation.greedy_day import day


@pytest.mark.slow
@pytest.mark.usefixtures("silence")
def test_minutes_among_greedy_clients_leave_nothing_behind(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        print(runner.run(day(tmp_path, hours=0.05, seed=5, rest=6.0)))


def test_INV_FL1_a_day_passes_at_once_and_stands_still_while_a_thread_runs() -> None:
    async def look() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FastLoop)
        began_s = loop.time()
        order: list[int] = []
        await asyncio.gather(*(sleeper(delay_s, order) for delay_s in (86_400, 1, 3_600)))
        assert order == [1, 3_600, 86_400]
        assert 86_400 <= loop.time() - began_s < 86_410
        before_s = loop.time()
        pause = asyncio.get_running_loop().create_task(asyncio.sleep(5))
        await asyncio.to_thread(sum, range(100_000))
        assert loop.time() - before_s < 5
        assert not pause.done()
        await pause

    async def sleeper(delay_s: int, order: list[int]) -> None:
        await asyncio.sleep(delay_s)
        order.append(delay_s)

    with asyncio.Runner(loop_factory=FastLoop) as runner:
        runner.run(look())
