"""Who leads and who follows because of what the metadata say: the steps of one node, in their order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from idempotency.identity import LeaderEpoch, Member, RegionEpoch
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    ElectLeader,
    FenceNode,
    UnfenceNode,
)
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.metadata_commands import RecordLineage
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, LineageEntry, MetadataImage
from region_broker.region.cluster.leadership import LeadershipDriver, LeadershipParts
from tests.fixtures.cluster_images import (
    REGION_EPOCH,
    after,
    in_sync,
    leader_epoch,
    let_in,
    life,
    member,
)

Said = tuple[Any, ...]

FENCED = after(in_sync(), FenceNode(1, life(1)))
"""Nobody leads."""
BY_ONE = after(FENCED, UnfenceNode(1, life(1)), ElectLeader(member(1), leader_epoch(2), 3))
BY_ONE_AGAIN = after(BY_ONE, ElectLeader(member(1), leader_epoch(3), 4))
BACK = after(BY_ONE, *let_in(1, start=2))
"""The first node was started again."""
assert BACK.leadership is not None
BACK_AND_LEADING = after(BACK, ElectLeader(member(1), leader_epoch(3), BACK.leadership.version))
BY_TWO = after(BY_ONE, ElectLeader(member(2), leader_epoch(3), 4))
TAKEN_OVER = after(
    BY_ONE,
    RecordLineage(domain=DEFAULT_DOMAIN, entry=LineageEntry(region_epoch=RegionEpoch(17), acting_region="us",
                                                       base_region_epoch=REGION_EPOCH, base_number=1)),
)  # fmt: skip
OTHER_IN_SYNC = after(BY_ONE, ChangeInSync(member(1), leader_epoch(2), (member(1), member(2)), 4))


class Sides:
    """All that a node's leadership moves; what it was told stands in `said`, in order."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.committed = asyncio.Event()
        self.committed.set()
        self.stands_still = asyncio.Event()
        self.stands_still.set()
        self.lead_ends = False
        self.goes = asyncio.Event()
        self.goes.set()
        self.cuts = asyncio.Event()
        self.cuts.set()
        self.knows_itself = asyncio.Event()
        self.knows_itself.set()

    async def begin_region(self) -> None:
        await self.knows_itself.wait()

    async def cut_logs(self) -> None:
        if self.cuts.is_set():
            return
        self.said.append(("cuts",))
        try:
            await self.cuts.wait()
            self.said.append(("has cut",))
        except asyncio.CancelledError:
            self.said.append(("cuts no more",))
            raise

    # -- LeadingSide

    def begin(self, leadership: Leadership) -> None:
        self.said.append(("begin", leadership.leader_epoch))

    def image_changed(self, image: MetadataImage) -> None:
        self.said.append(("image", image.version))

    def end(self) -> None:
        self.said.append(("end",))

    async def until_committed(self) -> None:
        await self.committed.wait()

    # -- RoleSide

    def close_gate(self, reason: str) -> None:
        self.said.append(("gate closed",))

    # -- what takes writes

    async def lead(self) -> None:
        self.said.append(("lead",))
        try:
            if not self.lead_ends:
                await asyncio.Event().wait()
        finally:
            await self.goes.wait()
            self.said.append(("lead ends",))


class Role:
    """A `RoleSide`."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides

    def close_gate(self, reason: str) -> None:
        self._sides.close_gate(reason)

    async def follow(self, _reason: str) -> None:
        self._sides.said.append(("role follows",))
        await self._sides.stands_still.wait()
        self._sides.said.append(("stands still",))


class Following:
    """A `FollowingSide`."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides

    def follow(self, leader: Member | None, leader_epoch: LeaderEpoch) -> None:
        self._sides.said.append(("follow", leader, leader_epoch))

    def stop(self) -> None:
        self._sides.said.append(("stop",))


class Driven:
    """The driver of one node, and its image."""

    def __init__(self, node_id: int, image: MetadataImage, start: int = 1) -> None:
        self.sides = sides = Sides()
        self.image = image
        self.driver = LeadershipDriver(
            LeadershipParts(
                me=member(node_id),
                life=life(node_id, start),
                image=lambda: self.image,
                role=Role(sides),
                leading=sides,
                following=Following(sides),
                lead=sides.lead,
                begin_region=sides.begin_region,
                cut_logs=sides.cut_logs,
            )
        )

    def take(self, image: MetadataImage) -> list[Said]:
        """Let an image be there; return what was done in this very step."""
        self.image = image
        before = len(self.sides.said)
        self.driver.take_image(image)
        return self.sides.said[before:]

    async def turns(self) -> list[Said]:
        """Let all that can happen do so; return what was done since the last time."""
        for _ in range(20):
            await asyncio.sleep(0)
        said, self.sides.said = self.sides.said, []
        return said


@asynccontextmanager
async def driven(node_id: int, image: MetadataImage, start: int = 1) -> AsyncIterator[Driven]:
    node = Driven(node_id, image, start)
    running = asyncio.get_running_loop().create_task(node.driver.run())
    yield node
    running.cancel()
    await asyncio.wait([running])


@asynccontextmanager
async def leading() -> AsyncIterator[Driven]:
    """Node 1, which was elected under leader epoch 2, behind its registration."""
    async with driven(1, FENCED) as node:
        await node.turns()
        node.take(BY_ONE)
        assert ("lead",) in await node.turns()
        yield node


async def waits(work: "asyncio.Task[None]") -> bool:
    for _ in range(20):
        await asyncio.sleep(0)
    return not work.done()


# -- who leads ---------------------------------------------------------------------------------------


async def test_INV_LSH2_a_process_does_not_lead_by_an_election_of_its_former_life() -> None:
    """1. A leader is killed and is back before it is missed. 2. The metadata still name it. 3. It led in that leader epoch once."""
    async with driven(1, BY_ONE, start=2) as node:
        said = await node.turns()
        assert ("lead",) not in said
        assert said[-1] == ("follow", None, leader_epoch(2)), "nor does it copy from itself"
        assert node.driver.follows
        node.take(BACK)
        assert ("lead",) not in await node.turns()
        node.take(BACK_AND_LEADING)
        assert ("lead",) in await node.turns()
        assert not node.driver.follows


async def test_who_is_not_named_follows_who_is() -> None:
    async with driven(3, BY_ONE) as node:
        assert await node.turns() == [
            ("role follows",), ("stands still",), ("follow", member(1), leader_epoch(2)),
        ]  # fmt: skip
        node.take(BY_TWO)
        assert await node.turns() == [
            ("stop",), ("role follows",), ("stands still",), ("follow", member(2), leader_epoch(3)),
        ]  # fmt: skip


async def test_a_leader_that_is_elected_anew_is_followed_anew() -> None:
    async with driven(3, BY_ONE) as node:
        await node.turns()
        node.take(BY_ONE_AGAIN)
        assert (await node.turns())[-1] == ("follow", member(1), leader_epoch(3))


async def test_following_goes_on_over_images_that_name_the_same_leader() -> None:
    async with driven(3, BY_ONE) as node:
        await node.turns()
        node.take(OTHER_IN_SYNC)
        assert await node.turns() == []


async def test_nothing_is_copied_before_all_that_took_writes_has_ended() -> None:
    """A follower cuts and appends: no coordinator may write meanwhile."""
    async with leading() as node:
        node.sides.stands_still.clear()
        node.sides.goes.clear()
        node.take(BY_TWO)
        assert ("role follows",) not in await node.turns(), "what leads is waited for"
        node.sides.goes.set()
        assert await node.turns() == [("lead ends",), ("role follows",)]
        node.sides.stands_still.set()
        assert await node.turns() == [
            ("stands still",), ("follow", member(2), leader_epoch(3)),
        ]  # fmt: skip


async def test_nothing_is_copied_any_more_once_it_leads() -> None:
    async with driven(1, FENCED) as node:
        await node.turns()
        node.take(BY_ONE)
        assert await node.turns() == [("stop",), ("begin", leader_epoch(2)), ("lead",)]


async def test_INV_LSH6_nobody_copies_before_the_region_knows_itself() -> None:
    async with driven(1, FENCED) as node:
        await node.turns()
        node.sides.knows_itself.clear()
        node.take(BY_ONE)
        assert await node.turns() == [("stop",)]
        node.sides.knows_itself.set()
        assert await node.turns() == [("begin", leader_epoch(2)), ("lead",)]


# -- the step in which it ends -----------------------------------------------------------------------


async def test_INV_LSH1_the_gate_and_the_high_watermarks_stop_in_the_step_that_names_another() -> (
    None
):
    async with leading() as node:
        assert sorted(node.take(BY_TWO)) == [("end",), ("gate closed",)]


@pytest.mark.parametrize("image", [after(BY_ONE, FenceNode(1, life(1))), BACK])
async def test_INV_LSH1_so_they_do_where_nobody_leads_under_the_same_leader_epoch(
    image: MetadataImage,
) -> None:
    """It is fenced, or its folder runs elsewhere: another one may be elected by the next image, which it may hear late."""
    assert image.leadership is not None
    assert (image.leadership.leader, image.leadership.leader_epoch) == (None, leader_epoch(2))
    async with leading() as node:
        assert sorted(node.take(image)) == [("end",), ("gate closed",)]


async def test_INV_LSH1_INV_LSH7_so_they_do_where_it_is_elected_anew() -> None:
    """Another term has begun, so another one may have led in between; all that it did for the region ends, and it begins to lead anew.

    Without that its role went on in the former term: it loaded nothing, and its gate stayed closed for good
    (`tests.simulation.cluster_swarm --seed 6002 --minutes 0.3`).
    """
    async with leading() as node:
        assert sorted(node.take(BY_ONE_AGAIN)) == [("end",), ("gate closed",)]
        assert await node.turns() == [
            ("end",), ("gate closed",), ("lead ends",), ("role follows",), ("stands still",), ("begin", leader_epoch(3)), ("lead",),
        ]  # fmt: skip


async def test_INV_LSH8_who_gives_up_ends_all_in_that_step_and_leads_under_another_leader_epoch_only() -> (
    None
):
    async with leading() as node:
        node.driver.give_up(leader_epoch(1))
        assert node.sides.said == [], "that one was over"
        node.driver.give_up(leader_epoch(2))
        assert sorted(node.sides.said) == [("end",), ("gate closed",)]
        assert node.driver.leads is None
        assert await node.turns() == [
            ("end",), ("gate closed",), ("lead ends",), ("role follows",), ("stands still",), ("follow", None, leader_epoch(2)),
        ]  # fmt: skip
        assert node.take(OTHER_IN_SYNC) == []
        assert await node.turns() == [], "the metadata name it still"
        node.take(after(OTHER_IN_SYNC, ElectLeader(member(1), leader_epoch(3), 5)))
        assert await node.turns() == [("stop",), ("begin", leader_epoch(3)), ("lead",)]


async def test_a_leader_that_stays_is_told_of_each_image() -> None:
    async with leading() as node:
        assert node.take(OTHER_IN_SYNC) == [("image", OTHER_IN_SYNC.version)]
        assert await node.turns() == [("image", OTHER_IN_SYNC.version)]


async def test_INV_LSH1_high_watermarks_stop_with_the_process_that_leads() -> None:
    node = Driven(1, FENCED)
    running = asyncio.get_running_loop().create_task(node.driver.run())
    await node.turns()
    node.take(BY_ONE)
    await node.turns()
    running.cancel()
    assert await node.turns() == [("lead ends",), ("end",)]


async def test_what_leads_ends_by_no_way_of_its_own() -> None:
    node = Driven(1, FENCED)
    node.sides.lead_ends = True
    running = asyncio.get_running_loop().create_task(node.driver.run())
    await node.turns()
    node.take(BY_ONE)
    await node.turns()
    assert running.done(), "it does not go on without what leads"
    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await running


# -- serving -----------------------------------------------------------------------------------------


async def test_INV_LSH3_it_serves_once_all_that_the_logs_hold_is_committed() -> None:
    async with driven(1, FENCED) as node:
        await node.turns()
        node.sides.committed.clear()
        node.take(BY_ONE)
        assert await node.turns() == [("stop",), ("begin", leader_epoch(2))]
        node.sides.committed.set()
        assert await node.turns() == [("lead",)]


@pytest.mark.parametrize("under", [leader_epoch(2), None])
async def test_INV_LSH3_what_is_asked_for_later_is_waited_for_too(
    under: LeaderEpoch | None,
) -> None:
    """A log was cut, and the region mirrors from then on (None): what it shows is committed here."""
    async with leading() as node:
        node.sides.committed.clear()
        settling = asyncio.get_running_loop().create_task(node.driver.settle_commits(under))
        assert await waits(settling)
        node.sides.committed.set()
        await settling


async def test_INV_LSH3_a_term_that_is_over_never_settles() -> None:
    """1. A term begins. 2. This node is elected anew before its commits are asked for. 3. The new term's may not begin by the old one."""
    async with leading() as node:
        node.take(BY_ONE_AGAIN)
        await node.turns()
        settling = asyncio.get_running_loop().create_task(
            node.driver.settle_commits(leader_epoch(2))
        )
        assert await waits(settling)
        assert await node.turns() == []
        settling.cancel()


# -- cutting -----------------------------------------------------------------------------------------


async def test_INV_LSH4_a_node_cuts_its_logs_before_it_follows_and_before_it_leads() -> None:
    node = Driven(1, FENCED)
    node.sides.cuts.clear()
    running = asyncio.get_running_loop().create_task(node.driver.run())
    assert await node.turns() == [("role follows",), ("stands still",), ("cuts",)]
    node.sides.cuts.set()
    assert await node.turns() == [("has cut",), ("follow", None, leader_epoch(1))]
    node.sides.cuts.clear()
    node.take(BY_ONE)
    assert await node.turns() == [("stop",), ("cuts",)]
    node.sides.cuts.set()
    assert await node.turns() == [("has cut",), ("begin", leader_epoch(2)), ("lead",)]
    running.cancel()
    await asyncio.wait([running])


async def test_INV_LSH4_a_takeover_ends_the_following_until_the_logs_are_cut() -> None:
    async with driven(3, BY_ONE) as node:
        await node.turns()
        node.sides.cuts.clear()
        node.take(TAKEN_OVER)
        assert await node.turns() == [("stop",), ("role follows",), ("stands still",), ("cuts",)]
        node.sides.cuts.set()
        assert await node.turns() == [("has cut",), ("follow", member(1), leader_epoch(2))]


async def test_INV_LSH4_a_cut_ends_where_another_node_leads_meanwhile() -> None:
    node = Driven(1, FENCED)
    node.sides.cuts.clear()
    running = asyncio.get_running_loop().create_task(node.driver.run())
    await node.turns()
    node.take(BY_ONE)
    assert await node.turns() == [("cuts no more",), ("stop",), ("cuts",)]
    node.take(BY_TWO)
    assert await node.turns() == [
        ("end",), ("gate closed",), ("cuts no more",), ("role follows",), ("stands still",), ("cuts",),
    ]  # fmt: skip
    running.cancel()
    await asyncio.wait([running])


async def test_INV_LSH1_a_cut_that_ends_as_another_node_is_named_begins_nothing() -> None:
    async with driven(1, FENCED) as node:
        await node.turns()
        node.sides.cuts.clear()
        node.take(BY_ONE)
        await node.turns()
        node.sides.cuts.set()
        node.take(BY_TWO)
        assert "begin" not in {said[0] for said in await node.turns()}
