"""A takeover of very many offsets and groups (T26): a few at a time, and what others do meanwhile, or a crash, harms nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from idempotency import fencing
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch, TopicPartition
from region_broker.groups.classic.states import GroupState
from region_broker.groups.coordinator import LOOKS_AT_ONCE, LOOKS_OF_A_RECORD
from region_broker.groups.messages import (
    CLAMPED_NAMED_MAX,
    CommitRequest,
    MemberIdentity,
    OffsetToCommit,
)
from region_broker.groups.modern.messages import HeartbeatRequest
from region_broker.groups.ports import LedgerFailed, LedgerRecord
from region_broker.groups.records import GroupKey, OffsetKey, decode_key
from region_broker.groups.shard import Shard
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.region.ports import Term
from region_broker.region.role_sides import GroupRole
from tests.unit.region_broker.groups.fakes import (
    Fixture,
    ManualClock,
    MemoryLedger,
    join_request,
    running,
    settle,
    stable_member,
    tp,
)

EPOCH = RegionEpoch(17)
OWN = 17 << 16
"""The first generation of that epoch."""
END = 3
AT_ONCE = LOOKS_AT_ONCE // LOOKS_OF_A_RECORD
"""So many records are written in a step, and those of one more group."""


class StepClock(ManualClock):
    """Counts the turns that others get, and calls somebody in each."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.on_turn: Callable[[], None] = lambda: None

    async def sleep_ms(self, duration_ms: float) -> None:
        if duration_ms == 0:
            self.turns += 1
            self.on_turn()
        await super().sleep_ms(duration_ms)


def commit(group_id: str, count: int, offset: int = 9) -> CommitRequest:
    offsets = tuple(
        OffsetToCommit(tp(number, "t"), offset, NO_LEADER_EPOCH, "") for number in range(count)
    )
    return CommitRequest(group_id=group_id, offsets=offsets)


def end_of(_tp: TopicPartition) -> int:
    return END


def modern(group_id: str) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group_id, member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
        topic_names=("t",), owned={},
    )  # fmt: skip


async def filled(fixture: Fixture, group_count: int, offset_count: int) -> list[str]:
    """Let there be so many groups without members, a classic one with a member, and a new one, all with offsets beyond the end."""
    fixture.topics.put("t", offset_count)
    names = [f"g{number:04}" for number in range(group_count)]
    for name in (*names, "classic", "modern"):
        assert (await fixture.groups.commit_offsets(commit(name, offset_count))).verdict is V.OK
    await stable_member(fixture, "classic")
    assert (await fixture.groups.consumer_heartbeat(modern("modern"))).verdict is V.OK
    return [*names, "classic", "modern"]


def offsets_of(shard: Shard) -> set[int]:
    return {
        place.committed_offset
        for places in shard.table.committed.values()
        for place in places.values()
    }


def generations_of(fixture: Fixture) -> dict[str, int]:
    found: dict[str, int] = {}
    for shard in fixture.groups.shards:
        found |= {name: value.generation for name, value in shard.table.group_values.items()}
        found |= {name: group.group_epoch for name, group in shard.table.modern.items()}
    return found


def assert_taken_over(fixture: Fixture) -> None:
    """Nothing points past the end; nobody is in a group, and its generation is the first one of the epoch."""
    for shard in fixture.groups.shards:
        assert offsets_of(shard) <= {END}
        assert {value.generation for value in shard.table.group_values.values()} <= {OWN}
        assert {group.group_epoch for group in shard.table.modern.values()} <= {OWN}
        assert all(not group.metadata for group in shard.table.modern.values())
        for group in shard.groups.values():
            assert (group.state, group.generation) == (GroupState.EMPTY, OWN)
    fixture.assert_live_is_replay()


@pytest.mark.parametrize(("group_count", "offset_count"), [(2, LOOKS_AT_ONCE), (600, 2)])
async def test_INV_GC5_a_takeover_clamps_a_few_offsets_at_a_time(
    group_count: int, offset_count: int
) -> None:
    """A million of them stood in one step of a loop for half a minute: its node was fenced, and so was each next one."""
    clock = StepClock()
    fixture = Fixture(clock=clock)
    async with running(fixture):
        names = await filled(fixture, group_count, offset_count)
        steps, turns = [fixture.ledger.record_count()], clock.turns
        clock.on_turn = lambda: steps.append(fixture.ledger.record_count())
        report = await fixture.groups.clamp(end_of, region_epoch=EPOCH)
        steps.append(fixture.ledger.record_count())
        assert report.clamped_count == len(names) * offset_count
        written = [after - before for before, after in pairwise(steps)]
        assert max(written) <= AT_ONCE + 10
        assert clock.turns - turns >= report.clamped_count // AT_ONCE
        assert_taken_over(fixture)


async def test_INV_GC5_a_takeover_that_clamps_nothing_gives_way_too() -> None:
    clock = StepClock()
    fixture = Fixture(clock=clock)
    async with running(fixture):
        await fixture.groups.commit_offsets(commit("g", 5 * LOOKS_AT_ONCE))
        turns, batches = clock.turns, fixture.ledger.batches
        report = await fixture.groups.clamp(lambda _: None, region_epoch=EPOCH)
        assert (report.clamped_count, fixture.ledger.batches) == (0, batches)
        assert clock.turns - turns >= 5


async def test_INV_GC6_whoever_is_served_meanwhile_finds_each_group_whole() -> None:
    """In memory as in the ledger; none is empty of members while an offset of it points past the cut."""
    clock = StepClock()
    fixture, seen = Fixture(clock=clock), 0

    def look() -> None:
        nonlocal seen
        fixture.assert_live_is_replay()
        for shard in fixture.groups.shards:
            table = shard.table
            for group_id, value in table.group_values.items():
                assert shard.groups[group_id].generation == value.generation
                assert bool(shard.groups[group_id].roster.members) == bool(value.members)
            emptied = [name for name, value in table.group_values.items() if value.generation == OWN]  # fmt: skip
            emptied += [name for name, each in table.modern.items() if each.group_epoch == OWN]
            for name in emptied:
                places = table.committed[name].values()
                assert {place.committed_offset for place in places} == {END}
                seen += 1

    async with running(fixture):
        await filled(fixture, 120, 5)
        for number in range(120):
            await stable_member(fixture, f"g{number:04}")
        clock.on_turn = look
        await fixture.groups.clamp(end_of, region_epoch=EPOCH)
        assert seen > 120
        assert_taken_over(fixture)


@asynccontextmanager
async def begun(fixture: Fixture) -> AsyncIterator[asyncio.Task[int | None]]:
    """Let a takeover clamp its first few offsets; it goes on behind the block, and returns how many they were: None where it failed."""

    async def clamp() -> int | None:
        try:
            return (await fixture.groups.clamp(end_of, region_epoch=EPOCH)).clamped_count
        except LedgerFailed:
            return None

    async with asyncio.TaskGroup() as tasks:
        clamping = tasks.create_task(clamp())
        await asyncio.sleep(0)
        assert not clamping.done()
        yield clamping


def cut_at(ledger: MemoryLedger, record_count: int) -> MemoryLedger:
    """Return what a crash leaves that only so many records of the one shard survived."""
    left = MemoryLedger(shard_count=1)
    left.shards[0] = ledger.shards[0][:record_count]
    return left


async def test_INV_GC6_after_a_crash_between_any_two_records_the_next_try_ends_what_was_begun() -> (
    None
):
    """Nor does a generation jump twice: that would be one of another region's."""
    ledger = MemoryLedger(shard_count=1)
    async with running(Fixture(ledger)) as fixture:
        names = await filled(fixture, 2, 2)
        first = ledger.record_count()
        await fixture.groups.clamp(end_of, region_epoch=EPOCH)
        assert_taken_over(fixture)
    for record_count in range(first, ledger.record_count() + 1):
        async with running(Fixture(cut_at(ledger, record_count))) as again:
            report = await again.groups.clamp(end_of, region_epoch=EPOCH)
            assert_taken_over(again)
            done = report.clamped_count + _clamped_in(ledger, first, record_count)
            assert done == 2 * len(names), "what is durable is not done again"


async def test_INV_GC6_a_generation_jumps_once_from_the_region_epoch_next_to_it() -> None:
    """That of the last region by ordinal, and the next one of the first: a jump leads beyond the first generation, and another one
    into those of the second region."""
    before, now = fencing.region_epoch(2, fencing.REGION_ORDINAL_MAX), fencing.region_epoch(3, 0)
    assert now == before + 1
    fixture = Fixture()
    async with running(fixture):
        await filled(fixture, 0, 2)
        await fixture.groups.clamp(end_of, region_epoch=before)
        await filled(fixture, 0, 2)
        await fixture.groups.clamp(end_of, region_epoch=now)
        jumped = generations_of(fixture)
        assert set(jumped) == {"classic", "modern"}
        assert all(now << 16 < each < (now + 1) << 16 for each in jumped.values())
        assert not (await fixture.groups.clamp(end_of, region_epoch=now)).emptied
        assert generations_of(fixture) == jumped


def _clamped_in(ledger: MemoryLedger, first: int, end: int) -> int:
    return sum(isinstance(key, OffsetKey) for key in _keys(ledger, first, end))


def _keys(ledger: MemoryLedger, first: int, end: int) -> Iterator[object]:
    for entry in ledger.shards[0][first:end]:
        assert isinstance(entry, LedgerRecord)
        yield decode_key(entry.key)


async def test_INV_GC6_a_group_is_emptied_behind_its_offsets() -> None:
    ledger = MemoryLedger(shard_count=1)
    async with running(Fixture(ledger)) as fixture:
        await filled(fixture, 0, 2)
        first = ledger.record_count()
        await fixture.groups.clamp(end_of, region_epoch=EPOCH)
    keys = list(_keys(ledger, first, ledger.record_count()))
    of_classic = [type(key) for key in keys if getattr(key, "group_id", "") == "classic"]
    assert of_classic == [OffsetKey, OffsetKey, GroupKey]


@pytest.mark.parametrize("how", ["it is deposed", "it loads again", "its ledger fails"])
async def test_INV_GC6_a_shard_that_is_not_served_as_it_was_ends_the_takeover(how: str) -> None:
    """Whoever acts next begins it again: nothing was half done that this does not end."""
    fixture = Fixture(clock=StepClock())
    async with running(fixture):
        names = await filled(fixture, 200, 5)
        async with begun(fixture) as clamping:
            assert any(END in offsets_of(shard) for shard in fixture.groups.shards)
            if how == "its ledger fails":
                fixture.ledger.fail()
            elif how == "it is deposed":
                await fixture.groups.resign()
            else:
                await fixture.groups.load()
            count = fixture.ledger.record_count()
        assert clamping.result() is None, "it has failed"
        assert fixture.ledger.record_count() == count, "nothing is written in another term"
        fixture.ledger.failure = None
        await fixture.groups.load()
        fixture.assert_live_is_replay()
        report = await fixture.groups.clamp(end_of, region_epoch=EPOCH)
        assert 0 < report.clamped_count < 5 * len(names)
        assert_taken_over(fixture)


async def test_INV_GC6_a_takeover_that_is_cancelled_leaves_a_ledger_to_begin_again_with() -> None:
    fixture = Fixture(clock=StepClock())
    async with running(fixture):
        await filled(fixture, 200, 5)
        async with begun(fixture) as clamping:
            clamping.cancel()
        assert clamping.cancelled()
        fixture.assert_live_is_replay()
        await fixture.groups.resign()
        await fixture.groups.load()
        await fixture.groups.clamp(end_of, region_epoch=EPOCH)
        assert_taken_over(fixture)


async def test_INV_GC6_what_goes_meanwhile_is_not_brought_back() -> None:
    """Retention removes offsets, and groups, while the region adopts."""
    count = 2 * LOOKS_AT_ONCE
    fixture = Fixture(MemoryLedger(shard_count=1), clock=StepClock())
    async with running(fixture):
        fixture.topics.put("t", count)
        for group_id in ("a", "b"):
            await fixture.groups.commit_offsets(commit(group_id, count))
        await fixture.groups.join("b", join_request())  # and is one with a record, once it is left
        member = next(iter(fixture.groups.describe("b").members))
        await fixture.groups.leave("b", [MemberIdentity(member.member_id)])
        await settle()
        async with begun(fixture) as clamping:
            gone = await fixture.groups.delete_offsets("a", [tp(count - 1, "t")])
            assert gone == (V.OK, {tp(count - 1, "t"): V.OK})
            assert await fixture.groups.delete_group("b") is V.OK
        assert clamping.result() == count - 1
        table = fixture.groups.shards[0].table
        assert not table.knows("b")
        assert table.lookup("a", tp(count - 1, "t")) is None
        assert_taken_over(fixture)


async def test_INV_GC6_a_session_that_ends_meanwhile_brings_no_generation_of_before() -> None:
    """That of a group that is emptied already has ended; that of another begins a generation, from which the group jumps."""
    clock = StepClock()
    fixture = Fixture(MemoryLedger(shard_count=1), clock=clock)
    async with running(fixture):
        await filled(fixture, 200, 1)
        names = [f"g{number:04}" for number in range(200)]
        for name in names:
            await stable_member(fixture, name)
        async with begun(fixture):
            groups = fixture.groups.shards[0].groups
            assert not groups[names[0]].roster.members
            assert groups[names[-1]].roster.members
            clock.now_ms += 3_600_000
            for name in (names[0], names[-1], "modern"):
                fixture.groups._on_due(name)
            fixture.assert_live_is_replay()
        await settle()
        assert_taken_over(fixture)


async def test_T26_the_first_clamped_offsets_are_named_and_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A million lines took the log, and the loop, for as long as the records did."""
    fixture = Fixture()
    async with running(fixture):
        side = GroupRole(fixture.groups)
        await side.load(Term(EPOCH, LeaderEpoch(OWN), "eu"))
        await fixture.groups.commit_offsets(commit("g", CLAMPED_NAMED_MAX + 7))
        with caplog.at_level(logging.INFO):
            await side.clamp({tp(number, "t"): END for number in range(CLAMPED_NAMED_MAX + 7)})
    named = [each for each in caplog.messages if "ClampedOffset" in each]
    assert len(named) == CLAMPED_NAMED_MAX
    assert caplog.messages[-2:] == [
        "clamped to what the cut holds, and not named here: 7 more",
        f"0 groups emptied, {CLAMPED_NAMED_MAX + 7} offsets clamped",
    ]
