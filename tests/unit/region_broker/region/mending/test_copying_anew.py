"""When a node may put a log aside, by what the metadata say of it, and what the node that leads says of its own."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.controller.cluster_image import Leadership, Spread
from region_broker.controller.metadata_image import TopicImage
from region_broker.region.mending import copying_anew
from region_broker.region.mending.copying_anew import (
    AskLogHeld,
    CopyingAnew,
    CopyingAnewParts,
    LogHeld,
    objection,
    objection_to_stopping,
)
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import NodeSession
from tests.fixtures.cluster_images import born, member
from tests.fixtures.node_logs import TOPIC_ID, Fixture, ManualClock
from tests.fixtures.scrubbing import BATCHES, filled

ONE, TWO, THREE = map(member, (1, 2, 3))


def leadership(leader: Member | None, *in_sync: Member) -> Leadership:
    return Leadership(leader=leader, leader_epoch=LeaderEpoch(9), in_sync=in_sync, version=4)


@pytest.mark.parametrize(
    ("present", "why"),
    [
        (None, "nobody leads"),
        (leadership(None, TWO, THREE), "nobody leads"),
        (leadership(ONE, ONE), "the only one in sync"),
        (leadership(ONE, ONE, TWO), "this node leads"),
        (leadership(TWO, ONE, TWO), "still counts as in sync"),
    ],
)
def test_INV_CAN1_a_log_stays_where_this_node_counts_or_nobody_else_is_known_to_have_it(
    present: Leadership | None, why: str
) -> None:
    assert why in str(objection(ONE, present))


def test_INV_CAN1_a_log_may_go_aside_where_another_node_leads_and_this_one_is_out_of_sync() -> None:
    assert objection(ONE, leadership(TWO, TWO, THREE)) is None
    assert objection(ONE, leadership(TWO, TWO)) is None


# -- what the node that leads says -----------------------------------------------------------------


def leading(some: Fixture, present: Leadership) -> CopyingAnew:
    """Return the side of node 1, whose metadata are so."""
    image = msgspec.structs.replace(born(), leadership=present)
    unused = cast("Any", None)
    parts = CopyingAnewParts(
        me=ONE, image=lambda: image, partitions=some.table, line=unused, following=unused, follows=unused, logs_changed=unused,
        counts_on=lambda who, _: who != TWO, least_others=lambda: 1,
    )  # fmt: skip
    return CopyingAnew(parts)


async def ask(side: CopyingAnew, epoch: int = 9, *, runs: bool = False) -> LogHeld:
    """Let node 2 ask."""
    message = AskLogHeld(
        leader_epoch=LeaderEpoch(epoch), topic_id=TOPIC_ID, partition=0, is_running_here=runs
    )
    session = cast("NodeSession", SimpleNamespace(member=TWO))
    return await side._on_ask(session, message, memoryview(b""))


async def test_INV_CAN2_who_leads_and_has_a_sound_log_says_so() -> None:
    held = await ask(leading(filled(), leadership(ONE, ONE, THREE)))
    assert held == LogHeld(log_start_offset=0, high_watermark=BATCHES, log_end_offset=BATCHES)


@pytest.mark.parametrize(
    ("present", "epoch", "why"),
    [
        (leadership(THREE, ONE, THREE), 9, "does not lead"),
        (leadership(None, ONE, THREE), 9, "does not lead"),
        (leadership(ONE, ONE, THREE), 8, "does not lead under that leader epoch"),
        (leadership(ONE, ONE, TWO), 9, "still counts that node as in sync"),
    ],
)
async def test_INV_CAN1_INV_CAN2_it_is_not_said_where_the_metadata_are_otherwise(
    present: Leadership, epoch: int, why: str
) -> None:
    with pytest.raises(PeerRefused, match=why):
        await ask(leading(filled(), present), epoch)


async def test_INV_CAN2_nor_of_a_log_that_is_damaged_lost_or_stopped() -> None:
    some = filled()
    side = leading(some, leadership(ONE, ONE))
    side.is_damaged = lambda key: key == some.partition.key
    with pytest.raises(PeerRefused, match="is damaged at node"):
        await ask(side)
    side.is_damaged = lambda _: False
    await ask(side)
    some.table._made.note_lost(TOPIC_ID, 0)
    with pytest.raises(PeerRefused, match="or lost"):
        await ask(side)
    some = filled()
    some.partition.stop("its disk has failed")
    with pytest.raises(PeerRefused, match="does not run at node"):
        await ask(leading(some, leadership(ONE, ONE)))


SPREAD = Spread(groups={}, preferred=(1,), topics=())


async def test_INV_CAN5_nothing_is_put_aside_while_leaders_are_spread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. In the log's group node 2 is in sync alone, in the main group node 1. 2. A log of node 1 stops. 3. Who has what is known once both agree."""
    played = Stopped(monkeypatch)
    played.image = msgspec.structs.replace(played.image, spread=SPREAD)
    await played.side.look()
    assert "gathered first" in "".join(played.side.waiting.values())
    assert played.some.partition.failed is not None
    side = leading(filled(), leadership(ONE, ONE, THREE))
    image = msgspec.structs.replace(side._parts.image(), spread=SPREAD)
    side._parts = dataclasses.replace(side._parts, image=lambda: image)
    with pytest.raises(PeerRefused, match="gathered first"):
        await ask(side)


async def test_INV_CAN6_of_a_log_that_still_runs_at_the_other_node_the_same_is_said_while_it_is_in_sync() -> (
    None
):
    some = filled()
    side = leading(some, leadership(ONE, ONE, TWO, THREE))
    assert (await ask(side, runs=True)).high_watermark == BATCHES
    side.is_damaged = lambda key: key == some.partition.key
    with pytest.raises(PeerRefused, match="is damaged at node"):
        await ask(side, runs=True)


@pytest.mark.parametrize(
    ("present", "why"),
    [
        (None, "nobody leads"),
        (leadership(None, ONE, TWO, THREE), "nobody leads"),
        (leadership(ONE, ONE, TWO, THREE), "this node leads"),
        (leadership(TWO, ONE, TWO), "only 1 other nodes are in sync"),
    ],
)
def test_INV_CAN6_a_log_that_runs_goes_on_where_the_region_could_not_without_it(
    present: Leadership | None, why: str
) -> None:
    assert why in str(objection_to_stopping(ONE, present, 2))
    assert objection_to_stopping(ONE, leadership(TWO, ONE, TWO, THREE), 2) is None
    assert objection_to_stopping(ONE, leadership(TWO, TWO), 2) is None, "it counts for nothing"


# -- the node whose log has stopped ----------------------------------------------------------------


class Stopped:
    """Node 1 follows node 2, is out of sync, and its only log has stopped; what node 2 says is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.some = filled()
        self.some.partition.stop("its disk has failed")
        self.clock = ManualClock()
        self.disputed: set[LogKey] = set()
        self.follows = True
        self.asked = 0
        topic = TopicImage(topic_id=TOPIC_ID, name="t", partition_count=1)
        self.image = msgspec.structs.replace(
            born(), leadership=leadership(TWO, TWO, THREE), topics={"t": topic}
        )
        parts = CopyingAnewParts(
            me=ONE, image=lambda: self.image, partitions=self.some.table, line=cast("Any", SimpleNamespace(clock=self.clock)),
            following=cast("Any", SimpleNamespace(disputed=self.disputed, logs_changed=lambda: None)), follows=lambda: self.follows, logs_changed=lambda: None,
            counts_on=lambda _, __: False, least_others=lambda: 2,
        )  # fmt: skip
        self.side = CopyingAnew(parts)
        monkeypatch.setattr(copying_anew, "asked", self.answer)

    async def answer(self, *_: object) -> LogHeld:
        self.asked += 1
        return LogHeld(log_start_offset=0, high_watermark=BATCHES)

    async def why_not(self) -> str | None:
        return await self.side._why_not(self.some.partition)

    def sees(self, present: Leadership) -> None:
        self.image = msgspec.structs.replace(self.image, leadership=present)


async def test_INV_CAN2_nothing_goes_aside_unless_the_node_that_leads_says_that_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Stopped(monkeypatch)
    assert (await node.why_not(), node.asked) == (None, 1)

    async def refuses(*_: object) -> LogHeld:
        raise PeerRefused("not-held", "the log is damaged there")

    monkeypatch.setattr(copying_anew, "asked", refuses)
    assert "the log is damaged there" in str(await node.why_not())


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (
            Leadership(leader=TWO, leader_epoch=LeaderEpoch(10), in_sync=(TWO,), version=5),
            "another",
        ),
        (leadership(TWO, ONE, TWO), "still counts as in sync"),
        (leadership(None, TWO), "nobody leads"),
    ],
)
async def test_INV_CAN1_INV_CAN2_what_changes_while_it_is_asked_counts(
    monkeypatch: pytest.MonkeyPatch, later: Leadership, why: str
) -> None:
    node = Stopped(monkeypatch)

    async def answers(*_: object) -> LogHeld:
        node.sees(later)
        return LogHeld(log_start_offset=0, high_watermark=BATCHES)

    monkeypatch.setattr(copying_anew, "asked", answers)
    assert why in str(await node.why_not())


async def test_INV_CAN3_INV_CAN4_evidence_and_what_was_just_copied_is_not_even_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Stopped(monkeypatch)
    key = node.some.partition.key
    node.disputed.add(key)
    assert "parts from the leader's log" in str(await node.why_not())
    node.disputed.clear()
    node.follows = False
    assert "not begun to follow" in str(await node.why_not())
    node.follows = True
    node.side._tries[key] = copying_anew._Tries(due_ms=node.clock.now_ms + 1)
    assert "has stopped again" in str(await node.why_not())
    assert node.asked == 0
    node.clock.now_ms += 1
    assert await node.why_not() is None


async def test_INV_CAN6_a_log_is_stopped_only_behind_the_word_of_the_node_that_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Stopped(monkeypatch)
    node.some.partition.log.content.failed = None
    node.sees(leadership(TWO, ONE, TWO, THREE))
    partition = node.some.partition

    async def refuses(*_: object) -> LogHeld:
        raise PeerRefused("not-held", "the log is damaged there")

    monkeypatch.setattr(copying_anew, "asked", refuses)
    assert "the log is damaged there" in str(await node.side.give_up(partition, "a flipped bit"))
    assert partition.failed is None
    monkeypatch.setattr(copying_anew, "asked", node.answer)
    assert await node.side.give_up(partition, "a flipped bit") is None
    assert "a flipped bit" in str(partition.failed)
