"""What retention may delete where leaders are spread: the main leader says it, and nobody else (ADR 53, T14)."""

from functools import partial
from types import SimpleNamespace
from typing import TypeVar, cast

import msgspec
import pytest

from idempotency.identity import LeaderEpoch, LogKey, Member, Round
from region_broker.controller.cluster_image import MAIN_GROUP, Leadership, Spread
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.node.cleaning import of_main_group
from region_broker.partitions.partition import Partition
from region_broker.partitions.trimming import Hold
from region_broker.region.peers.protocol import PeerMessage, PeerRefused, PeerUnreachable
from region_broker.region.peers.sessions import NodeSession
from region_broker.region.tidemarks import told_holds
from region_broker.region.tidemarks.told_holds import (
    NOTHING_GOES,
    TellHolds,
    TellingHolds,
    TellingParts,
    ToldHolds,
)
from tests.fixtures.cluster_images import member
from tests.fixtures.node_logs import batch, fixture, raise_start

MAIN, OTHER = member(1), member(2)
EPOCH = LeaderEpoch(8 << 16 | 1)
Answer = TypeVar("Answer", bound=PeerMessage)


def _held(hold: Hold | None, _partition: Partition) -> Hold | None:
    return hold


class Spreading:
    """Two nodes with the same logs; the second one leads a data group, and is told over a line that may be cut."""

    def __init__(self) -> None:
        self.some = fixture(partition_count=4)
        self.rows(EPOCH, LeaderEpoch(EPOCH + 1))
        self.told = ToldHolds(OTHER, lambda: self.image)
        self.holds: dict[LogKey, Hold | None] = {}
        self.sent: list[TellHolds] = []
        self.is_cut, self.is_slow, self.sender = False, False, MAIN
        self.leads_under = EPOCH
        self.on_the_way: list[TellHolds] = []
        self.mirrors: list[str] = []
        self.telling = TellingHolds(
            TellingParts(
                image=lambda: self.image,
                partitions=lambda: self.some.table,
                hold_of=lambda partition: self.holds.get(partition.key, Hold(0, 0)),
                mirrors=lambda: self.mirrors,
                leads_under=lambda: self.leads_under,
                lines=self,
            )
        )

    def rows(self, main: LeaderEpoch, group: LeaderEpoch, leader: Member = OTHER) -> None:
        both, topic = (MAIN, OTHER), self.some.topic
        self.image = MetadataImage(
            version=0,
            cluster_id="c",
            topics={
                topic.name: TopicImage(topic_id=topic.topic_id, name=topic.name, partition_count=4)
            },
            leadership=Leadership(leader=MAIN, leader_epoch=main, in_sync=both, version=1),
            spread=Spread(
                groups={1: Leadership(leader=leader, leader_epoch=group, in_sync=both, version=1)},
                preferred=(1, 2),
                topics=(self.some.topic.topic_id,),
            ),
        )

    @property
    def apart(self) -> list[Partition]:
        return [p for p in self.some.table if self.image.group_of(p.key) != MAIN_GROUP]

    async def call(
        self, member: Member, message: PeerMessage, _answer_type: type[Answer]
    ) -> Answer:
        assert member == OTHER
        if self.is_cut:
            raise PeerUnreachable("cut", sent=False)
        assert isinstance(message, TellHolds)
        read = msgspec.json.decode(msgspec.json.encode(message), type=TellHolds)
        if self.is_slow:
            self.on_the_way.append(read)
            raise PeerUnreachable("it did not answer in time", sent=True)
        answer = await self.take(read)
        self.sent.append(read)
        return cast("Answer", answer)

    async def take(self, message: TellHolds) -> PeerMessage:
        session = cast("NodeSession", SimpleNamespace(member=self.sender))
        return await self.told._take(session, message, memoryview(b""))

    def may_go(self) -> list[Hold | None]:
        return [self.told.of(partition) for partition in self.apart]

    async def note(self, region: str) -> None:
        self.mirrors.append(region)

    async def met(self, region: str) -> None:
        assert region in self.mirrors


async def test_INV_THD1_a_data_leader_deletes_nothing_that_it_was_not_told_of() -> None:
    region = Spreading()
    assert len(region.apart) == 2
    assert region.may_go() == [NOTHING_GOES] * 2
    region.holds = {region.apart[0].key: Hold(7, 3), region.apart[1].key: None}
    assert await region.telling.tell()
    assert region.may_go() == [Hold(7, 3), None]
    for other in region.some.table:
        assert other in region.apart or region.told.of(other) == NOTHING_GOES


@pytest.mark.parametrize("changed", ["main", "group", "leader", "gathered"])
async def test_INV_THD1_what_was_told_under_other_leader_epochs_is_void(changed: str) -> None:
    region = Spreading()
    logs = region.apart
    region.holds = dict.fromkeys((log.key for log in logs), None)
    assert await region.telling.tell()
    next_epoch = LeaderEpoch(EPOCH + 5)
    match changed:
        case "main":
            region.rows(next_epoch, LeaderEpoch(EPOCH + 1))
        case "group":
            region.rows(EPOCH, next_epoch)
        case "leader":
            region.rows(EPOCH, LeaderEpoch(EPOCH + 1), MAIN)
        case _:
            region.image = msgspec.structs.replace(region.image, spread=None)
    assert [region.told.of(log) for log in logs] == [NOTHING_GOES] * 2
    if changed == "group":
        assert await region.telling.tell(), "who leads next is told all"
        assert region.may_go() == [None, None]


@pytest.mark.parametrize("wrong", ["sender", "main", "group", "another one leads", "not seen"])
async def test_INV_THD1_only_the_present_main_leader_is_listened_to(wrong: str) -> None:
    region = Spreading()
    message = TellHolds(leader_epoch=EPOCH, group_epoch=LeaderEpoch(EPOCH + 1), number=1, holds=())
    session = cast("NodeSession", SimpleNamespace(member=OTHER if wrong == "sender" else MAIN))
    if wrong == "main":
        message = msgspec.structs.replace(message, leader_epoch=LeaderEpoch(EPOCH - 1))
    if wrong == "group":
        message = msgspec.structs.replace(message, group_epoch=EPOCH)
    if wrong == "another one leads":
        region.rows(EPOCH, LeaderEpoch(EPOCH + 1), member(3))
    if wrong == "not seen":  # the leaders were spread, and this node has not heard of it yet
        region.image = msgspec.structs.replace(region.image, spread=None)
    with pytest.raises(PeerRefused):
        await region.told._take(session, message, memoryview(b""))


@pytest.mark.parametrize(
    "error", [PeerUnreachable("cut", sent=False), PeerRefused("not-the-leader", "it is behind")]
)
async def test_INV_THD2_INV_THD3_all_have_to_be_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    region = Spreading()
    spread, third = region.image.spread, member(3)
    assert spread is not None
    row = msgspec.structs.replace(spread.groups[1], leader=third, leader_epoch=LeaderEpoch(EPOCH + 2))  # fmt: skip
    nobody = msgspec.structs.replace(row, leader=None, leader_epoch=LeaderEpoch(EPOCH + 3))
    groups = spread.groups | {2: row, 3: nobody}
    spread = msgspec.structs.replace(spread, groups=groups, preferred=(1, 2, 3, 4))
    region.image = msgspec.structs.replace(region.image, spread=spread)
    told: dict[Member, set[LogKey]] = {}

    async def call(to: Member, message: TellHolds, _type: object) -> None:
        told[to] = {hold.key for hold in message.holds}
        if to == third:
            raise error

    monkeypatch.setattr(region, "call", call)
    region.holds = {log.key: Hold(1, 1) for log in region.some.table}
    assert not await region.telling.tell()
    assert told == {
        who: {log.key for log in region.some.table if region.image.group_of(log.key) == number}
        for number, who in ((1, OTHER), (2, third))
        if any(region.image.group_of(log.key) == number for log in region.some.table)
    }, "each of its logs, and nobody who does not lead"
    assert third in told


async def test_INV_THD2_what_has_changed_is_told_and_told_again_until_it_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = Spreading()
    first, second = region.apart
    assert await region.telling.tell()
    assert await region.telling.tell()
    assert [len(told.holds) for told in region.sent] == [2], "nothing has changed since"
    region.holds = {first.key: Hold(9, 0)}
    region.is_cut = True
    assert not await region.telling.tell()
    assert region.may_go() == [Hold(0, 0)] * 2
    region.is_cut = False
    assert await region.telling.tell()
    assert [told.key for told in region.sent[-1].holds] == [first.key]
    assert region.may_go() == [Hold(9, 0), Hold(0, 0)]
    monkeypatch.setattr(told_holds, "LOGS_MAX", 1)
    region.holds = dict.fromkeys((first.key, second.key), Hold(10, 0))
    assert await region.telling.tell()
    assert region.may_go() == [Hold(10, 0)] * 2


async def test_INV_THD3_a_new_mirror_is_answered_once_all_data_leaders_hold_for_it() -> None:
    """1. No mirror is known: all may go. 2. One begins to copy. 3. A data leader has not heard of it."""
    region = Spreading()
    region.holds = dict.fromkeys((log.key for log in region.apart), None)
    assert await region.telling.tell()
    region.holds = {}
    region.is_cut = True
    for _ in range(2):
        with pytest.raises(PeerRefused):
            await region.telling.meet("us", region.note)
    region.is_cut = False
    await region.telling.meet("us", region.note)
    assert region.may_go() == [Hold(0, 0)] * 2
    sent = len(region.sent)
    await region.telling.meet("us", region.note)
    assert len(region.sent) == sent, "it is known"


async def test_INV_THD3_a_mirror_that_is_known_again_by_a_look_is_told_of_before_it_is_answered() -> (
    None
):
    """1. A mirror was gone for too long, and all may go. 2. It is heard, and a look knows it again, before it copies. 3. No data leader
    has heard of that."""
    region = Spreading()
    region.holds = dict.fromkeys((log.key for log in region.apart), None)
    assert await region.telling.tell()
    region.holds, region.is_cut = {}, True
    await region.note("us")
    assert not await region.telling.tell()
    with pytest.raises(PeerRefused):
        await region.telling.meet("us", region.met)
    region.is_cut = False
    await region.telling.meet("us", region.met)
    assert region.may_go() == [Hold(0, 0)] * 2
    region.is_cut = True
    await region.telling.meet("us", region.met)


async def test_INV_THD3_a_mirror_is_answered_at_once_where_nothing_was_told_without_it() -> None:
    region = Spreading()
    region.is_cut = True
    await region.telling.meet("us", region.note)
    region.is_cut = False
    assert await region.telling.tell()
    region.is_cut = True
    region.rows(LeaderEpoch(EPOCH + 5), LeaderEpoch(EPOCH + 6))
    region.leads_under = LeaderEpoch(EPOCH + 5)
    await region.telling.meet("asia", region.note)
    assert region.may_go() == [NOTHING_GOES] * 2


async def test_INV_THD4_what_comes_late_does_not_let_go_what_is_held_since() -> None:
    """1. All may go; the word of it is on its way. 2. A mirror begins to copy, which is told and confirmed. 3. The first word comes."""
    region = Spreading()
    region.holds, region.is_slow = dict.fromkeys((log.key for log in region.apart), None), True
    assert not await region.telling.tell()
    region.holds, region.is_slow = {}, False
    await region.telling.meet("us", region.note)
    assert region.may_go() == [Hold(0, 0)] * 2
    (late,) = region.on_the_way
    with pytest.raises(PeerRefused, match="overtaken"):
        await region.take(late)
    assert region.may_go() == [Hold(0, 0)] * 2


async def test_nothing_is_kept_of_a_topic_that_was_deleted() -> None:
    region = Spreading()
    assert await region.telling.tell()
    (listener,) = region.telling._listeners.values()
    assert len(region.told._told) == len(listener.confirmed) == 2
    region.image = msgspec.structs.replace(region.image, topics={})
    message = TellHolds(leader_epoch=EPOCH, group_epoch=LeaderEpoch(EPOCH + 1), number=7, holds=())
    await region.told._take(
        cast("NodeSession", SimpleNamespace(member=MAIN)), message, memoryview(b"")
    )
    region.some.table.close()
    region.telling._parts.partitions = tuple
    assert await region.telling.tell()
    assert len(region.told._told) == len(listener.confirmed) == 0


def test_T13_no_log_of_a_data_group_is_cleaned_while_it_is_in_one() -> None:
    region = Spreading()
    led = {log.key for log in of_main_group(region.image, region.some.table)}
    assert len(led) == 2
    assert led.isdisjoint(log.key for log in region.apart)


def test_INV_SCU3_a_copy_at_the_main_leader_keeps_what_mirrors_need_of_what_its_leader_has_deleted() -> (
    None
):
    some = fixture({"segment.bytes": "4096", "retention.ms": "-1"})
    copy = some.partition
    for _ in range(60):
        copy.writer.append(batch(size_bytes=400))
    some.sync()
    end = copy.log_end_offset
    copy.become_mirror()
    copy.commit_up_to(end)
    raise_start(copy, end)
    assert (copy.log_start_offset, copy.kept_from) == (end, 0)
    for hold, goes in (
        (Hold(0, 0), False),
        (Hold(end, 0), False),
        (Hold(10, 10), True),
        (None, True),
    ):
        before = copy.kept_from
        some.maintain(partial(_held, hold), keeps_rounds=lambda _: True)
        assert (copy.kept_from > before) == goes, hold
    assert copy.kept_from > 10


@pytest.mark.parametrize("keeps", [True, False])
async def test_INV_SCU4_only_where_no_cut_is_made_it_is_forgotten_where_rounds_begin(
    keeps: bool,
) -> None:
    """D of a copy is bound by a marker of an older leader epoch than what its leader writes under, for as long as a cut may ask (T7)."""
    some = fixture()
    copy = some.partition
    rounds = [Round(EPOCH << 32 | n) for n in (1, 2)]
    for offset, stamp in enumerate(rounds):
        copy.state._cut_index.record(stamp, offset)
    copy.writer.append(batch())
    some.sync()
    copy.log.epochs.note(LeaderEpoch(EPOCH + 1), copy.log_end_offset)
    copy.commit_up_to(copy.log_end_offset)
    some.maintain(lambda _: None, keeps_rounds=lambda _: keeps)
    assert copy.state.first_commit_marker(rounds[0]) == (0 if keeps else 1)


async def test_INV_THD1_who_does_not_lead_the_region_tells_nobody() -> None:
    region = Spreading()
    region.telling = TellingHolds(
        TellingParts(
            image=lambda: region.image, partitions=lambda: region.some.table, hold_of=partial(_held, None),
            mirrors=lambda: region.mirrors, leads_under=lambda: None, lines=region,
        )
    )  # fmt: skip
    assert not await region.telling.tell()
    assert region.sent == []


async def test_INV_THD3_a_mirror_that_all_know_is_answered_whoever_is_heard() -> None:
    region = Spreading()
    await region.telling.meet("us", region.note)
    assert region.mirrors == ["us"], "it is known, durably"
    assert await region.telling.tell()
    region.is_cut = True
    region.holds = {log.key: Hold(9, 9) for log in region.some.table}
    await region.telling.meet("us", region.note)
    assert region.mirrors == ["us", "us"]
    with pytest.raises(PeerRefused):
        await region.telling.meet("ap", region.note)
    with pytest.raises(PeerRefused):  # known by now, and not to all
        await region.telling.meet("ap", region.note)
