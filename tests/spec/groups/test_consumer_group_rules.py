"""One test per rule of the new group protocol: KIP-848, Kafka's GroupMetadataManagerTest, C42, T26.

The coordinator is the real one; clock, ledger and topics are the ports' fakes.
"""

import asyncio
from collections.abc import Collection
from typing import Any
from uuid import UUID

import pytest

from idempotency.fencing import FIRST_LEADER_EPOCH
from idempotency.identity import ProducerEpoch, ProducerId, RegionEpoch
from region_broker.groups.messages import CommitRequest, MemberIdentity, OffsetToCommit
from region_broker.groups.modern import heartbeat, target
from region_broker.groups.modern.messages import HeartbeatOutcome, HeartbeatRequest
from region_broker.groups.modern.patterns import resolver
from region_broker.groups.modern.patterns.resolver import Patterns
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.offset_service import Asker
from region_broker.groups.ports import TxnProducer
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.limits import GROUP_PATTERNS_MAX
from tests.unit.region_broker.groups.fakes import (
    Fixture,
    HeldMatching,
    HeldThreads,
    MemoryLedger,
    join_request,
    running,
    settle,
    stable_member,
    tp,
)

SESSION_MS = 45_000
PRODUCER = TxnProducer(ProducerId(7), ProducerEpoch(0))
Told = dict[UUID, frozenset[int]]


def fixture_of(partition_count: int = 4, **settings: Any) -> tuple[Fixture, UUID]:
    fixture = Fixture(**settings)
    return fixture, fixture.topics.put("orders", partition_count)


async def beat(fixture: Fixture, member_id: str, epoch: int, **said: Any) -> HeartbeatOutcome:
    joining: dict[str, Any] = {}
    if epoch == 0:
        joining = {"rebalance_timeout_ms": 60_000, "topic_names": ("orders",), "owned": {}}
    request = HeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=epoch, **(joining | said)
    )
    return await fixture.groups.consumer_heartbeat(request)


def own(topic_id: UUID, *partitions: int) -> Told:
    return {topic_id: frozenset(partitions)} if partitions else {}


def state(fixture: Fixture) -> str:
    return fixture.groups.describe_modern("g").state


def modern(fixture: Fixture) -> ConsumerGroup:
    return fixture.groups.shards[fixture.groups.shard_of("g")].table.modern["g"]


# --- reconciliation -------------------------------------------------------------------------------


# Holds INV-NC3.
async def test_KIP848_a_partition_is_given_only_after_its_owner_gave_it_back() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        first = await beat(fixture, "A", 0)
        assert (first.member_epoch, first.assignment) == (1, own(orders, 0, 1, 2, 3))
        second = await beat(fixture, "B", 0)
        assert (second.member_epoch, second.assignment) == (2, {})
        assert state(fixture) == "Reconciling"
        told = await beat(fixture, "A", 1)  # stays at its epoch until it has revoked
        assert (told.member_epoch, told.assignment) == (1, own(orders, 0, 1))
        waits = await beat(fixture, "B", 2)
        assert (waits.member_epoch, waits.assignment) == (2, None)
        still = await beat(fixture, "A", 1, owned=own(orders, 0, 1, 2, 3))
        assert (still.member_epoch, still.assignment) == (1, None)
        acknowledged = await beat(fixture, "A", 1, owned=own(orders, 0, 1))
        assert (acknowledged.member_epoch, acknowledged.assignment) == (2, None)
        given = await beat(fixture, "B", 2)
        assert (given.member_epoch, given.assignment) == (2, own(orders, 2, 3))
        assert state(fixture) == "Stable"
        fixture.assert_live_is_replay()


async def test_KIP848_a_heartbeat_without_news_writes_nothing() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        before = [len(shard) for shard in fixture.ledger.shards]
        for _ in range(3):
            assert (await beat(fixture, "A", 1)).assignment is None
        full = await beat(
            fixture, "A", 1, rebalance_timeout_ms=60_000, topic_names=("orders",),
            owned=own(orders, 0, 1, 2, 3),
        )  # fmt: skip
        assert full.assignment == own(orders, 0, 1, 2, 3)  # a full request is told all
        assert [len(shard) for shard in fixture.ledger.shards] == before


# Holds INV-ND2.
async def test_KIP848_nothing_is_answered_before_it_is_durable() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        fixture.ledger.hold()
        joining = asyncio.ensure_future(beat(fixture, "A", 0))  # noqa: TID251
        await settle()
        assert not joining.done()
        going_on = asyncio.ensure_future(beat(fixture, "A", 1))  # noqa: TID251
        await settle()
        assert not going_on.done()  # it changes nothing, but would tell of what may be lost
        fixture.ledger.release()
        assert (await joining).verdict is V.OK
        assert (await going_on).verdict is V.OK


async def test_KIP848_the_assignor_that_most_members_ask_for_is_used() -> None:
    fixture, _ = fixture_of()
    bills = fixture.topics.put("bills", 3)
    async with running(fixture):
        said: dict[str, Any] = {"topic_names": ("bills",), "assignor": "range"}
        await beat(fixture, "B", 0, **said)
        assert fixture.groups.describe_modern("g").assignor == "range"
        await beat(fixture, "A", 0, **said)
        await beat(fixture, "B", 1, owned=own(bills))
        assert (await beat(fixture, "A", 2)).assignment == own(
            bills, 0, 1
        )  # by member id, in stretches


# --- fencing --------------------------------------------------------------------------------------


# Holds INV-NH2.
async def test_KIP848_members_are_fenced_by_their_epoch() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        assert (await beat(fixture, "A", 3)).verdict is V.UNKNOWN_MEMBER  # no such group
        await beat(fixture, "A", 0)
        assert (await beat(fixture, "B", 1)).verdict is V.UNKNOWN_MEMBER
        assert (await beat(fixture, "A", 2)).verdict is V.FENCED_MEMBER_EPOCH
        await beat(fixture, "B", 0)
        await beat(fixture, "A", 1, owned={})  # at 2 now, and B has what it gave back
        lost = await beat(fixture, "A", 1, owned={})
        assert (lost.verdict, lost.member_epoch) == (V.OK, 2)
        more = await beat(fixture, "A", 1, owned=own(orders, 0, 1, 2, 3))
        assert more.verdict is V.FENCED_MEMBER_EPOCH
        assert (await beat(fixture, "A", 1)).verdict is V.FENCED_MEMBER_EPOCH  # says nothing
        assert (await beat(fixture, "A", 0)).verdict is V.FENCED_MEMBER_EPOCH


# Holds INV-NH2.
async def test_KIP848_a_join_whose_answer_was_lost_may_be_sent_again() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        for instance_id in (None, "i"):
            member_id = f"member-{instance_id}"
            first = await beat(fixture, member_id, 0, instance_id=instance_id)
            again = await beat(fixture, member_id, 0, instance_id=instance_id)
            assert again == first
            assert first.assignment == own(orders, 0, 1, 2, 3)
            assert (await beat(fixture, member_id, -1, instance_id=instance_id)).verdict is V.OK


@pytest.mark.parametrize(
    ("said", "verdict", "words"),
    [
        ({"instance_id": ""}, V.INVALID_REQUEST, "InstanceId can't be empty."),
        ({"rack_id": ""}, V.INVALID_REQUEST, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, V.INVALID_REQUEST, "RebalanceTimeoutMs must be provided"),
        ({"owned": None}, V.INVALID_REQUEST, "TopicPartitions must be empty"),
        ({"owned": {UUID(int=1): frozenset((1,))}}, V.INVALID_REQUEST, "must be empty"),
        ({"topic_names": None}, V.INVALID_REQUEST, "Either SubscribedTopicNames"),
        ({"member_id": "", "must_know_member_id": True}, V.INVALID_REQUEST, "MemberId can't be"),
        ({"epoch": -3}, V.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"epoch": -2}, V.INVALID_REQUEST, "InstanceId can't be null."),
        ({"member_id": "", "epoch": -1}, V.INVALID_REQUEST, "MemberId can't be empty."),
        ({"assignor": "bar"}, V.UNSUPPORTED_ASSIGNOR, "Supported assignors: uniform, range."),
        ({"topic_regex": "["}, V.INVALID_REGEX, "missing closing ]"),
        ({"member_id": "x" * 250}, V.REQUEST_TOO_LARGE, "249 bytes"),
        ({"topic_names": tuple(map(str, range(10_001)))}, V.REQUEST_TOO_LARGE, "use a pattern"),
    ],
)
async def test_KIP848_what_contradicts_itself_is_refused(
    said: dict[str, Any], verdict: V, words: str
) -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        asked: dict[str, Any] = {"member_id": "A", "epoch": 0} | said
        answer = await beat(fixture, **asked)
        assert answer.verdict is verdict
        assert answer.message is not None
        assert words in answer.message
        assert not any(fixture.ledger.shards)


# --- static members -------------------------------------------------------------------------------


# Holds INV-NH3.
async def test_KIP848_a_static_member_comes_back_to_what_it_had() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0, instance_id="i")
        await beat(fixture, "B", 0)
        await beat(fixture, "A", 1, owned=own(orders, 0, 1), instance_id="i")
        await beat(fixture, "B", 2)
        taken = await beat(fixture, "A2", 0, instance_id="i")
        assert taken.verdict is V.UNRELEASED_INSTANCE
        left = await beat(fixture, "A", -2, instance_id="i")
        assert (left.verdict, left.member_epoch) == (V.OK, -2)
        assert (await beat(fixture, "B", 2)).assignment is None  # nothing moves meanwhile
        back = await beat(fixture, "A2", 0, instance_id="i")
        assert (back.member_epoch, back.assignment) == (2, own(orders, 0, 1))
        assert (await beat(fixture, "A", 2, instance_id="i")).verdict is V.FENCED_INSTANCE
        assert (await beat(fixture, "A", -1, instance_id="i")).verdict is V.FENCED_INSTANCE
        assert (await beat(fixture, "A", 2)).verdict is V.UNKNOWN_MEMBER
        assert (await beat(fixture, "X", 2, instance_id="no")).verdict is V.UNKNOWN_MEMBER
        assert state(fixture) == "Stable"
        fixture.assert_live_is_replay()


async def test_KIP848_a_static_member_that_stays_away_loses_its_place_with_its_session() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0, instance_id="i")
        await beat(fixture, "A", -2, instance_id="i")
        await fixture.clock.advance(SESSION_MS - 1)
        assert len(fixture.groups.describe_modern("g").members) == 1
        await fixture.clock.advance(1)
        assert state(fixture) == "Empty"
        assert (await beat(fixture, "B", 0)).assignment == own(orders, 0, 1, 2, 3)


# --- time -----------------------------------------------------------------------------------------


async def test_KIP848_a_silent_member_is_fenced_and_its_partitions_go_to_others() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        await fixture.clock.advance(20_000)
        await beat(fixture, "B", 0)
        await fixture.clock.advance(SESSION_MS - 20_000)
        given = await beat(fixture, "B", 2)
        assert (given.member_epoch, given.assignment) == (3, own(orders, 0, 1, 2, 3))
        assert (await beat(fixture, "A", 1)).verdict is V.UNKNOWN_MEMBER
        fixture.assert_live_is_replay()


async def test_KIP848_a_member_that_does_not_revoke_in_time_is_fenced() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0, rebalance_timeout_ms=50_000)
        await beat(fixture, "B", 0)
        await beat(fixture, "A", 1)  # told to revoke: from here on
        for _ in range(4):
            await fixture.clock.advance(12_400)
            assert (await beat(fixture, "A", 1, owned=own(orders, 0, 1, 2, 3))).verdict is V.OK
            await beat(fixture, "B", 2)
        await fixture.clock.advance(400)
        assert (await beat(fixture, "A", 1)).verdict is V.UNKNOWN_MEMBER
        assert (await beat(fixture, "B", 2)).assignment == own(orders, 0, 1, 2, 3)


# --- topics ---------------------------------------------------------------------------------------


# Holds INV-ND3.
async def test_KIP848_topics_that_come_grow_and_go_begin_an_epoch() -> None:
    fixture, orders = fixture_of(2)
    async with running(fixture):
        names = ("orders", "bills")
        first = await beat(fixture, "A", 0, topic_names=names)
        assert first.assignment == own(orders, 0, 1)
        bills = fixture.topics.put("bills", 1)
        both = await beat(fixture, "A", 1)
        assert (both.member_epoch, both.assignment) == (2, own(orders, 0, 1) | own(bills, 0))
        fixture.topics.put("other", 1)
        assert (await beat(fixture, "A", 2)).member_epoch == 2
        fixture.topics.put("orders", 3, number=orders.int)
        grown = await beat(fixture, "A", 2)
        assert (grown.member_epoch, grown.assignment) == (3, own(orders, 0, 1, 2) | own(bills, 0))
        fixture.topics.drop("bills")
        shrunk = await beat(fixture, "A", 3)
        assert (shrunk.member_epoch, shrunk.assignment) == (3, own(orders, 0, 1, 2))
        done = await beat(fixture, "A", 3, owned=own(orders, 0, 1, 2))
        assert done.member_epoch == 4
        fixture.assert_live_is_replay()


async def test_KIP848_a_topic_created_again_is_another_topic() -> None:
    fixture, _ = fixture_of(1)
    async with running(fixture):
        await beat(fixture, "A", 0)
        again = fixture.topics.put("orders", 1, number=4711)
        told = await beat(fixture, "A", 1)
        assert told.assignment == {}
        done = await beat(fixture, "A", 1, owned={})
        assert done.assignment == own(again, 0)


# Holds INV-NX2.
async def test_KIP848_a_pattern_follows_the_topics_and_never_means_ledgers() -> None:
    fixture, orders = fixture_of(1)
    fixture.topics.put("__consumer_offsets", 4)
    async with running(fixture):
        first = await beat(fixture, "A", 0, topic_names=(), topic_regex=".*")
        assert first.assignment == own(orders, 0)
        bills = fixture.topics.put("bills", 1)
        both = await beat(fixture, "A", 1)
        assert both.assignment == own(orders, 0) | own(bills, 0)
        fewer = await beat(fixture, "A", 2, topic_regex="b.*")
        assert fewer.assignment == own(bills, 0)
        none = await beat(fixture, "A", 2, topic_regex="", owned=own(bills, 0))
        assert fixture.groups.describe_modern("g").members[0].topic_regex is None
        assert none.assignment == {}
        fixture.assert_live_is_replay()


# Holds INV-NX1.
async def test_KIP848_a_pattern_over_many_topics_is_resolved_in_a_thread() -> None:
    fixture = Fixture()
    wanted = {fixture.topics.put(f"orders-{number:04}", 1) for number in range(300)}
    for number in range(300):
        fixture.topics.put(f"other-{number}", 1)
    async with running(fixture):
        joined = await beat(fixture, "A", 0, topic_names=(), topic_regex=r"(orders|none){1,30}-\d+")
        assert set(joined.assignment or {}) == wanted


async def test_INV_NX6_a_group_has_few_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    fixture, _ = fixture_of(1)
    async with running(fixture):
        for number in range(GROUP_PATTERNS_MAX):
            joined = await beat(
                fixture, f"M{number}", 0, topic_names=(), topic_regex=f"o.*{number}"
            )
            assert joined.verdict is V.OK
        with monkeypatch.context() as patched:
            patched.setattr(Patterns, "resolve", None)  # it is not looked up either
            refused = await beat(fixture, "N", 0, topic_names=(), topic_regex="another")
        assert refused.verdict is V.INVALID_REGEX
        assert str(GROUP_PATTERNS_MAX) in (refused.message or "")
        assert len(fixture.groups.describe_modern("g").members) == GROUP_PATTERNS_MAX
        same = await beat(fixture, "N", 0, topic_names=(), topic_regex="o.*7")
        assert same.verdict is V.OK
        changed = await beat(fixture, "N", same.member_epoch, topic_regex="o.*8")
        assert changed.verdict is V.OK
        fixture.assert_live_is_replay()


async def test_INV_NX6_members_of_a_group_with_more_patterns_keep_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older version let them in; clients send all that they have again after an error, and take a refusal for final."""
    fixture, _ = fixture_of(1)
    async with running(fixture):
        told = {}
        for number in range(4):
            told[number] = await beat(fixture, f"M{number}", 0, topic_names=(), topic_regex=f"o.*{number}")  # fmt: skip
        monkeypatch.setattr(heartbeat, "GROUP_PATTERNS_MAX", 2)
        again = await beat(fixture, "M3", told[3].member_epoch, topic_regex="o.*3")
        assert again.verdict is V.OK
        other = await beat(fixture, "M3", again.member_epoch, topic_regex="another")
        assert other.verdict is V.INVALID_REGEX


async def test_INV_NX6_of_two_patterns_that_come_together_only_one_is_the_last() -> None:
    fixture, _ = fixture_of(1)
    async with running(fixture):
        for number in range(GROUP_PATTERNS_MAX - 1):
            await beat(fixture, f"M{number}", 0, topic_names=(), topic_regex=f"o.*{number}")
        joins = [beat(fixture, name, 0, topic_names=(), topic_regex=name) for name in ("x", "y")]
        joined = await asyncio.gather(*joins)
        assert [each.verdict for each in joined] == [V.OK, V.INVALID_REGEX]


@pytest.mark.parametrize("group", ["one that is there", "none"])
async def test_INV_NX6_no_pattern_is_looked_up_for_who_is_no_member(
    monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    async def resolve(_self: Patterns, *_said: Any) -> None:
        raise AssertionError("it was looked up")

    fixture, _ = fixture_of(1)
    async with running(fixture):
        if group != "none":
            await beat(fixture, "A", 0)
        monkeypatch.setattr(Patterns, "resolve", resolve)
        for epoch in (1, 7, -1):
            told = await beat(fixture, "nobody", epoch, topic_regex=".*")
            assert told.verdict is V.UNKNOWN_MEMBER


async def test_INV_NX8_a_heartbeat_does_not_wait_for_patterns_that_take_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. Patterns of other groups take long. 2. A topic comes, so all are looked up again, one at a time. 3. The heartbeats of
    all members waited for that, and their sessions ended meanwhile.
    """
    threads = HeldThreads(monkeypatch)
    threads.let_go()
    monkeypatch.setattr(resolver, "INLINE_STEPS_MAX", 0)
    fixture, orders = fixture_of(1)
    async with running(fixture), asyncio.timeout(20):
        first = await beat(fixture, "A", 0, topic_names=(), topic_regex=".*")
        assert first.assignment == own(orders, 0)
        threads.hold()
        bills = fixture.topics.put("bills", 1)
        fixture.topics.put("orders", 2, number=orders.int)
        grown = await beat(fixture, "A", 1)
        assert (grown.member_epoch, grown.assignment) == (2, own(orders, 0, 1)), "it knows that one"
        for _ in range(4):
            await fixture.clock.advance(SESSION_MS // 2)
            told = await beat(fixture, "A", 2)
            assert (told.verdict, told.member_epoch, told.assignment) == (V.OK, 2, None)
        threads.let_go()
        await settle()
        both = await beat(fixture, "A", 2)
        assert (both.member_epoch, both.assignment) == (3, own(orders, 0, 1) | own(bills, 0))
        assert threads.begun == 2
        fixture.assert_live_is_replay()


async def test_INV_NX9_groups_end_though_a_pattern_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A topic comes, and a tenant's pattern takes minutes. 2. The region switches, or the node stops: each waits for the end of its groups."""
    matching = HeldMatching(monkeypatch)
    fixture = Fixture()
    for name in "abc":
        fixture.topics.put(name, 1)
    async with asyncio.TaskGroup() as tasks:
        service = tasks.create_task(fixture.groups.run())
        await settle()
        await fixture.groups.load()
        assert (await beat(fixture, "A", 0, topic_names=(), topic_regex=".*")).verdict is V.OK
        matching.hold()
        fixture.topics.put("d", 1)
        assert (await beat(fixture, "A", 1)).verdict is V.OK
        await matching.begun.wait()
        await fixture.groups.resign()
        service.cancel()
        await settle()
        matching.let_go()
    assert matching.looked == ["a"]


async def test_INV_NX10_what_fails_behind_a_heartbeat_is_begun_again_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that has no thread to spare for a moment ended, with all its groups."""
    monkeypatch.setattr(resolver, "INLINE_STEPS_MAX", -1)
    fixture, orders = fixture_of(1)
    async with running(fixture):
        await beat(fixture, "A", 0, topic_names=(), topic_regex=".*")
        bills = fixture.topics.put("bills", 1)
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "to_thread", _no_thread)
            assert (await beat(fixture, "A", 1)).assignment is None
            await settle()
        assert "can't start new thread" in caplog.text
        HeldThreads(monkeypatch).let_go()
        assert (await beat(fixture, "A", 1)).assignment is None
        await settle()
        both = await beat(fixture, "A", 1)
        assert both.assignment == own(orders, 0) | own(bills, 0)
        fixture.assert_live_is_replay()


async def _no_thread(*_said: Any) -> None:
    raise RuntimeError("can't start new thread")


async def test_INV_ND5_a_member_is_heard_before_its_pattern_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = HeldThreads(monkeypatch)
    monkeypatch.setattr(resolver, "INLINE_STEPS_MAX", 0)
    fixture, _ = fixture_of(1)
    async with running(fixture):
        await beat(fixture, "A", 0)
        await fixture.clock.advance(SESSION_MS - 1)
        async with asyncio.TaskGroup() as tasks:
            changing = tasks.create_task(beat(fixture, "A", 1, topic_regex="o.*"))
            await fixture.clock.advance(SESSION_MS - 1)
            threads.let_go()
        assert changing.result().verdict is V.OK


async def test_INV_NX8_a_group_that_knows_its_patterns_needs_nobody_else_to_remember_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand patterns are remembered: those of one tenant took the place of all others', which were looked up again and again."""
    monkeypatch.setattr(resolver, "COMPILED_MAX", 0)
    fixture, orders = fixture_of(1)
    async with running(fixture):
        await beat(fixture, "A", 0, topic_names=(), topic_regex=".*")
        await fixture.groups._modern._watch._patterns.resolve("another", ["a", "b"])
        monkeypatch.setattr(Patterns, "resolve", None)
        told = await beat(fixture, "A", 1, topic_regex=".*", topic_names=(), owned=own(orders, 0))
        assert (told.verdict, told.member_epoch) == (V.OK, 1)


async def test_INV_NN2_a_heartbeat_without_news_looks_up_no_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member that waits for another one's partitions looked up all that its group names, with each heartbeat."""
    looked: list[int] = []
    shapes = target.shapes

    def counted(names: Collection[str], view: target.TopicView) -> Any:
        looked.append(len(names))
        return shapes(names, view)

    monkeypatch.setattr(target, "shapes", counted)
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        await beat(fixture, "B", 0)
        looked.clear()
        for _ in range(5):
            assert (await beat(fixture, "B", 2)).member_epoch == 2
        assert looked == []
        fixture.topics.put("orders", 6, number=orders.int)
        assert (await beat(fixture, "B", 2)).member_epoch == 3
        assert looked
        fixture.assert_live_is_replay()


@pytest.mark.parametrize("letters", [10, 20])
async def test_INV_NN3_what_patterns_stand_for_comes_with_as_many_heartbeats_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, letters: int
) -> None:
    """Twenty patterns that stand for all of 27,000 topics with long names were more than a node copies from another at once; and a
    group whose members had come one by one was refused as a whole once a topic came that all of them match.
    """
    monkeypatch.setattr(target, "GROUP_RESOLVED_BYTES_MAX", letters)
    fixture, _ = fixture_of(1)
    async with running(fixture):
        epochs = dict[str, int]()
        for member_id, pattern in (("A", ".*"), ("B", "o.*"), ("C", "or.*")):
            joined = await beat(fixture, member_id, 0, topic_names=(), topic_regex=pattern)
            epochs[member_id] = joined.member_epoch
        fixture.topics.put("others", 1)
        left = [{"o.*"}, set[str](), set[str]()]
        for member_id, missing in zip("ABC", left, strict=True):
            group_epoch = modern(fixture).group_epoch
            told = await beat(fixture, member_id, epochs[member_id])
            assert told.verdict is V.OK
            assert modern(fixture).group_epoch - group_epoch == (member_id != "C")
            known = {each for each, value in modern(fixture).regexes.items() if "others" in value.topic_names}  # fmt: skip
            assert known == {".*", "o.*"} - missing
        before = fixture.ledger.batches
        joined = await beat(fixture, "D", 0, topic_names=(), topic_regex="oth.*")
        assert modern(fixture).regexes["oth.*"].topic_names == ("others",)
        assert fixture.ledger.batches == before + 1
        fixture.assert_live_is_replay()


async def test_INV_NN3_a_member_that_comes_gets_what_its_own_pattern_stands_for_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(target, "GROUP_RESOLVED_BYTES_MAX", 20)
    fixture, _ = fixture_of(1)
    async with running(fixture):
        for member_id, pattern in (("A", "(a|o).*"), ("B", "(b|o).*")):
            await beat(fixture, member_id, 0, topic_names=(), topic_regex=pattern)
        others = fixture.topics.put("others", 3)
        joined = await beat(fixture, "C", 0, topic_names=(), topic_regex="o.*")
        assert joined.assignment == own(others, 0, 1, 2), "nobody else knows of it yet"
        for _ in range(2):
            assert (await beat(fixture, "C", joined.member_epoch)).verdict is V.OK
        assert {each.topic_names for each in modern(fixture).regexes.values()} == {("orders", "others")}  # fmt: skip
        fixture.assert_live_is_replay()


async def test_INV_ND4_a_member_that_does_not_say_what_it_reads_is_written_again_once_at_a_time() -> (
    None
):
    """Its record has all that it subscribes to, a MiB at most: each heartbeat of a hundred bytes with another time-out wrote one."""
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0, instance_id="i")
        fixture.ledger.hold()
        before = fixture.ledger.batches
        async with asyncio.TaskGroup() as tasks:
            beats = [
                tasks.create_task(
                    beat(fixture, "A", 1, instance_id="i", rebalance_timeout_ms=1 + number % 2)
                )
                for number in range(50)
            ]
            await settle()
            assert fixture.ledger.batches == before + 1
            fixture.ledger.release()
        assert {each.result().verdict for each in beats} == {V.OK}
        assert fixture.groups.shards[fixture.groups.shard_of("g")].table.modern["g"].metadata[
            "A"
        ].rebalance_timeout_ms in (1, 2)
        fixture.assert_live_is_replay()


# --- life of a group ------------------------------------------------------------------------------


async def test_KIP848_a_group_goes_on_after_a_restart_with_fresh_sessions() -> None:
    ledger = MemoryLedger()
    fixture = Fixture(ledger)
    orders = fixture.topics.put("orders", 4)
    async with running(fixture):
        await beat(fixture, "A", 0, rebalance_timeout_ms=20_000)
        await beat(fixture, "B", 0)
        await beat(fixture, "A", 1)
    again = Fixture(ledger)
    again.topics.put("orders", 4)
    async with running(again):
        assert state(again) == "Reconciling"
        assert (await beat(again, "B", 2)).verdict is V.OK
        await again.clock.advance(19_999)
        kept = await beat(again, "A", 1, owned=own(orders, 0, 1))
        assert kept.member_epoch == 2
        assert (await beat(again, "B", 2)).assignment == own(orders, 2, 3)
        await again.clock.advance(SESSION_MS)
        assert state(again) == "Empty"


# Holds INV-NB3.
async def test_KIP848_an_empty_classic_group_becomes_one_of_the_new_protocol_and_back() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        joined = await stable_member(fixture)
        commit = CommitRequest(
            group_id="g",
            offsets=(OffsetToCommit(tp(), 5),),
            who=MemberIdentity(joined.member_id),
            generation=joined.generation,
        )
        assert (await fixture.groups.commit_offsets(commit)).verdict is V.OK
        await fixture.groups.leave("g", [MemberIdentity(joined.member_id)])
        assert (await beat(fixture, "A", 0)).assignment == own(orders, 0, 1, 2, 3)
        assert fixture.groups.describe("g").state == "Dead"
        assert (await fetched(fixture)) == [5]  # offsets stay
        fixture.assert_live_is_replay()
        await beat(fixture, "A", -1)
        await stable_member(fixture)
        assert fixture.groups.describe_modern("g").verdict is V.GROUP_NOT_FOUND
        assert (await fetched(fixture)) == [5]
        fixture.assert_live_is_replay()


async def test_KIP848_a_failed_ledger_ends_the_service_of_its_shard() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        fixture.ledger.fail()
        assert (await beat(fixture, "B", 0)).verdict is V.NOT_AVAILABLE
        assert (await beat(fixture, "A", 1)).verdict is V.NOT_AVAILABLE


async def test_KIP848_an_empty_group_expires_with_its_offsets() -> None:
    fixture, _ = fixture_of(offsets_retention_ms=100_000)
    async with running(fixture):
        await beat(fixture, "A", 0)
        request = commit_of("A", 1)
        assert (await fixture.groups.commit_offsets(request)).verdict is V.OK
        await fixture.clock.advance(30_000)
        await beat(fixture, "A", 1)
        await fixture.groups.expire_offsets()
        assert await fetched(fixture) == [5]
        await beat(fixture, "A", -1)
        await fixture.clock.advance(100_000)
        await fixture.groups.expire_offsets()
        assert await fetched(fixture) == [-1]
        assert fixture.groups.list() == (V.OK, [])
        fixture.assert_live_is_replay()


@pytest.mark.parametrize("how", ["its member leaves", "a takeover", "a classic member comes"])
async def test_C45_offsets_of_a_group_of_the_new_protocol_age_from_when_it_was_empty(
    how: str,
) -> None:
    fixture, _ = fixture_of(offsets_retention_ms=100_000, initial_rebalance_delay_ms=3_000)
    async with running(fixture):
        await beat(fixture, "A", 0)
        assert (await fixture.groups.commit_offsets(commit_of("A", 1))).verdict is V.OK
        for _ in range(20):  # the group lives on, there is nothing new to commit
            await fixture.clock.advance(10_000)
            assert (await beat(fixture, "A", 1)).verdict is V.OK
        if how == "a takeover":
            await fixture.groups.clamp({})
        else:
            await beat(fixture, "A", -1)
        if how == "a classic member comes":  # and goes, before it is in a generation
            async with asyncio.TaskGroup() as tasks:
                joining = tasks.create_task(fixture.groups.join("g", join_request()))
                await settle()
                await fixture.groups.resign()
            assert joining.result().verdict is V.NOT_COORDINATOR
        await fixture.groups.load()  # only what the ledger says
        await fixture.clock.advance(99_999)
        await fixture.groups.expire_offsets()
        assert await fetched(fixture) == [5]
        await fixture.clock.advance(1)
        await fixture.groups.expire_offsets()
        assert await fetched(fixture) == [-1]
        fixture.assert_live_is_replay()


# --- offsets --------------------------------------------------------------------------------------


def commit_of(member_id: str, epoch: int, **changes: Any) -> CommitRequest:
    return CommitRequest(
        group_id="g",
        offsets=(OffsetToCommit(tp(), 5, changes.pop("leader_epoch", -1)),),
        who=MemberIdentity(member_id),
        generation=epoch,
        **changes,
    )


async def fetched(fixture: Fixture, asker: Asker | None = None) -> list[int] | V:
    outcome = await fixture.groups.fetch_offsets(
        "g", [tp()], require_stable=False, asker=asker or Asker()
    )
    if outcome.verdict is not V.OK:
        return outcome.verdict
    return [place.committed_offset for place in outcome.offsets]


# Holds INV-NM1.
async def test_C42_offsets_are_committed_at_the_members_epoch_only() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)

        async def verdict(member_id: str, epoch: int, *, staged: bool = False) -> V:
            request = commit_of(member_id, epoch)
            if staged:
                return (await fixture.groups.txn_commit_offsets(request, PRODUCER)).verdict
            return (await fixture.groups.commit_offsets(request)).verdict

        assert await verdict("A", 1) is V.OK
        assert await verdict("A", 0) is V.STALE_MEMBER_EPOCH
        assert await verdict("A", 2) is V.STALE_MEMBER_EPOCH
        assert await verdict("B", 1) is V.UNKNOWN_MEMBER
        assert await verdict("", -1) is V.UNKNOWN_MEMBER
        assert await verdict("A", 1, staged=True) is V.OK
        assert await verdict("A", 0, staged=True) is V.ILLEGAL_GENERATION
        assert await verdict("B", 1, staged=True) is V.UNKNOWN_MEMBER
        assert await verdict("", -1, staged=True) is V.OK  # before v3, which knows no generation
        await beat(fixture, "A", -1)
        assert await verdict("", -1) is V.OK  # an administrator, while nobody is there
        assert await verdict("A", 1) is V.UNKNOWN_MEMBER


async def test_KIP848_offsets_are_told_to_members_of_their_epoch() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        await fixture.groups.commit_offsets(commit_of("A", 1))
        assert await fetched(fixture) == [5]
        assert await fetched(fixture, Asker("A", 1)) == [5]
        assert await fetched(fixture, Asker("A", 0)) is V.STALE_MEMBER_EPOCH
        assert await fetched(fixture, Asker("B", 1)) is V.UNKNOWN_MEMBER


# --- T26 ------------------------------------------------------------------------------------------


async def test_T26_member_epochs_of_two_takeovers_from_one_cut_never_meet() -> None:
    given = []
    for region_epoch in (17, 26):
        fixture, _ = fixture_of()
        async with running(fixture):
            await beat(fixture, "A", 0)
            await fixture.groups.clamp({}, region_epoch=RegionEpoch(region_epoch))
            given.append((await beat(fixture, "A", 0)).member_epoch >> 16)
    assert given == [17, 26]


async def test_T26_members_of_the_lost_region_rejoin_and_commit_nothing_old() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        await fixture.groups.commit_offsets(commit_of("A", 1))
        report = await fixture.groups.clamp({tp(): 3})
        assert report.emptied == ["g"]
        assert await fetched(fixture) == [3]
        assert (await beat(fixture, "A", 1)).verdict is V.UNKNOWN_MEMBER
        assert (await fixture.groups.commit_offsets(commit_of("A", 1))).verdict is V.UNKNOWN_MEMBER
        back = await beat(fixture, "A", 0)
        assert (back.member_epoch, back.assignment) == (2**16 + 2, own(orders, 0, 1, 2, 3))
        stale = await fixture.groups.commit_offsets(commit_of("A", 1))
        assert stale.verdict is V.STALE_MEMBER_EPOCH
        fixture.assert_live_is_replay()


# Holds INV-GV2.
async def test_T26_a_commit_beyond_the_cut_is_refused_though_its_epoch_is_known_again() -> None:
    """The group was made in the lost region, behind the cut: here its epochs begin anew."""
    fixture, _ = fixture_of()
    async with running(fixture):
        epoch = FIRST_LEADER_EPOCH + 7
        fixture.ends.ends[tp(), epoch] = 4
        await beat(fixture, "A", 0)
        outcome = await fixture.groups.commit_offsets(commit_of("A", 1, leader_epoch=epoch))
        assert outcome.of(tp()) is V.OFFSET_BEYOND_EPOCH


async def test_INV_NN1_the_members_of_a_group_name_a_bounded_number_of_topics_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only their letters were counted: a thousand members could name 2.8 million topics of three, looked up at each change."""
    monkeypatch.setattr(heartbeat, "GROUP_TOPIC_NAMES_MAX", 5)
    fixture, _ = fixture_of()
    async with running(fixture):
        assert (await beat(fixture, "A", 0, topic_names=("a", "b", "c"))).verdict is V.OK
        assert (await beat(fixture, "B", 0, topic_names=("a", "b"))).verdict is V.OK
        refused = await beat(fixture, "C", 0, topic_names=("a",))
        assert refused.verdict is V.REQUEST_TOO_LARGE
        assert "6 topics" in (refused.message or "")
        again = await beat(
            fixture, "A", 1, topic_names=("x", "y", "z")
        )  # instead of what it named before
        assert again.verdict is V.OK
