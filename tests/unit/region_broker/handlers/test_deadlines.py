"""Deadlines of requests without tasks: told once, in their order, by one timer."""

import asyncio

from region_broker.handlers.dispatch.deadlines import Deadlines


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
