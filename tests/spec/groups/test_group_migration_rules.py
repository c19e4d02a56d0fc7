"""Groups that change their protocol, and members of both in one group (KIP-848, "Online migration").

What members say is written by hand, after ConsumerProtocolSubscription and ConsumerProtocolAssignment.
"""

import asyncio
import struct
import threading
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from idempotency.pieces import drained
from region_broker.groups.messages import (
    CommitRequest,
    JoinOutcome,
    MemberIdentity,
    OffsetToCommit,
    SyncOutcome,
    SyncRequest,
)
from region_broker.groups.modern.consumer_protocol import (
    MalformedProtocol,
    Subscription,
    assignment_said,
    subscription_said,
    topic_names_said,
)
from region_broker.groups.modern.messages import ModernMemberDescription
from region_broker.groups.modern.patterns import resolver
from region_broker.groups.modern.patterns.resolver import Patterns
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.wire.cooperative_yield import CooperativeYield
from tests.spec.groups.test_consumer_group_rules import (
    SESSION_MS,
    Told,
    beat,
    fixture_of,
    own,
    state,
)
from tests.unit.region_broker.groups.fakes import Fixture, join_request, running, settle, tp

NOBODY: dict[str, tuple[int, ...]] = {}


def read_subscription(raw: bytes) -> Subscription:
    return drained(subscription_said(raw, CooperativeYield()))


def read_assignment(raw: bytes) -> Mapping[str, frozenset[int]]:
    return drained(assignment_said(raw, CooperativeYield()))


def read_topic_names(raw: bytes) -> tuple[str, ...]:
    return drained(topic_names_said(raw, CooperativeYield()))


def named(name: str) -> bytes:
    return struct.pack(">h", len(name)) + name.encode()


def parts(held: dict[str, tuple[int, ...]]) -> bytes:
    out = struct.pack(">i", len(held))
    for name, numbers in held.items():
        out += named(name) + struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers)
    return out


def subscription(owned: dict[str, tuple[int, ...]] = NOBODY, topic: str = "orders") -> bytes:
    """Return version 1: topics, no user data, what is owned."""
    return struct.pack(">hi", 1, 1) + named(topic) + struct.pack(">i", -1) + parts(owned)


def assignment(*numbers: int) -> bytes:
    """Return version 1: partitions of `orders`, no user data."""
    held = {"orders": numbers} if numbers else NOBODY
    return struct.pack(">h", 1) + parts(held) + struct.pack(">i", -1)


async def join(
    fixture: Fixture,
    member_id: str = "",
    owned: tuple[int, ...] = (),
    instance_id: str | None = None,
) -> JoinOutcome:
    offered = (("cooperative-sticky", subscription({"orders": owned} if owned else NOBODY)),)
    return await fixture.groups.join(
        "g", join_request(member_id, protocols=offered, instance_id=instance_id)
    )


async def sync(
    fixture: Fixture, joined: JoinOutcome, assigned: dict[str, bytes] | None = None
) -> SyncOutcome:
    return await fixture.groups.sync(
        "g",
        SyncRequest(
            member_id=joined.member_id,
            instance_id=None,
            generation=joined.generation,
            protocol_type="consumer",
            protocol_name="cooperative-sticky",
            assignments=tuple((assigned or {}).items()),
        ),
    )


async def classic_group(fixture: Fixture) -> JoinOutcome:
    """Return the only member of a classic group: it has all four partitions."""
    joined = await join(fixture)
    assert joined.leader == joined.member_id
    synced = await sync(fixture, joined, {joined.member_id: assignment(0, 1, 2, 3)})
    assert synced.assignment == assignment(0, 1, 2, 3)
    return joined


def members(fixture: Fixture) -> tuple[ModernMemberDescription, ...]:
    return fixture.groups.describe_modern("g").members


async def alive(fixture: Fixture, joined: JoinOutcome) -> V:
    who = MemberIdentity(joined.member_id)
    return await fixture.groups.heartbeat("g", who, joined.generation)


# --- upgrade --------------------------------------------------------------------------------------


async def test_KIP848_a_member_of_the_new_protocol_upgrades_the_group() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        old = await classic_group(fixture)
        new = await beat(fixture, "B", 0)
        assert (new.member_epoch, new.assignment) == (old.generation + 1, {})
        assert state(fixture) == "Reconciling"
        fixture.assert_live_is_replay()
        # The classic member is told to rejoin; it says that it owns all, and is left two.
        assert await alive(fixture, old) is V.REBALANCE_IN_PROGRESS
        again = await join(fixture, old.member_id, (0, 1, 2, 3))
        assert (again.verdict, again.generation, again.leader) == (V.OK, old.generation, "")
        assert (await sync(fixture, again)).assignment == assignment(0, 1)
        assert (
            await beat(fixture, "B", new.member_epoch)
        ).assignment is None  # nothing is free yet
        # It has revoked two, and says so by rejoining.
        assert await alive(fixture, again) is V.REBALANCE_IN_PROGRESS
        last = await join(fixture, old.member_id, (0, 1))
        assert last.generation == new.member_epoch
        assert (await sync(fixture, last)).assignment == assignment(0, 1)
        assert await alive(fixture, last) is V.OK
        given = await beat(fixture, "B", new.member_epoch)
        assert given.assignment == own(orders, 2, 3)
        assert state(fixture) == "Stable"
        kinds = {each.member_id: each.is_classic for each in members(fixture)}
        assert kinds == {old.member_id: True, "B": False}
        fixture.assert_live_is_replay()


async def test_KIP848_a_classic_member_waits_until_its_partitions_are_free() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        asked = await fixture.groups.join(
            "g", join_request(protocols=(("r", subscription()),), must_know_member_id=True)
        )
        assert asked.verdict is V.MEMBER_ID_REQUIRED
        joined = await join(fixture, asked.member_id)
        assert (joined.verdict, joined.generation) == (V.OK, 2)
        assert (await sync(fixture, joined)).assignment == assignment()
        assert await alive(fixture, joined) is V.OK  # waits: B has not given anything back
        told = await beat(fixture, "B", 1, owned=own(orders, 0, 1, 2, 3))
        kept: Told = dict(told.assignment or {})
        await beat(fixture, "B", 1, owned=kept)
        assert await alive(fixture, joined) is V.REBALANCE_IN_PROGRESS
        again = await join(fixture, joined.member_id)
        free = sorted({0, 1, 2, 3} - kept[orders])
        assert (await sync(fixture, again)).assignment == assignment(*free)
        assert state(fixture) == "Stable"


async def test_KIP848_a_classic_member_that_is_behind_its_group_gets_no_assignment() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        joined = await classic_group(fixture)
        await beat(fixture, "B", 0)
        assert (await sync(fixture, joined)).verdict is V.REBALANCE_IN_PROGRESS


async def test_KIP848_members_who_wait_in_a_join_are_sent_to_rejoin_by_the_upgrade() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await classic_group(fixture)
        waiting = asyncio.ensure_future(join(fixture))  # noqa: TID251
        await settle()
        assert not waiting.done()  # for the first member
        assert (await beat(fixture, "B", 0)).verdict is V.OK
        assert (await waiting).verdict is V.REBALANCE_IN_PROGRESS


async def test_KIP848_a_group_that_is_not_of_consumers_keeps_its_protocol() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        request = join_request(protocol_type="connect", protocols=(("v", b"x"),))
        assert (await fixture.groups.join("g", request)).verdict is V.OK
        refused = await beat(fixture, "B", 0)
        assert refused.verdict is V.GROUP_NOT_FOUND
        assert refused.message is not None
        assert "connect" in refused.message
        fixture.assert_live_is_replay()


# --- members of both ------------------------------------------------------------------------------


async def test_KIP848_classic_members_are_judged_by_generation() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        joined = await join(fixture)
        who = MemberIdentity(joined.member_id)
        groups = fixture.groups
        assert await groups.heartbeat("g", who, joined.generation + 1) is V.ILLEGAL_GENERATION
        assert await groups.heartbeat("g", MemberIdentity("X"), 2) is V.UNKNOWN_MEMBER
        assert await groups.heartbeat("g", MemberIdentity("B"), 1) is V.UNKNOWN_MEMBER
        assert await groups.heartbeat("g", MemberIdentity("X", "i"), 2) is V.UNKNOWN_MEMBER
        for generation, verdict in ((2, V.OK), (1, V.ILLEGAL_GENERATION)):
            commit = CommitRequest(
                group_id="g", offsets=(OffsetToCommit(tp(), 5),), who=who, generation=generation,
                knows_epochs=False,
            )  # fmt: skip
            assert (await groups.commit_offsets(commit)).verdict is verdict
        other = join_request(protocols=(("range", subscription()),))
        assert (await groups.join("g", other)).verdict is V.INCONSISTENT_PROTOCOL
        broken = join_request(protocols=(("cooperative-sticky", b"\0\1\0"),))
        assert (await groups.join("g", broken)).verdict is V.INCONSISTENT_PROTOCOL
        left = await groups.leave("g", [who, MemberIdentity("B"), MemberIdentity("X")])
        assert left.members == (V.OK, V.UNKNOWN_MEMBER, V.UNKNOWN_MEMBER)
        assert [each.member_id for each in members(fixture)] == ["B"]
        fixture.assert_live_is_replay()


@pytest.mark.parametrize("sin", ["silent", "does not rejoin", "does not sync"])
async def test_KIP848_classic_members_are_fenced_by_their_own_times(sin: str) -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        joined = await join(fixture)
        if sin != "does not sync":
            await sync(fixture, joined)
        if sin == "does not rejoin":
            await beat(fixture, "C", 0)
            assert await alive(fixture, joined) is V.REBALANCE_IN_PROGRESS
        limit_ms = 10_000 if sin == "silent" else 60_000
        for _ in range(limit_ms // 5_000 - 1):
            await fixture.clock.advance(5_000)
            if sin != "silent":
                await alive(fixture, joined)
            for each in members(fixture):
                if not each.is_classic:
                    await beat(fixture, each.member_id, each.member_epoch)
        await fixture.clock.advance(4_999)
        assert joined.member_id in {each.member_id for each in members(fixture)}
        await fixture.clock.advance(1)
        assert joined.member_id not in {each.member_id for each in members(fixture)}


async def test_KIP848_a_classic_member_that_beats_stays() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        joined = await join(fixture)
        await sync(fixture, joined)
        await beat(fixture, "B", 1, owned=own(orders, 0, 1))
        joined = await join(fixture, joined.member_id)
        await sync(fixture, joined)
        for _ in range(20):  # longer than every time-out
            await fixture.clock.advance(5_000)
            assert (await beat(fixture, "B", 2)).verdict is V.OK
            assert await alive(fixture, joined) is V.OK


async def test_KIP848_a_static_member_may_change_its_protocol_without_leaving() -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        old = await join(fixture, instance_id="i")
        taken = await beat(fixture, "N", 0, instance_id="i")
        assert taken.verdict is V.OK
        assert {each.member_id for each in members(fixture)} == {"B", "N"}
        assert await alive(fixture, old) is V.UNKNOWN_MEMBER
        back = await join(fixture, instance_id="i")
        assert back.verdict is V.OK
        assert {each.member_id: each.is_classic for each in members(fixture)} == {
            "B": False,
            back.member_id: True,
        }
        fixture.assert_live_is_replay()
        assert orders in fixture.groups.describe_modern("g").members[0].target


async def test_KIP345_a_static_member_that_was_replaced_never_takes_its_place_back() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        older = await join(fixture, instance_id="i")
        newer = await join(fixture, instance_id="i")  # another process with the same instance id
        assert (newer.verdict, newer.member_id != older.member_id) == (V.OK, True)
        before = members(fixture)
        assert (await join(fixture, older.member_id, instance_id="i")).verdict is V.FENCED_INSTANCE
        assert members(fixture) == before
        await beat(fixture, "N", 0, instance_id="i")
        await beat(fixture, "A", -1)  # the new life is all there is: no one else may end its group
        assert (await join(fixture, newer.member_id, instance_id="i")).verdict is V.FENCED_INSTANCE
        assert [each.member_id for each in members(fixture)] == ["N"]


async def test_KIP345_a_static_member_that_was_replaced_does_not_make_the_new_one_leave() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        older = await join(fixture, instance_id="i")
        newer = await join(fixture, instance_id="i")
        left = await fixture.groups.leave("g", [MemberIdentity(older.member_id, "i")])
        assert left.members == (V.FENCED_INSTANCE,)
        assert {each.member_id for each in members(fixture)} == {"A", newer.member_id}


async def test_INV_NB2_a_join_that_is_refused_does_not_change_the_groups_protocol() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "N", 0, instance_id="i")
        await join(fixture)
        before = members(fixture)
        other = join_request(instance_id="i", protocols=(("other", subscription()),))
        assert (await fixture.groups.join("g", other)).verdict is V.INCONSISTENT_PROTOCOL
        assert members(fixture) == before


@pytest.mark.parametrize(
    ("request_of", "verdict"),
    [
        ({"protocols": ()}, V.INCONSISTENT_PROTOCOL),
        ({"protocol_type": ""}, V.INCONSISTENT_PROTOCOL),
        ({"member_id": "X"}, V.UNKNOWN_MEMBER),
        ({"member_id": "X", "instance_id": "i"}, V.UNKNOWN_MEMBER),
        ({"protocols": (("range", bytes((1 << 20) + 1)),)}, V.REQUEST_TOO_LARGE),
    ],
)
async def test_INV_NB2_a_join_that_is_refused_does_not_change_a_group_without_members(
    request_of: dict[str, Any], verdict: V
) -> None:
    """It was made a classic group, for nobody."""
    fixture, _ = fixture_of()
    asked = join_request(**{"protocols": (("range", subscription()),), **request_of})
    async with running(fixture):
        await beat(fixture, "B", 0)
        await beat(fixture, "B", -1)
        refused = await fixture.groups.join("g", asked)
        assert refused.verdict is verdict
        assert state(fixture) == "Empty"
        fixture.assert_live_is_replay()


@pytest.mark.parametrize(
    ("member_id", "verdict"), [("X", V.UNKNOWN_MEMBER), ("", V.MEMBER_ID_REQUIRED)]
)
async def test_INV_NB2_a_join_is_judged_by_who_is_there_once_it_was_read(
    member_id: str, verdict: V
) -> None:
    """X would be let in beside another member, and who brings no id into a group without: the one goes, or comes, while what is said is read."""
    fixture, _ = fixture_of()
    names = b"".join(named(f"{number}") for number in range(5_000))
    many = struct.pack(">hi", 0, 5_000) + names + struct.pack(">i", -1)
    asked = join_request(member_id, protocols=(("range", many),), must_know_member_id=True)
    async with running(fixture):
        await beat(fixture, "B", 0)
        if not member_id:
            await beat(fixture, "B", -1)
        joining = asyncio.ensure_future(fixture.groups.join("g", asked))  # noqa: TID251
        await asyncio.sleep(0)
        assert not joining.done()
        await beat(fixture, "B", -1 if member_id else 0)
        assert (await joining).verdict is verdict
        assert [each.member_id for each in members(fixture)] == ([] if member_id else ["B"])
        assert fixture.groups.describe_modern("g").verdict is V.OK
        fixture.assert_live_is_replay()


async def test_KIP394_who_joins_a_group_without_members_is_given_an_id_that_counts() -> None:
    """An id that nobody remembers would be refused, and another one asked for, without end."""
    fixture, _ = fixture_of()
    offered = (("range", subscription()),)
    async with running(fixture):
        await beat(fixture, "B", 0)
        await beat(fixture, "B", -1)
        asked = await fixture.groups.join("g", join_request(protocols=offered, must_know_member_id=True))  # fmt: skip
        assert asked.verdict is V.MEMBER_ID_REQUIRED
        told = await fixture.groups.join("g", join_request(asked.member_id, protocols=offered))
        assert (told.verdict, told.leader) == (V.OK, asked.member_id)
        fixture.assert_live_is_replay()


async def test_INV_NC1_what_a_member_had_not_given_back_is_not_free_while_its_next_life_has_it() -> (
    None
):
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        old = await join(fixture, instance_id="i")
        await beat(fixture, "A", 1, owned=own(orders, 0, 1))
        old = await join(fixture, old.member_id, instance_id="i")  # it has 2 and 3 now
        await beat(fixture, "B", 0)
        asked = await join(fixture, old.member_id, (2, 3), "i")  # and shall give one of them back
        held = {part for part, who in owners(fixture, orders).items() if who == asked.member_id}
        assert held == {2, 3}
        newer = await join(fixture, "", (2, 3), "i")
        assert {
            part for part, who in owners(fixture, orders).items() if who == newer.member_id
        } == held
        epoch = (await beat(fixture, "B", 0)).member_epoch
        assert not (await beat(fixture, "B", epoch)).assignment
        fixture.assert_live_is_replay()


def owners(fixture: Fixture, topic_id: UUID) -> dict[int, str]:
    """Return who has, or must give back, each partition."""
    group = fixture.groups.shards[fixture.groups.shard_of("g")].table.modern["g"]
    return {
        part: member_id for (topic, part), member_id in group.owners.items() if topic == topic_id
    }


async def test_INV_NE1_members_that_a_classic_group_brought_are_timed_from_the_upgrade_on() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        old = await classic_group(fixture)  # its session is of ten seconds, that of B of 45
        await beat(fixture, "B", 0)
        await fixture.clock.advance(10_000)
        assert old.member_id not in {each.member_id for each in members(fixture)}


async def test_INV_NC1_what_a_member_owns_may_be_named_in_several_rows_of_a_topic() -> None:
    raw = struct.pack(">hi", 1, 1) + named("orders") + struct.pack(">i", -1)
    rows = [named("orders") + struct.pack(">3i", 2, *pair) for pair in ((2, 3), (0, 1))]
    raw += struct.pack(">i", len(rows)) + b"".join(rows)
    assert read_subscription(raw).owned == {"orders": frozenset({0, 1, 2, 3})}


@pytest.mark.parametrize(("again", "told"), [(False, V.NOT_COORDINATOR), (True, V.LOADING)])
async def test_INV_GS3_who_waited_for_patterns_while_the_shard_was_given_up_is_told_so(
    again: bool, told: V, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = threading.Event()

    def matching(_: object, names: list[str]) -> tuple[str, ...]:
        assert looked_up.wait(30)
        return tuple(names)

    monkeypatch.setattr(
        resolver, "INLINE_STEPS_MAX", -1
    )  # in a thread, as if there were many topics
    monkeypatch.setattr(Patterns, "are_quick", lambda *_: True)  # it is waited for
    monkeypatch.setattr(TopicRegex, "those_of", matching)
    fixture, _ = fixture_of()
    async with running(fixture):
        looked_up.set()
        await beat(fixture, "A", 0, topic_names=(), topic_regex="o.*")
        looked_up.clear()
        fixture.topics.put("others", 1)
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(join(fixture))
            beating = tasks.create_task(beat(fixture, "A", 1))
            await settle()
            await fixture.groups.resign()
            if again:
                await fixture.groups.load()
            looked_up.set()
        assert (joining.result().verdict, beating.result().verdict) == (told, told)
        assert not any(shard.groups for shard in fixture.groups.shards), (
            "nobody is in a group there"
        )


# --- downgrade ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["leaves", "is silent", "is replaced"])
async def test_KIP848_the_group_is_classic_again_when_its_last_new_member_goes(how: str) -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0, instance_id="i")
        joined = await join(fixture)
        await beat(fixture, "B", 1, owned=own(orders, 0, 1))
        again = await join(fixture, joined.member_id)
        had = (await sync(fixture, again)).assignment
        replacing: asyncio.Future[JoinOutcome] | None = None
        if how == "leaves":
            assert (await beat(fixture, "B", -1, instance_id="i")).verdict is V.OK
        elif how == "is silent":
            for _ in range(SESSION_MS // 5_000):
                await fixture.clock.advance(5_000)
                await alive(fixture, again)
        else:
            replacing = asyncio.ensure_future(join(fixture, instance_id="i"))  # noqa: TID251
            await settle()
        assert fixture.groups.describe_modern("g").verdict is V.GROUP_NOT_FOUND
        described = fixture.groups.describe("g")
        assert described.state == "PreparingRebalance"
        fixture.assert_live_is_replay()
        assert had == assignment(2, 3)
        assert await alive(fixture, again) is V.REBALANCE_IN_PROGRESS
        rejoining = asyncio.ensure_future(join(fixture, again.member_id, (2, 3)))  # noqa: TID251
        await settle()
        rejoined = await rejoining
        assert rejoined.generation == again.generation + 1
        if replacing is not None:
            assert (await replacing).verdict is V.OK
        synced = await sync(fixture, rejoined, {rejoined.member_id: assignment(0, 1, 2, 3)})
        assert synced.assignment == assignment(0, 1, 2, 3)
        fixture.assert_live_is_replay()


@pytest.mark.parametrize("how", ["leaves", "is silent"])
@pytest.mark.parametrize("said", [b"", b"\xff", b"\xff\xff", b"\0\1\0", struct.pack(">hi", 1, 7)])
@pytest.mark.parametrize("another", ["twice", "beside"])
async def test_INV_NB4_what_a_member_says_for_a_protocol_that_nobody_read_ends_no_node(
    how: str, said: bytes, another: str
) -> None:
    """1. A member offers two protocols; the first one's subscription is read as it joins. 2. The other one is what all share. 3. The last
    new member goes, be it that its time is over: a group that cannot become a classic one would end the node, and each that leads next."""
    fixture, _ = fixture_of()
    name = "cooperative-sticky" if another == "twice" else "range"
    offered = (("cooperative-sticky", subscription()), (name, said))
    async with running(fixture):
        await beat(fixture, "B", 0)
        joined = await fixture.groups.join("g", join_request(protocols=offered))
        if another == "beside":
            ranged = join_request(protocols=(("range", subscription()),))
            assert (await fixture.groups.join("g", ranged)).verdict is V.OK
        if how == "leaves":
            assert (await beat(fixture, "B", -1)).verdict is V.OK
        else:
            for _ in range(SESSION_MS // 5_000):
                await fixture.clock.advance(5_000)
                for each in members(fixture):
                    if each.is_classic:
                        who = MemberIdentity(each.member_id)
                        await fixture.groups.heartbeat("g", who, each.member_epoch)
        assert fixture.groups.describe_modern("g").verdict is V.GROUP_NOT_FOUND
        described = fixture.groups.describe("g")
        assert described.state == "PreparingRebalance"
        assert joined.member_id in {each.member_id for each in described.members}
        fixture.assert_live_is_replay()


async def test_KIP345_a_classic_member_that_is_named_twice_leaves_once() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        who = MemberIdentity((await join(fixture)).member_id)
        left = await fixture.groups.leave("g", [who, who])
        assert left.members == (V.OK, V.UNKNOWN_MEMBER)
        assert [each.member_id for each in members(fixture)] == ["B"]


LONGEST_ID = "x" * 249 + "-" + str(UUID(int=7))
"""As one that is given to a client whose own id has the most bytes that there may be."""


@pytest.mark.parametrize(
    ("member_id", "beside"),
    [
        ("", [(f"p{number}", b"") for number in range(64)]),
        ("", [("range", bytes(1 << 20))]),
        (LONGEST_ID + "x", []),
    ],
    ids=["protocols", "bytes", "id"],
)
async def test_INV_NB5_a_classic_member_brings_no_more_than_a_classic_group_takes(
    member_id: str, beside: list[tuple[str, bytes]]
) -> None:
    """A hundred thousand protocols, of which nobody reads more than the first one, counted for nothing; and when the group became a classic one
    each was looked for among all: minutes, in which the node serves nobody. So it was for each that led next."""
    fixture, _ = fixture_of()
    first = ("cooperative-sticky", subscription())
    async with running(fixture):
        await beat(fixture, "B", 0)
        for kept, verdict in ((beside[:-1], V.OK), (beside, V.REQUEST_TOO_LARGE)):
            who = member_id if verdict is not V.OK else member_id[:-1]
            asked = join_request(who, protocols=(first, *kept))
            assert (await fixture.groups.join("g", asked)).verdict is verdict
        assert len(members(fixture)) == 2


@pytest.mark.parametrize("instance_id", [None, "i"])
async def test_INV_NB5_classic_members_bring_no_more_together_than_a_classic_group_takes(
    instance_id: str | None,
) -> None:
    """The group may become a classic one, which its members could then not join again. A static one that comes back brings its part anew."""
    fixture, _ = fixture_of()
    first = ("cooperative-sticky", subscription())
    brought = (first, ("range", bytes((1 << 20) - len(first[1]))))
    async with running(fixture):
        await beat(fixture, "B", 0)
        for each in ("1", instance_id):
            asked = join_request(protocols=brought, instance_id=each)
            assert (await fixture.groups.join("g", asked)).verdict is V.OK
        back = await fixture.groups.join("g", join_request(protocols=brought, instance_id="1"))
        assert back.verdict is V.OK
        refused = await fixture.groups.join("g", join_request(protocols=(first,)))
        assert refused.verdict is V.REQUEST_TOO_LARGE
        assert len(members(fixture)) == 3


async def test_KIP848_a_restart_keeps_members_of_both() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        joined = await join(fixture)
        await sync(fixture, joined)
    again = Fixture(fixture.ledger)
    again.topics.topics = fixture.topics.topics
    async with running(again):
        assert await alive(again, joined) is V.OK
        assert (await beat(again, "B", 1)).verdict is V.OK
        await again.clock.advance(10_000)
        assert [each.member_id for each in members(again)] == ["B"]


# --- what classic members say ---------------------------------------------------------------------


def test_subscriptions_of_every_version_are_read() -> None:
    base = struct.pack(">i", 1) + named("orders") + struct.pack(">i", 2) + b"ud"
    owned = parts({"orders": (1, 2)})
    raw = {
        0: struct.pack(">h", 0) + base,
        1: struct.pack(">h", 1) + base + owned,
        2: struct.pack(">h", 2) + base + owned + struct.pack(">i", 9),
        3: struct.pack(">h", 3) + base + owned + struct.pack(">i", 9) + named("rack"),
    }
    for version, bytes_of in raw.items():
        found = read_subscription(bytes_of)
        assert (found.version, found.topic_names) == (version, ("orders",))
        assert found.owned == ({} if version == 0 else {"orders": frozenset((1, 2))})
        assert found.rack_id == ("rack" if version == 3 else None)
        for cut in range(len(bytes_of)):
            with pytest.raises(MalformedProtocol):
                read_subscription(bytes_of[:cut])
    assert read_subscription(struct.pack(">h", 4) + raw[3][2:] + b"more").rack_id == "rack"
    assert read_assignment(b"") == {}
    assert read_assignment(assignment(3)) == {"orders": frozenset((3,))}


async def test_INV_GG7_who_brings_no_instance_takes_nobodys_place() -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "A", 0)
        static = await join(fixture, instance_id="")
        joined = await join(fixture)
        all_three = {"A", static.member_id, joined.member_id}
        assert {each.member_id for each in members(fixture)} == all_three
        left = await fixture.groups.leave("g", [MemberIdentity("", None)])
        assert left.members == (V.UNKNOWN_MEMBER,)
        assert {each.member_id for each in members(fixture)} == all_three


async def test_INV_NB6_partitions_that_there_are_not_are_nobodys() -> None:
    """The leader of a classic group gives out what it likes; -1 took the place of a partition, which nobody had."""
    fixture, orders = fixture_of()
    async with running(fixture):
        joined = await join(fixture)
        await sync(fixture, joined, {joined.member_id: assignment(-1, 0, 4, 2**31 - 1)})
        assert (await beat(fixture, "B", 0)).verdict is V.OK
        held = owners(fixture, orders)
        assert {part for part, who in held.items() if who == joined.member_id} == {0}
        targets = [each.target[orders] for each in members(fixture)]
        assert sorted(part for target in targets for part in target) == [0, 1, 2, 3]


async def test_INV_NUG3_a_partition_that_a_classic_leader_gave_to_all_is_the_first_ones() -> None:
    """Each kept it, as the uniform assignor leaves what members have, and so another partition was nobody's for as long as they stayed."""
    fixture, orders = fixture_of()
    async with running(fixture):
        first = await join(fixture)
        joining = asyncio.ensure_future(join(fixture))  # noqa: TID251
        await settle()
        first = await join(fixture, first.member_id)
        second = await joining
        given = {first.member_id: assignment(0, 1), second.member_id: assignment(1, 0, 2)}
        await sync(fixture, first, given)
        assert (await beat(fixture, "B", 0)).verdict is V.OK
        held = {each.member_id: each.assigned for each in members(fixture)}
        assert held == {
            first.member_id: {orders: frozenset({0, 1})},
            second.member_id: {orders: frozenset({2})},
            "B": {orders: frozenset({3})},
        }
        targets = [each.target[orders] for each in members(fixture)]
        assert sorted(part for target in targets for part in target) == [0, 1, 2, 3]
        fixture.assert_live_is_replay()


def test_INV_NN1_a_subscription_names_a_bounded_number_of_topics() -> None:
    """Half a million of one letter fit what a member may bring."""
    for count, read_names in ((50_000, True), (50_001, False)):
        raw = struct.pack(">hi", 0, count) + named("t") * count + struct.pack(">i", -1)
        if read_names:
            assert len(read_topic_names(raw)) == count
            assert len(read_subscription(raw).topic_names) == count
            continue
        for reading in (read_topic_names, read_subscription):
            with pytest.raises(MalformedProtocol, match="50001 topics"):
                reading(raw)
