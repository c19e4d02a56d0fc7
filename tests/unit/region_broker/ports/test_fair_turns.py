"""Turns for long work: few at once, one for each who asks."""

import asyncio

import pytest

from region_broker.ports.fair_turns import FairTurns, InTurn
from region_broker.security.identity import ANONYMOUS, Identity
from tests.fixtures.waiting import until


async def test_INV_PFT1_who_asks_for_much_waits_for_himself() -> None:
    turns, order = FairTurns(2), list[str]()

    async def work(who: str) -> None:
        async with turns.turn(who):
            order.append(who)
            for _ in range(3):
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for who in (*["much"] * 10, "more", "more", "other"):
            tasks.create_task(work(who))
    assert order[:3] == ["much", "more", "other"]
    assert not turns._asking


async def test_INV_PFT1_who_gives_up_is_not_waited_for() -> None:
    turns, let_go, worked = FairTurns(1), asyncio.Event(), list[str]()

    async def work(who: str) -> None:
        async with turns.turn(who):
            worked.append(who)
            await let_go.wait()

    async with asyncio.TaskGroup() as tasks:
        first, *others = [tasks.create_task(work(who)) for who in ("a", "a", "b", "c")]
        await until(lambda: worked == ["a"])
        for each in others[:2]:
            each.cancel()
        let_go.set()
    assert worked == ["a", "c"]
    assert not turns._asking
    assert not first.cancelled()
    with pytest.raises(ValueError, match="nobody"):
        async with turns.turn("d"):
            raise ValueError("nobody keeps a turn by an error")
    assert not turns._asking


def test_INV_PFT1_who_has_not_logged_in_counts_by_his_network() -> None:
    alice = Identity("User:alice", "2001:db8::1")
    assert alice.counted_as("2001:db8::1") == alice.counted_as("10.0.0.1") == "User:alice"
    assert ANONYMOUS.counted_as("2001:db8::1") == ANONYMOUS.counted_as("2001:db8::2")
    assert ANONYMOUS.counted_as("10.0.0.1") != ANONYMOUS.counted_as("10.0.0.2")


def test_INV_PFT2_who_has_had_a_turn_stands_behind_all_others() -> None:
    waiting: InTurn[int] = InTurn()
    for who, item in (("much", 1), ("much", 2), ("much", 3), ("one", 4), ("two", 5), ("two", 6)):
        waiting.add(who, item)
    taken = [waiting.pop() for _ in range(7)]
    assert taken == [
        ("much", 1),
        ("one", 4),
        ("two", 5),
        ("much", 2),
        ("two", 6),
        ("much", 3),
        None,
    ]


def test_INV_PFT2_what_is_withdrawn_has_no_turn_and_who_has_nothing_left_neither() -> None:
    waiting: InTurn[int] = InTurn()
    for who, item in (("a", 1), ("a", 2), ("b", 3), ("c", 4)):
        waiting.add(who, item)
    assert waiting.withdraw("b", 3)
    assert not waiting.withdraw("b", 3)
    assert not waiting.withdraw("a", 4)
    waiting.behind_others("a")
    waiting.behind_others("b")
    assert waiting.pop() == ("c", 4)
    assert waiting
    assert waiting.clear() == [1, 2]
    assert not waiting
    assert waiting.pop() is None
