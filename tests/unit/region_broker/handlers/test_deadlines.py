"""Deadlines of requests without tasks: told once, in their order, by one timer."""

import asyncio
import weakref

import pytest

from region_broker.handlers.dispatch.deadlines import SPARE, Deadlines
from region_broker.limits import YIELD_ROWS
from tests.fixtures.waiting import until


class Told:
    """Notes that its time is over in a list that several share."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order = name, order
        self.over = asyncio.Event()

    def expire(self) -> None:
        self.order.append(self.name)
        self.over.set()


async def test_INV_RDL1_an_earlier_deadline_that_comes_later_is_told_first() -> None:
    deadlines, order = Deadlines(), list[str]()
    late, early = Told("late", order), Told("early", order)
    deadlines.add(late, 0.05)
    deadlines.add(early, 0.001)
    await asyncio.wait_for(late.over.wait(), 10)
    assert order == ["early", "late"]
    assert len(deadlines) == 0


async def test_INV_RDL1_what_is_due_at_once_is_told_in_the_order_of_its_time() -> None:
    deadlines, order = Deadlines(), list[str]()
    told = [Told(name, order) for name in ("late", "early", "between")]
    for each, timeout_s in zip(told, (-1, -3, -2), strict=True):
        deadlines.add(each, timeout_s)
    for each in told:
        await asyncio.wait_for(each.over.wait(), 10)
    assert order == ["early", "between", "late"]


async def test_what_was_dropped_is_not_told() -> None:
    deadlines, order = Deadlines(), list[str]()
    dropped, kept = Told("dropped", order), Told("kept", order)
    deadlines.add(dropped, 0.001)
    deadlines.add(kept, 0.002)
    deadlines.drop(dropped)
    deadlines.drop(dropped)
    await asyncio.wait_for(kept.over.wait(), 10)
    assert order == ["kept"]


async def test_one_that_is_over_at_once_is_told_in_a_later_turn() -> None:
    deadlines, order = Deadlines(), list[str]()
    at_once = Told("at once", order)
    deadlines.add(at_once, -1)
    assert order == []
    await asyncio.wait_for(at_once.over.wait(), 10)


async def test_one_that_is_added_while_others_are_told_is_told_too() -> None:
    deadlines, order = Deadlines(), list[str]()
    second = Told("second", order)

    class First(Told):
        def expire(self) -> None:
            super().expire()
            deadlines.add(second, 0.001)

    deadlines.add(First("first", order), 0.001)
    await asyncio.wait_for(second.over.wait(), 10)
    assert order == ["first", "second"]


class CountedTime(float):
    """A time that counts how often it is compared with others."""

    compared = 0

    def __radd__(self, other: float) -> "CountedTime":
        return CountedTime(other + float(self))

    def __lt__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) < other

    def __le__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) <= other

    def __gt__(self, other: float) -> bool:
        CountedTime.compared += 1
        return float(self) > other

    __eq__ = float.__eq__
    __hash__ = float.__hash__


async def test_INV_RDL2_one_that_is_due_is_found_without_looking_at_all_that_wait() -> None:
    """Of 10,000 that wait each look took 0.6 ms, at each deadline."""
    deadlines, order = Deadlines(), list[str]()
    for number in range(5_000):
        deadlines.add(Told(str(number), order), CountedTime(1_000 + number % 7))
    first, *due = (Told(name, order) for name in "abc")
    deadlines.add(first, CountedTime(-1))
    await asyncio.wait_for(first.over.wait(), 10)
    CountedTime.compared = 0
    for each in due:
        deadlines.add(each, CountedTime(-1))
    await asyncio.wait_for(due[-1].over.wait(), 10)
    assert order == ["a", "b", "c"]
    assert CountedTime.compared < 500
    deadlines.end(Told)


@pytest.mark.parametrize("is_sorted", [False, True], ids=["new", "sorted"])
async def test_INV_RDL2_what_was_dropped_holds_nothing_and_takes_no_room(is_sorted: bool) -> None:
    deadlines, order = Deadlines(), list[str]()
    deadlines.add(Told("kept", order), 1_000)
    for number in range(5 * SPARE):
        dropped = Told(str(number), order)
        deadlines.add(dropped, 500)
        if is_sorted:
            deadlines._sort()  # as the timer does
        is_there = weakref.ref(dropped)
        deadlines.drop(dropped)
        del dropped
        assert is_there() is None
        assert len(deadlines._heap) <= 2 + SPARE
    deadlines.end(Told)
    assert (order, len(deadlines)) == (["kept"], 0)


async def test_one_that_is_added_again_is_told_once_at_its_later_time() -> None:
    deadlines, order = Deadlines(), list[str]()
    again, between = Told("again", order), Told("between", order)
    deadlines.add(again, 0.001)
    deadlines.add(between, 0.002)
    deadlines.add(again, 0.003)
    await asyncio.wait_for(again.over.wait(), 10)
    assert order == ["between", "again"]


async def test_one_that_another_drops_as_it_ends_is_not_told() -> None:
    deadlines, order = Deadlines(), list[str]()
    second, last = Told("second", order), Told("last", order)

    class First(Told):
        def expire(self) -> None:
            super().expire()
            deadlines.drop(second)

    for each in (First("first", order), second, last):
        deadlines.add(each, -1)
    await asyncio.wait_for(last.over.wait(), 10)
    assert order == ["first", "last"]


async def test_one_kind_is_ended_now_and_whatever_comes_of_it_later() -> None:
    class Other(Told):
        pass

    deadlines, order = Deadlines(), list[str]()
    kept, second, first = Told("kept", order), Other("second", order), Other("first", order)
    deadlines.add(kept, 1_000)
    deadlines.add(second, 900)
    deadlines.add(first, 800)
    deadlines.end(Other)
    assert (order, len(deadlines)) == (["first", "second"], 1)
    late = Other("late", order)
    deadlines.add(late, 1_000)
    await asyncio.wait_for(late.over.wait(), 10)
    assert order == ["first", "second", "late"]
    deadlines.drop(kept)


async def test_INV_RDL3_of_many_that_are_due_at_once_few_are_told_in_one_turn() -> None:
    deadlines, turns = Deadlines(), [0]

    class Counted:
        def expire(self) -> None:
            turns[-1] += 1

    def tick() -> None:
        turns.append(0)
        asyncio.get_running_loop().call_soon(tick)

    count = 5 * YIELD_ROWS + 1
    for each in range(count):
        deadlines.add(Counted(), -1 - each)
    deadlines.add(Counted(), 1_000)
    tick()
    await until(lambda: sum(turns) == count)
    assert max(turns) == YIELD_ROWS
    assert len(deadlines) == 1


async def test_INV_RDL3_what_is_due_does_not_wait_for_what_comes_meanwhile() -> None:
    deadlines, order = Deadlines(), list[str]()
    later = Told("later", order)

    class Adding(Told):
        def expire(self) -> None:
            super().expire()
            deadlines.add(later, 1_000)

    for _ in range(2 * YIELD_ROWS):
        deadlines.add(Adding("due", order), -1)
    await until(lambda: len(order) == 2 * YIELD_ROWS)
    assert len(deadlines) == 1
