"""Turns for long work: few at once, one for each who asks."""

import asyncio

import pytest

from region_broker.ports.fair_turns import FairTurns
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
