"""Classic groups that bring as much as they may: what their members say is read a few rows at a time, and no more often than must be.

What members say is written by hand, after ConsumerProtocolSubscription and ConsumerProtocolAssignment. Rows are counted, not time.
"""

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from idempotency.pieces import drained
from region_broker.groups.messages import JoinOutcome, MemberIdentity, Sight
from region_broker.groups.modern import consumer_protocol, upgrade
from region_broker.groups.modern.consumer_protocol import (
    MalformedProtocol,
    assignment_said,
    subscription_said,
)
from region_broker.groups.modern.messages import HeartbeatOutcome
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.wire.cooperative_yield import CooperativeYield
from tests.spec.groups.test_consumer_group_rules import beat, fixture_of
from tests.unit.region_broker.groups.fakes import (
    Fixture,
    join_request,
    running,
    settle,
    stable_member,
    sync_request,
    tp,
)

AT_ONCE = 1_000
"""As many elements of a request are read in one go."""
MANY = 40_000


def rows(count: int, *numbers: int) -> bytes:
    """Return an array of topics `0`, `1` and so on, each with these partitions."""
    held = struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers)
    names = (str(each).encode() for each in range(count))
    said = (struct.pack(">h", len(name)) + name + held for name in names)
    return struct.pack(">i", count) + b"".join(said)


def assigned(count: int, *numbers: int) -> bytes:
    return struct.pack(">h", 1) + rows(count, *numbers) + struct.pack(">i", -1)


def subscribed(*topics: str, owned: bytes = b"\0\0\0\0") -> bytes:
    names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">i", -1) + owned


@dataclass
class Rows:
    """Names of topics that were read: all, and the most of them in one turn of the loop."""

    count: int = 0
    in_this_turn: int = 0
    most: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def forget(self) -> None:
        self.count = self.most = 0
        self.begun.clear()

    async def turning(self) -> None:
        while True:
            self.in_this_turn = 0
            await asyncio.sleep(0)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Rows:
    told = Rows()
    cursor = consumer_protocol._Cursor
    name = cursor.name

    def counted(self: Any) -> str:
        told.begun.set()
        told.count += 1
        told.in_this_turn += 1
        told.most = max(told.most, told.in_this_turn)
        return name(self)

    monkeypatch.setattr(cursor, "name", counted)
    return told


async def classic_group(
    fixture: Fixture, assignment: bytes, topics: Sequence[str] = ("orders",)
) -> JoinOutcome:
    """Return the only member of a classic group, which gives this to itself."""
    asked = join_request(protocols=(("range", subscribed(*topics)),))
    joined = await fixture.groups.join("g", asked)
    synced = await fixture.groups.sync("g", sync_request(joined, {joined.member_id: assignment}))
    assert synced.verdict is V.OK
    return joined


async def watched(read: Rows, asked: Any) -> Any:
    """Return what is answered; `read` tells what was read meanwhile."""
    read.forget()
    turns = asyncio.get_running_loop().create_task(read.turning())
    try:
        return await asked
    finally:
        turns.cancel()


# --- what is read at all --------------------------------------------------------------------------


def test_INV_NCP1_what_a_member_says_has_a_bounded_number_of_rows_and_partitions() -> None:
    """1.4 million rows with empty names fitted what a leader may assign."""
    wide = (struct.pack(">hih", 1, 1, 1) + b"t" + struct.pack(">i", count) + bytes(4 * count) for count in (100_000, 100_001))  # fmt: skip
    allowed, refused = wide
    assert drained(assignment_said(allowed, CooperativeYield())) == {"t": frozenset({0})}
    assert len(drained(assignment_said(assigned(50_000), CooperativeYield()))) == 50_000
    half = [struct.pack(">h", 1) + b"t" + struct.pack(">i", 50_001) + bytes(4 * 50_001)] * 2
    for raw, why in (
        (assigned(50_001), "50001 topics"),
        (refused, "100000 partitions"),
        (struct.pack(">hi", 1, 2) + b"".join(half), "100000 partitions"),
    ):
        with pytest.raises(MalformedProtocol, match=why):
            drained(assignment_said(raw, CooperativeYield()))
    with pytest.raises(MalformedProtocol, match="50001 topics"):
        drained(subscription_said(subscribed(owned=rows(50_001)), CooperativeYield()))


def test_INV_NCP1_rows_of_one_topic_are_not_copied_for_each_other() -> None:
    """It may be named 50,000 times, a partition each: the loop was held for a minute. Of each row a partition is added to what is there."""
    row = [struct.pack(">h", 1) + b"t" + struct.pack(">2i", 1, number) for number in range(50_000)]
    raw = struct.pack(">hi", 1, len(row)) + b"".join(row)
    assert drained(assignment_said(raw, CooperativeYield())) == {"t": frozenset(range(50_000))}


# --- an upgrade -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sight", [None, Sight(lambda _: True, since=None)])
async def test_INV_NUG1_a_group_is_read_a_few_rows_at_a_time_and_once(
    read: Rows, sight: Sight | None
) -> None:
    """It was read in one step, and up to three times where ACLs are in force: each heartbeat of a hundred bytes that is refused took seven seconds."""
    fixture, _ = fixture_of()
    async with running(fixture):
        old = await classic_group(fixture, assigned(MANY))
        told = await watched(read, beat(fixture, "B", 0, sight=sight))
        assert told.verdict is V.OK
        assert read.count == MANY + 1
        assert read.most <= AT_ONCE
        assert members(fixture) == {old.member_id, "B"}
        fixture.assert_live_is_replay()


async def test_INV_NUG1_one_request_at_a_time_reads_a_group(read: Rows) -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await classic_group(fixture, assigned(MANY))
        read.forget()
        async with asyncio.TaskGroup() as tasks:
            told = [tasks.create_task(beat(fixture, each, 0)) for each in ("B", "C", "D")]
        verdicts = [each.result().verdict for each in told]
        assert verdicts == [V.OK, V.NOT_AVAILABLE, V.NOT_AVAILABLE]
        assert read.count == MANY + 1
        assert (await beat(fixture, "C", 0)).verdict is V.OK


def members(fixture: Fixture) -> set[str]:
    return {each.member_id for each in fixture.groups.describe_modern("g").members}


async def reading(fixture: Fixture, read: Rows) -> "asyncio.Task[HeartbeatOutcome]":
    """Return a heartbeat that has begun to read the group."""
    read.forget()
    asked = asyncio.get_running_loop().create_task(beat(fixture, "B", 0))
    await read.begun.wait()
    assert not asked.done()
    return asked


async def test_INV_NUG1_who_left_while_the_group_was_read_is_not_in_it(read: Rows) -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        old = await classic_group(fixture, assigned(MANY))
        asked = await reading(fixture, read)
        left = await fixture.groups.leave("g", [MemberIdentity(old.member_id)])
        assert left.members == (V.OK,)
        assert (await asked).verdict is V.OK
        assert members(fixture) == {"B"}
        fixture.assert_live_is_replay()


async def test_INV_NUG1_what_was_assigned_while_the_group_was_read_counts(read: Rows) -> None:
    fixture, orders = fixture_of()
    async with running(fixture):
        old = await classic_group(fixture, assigned(MANY))
        asked = await reading(fixture, read)
        changed = (("range", subscribed("orders", "more")),)
        again = await fixture.groups.join("g", join_request(old.member_id, protocols=changed))
        given = struct.pack(">hih", 1, 1, 6) + b"orders" + struct.pack(">3i", 1, 2, -1)
        await fixture.groups.sync("g", sync_request(again, {old.member_id: given}))
        assert (await asked).verdict is V.OK
        described = fixture.groups.describe_modern("g").members
        kept = next(each for each in described if each.member_id == old.member_id)
        assert (kept.topic_names, kept.assigned) == (("more", "orders"), {orders: frozenset({2})})
        fixture.assert_live_is_replay()


async def test_INV_NUG1_a_group_that_changes_again_and_again_is_asked_for_again(
    read: Rows,
) -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        old = await classic_group(fixture, assigned(MANY))
        asked, number, given = await reading(fixture, read), 0, {old.member_id: assigned(MANY)}
        while not asked.done():
            number += 1
            changed = (("range", subscribed("orders", f"more-{number}")),)
            again = await fixture.groups.join("g", join_request(old.member_id, protocols=changed))
            await fixture.groups.sync("g", sync_request(again, given))
            await settle()
        told = asked.result()
        assert told.verdict is V.NOT_AVAILABLE
        assert "changed while they were read" in (told.message or "")
        assert fixture.groups.describe_modern("g").verdict is V.GROUP_NOT_FOUND
        assert read.count <= 3 * (MANY + 2)


@pytest.mark.parametrize(("again", "told"), [(False, V.NOT_COORDINATOR), (True, V.LOADING)])
async def test_INV_GS3_who_has_a_group_read_while_its_shard_is_given_up_is_told_so(
    read: Rows, again: bool, told: V
) -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await classic_group(fixture, assigned(MANY))
        asked = await reading(fixture, read)
        await fixture.groups.resign()
        if again:
            await fixture.groups.load()
        assert (await asked).verdict is told
        await settle()


async def test_INV_NUG2_a_group_that_names_too_many_topics_is_refused_before_it_is_read(
    read: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "UPGRADE_TOPICS_MAX", 5)
    fixture, _ = fixture_of()
    async with running(fixture):
        old = await classic_group(fixture, assigned(4), ("a", "b"))
        told = await watched(read, beat(fixture, "B", 0))
        assert told.verdict is V.GROUP_NOT_FOUND
        assert "6 topics, of 5 allowed" in (told.message or "")
        assert read.count == 0
        asked = join_request(old.member_id, protocols=(("range", subscribed("a", "b")),))
        again = await fixture.groups.join("g", asked)
        await fixture.groups.sync("g", sync_request(again, {old.member_id: assigned(3)}))
        assert (await beat(fixture, "B", 0)).verdict is V.OK
        fixture.assert_live_is_replay()


# --- a member in a group of the new protocol ------------------------------------------------------


async def test_INV_NCP1_what_a_member_joins_with_is_read_once_and_a_few_rows_at_a_time(
    read: Rows,
) -> None:
    """A MiB of rows was read in one step, and again by each SyncGroup, for two bytes of it."""
    fixture, _ = fixture_of()
    async with running(fixture):
        await beat(fixture, "B", 0)
        asked = join_request(protocols=(("range", subscribed("orders", owned=rows(MANY))),))
        joined = await watched(read, fixture.groups.join("g", asked))
        assert joined.verdict is V.OK
        assert read.count == MANY + 1
        assert read.most <= AT_ONCE
        synced = await watched(read, fixture.groups.sync("g", sync_request(joined)))
        assert synced.verdict is V.OK
        assert synced.assignment[:2] == b"\0\1", "in the version that the member speaks"
        assert read.count == 0


# --- offsets that an administrator deletes --------------------------------------------------------


def large_subscription(*more: str) -> bytes:
    return subscribed(*map(str, range(MANY)), *more)


async def offsets_of_a_large_group(fixture: Fixture, *offered: bytes) -> JoinOutcome:
    protocols = tuple((f"p{number}", raw) for number, raw in enumerate(offered))
    joined = await fixture.groups.join("g", join_request(protocols=protocols))
    given = {joined.member_id: b"mine"}
    assert (await fixture.groups.sync("g", sync_request(joined, given))).verdict is V.OK
    return joined


async def test_INV_GD2_subscriptions_are_read_a_few_rows_at_a_time_and_for_what_was_asked(
    read: Rows,
) -> None:
    """All protocols of all members were read in one step, four seconds for 8 MiB, also where no partition was named."""
    fixture, _ = fixture_of()
    async with running(fixture):
        offered = (large_subscription("t"), large_subscription())
        await offsets_of_a_large_group(fixture, *offered, offered[0])
        delete = fixture.groups.delete_offsets
        asked = [tp(0, "t"), tp(0, "u"), tp(0, "7")]
        verdict, each = await watched(read, delete("g", asked))
        assert verdict is V.OK
        assert list(each.values()) == [V.SUBSCRIBED_TO_TOPIC, V.OK, V.SUBSCRIBED_TO_TOPIC]
        assert read.count == 2 * MANY + 1, "what is said twice is read once"
        assert read.most <= AT_ONCE
        assert await watched(read, delete("g", [])) == (V.OK, {})
        assert read.count == 0


async def test_INV_GD2_offsets_are_judged_by_what_members_read_in_the_end(read: Rows) -> None:
    """1. An administrator deletes an offset. 2. While subscriptions are read, a member subscribes to its topic."""
    fixture, _ = fixture_of()
    async with running(fixture):
        joined = await offsets_of_a_large_group(fixture, large_subscription())
        read.forget()
        deleting = asyncio.get_running_loop().create_task(
            fixture.groups.delete_offsets("g", [tp(0, "t")])
        )
        await read.begun.wait()
        changed = join_request(joined.member_id, protocols=(("p0", subscribed("t")),))
        await fixture.groups.join("g", changed)
        assert not deleting.done()
        assert await deleting == (V.OK, {tp(0, "t"): V.SUBSCRIBED_TO_TOPIC})


@pytest.mark.parametrize(("again", "told"), [(False, V.NOT_COORDINATOR), (True, V.LOADING)])
async def test_INV_GS3_who_deletes_offsets_while_the_shard_is_given_up_is_told_so(
    read: Rows, again: bool, told: V
) -> None:
    fixture, _ = fixture_of()
    async with running(fixture):
        await offsets_of_a_large_group(fixture, large_subscription())
        read.forget()
        deleting = asyncio.get_running_loop().create_task(
            fixture.groups.delete_offsets("g", [tp(0, "t")])
        )
        await read.begun.wait()
        await fixture.groups.resign()
        if again:
            await fixture.groups.load()
        assert await deleting == (told, {})
        await settle()


# --- static members that come back ----------------------------------------------------------------


async def test_INV_GSR1_joins_of_one_static_member_ask_for_two_records() -> None:
    fixture = Fixture()
    async with running(fixture):
        await stable_member(fixture, instance_id="i")
        before = fixture.ledger.batches
        fixture.ledger.hold()
        async with asyncio.TaskGroup() as tasks:
            told = [
                tasks.create_task(fixture.groups.join("g", join_request(instance_id="i")))
                for _ in range(64)
            ]
            await settle()
            fixture.ledger.release()
        verdicts = [each.result().verdict for each in told]
        assert verdicts == [V.OK, *[V.FENCED_INSTANCE] * 62, V.OK]
        assert fixture.ledger.batches - before == 2
        last = MemberIdentity(told[-1].result().member_id, "i")
        assert await fixture.groups.heartbeat("g", last, 1) is V.OK
        fixture.assert_live_is_replay()
