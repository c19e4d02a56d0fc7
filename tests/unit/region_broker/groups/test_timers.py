"""Deadlines of groups: one sleeper, whatever is armed and taken back."""

import asyncio
import gc
from contextvars import ContextVar
from weakref import ref

from region_broker.groups.timers import SPARE, DeadlineTimers
from tests.unit.region_broker.groups.fakes import ManualClock, settle


class Request:
    """Stands for what a request holds."""


_ASKING: ContextVar[Request | None] = ContextVar("asking", default=None)


async def test_each_name_is_woken_once_at_its_deadline_in_their_order() -> None:
    clock, woken = ManualClock(), list[tuple[str, int]]()
    timers = DeadlineTimers(clock, lambda name: woken.append((name, clock.now_ms)))
    async with asyncio.TaskGroup() as tasks:
        timers.start(tasks)
        for name, after_ms in (("c", 30), ("a", 10), ("b", 20), ("gone", 15)):
            timers.arm(name, clock.now_ms + after_ms)
        timers.disarm("gone")
        began_ms = clock.now_ms
        await clock.advance(100)
        assert woken == [("a", began_ms + 10), ("b", began_ms + 20), ("c", began_ms + 30)]


async def test_INV_GTM1_ever_earlier_deadlines_have_one_sleeper_that_holds_no_request() -> None:
    """Each session time-out that was shorter than all before it left a task, for half an hour at most, that held the whole request."""
    clock, woken = ManualClock(), list[str]()
    timers = DeadlineTimers(clock, woken.append)
    async with asyncio.TaskGroup() as tasks:
        timers.start(tasks)
        before, held = len(asyncio.all_tasks()), list[ref[Request]]()

        def ask(number: int) -> None:
            request = Request()
            held.append(ref(request))
            token = _ASKING.set(request)
            timers.arm(f"g{number}", clock.now_ms + 10_000 - number)
            _ASKING.reset(token)

        for number in range(100):
            ask(number)
            await settle()
            timers.disarm(f"g{number}")
        gc.collect()
        assert len(asyncio.all_tasks()) == before + 1
        assert not [each for each in held if each() is not None]
        timers.arm("last", clock.now_ms + 20_000)
        await clock.advance(30_000)
        assert woken == ["last"]


async def test_INV_GTM1_what_is_armed_and_taken_back_takes_no_room_until_it_is_due() -> None:
    clock, woken = ManualClock(), list[str]()
    timers = DeadlineTimers(clock, woken.append)
    async with asyncio.TaskGroup() as tasks:
        timers.start(tasks)
        timers.arm("stays", clock.now_ms + 500)
        for number in range(10 * SPARE):
            timers.arm(f"g{number}", clock.now_ms + 1_000 + number)
            timers.disarm(f"g{number}")
        assert len(timers._heap) <= SPARE + 4
        await clock.advance(20_000)
        assert woken == ["stays"]


async def test_who_stops_and_starts_again_wakes_what_is_armed() -> None:
    """As a coordinator does whose node leads again."""
    clock, woken = ManualClock(), list[str]()
    timers = DeadlineTimers(clock, woken.append)
    async with asyncio.TaskGroup() as tasks:
        timers.start(tasks)
        timers.arm("first", clock.now_ms + 10)
        await settle()
        timers.stop()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            each.cancel()
    async with asyncio.TaskGroup() as tasks:
        timers.start(tasks)
        timers.arm("second", clock.now_ms + 20)
        await clock.advance(100)
    assert woken == ["first", "second"]


async def test_INV_GTM2_what_is_due_again_and_again_lets_others_be_served() -> None:
    clock, woken = ManualClock(), list[str]()

    def on_due(name: str) -> None:
        woken.append(name)
        if len(woken) > 1_000:
            raise AssertionError("nobody else was served")
        timers.arm(name, clock.now_ms - 1)

    timers = DeadlineTimers(clock, on_due)
    async with asyncio.TaskGroup() as tasks:
        timers.start(tasks)
        timers.arm("again", clock.now_ms)
        for turn in range(1, 20):
            await asyncio.sleep(0)
            assert len(woken) <= turn
        assert woken[:2] == ["again", "again"]
        timers.disarm("again")
