"""Connections between leaders: one to each, made when needed; every call ends (INV-ALL)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from region_broker.region.cluster import leader_lines
from region_broker.region.cluster.leader_lines import LeaderLines
from region_broker.region.cluster.leader_messages import AbortedOpen, AbortOpen
from region_broker.region.peers.node_protocol import LEADING
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from region_broker.region.peers.sessions import NodeSession
from tests.fixtures.played_spread import MAIN_EPOCH
from tests.fixtures.region_nodes import Addresses, NodeSide, member, real_node, running, standing_of
from tests.fixtures.waiting import until

ASK = AbortOpen(main_epoch=MAIN_EPOCH, producer_id=1, producer_epoch=0, still_open=())  # type: ignore[arg-type]
ONE, TWO = member(1), member(2)


class Answering:
    """Node 2: it answers, unless it is told to wait or to refuse."""

    def __init__(self, side: NodeSide) -> None:
        self.side = side
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.sessions: set[int] = set()
        door = side.server.node_door
        assert door is not None
        door.handlers_for(LEADING).register(AbortOpen, self._on)

    async def _on(self, session: NodeSession, _message: AbortOpen, _raw: memoryview) -> AbortedOpen:
        assert session.member == ONE
        self.sessions.add(session.session_id)
        await self.goes_on.wait()
        if len(self.sessions) > 9:
            raise PeerRefused("no", "too many")
        return AbortedOpen(verdict="OK")


@asynccontextmanager
async def lines() -> AsyncIterator[tuple[LeaderLines, Answering]]:
    addresses: Addresses = {}
    one = real_node(addresses, standing_of(ONE))
    two = Answering(real_node(addresses, standing_of(TWO)))
    found = LeaderLines(one.transport._parts)
    async with running(two.side), asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(found.run())
        await asyncio.sleep(0)
        try:
            yield found, two
        finally:
            two.goes_on.set()
            serving.cancel()


async def test_INV_ALL2_calls_at_once_share_the_connection_that_is_made() -> None:
    async with lines() as (some, two):
        answers = await asyncio.gather(*(some.call(TWO, ASK, AbortedOpen) for _ in range(5)))
        assert [each.verdict for each in answers] == ["OK"] * 5
        assert len(two.sessions) == 1


async def test_INV_ALL1_what_is_not_answered_in_time_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_lines, "ANSWER_TIMEOUT_S", 0.1)
    async with lines() as (some, two):
        two.goes_on.clear()
        with pytest.raises(PeerUnreachable):
            await some.call(TWO, ASK, AbortedOpen)
        two.goes_on.set()
        assert (await some.call(TWO, ASK, AbortedOpen)).verdict == "OK"
        assert len(two.sessions) == 2, "over another connection"


async def test_INV_ALL1_who_cannot_be_reached_is_said_to_be_so_and_the_next_call_tries_again() -> (
    None
):
    async with lines() as (some, two):
        address = some._parts.address_of  # a node that is not where it was
        two.side.addresses.pop(TWO)
        with pytest.raises(PeerUnreachable):
            await some.call(TWO, ASK, AbortedOpen)
        assert address(TWO) is None
        assert two.side.server._listener is not None
        two.side.addresses[TWO] = ("127.0.0.1", two.side.server._listener.port)
        assert (await some.call(TWO, ASK, AbortedOpen)).verdict == "OK"


async def test_INV_ALL1_what_is_under_way_when_the_node_ends_is_told() -> None:
    told: list[object] = []
    async with lines() as (some, two):
        two.goes_on.clear()
        some.begin(TWO, ASK, AbortedOpen, told.append)
        await until(lambda: bool(two.sessions), "it is asked")
    (failure,) = told
    assert isinstance(failure, PeerUnreachable)
    some.begin(TWO, ASK, AbortedOpen, told.append)
    await until(lambda: len(told) == 2, "it is told, too")


async def test_INV_ALL3_who_begins_anew_as_the_node_ends_is_told_and_so_is_what_had_not_begun() -> (
    None
):
    told: list[object] = []
    async with lines() as (some, two):
        two.goes_on.clear()

        def again(failure: object) -> None:
            told.append(failure)
            some.begin(TWO, ASK, AbortedOpen, told.append)

        some.begin(TWO, ASK, AbortedOpen, again)
        await until(lambda: bool(two.sessions), "it is asked")
        some.begin(TWO, ASK, AbortedOpen, told.append)  # in the turn in which the node ends
    await until(lambda: len(told) == 3, "each is told")
    assert all(isinstance(each, PeerUnreachable) for each in told)
