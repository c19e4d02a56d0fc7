"""Work that goes to its end: what its caller hears, and when."""

import asyncio
import logging

import pytest

from region_broker.ports.unbroken import to_its_end


async def test_INV_UB1_a_cancelled_caller_is_let_go_behind_the_end() -> None:
    goes_on, done = asyncio.Event(), []

    async def work() -> None:
        await goes_on.wait()
        done.append("done")

    caller = asyncio.get_running_loop().create_task(to_its_end(work()))
    await asyncio.sleep(0)
    for _ in range(3):  # whoever stops a node may cancel more than once
        caller.cancel()
        await asyncio.sleep(0)
        assert not caller.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert done == ["done"]


async def test_who_is_not_cancelled_gets_what_came_of_it() -> None:
    async def seven() -> int:
        return 7

    async def refused() -> int:
        raise OSError("no room")

    assert await to_its_end(seven()) == 7
    with pytest.raises(OSError, match="no room"):
        await to_its_end(refused())


async def test_what_failed_behind_a_cancelled_caller_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goes_on = asyncio.Event()

    async def work() -> None:
        await goes_on.wait()
        raise OSError("no room")

    caller = asyncio.get_running_loop().create_task(to_its_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        await caller
    assert "no room" in caplog.text


async def test_a_broken_assertion_is_heard_of_in_any_case() -> None:
    goes_on = asyncio.Event()

    async def work() -> None:
        await goes_on.wait()
        raise AssertionError("broken")

    caller = asyncio.get_running_loop().create_task(to_its_end(work()))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    goes_on.set()
    with pytest.raises(AssertionError, match="broken"):
        await caller


async def test_INV_UB1_work_has_begun_also_where_its_caller_is_cancelled_at_once() -> None:
    may_end, ended = asyncio.Event(), []

    async def work() -> None:
        await may_end.wait()
        ended.append("ended")

    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(to_its_end(work()))
        await asyncio.sleep(0)
        waiting.cancel()
        may_end.set()
    assert ended == ["ended"]


async def test_INV_UB2_work_is_told_that_nobody_wants_it_any_more() -> None:
    told = asyncio.Event()
    caller = asyncio.get_running_loop().create_task(to_its_end(told.wait(), told.set))
    await asyncio.sleep(0)
    assert not told.is_set()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert told.is_set()
