"""One test per rule about who is in a classic group: the KIPs on membership, and what a restart or a slow disk changes.

The coordinator is the real one; clock and ledger are the ports' fakes. Not here: offsets (`test_group_rules`).
"""

import asyncio

import pytest

from region_broker.groups.messages import MemberIdentity
from region_broker.groups.verdicts import GroupVerdict as V
from tests.unit.region_broker.groups.fakes import (
    Fixture,
    MemoryLedger,
    join_request,
    running,
    settle,
    stable_member,
    sync_request,
    who,
)


async def test_generation_is_answered_only_when_durable() -> None:
    async with running(Fixture()) as fixture:
        joined = await fixture.groups.join("g", join_request())
        fixture.ledger.hold()
        async with asyncio.TaskGroup() as tasks:
            request = sync_request(joined, {joined.member_id: b"mine"})
            waiting = tasks.create_task(fixture.groups.sync("g", request))
            await settle()
            assert not waiting.done()
            fixture.ledger.release()
        assert waiting.result().assignment == b"mine"


async def test_a_leader_that_goes_away_while_storing_does_not_take_the_generation_with_it() -> None:
    async with running(Fixture()) as fixture:
        joined = await fixture.groups.join("g", join_request())
        fixture.ledger.hold()
        async with asyncio.TaskGroup() as tasks:
            request = sync_request(joined, {joined.member_id: b"mine"})
            leaving = tasks.create_task(fixture.groups.sync("g", request))
            await settle()
            leaving.cancel()
            await settle()
            fixture.ledger.release()
        await settle()
        assert fixture.groups.describe("g").state == "Stable"


# --- KIP-62, 134, 345, 394 ----------------------------------------------------------------------


async def test_KIP394_new_dynamic_member_must_come_back_with_its_id() -> None:
    async with running(Fixture()) as fixture:
        request = join_request(must_know_member_id=True)
        told = await fixture.groups.join("g", request)
        assert told.verdict is V.MEMBER_ID_REQUIRED
        assert told.member_id.startswith("client-")
        assert told.generation == -1  # Kafka's JoinGroupRequest.UNKNOWN_GENERATION_ID
        again = join_request(told.member_id, must_know_member_id=True)
        assert (await fixture.groups.join("g", again)).verdict is V.OK


async def test_KIP394_id_that_is_not_used_lapses_with_the_session_timeout() -> None:
    async with running(Fixture()) as fixture:
        told = await fixture.groups.join("g", join_request(must_know_member_id=True))
        await fixture.clock.advance(10_000)
        again = await fixture.groups.join("g", join_request(told.member_id))
        assert again.verdict is V.UNKNOWN_MEMBER


async def test_KIP345_static_member_does_not_need_to_know_its_id() -> None:
    async with running(Fixture()) as fixture:
        request = join_request(must_know_member_id=True, instance_id="i")
        joined = await fixture.groups.join("g", request)
        assert joined.verdict is V.OK
        assert joined.member_id.startswith("i-")


@pytest.mark.parametrize("may_skip", [False, True])
async def test_KIP345_restarted_static_leader_takes_its_place_without_a_rebalance(
    may_skip: bool,
) -> None:
    async with running(Fixture()) as fixture:
        joined = await stable_member(fixture, instance_id="i")
        request = join_request(instance_id="i", may_skip_assignment=may_skip)
        again = await fixture.groups.join("g", request)
        assert again.verdict is V.OK
        assert again.generation == joined.generation
        assert again.member_id != joined.member_id
        assert again.skip_assignment is may_skip
        # KIP-814; an older client must not take itself for the leader (KAFKA-7728).
        assert again.leader == (again.member_id if may_skip else joined.member_id)
        synced = await fixture.groups.sync("g", sync_request(again))
        assert synced.assignment == b"mine"
        fenced = await fixture.groups.heartbeat("g", who(joined, "i"), joined.generation)
        assert fenced is V.FENCED_INSTANCE


async def test_KIP345_replacement_survives_a_restart_of_the_coordinator() -> None:
    ledger = MemoryLedger()
    async with running(Fixture(ledger)) as fixture:
        await stable_member(fixture, instance_id="i")
        again = await fixture.groups.join("g", join_request(instance_id="i"))
    async with running(Fixture(ledger)) as later:
        assert await later.groups.heartbeat("g", who(again, "i"), again.generation) is V.OK


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
async def test_INV_GG5_static_members_that_are_away_are_waited_for_though_they_give_no_time(
    timeout_ms: int,
) -> None:
    """1. A static member is replaced by one with a rebalance time-out of 0. 2. Another one joins, and leaves. 3. The phase is over, the static
    one is away, and the next phase would be over at once, in the same step, without end: the node would serve nobody any more."""
    fixture = Fixture()
    async with running(fixture):
        await stable_member(fixture, instance_id="i")
        again = join_request(instance_id="i", rebalance_timeout_ms=timeout_ms)
        assert (await fixture.groups.join("g", again)).verdict is V.OK
        another = fixture.groups.join("g", join_request(rebalance_timeout_ms=1_000))
        waits = asyncio.ensure_future(another)  # noqa: TID251
        await settle()
        (other,) = [each.member_id for each in fixture.groups.describe("g").members if each.instance_id is None]  # fmt: skip
        await fixture.groups.leave("g", [MemberIdentity(other)])
        assert (await waits).verdict is V.UNKNOWN_MEMBER
        await fixture.clock.advance(3_000)
        assert fixture.groups.describe("g").state == "PreparingRebalance"
        [group] = [each for shard in fixture.groups.shards for each in shard.groups.values()]
        next_ms = group.next_deadline_ms()
        assert next_ms is not None
        assert next_ms > fixture.clock.now_ms, "else it is looked at in each turn of the loop"
        back = await fixture.groups.join("g", again)
        assert (back.verdict, back.leader) == (V.OK, back.member_id)


async def test_INV_GG6_who_was_given_an_id_takes_no_instance_that_another_member_is() -> None:
    """1. A client is given a member id (KIP-394). 2. It comes with that, and with the instance of somebody else: that is no rule of ours that
    was broken, with which the node would end. Kafka refuses it, too (GroupMetadataManager, "pending member")."""
    async with running(Fixture()) as fixture:
        other = await stable_member(fixture, instance_id="i")
        invited = await fixture.groups.join("g", join_request(must_know_member_id=True))
        assert invited.verdict is V.MEMBER_ID_REQUIRED
        both = join_request(invited.member_id, instance_id="i", must_know_member_id=True)
        assert (await fixture.groups.join("g", both)).verdict is V.FENCED_INSTANCE
        (member,) = fixture.groups.describe("g").members
        assert (member.member_id, member.instance_id) == (other.member_id, "i")
        assert fixture.groups.describe("g").state == "Stable"


async def test_KIP345_duplicate_instance_that_waits_is_fenced() -> None:
    async with running(Fixture(initial_rebalance_delay_ms=3_000)) as fixture:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(fixture.groups.join("g", join_request(instance_id="i")))
            await settle()
            second = tasks.create_task(fixture.groups.join("g", join_request(instance_id="i")))
            await fixture.clock.advance(3_000)
        assert first.result().verdict is V.FENCED_INSTANCE
        assert second.result().verdict is V.OK


async def test_KIP345_leave_by_instance_id_and_several_at_once() -> None:
    async with running(Fixture()) as fixture:
        await stable_member(fixture, instance_id="i")
        leavers = [MemberIdentity("", "i"), MemberIdentity("", "j"), MemberIdentity("x")]
        outcome = await fixture.groups.leave("g", leavers)
        assert outcome.members == (V.OK, V.UNKNOWN_MEMBER, V.UNKNOWN_MEMBER)
        assert fixture.groups.describe("g").state == "Empty"


async def test_KIP134_initial_delay_gathers_members() -> None:
    async with running(Fixture(initial_rebalance_delay_ms=3_000)) as fixture:
        async with asyncio.TaskGroup() as tasks:
            waiting = [
                tasks.create_task(fixture.groups.join("g", join_request())) for _ in range(3)
            ]
            await fixture.clock.advance(2_999)
            assert not any(task.done() for task in waiting)
            await fixture.clock.advance(6_001)
        outcomes = [task.result() for task in waiting]
        assert {outcome.generation for outcome in outcomes} == {1}
        assert sorted(len(outcome.members) for outcome in outcomes) == [0, 0, 3]


async def test_session_timeout_out_of_bounds_is_refused() -> None:
    async with running(Fixture()) as fixture:
        for session_timeout_ms in (5_999, 1_800_001):
            request = join_request(session_timeout_ms=session_timeout_ms)
            outcome = await fixture.groups.join("g", request)
            assert outcome.verdict is V.INVALID_SESSION_TIMEOUT
        assert fixture.groups.list() == (V.OK, [])


async def test_refused_joins_leave_no_group_behind() -> None:
    async with running(Fixture()) as fixture:
        outcome = await fixture.groups.join("g", join_request(protocols=()))
        assert outcome.verdict is V.INCONSISTENT_PROTOCOL
        assert (await fixture.groups.join("", join_request())).verdict is V.INVALID_GROUP_ID
        assert fixture.groups.list() == (V.OK, [])


async def test_silent_member_is_removed_by_its_timer() -> None:
    async with running(Fixture()) as fixture:
        await stable_member(fixture)
        await fixture.clock.advance(9_999)
        assert fixture.groups.describe("g").state == "Stable"
        await fixture.clock.advance(1)
        assert fixture.groups.describe("g").state == "Empty"
