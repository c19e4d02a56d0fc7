"""Work in threads that ends before whoever waits for it goes on."""

import asyncio
import logging

import pytest

from region_broker.ports.offload import to_the_end


class Slow:
    """Work that ends when it is told to."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.has_ended = False
        self.error: Exception | None = None

    async def run(self) -> None:
        await self.may_end.wait()
        self.has_ended = True
        if self.error is not None:
            raise self.error


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_INV_OFL1_who_is_cancelled_twice_goes_on_once_the_work_has_ended() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(to_the_end(slow.run()))
        for _ in range(2):
            await turns()
            waiting.cancel()
        await turns()
        assert not waiting.done()
        slow.may_end.set()
        await asyncio.wait([waiting])
    assert slow.has_ended
    assert waiting.cancelled()


async def test_INV_OFL1_work_has_begun_also_where_its_caller_is_cancelled_at_once() -> None:
    slow = Slow()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(to_the_end(slow.run()))
        await asyncio.sleep(0)
        waiting.cancel()
        slow.may_end.set()
    assert slow.has_ended


async def test_what_the_work_raises_is_raised() -> None:
    slow = Slow()
    slow.error = OSError("no room")
    slow.may_end.set()
    with pytest.raises(OSError, match="no room"):
        await to_the_end(slow.run())


async def test_what_nobody_waits_for_any_more_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    slow = Slow()
    slow.error = OSError("no room")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(to_the_end(slow.run()))
        await turns()
        waiting.cancel()
        slow.may_end.set()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert "no room" in caplog.text
