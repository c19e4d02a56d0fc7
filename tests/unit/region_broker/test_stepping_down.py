"""When a node that leads has another one elected because of its disk, and when it goes on."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotency.fencing import EpochExhausted
from idempotency.identity import Member
from region_broker.controller.cluster_commands import ChangeInSync, ElectLeader, FenceNode
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.node.stepping_down import (
    AGAIN_MS,
    ROOM_PAUSE_MS_MAX,
    ROOM_PAUSE_MS_MIN,
    TRIES_MAX,
    SteppingDown,
)
from tests.fixtures.cluster_images import after, in_sync, leader_epoch, led_by_one, life, member
from tests.fixtures.node_logs import fixture

ONE, TWO, THREE = map(member, (1, 2, 3))


class Node:
    """A node with three logs; what it proposes is carried out, unless that fails."""

    def __init__(self, image: MetadataImage, me: Member = ONE, least_others: int = 1) -> None:
        self.image = image
        self.some = fixture(partition_count=3)
        self.asked: list[ElectLeader] = []
        self.waited: list[float] = []
        self.fails: Exception | None = None
        self.damaged: frozenset[Member] = frozenset()
        self.now_ms = 0
        clock = SimpleNamespace(sleep_ms=self._sleep, monotonic_ms=lambda: self.now_ms)
        self.side = SteppingDown(
            me=me, metadata=cast("Any", self), partitions=self.some.table,
            clock=cast("Any", clock), least_others=lambda: least_others,
            damaged=lambda: self.damaged,
        )  # fmt: skip

    async def _sleep(self, duration_ms: float) -> None:
        self.waited.append(duration_ms)

    async def apply(self, command: ElectLeader) -> None:
        self.asked.append(command)
        if self.fails is not None:
            raise self.fails
        self.image = after(self.image, command)

    def stops(self) -> "Node":
        self.some.partitions[1].stop("its disk failed")
        return self

    def has(self, free_bytes: int) -> "Node":
        self.some.table.room.free_bytes_min = 100
        self.some.table.room.note(1_000, free_bytes)
        return self


async def test_INV_NRP2_a_leader_one_of_whose_logs_has_stopped_has_another_one_elected() -> None:
    node = Node(in_sync(), least_others=2)
    await node.side.look()
    assert node.asked == [], "all run"
    node.stops()
    await node.side.look()
    await node.side.look()
    assert node.asked == [ElectLeader(TWO, leader_epoch(2), 2)], "it leads no more"


@pytest.mark.parametrize(
    ("image", "me", "least_others"),
    [
        (in_sync(), TWO, 1),
        (after(in_sync(), FenceNode(3, life(3))), ONE, 2),
        (in_sync(), ONE, 3),
        (led_by_one(), ONE, 1),
    ],
    ids=["another one leads", "too few are heard", "too few there are", "alone in sync"],
)
async def test_INV_NRP2_else_it_goes_on(
    image: MetadataImage, me: Member, least_others: int
) -> None:
    node = Node(image, me, least_others).stops()
    await node.side.look()
    assert node.asked == []


async def test_INV_NRP6_a_leader_without_room_has_another_one_elected() -> None:
    node = Node(in_sync(), least_others=2).has(100)
    await node.side.look()
    assert node.asked == [], "there is room"
    node.has(50)
    await node.side.look()
    await node.side.look()
    assert node.asked == [ElectLeader(TWO, leader_epoch(2), 2)], "it leads no more"


@pytest.mark.parametrize(
    ("image", "me", "least_others"),
    [
        (in_sync(), TWO, 1),
        (after(in_sync(), FenceNode(3, life(3))), ONE, 2),
        (after(led_by_one(), ChangeInSync(ONE, leader_epoch(1), (ONE, TWO), 1)), ONE, 2),
        (led_by_one(), ONE, 1),
    ],
    ids=["another one leads", "too few are heard", "too few are in sync", "alone in sync"],
)
async def test_INV_NRP6_else_it_leads_on(
    image: MetadataImage, me: Member, least_others: int
) -> None:
    node = Node(image, me, least_others).has(50)
    await node.side.look()
    assert node.asked == []


async def test_INV_NRP6_each_in_its_turn_and_those_with_damage_behind_the_others() -> None:
    led_by_two = after(in_sync(), ElectLeader(TWO, leader_epoch(2), 2))
    node = Node(led_by_two, TWO).has(50)
    await node.side.look()
    assert [each.leader for each in node.asked] == [THREE]
    node = Node(led_by_two, TWO).has(50)
    node.damaged = frozenset({THREE})
    await node.side.look()
    assert [each.leader for each in node.asked] == [ONE]


async def test_INV_NRP6_where_all_are_full_the_leadership_goes_round_ever_more_slowly() -> None:
    node, leads = Node(in_sync()).has(50), in_sync()
    pause_ms = ROOM_PAUSE_MS_MIN
    for _ in range(8):
        node.image, node.asked = leads, []
        await node.side.look()
        assert len(node.asked) == 1
        node.image = leads
        node.now_ms += pause_ms - 1
        await node.side.look()
        assert len(node.asked) == 1, "it leads for so long"
        node.now_ms += 1
        pause_ms = min(2 * pause_ms, ROOM_PAUSE_MS_MAX)
    assert pause_ms == ROOM_PAUSE_MS_MAX
    await node.side.look()
    node.image = leads
    await node.has(500).side.look()
    await node.has(50).side.look()
    assert len(node.asked) == 2, "a moment of room is none"
    node.now_ms += 2 * ROOM_PAUSE_MS_MAX
    await node.has(500).side.look()
    for asked in (3, 4):
        node.image = leads
        await node.has(50).side.look()
        assert len(node.asked) == asked, "it had room for long"
        node.now_ms += ROOM_PAUSE_MS_MIN


async def test_INV_NRP6_what_is_refused_is_asked_for_with_the_next_look() -> None:
    node = Node(in_sync()).has(50)
    node.fails = CommandRefused("x", "no")
    await node.side.look()
    await node.side.look()
    assert len(node.asked) == 2


async def test_INV_NRP4_it_makes_way_once_and_for_one_that_is_sound_if_there_is_one() -> None:
    node = Node(in_sync())
    node.damaged = frozenset({ONE, TWO})
    await node.side.make_way()
    assert node.asked == [ElectLeader(THREE, leader_epoch(2), 2)]
    assert node.waited == []


async def test_INV_NRP4_who_is_alone_in_sync_or_does_not_lead_mends_where_it_is() -> None:
    for node in (Node(led_by_one()), Node(in_sync(), THREE)):
        await node.side.make_way()
        assert (node.asked, node.waited) == ([], [])


@pytest.mark.parametrize(
    "error",
    [CommandRefused("x", "no"), MetadataInDoubt("no majority"), EpochExhausted("all are taken")],
    ids=["refused", "in doubt", "exhausted"],
)
async def test_INV_NRP4_what_is_not_done_is_asked_for_again_and_then_the_damage_is_mended(
    error: Exception,
) -> None:
    node = Node(in_sync())
    node.fails = error
    await node.side.make_way()
    assert len(node.asked) == TRIES_MAX
    assert node.waited == [AGAIN_MS] * (TRIES_MAX - 1)
    await node.stops().side.look()
    assert len(node.asked) == TRIES_MAX + 1
