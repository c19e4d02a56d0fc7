"""One test per rule about offsets of groups, and shards that come and go: exactly-once.md, tidemarks.md T26, and the KIPs.

The coordinator is the real one; clock and ledger are the ports' fakes.
"""

import asyncio
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from idempotency.fencing import FIRST_LEADER_EPOCH
from idempotency.identity import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
)
from idempotency.java_hash import java_string_hash
from region_broker.groups.messages import CommitRequest, MemberIdentity, OffsetToCommit
from region_broker.groups.modern.messages import HeartbeatRequest
from region_broker.groups.ports import LedgerFailed, LedgerSlice, TxnProducer
from region_broker.groups.records import LedgerRecordError
from region_broker.groups.verdicts import GroupVerdict as V
from tests.unit.region_broker.groups.fakes import (
    Fixture,
    MemoryLedger,
    join_request,
    running,
    settle,
    stable_member,
    sync_request,
    tp,
    who,
)

PRODUCER = TxnProducer(ProducerId(7), ProducerEpoch(0))
DAY_MS = 24 * 3_600_000


def commit(
    offset: int,
    *,
    member: MemberIdentity | None = None,
    generation: int = -1,
    partition: int = 0,
    leader_epoch: int = -1,
    metadata: str = "",
) -> CommitRequest:
    return CommitRequest(
        group_id="g",
        offsets=(OffsetToCommit(tp(partition), offset, LeaderEpoch(leader_epoch), metadata),),
        who=member or MemberIdentity(""),
        generation=generation,
    )


async def committed(
    fixture: Fixture, *, require_stable: bool = False, every: bool = False
) -> object:
    asked = None if every else [tp()]
    outcome = await fixture.groups.fetch_offsets("g", asked, require_stable=require_stable)
    assert outcome.verdict is V.OK
    return [
        place.committed_offset if place.verdict is V.OK else place.verdict
        for place in outcome.offsets
    ]


# --- C42: who may commit -----------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [False, True])
async def test_C42_commit_is_judged_by_generation_member_and_instance(transactional: bool) -> None:
    async with running(Fixture()) as fixture:
        joined = await stable_member(fixture, instance_id="i")

        async def verdict(member: MemberIdentity, generation: int) -> V:
            request = commit(5, member=member, generation=generation)
            if transactional:
                return (await fixture.groups.txn_commit_offsets(request, PRODUCER)).verdict
            return (await fixture.groups.commit_offsets(request)).verdict

        good = MemberIdentity(joined.member_id, "i")
        assert await verdict(good, joined.generation) is V.OK
        assert await verdict(good, joined.generation - 1) is V.ILLEGAL_GENERATION
        assert await verdict(MemberIdentity("x", "i"), joined.generation) is V.FENCED_INSTANCE
        assert await verdict(MemberIdentity("x"), joined.generation) is V.UNKNOWN_MEMBER


async def test_C42_unknown_group_with_a_generation_is_illegal_without_one_simple() -> None:
    async with running(Fixture()) as fixture:
        request = commit(5, member=MemberIdentity("m"), generation=3)
        assert (await fixture.groups.commit_offsets(request)).verdict is V.ILLEGAL_GENERATION
        staged = await fixture.groups.txn_commit_offsets(request, PRODUCER)
        assert staged.verdict is V.ILLEGAL_GENERATION
        assert (await fixture.groups.commit_offsets(commit(5))).verdict is V.OK
        assert await committed(fixture) == [5]


async def test_C42_commit_by_nobody_into_a_living_group_only_from_old_transactional_clients() -> (
    None
):
    async with running(Fixture()) as fixture:
        await stable_member(fixture)
        assert (await fixture.groups.commit_offsets(commit(5))).verdict is V.UNKNOWN_MEMBER
        old = await fixture.groups.txn_commit_offsets(commit(5), PRODUCER)
        assert old.verdict is V.OK


# --- C43, B4: pending offsets -------------------------------------------------------------------


async def test_C43_offset_is_invisible_until_its_marker() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit(1))
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        assert await committed(fixture) == [1]
        fixture.end_transaction("g", 7, commit=True)
        assert await committed(fixture) == [9]
        fixture.assert_live_is_replay()


# Holds INV-GO2.
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("before", [None, 1])
async def test_B4_require_stable_is_unstable_for_every_shape(
    every: bool, before: int | None
) -> None:
    async with running(Fixture()) as fixture:
        if before is not None:
            await fixture.groups.commit_offsets(commit(before))
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        assert await committed(fixture, require_stable=True, every=every) == [V.UNSTABLE_OFFSET]


async def test_B4_other_partitions_of_the_group_stay_readable() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit(4, partition=1))
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        found = await committed(fixture, require_stable=True, every=True)
        assert found == [V.UNSTABLE_OFFSET, 4]


async def test_B4_all_partitions_without_require_stable_shows_no_pending_one() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        assert await committed(fixture, every=True) == []


# --- C44 ----------------------------------------------------------------------------------------


async def test_C44_pending_offset_loses_to_a_record_behind_it_in_the_ledger() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        await fixture.groups.commit_offsets(commit(3))
        fixture.end_transaction("g", 7, commit=True)
        assert await committed(fixture) == [3]


async def test_C44_two_transactions_order_by_record_not_by_marker() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.txn_commit_offsets(
            commit(10), TxnProducer(ProducerId(1), ProducerEpoch(0))
        )
        await fixture.groups.txn_commit_offsets(
            commit(20), TxnProducer(ProducerId(2), ProducerEpoch(0))
        )
        fixture.end_transaction("g", 2, commit=True)
        fixture.end_transaction("g", 1, commit=True)
        assert await committed(fixture) == [20]
        fixture.assert_live_is_replay()


async def test_C44_abort_drops_the_pending_offset() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit(1))
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        fixture.end_transaction("g", 7, commit=False)
        assert await committed(fixture, require_stable=True) == [1]


# --- C45, B5: expiry ----------------------------------------------------------------------------


async def test_C45_nothing_with_a_pending_offset_expires() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit(1))
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        await fixture.clock.advance(8 * DAY_MS)
        assert await committed(fixture) == [1]
        fixture.end_transaction("g", 7, commit=False)
        await fixture.clock.advance(DAY_MS)
        assert await committed(fixture) == [-1]
        fixture.assert_live_is_replay()


async def test_C45_tombstone_clears_the_pending_offset() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        await fixture.groups.forget_topic("orders", UUID(int=1))
        fixture.end_transaction("g", 7, commit=True)
        assert await committed(fixture) == [-1]
        fixture.assert_live_is_replay()


async def test_C45_offsets_of_a_living_group_stay_and_age_from_when_it_was_empty() -> None:
    async with running(Fixture()) as fixture:
        joined = await stable_member(fixture, session_timeout_ms=1_800_000)
        generation = joined.generation
        await fixture.groups.commit_offsets(commit(5, member=who(joined), generation=generation))
        for _ in range(8 * 48 * 2):
            await fixture.clock.advance(900_000)
            assert await fixture.groups.heartbeat("g", who(joined), generation) is V.OK
        await fixture.groups.leave("g", [who(joined)])
        await fixture.clock.advance(6 * DAY_MS)
        assert await committed(fixture) == [5]
        await fixture.clock.advance(2 * DAY_MS)
        assert await committed(fixture) == [-1]
        assert fixture.groups.describe("g").verdict is V.GROUP_NOT_FOUND
        fixture.assert_live_is_replay()


# --- B15, P14, B7 -------------------------------------------------------------------------------


# Holds INV-GC2.
@pytest.mark.parametrize("transactional", [False, True])
async def test_B15_commit_is_answered_only_when_durable(transactional: bool) -> None:
    async with running(Fixture()) as fixture:
        fixture.ledger.hold()
        groups, request = fixture.groups, commit(5)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(
                groups.txn_commit_offsets(request, PRODUCER)
                if transactional
                else groups.commit_offsets(request)
            )
            await settle()
            assert not waiting.done()
            fixture.ledger.release()
        assert waiting.result().verdict is V.OK


# Holds INV-GC2.
async def test_B15_fetch_shows_no_offset_that_could_be_lost() -> None:
    async with running(Fixture()) as fixture:
        fixture.ledger.hold()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fixture.groups.commit_offsets(commit(5)))
            await settle()
            reading = tasks.create_task(committed(fixture))
            await settle()
            assert not reading.done()
            fixture.ledger.release()
        assert reading.result() == [5]


async def test_B15_failed_ledger_answers_not_available_and_stops_the_shard() -> None:
    async with running(Fixture()) as fixture:
        fixture.ledger.fail()
        assert (await fixture.groups.commit_offsets(commit(5))).verdict is V.NOT_AVAILABLE
        outcome = await fixture.groups.fetch_offsets("g", [tp()], require_stable=False)
        assert outcome.verdict is V.NOT_AVAILABLE


# Holds INV-AM1.
async def test_P14_offsets_are_there_once_the_marker_call_returns() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        fixture.end_transaction("g", 7, commit=True)  # no await: B6
        table = fixture.groups.shards[fixture.groups.shard_of("g")].table
        place = table.lookup("g", tp())
        assert place is not None
        assert place.committed_offset == 9


async def test_C35_marker_during_the_load_is_applied_before_anything_is_served() -> None:
    ledger = MemoryLedger()
    async with running(Fixture(ledger)) as fixture:
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
    again = Fixture(ledger)
    ledger.hold()
    async with asyncio.TaskGroup() as tasks:
        service = tasks.create_task(again.groups.run())
        loading = tasks.create_task(again.groups.load())
        await settle()
        again.end_transaction("g", 7, commit=True)
        outcome = await again.groups.fetch_offsets("g", [tp()], require_stable=True)
        loads_first = outcome.verdict in (V.LOADING, V.NOT_COORDINATOR)
        assert loads_first
        ledger.release()
        await loading
        assert await committed(again, require_stable=True) == [9]
        again.assert_live_is_replay()
        service.cancel()


class MarkedWhileRead(MemoryLedger):
    """A ledger that gets a marker behind what a replay has read already."""

    def replay(self, shard: int) -> Iterator[LedgerSlice]:
        yield from super().replay(shard)
        self.behind(shard)

    behind: Callable[[int], None] = staticmethod(lambda _shard: None)


async def test_C35_marker_behind_the_replay_is_not_lost() -> None:
    ledger = MarkedWhileRead(1)
    async with running(Fixture(ledger)) as fixture:
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
    again = Fixture(ledger)
    ledger.behind = lambda _shard: again.end_transaction("g", 7, commit=True)
    async with running(again):
        assert await committed(again, require_stable=True) == [9]
        again.assert_live_is_replay()


async def test_B7_timed_out_transaction_frees_the_group() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.txn_commit_offsets(commit(9), PRODUCER)
        assert await committed(fixture, require_stable=True) == [V.UNSTABLE_OFFSET]
        fixture.end_transaction("g", 7, commit=False)  # what the coordinator's time-out writes
        assert await committed(fixture, require_stable=True) == [-1]


# --- C13, C22, C23: load and resign -------------------------------------------------------------


def test_C13_group_lives_on_the_shard_that_kafka_would_choose() -> None:
    fixture = Fixture(MemoryLedger(50))
    assert fixture.groups.shard_of("my-group") == abs(java_string_hash("my-group")) % 50


async def test_C23_not_coordinator_before_load_and_after_resign() -> None:
    fixture = Fixture()
    assert (await fixture.groups.commit_offsets(commit(1))).verdict is V.NOT_COORDINATOR
    async with running(fixture):
        await stable_member(fixture)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(fixture.groups.join("g", join_request()))
            await settle()
            await fixture.groups.resign()
        assert waiting.result().verdict is V.NOT_COORDINATOR
        assert (await fixture.groups.commit_offsets(commit(1))).verdict is V.NOT_COORDINATOR
        assert fixture.groups.list()[0] is V.NOT_COORDINATOR


async def test_C23_answers_loading_while_it_loads() -> None:
    fixture = Fixture()
    fixture.ledger.hold()
    async with asyncio.TaskGroup() as tasks:
        service = tasks.create_task(fixture.groups.run())
        loading = tasks.create_task(fixture.groups.load([0, 1, 2, 3][:1]))
        await settle()
        assert fixture.groups.list()[0] is V.LOADING
        fixture.ledger.release()
        await loading
        service.cancel()


async def test_C22_damaged_ledger_is_not_served_in_part() -> None:
    ledger = MemoryLedger(1)
    ledger.append(0, [(b"\x00\x63junk", b"junk")])
    fixture = Fixture(ledger)
    with pytest.raises(LedgerRecordError):
        await fixture.groups.load()
    assert (await fixture.groups.commit_offsets(commit(1))).verdict is V.NOT_AVAILABLE
    ledger.fail()
    with pytest.raises(LedgerFailed):
        await fixture.groups.load()


async def test_members_survive_a_coordinator_restart_and_heartbeat_on() -> None:
    ledger = MemoryLedger()
    async with running(Fixture(ledger)) as fixture:
        joined = await stable_member(fixture, instance_id="i")
        generation = joined.generation
        await fixture.groups.commit_offsets(
            commit(5, member=who(joined, "i"), generation=generation)
        )
    async with running(Fixture(ledger)) as again:
        assert await again.groups.heartbeat("g", who(joined, "i"), generation) is V.OK
        synced = await again.groups.sync("g", sync_request(joined))
        assert synced.assignment == b"mine"
        assert await committed(again) == [5]
        await again.clock.advance(20_000)
        assert await again.groups.heartbeat("g", who(joined), generation) is V.UNKNOWN_MEMBER


async def test_metadata_too_large_refuses_only_its_partition() -> None:
    async with running(Fixture()) as fixture:
        request = CommitRequest(
            group_id="g",
            offsets=(
                OffsetToCommit(tp(0), 5, NO_LEADER_EPOCH, "x" * 4_097),
                OffsetToCommit(tp(1), 6, NO_LEADER_EPOCH, "x" * 4_096),
            ),
        )
        outcome = await fixture.groups.commit_offsets(request)
        assert outcome.of(tp(0)) is V.METADATA_TOO_LARGE
        assert outcome.of(tp(1)) is V.OK
        assert await committed(fixture, every=True) == [6]


# --- T26 ----------------------------------------------------------------------------------------


async def test_T26_offsets_past_the_cut_are_clamped_as_records() -> None:
    ledger = MemoryLedger()
    async with running(Fixture(ledger)) as fixture:
        await fixture.groups.commit_offsets(commit(100))
        await fixture.groups.commit_offsets(commit(50, partition=1))
        await fixture.groups.commit_offsets(commit(60, partition=2))
        report = await fixture.groups.clamp({tp(0): 90, tp(1): 90})
        assert [(c.committed_offset, c.clamped_to) for c in report.clamped] == [(100, 90)]
        assert not report.clamped[0].transactional
        assert await committed(fixture, every=True) == [90, 50, 60]
        fixture.assert_live_is_replay()
    async with running(Fixture(ledger)) as again:  # durable, not only in memory
        assert await committed(again, every=True) == [90, 50, 60]


async def test_T26_groups_are_emptied_and_their_generation_jumps() -> None:
    async with running(Fixture()) as fixture:
        joined = await stable_member(fixture)
        report = await fixture.groups.clamp(lambda _: None)
        assert report.emptied == ["g"]
        assert fixture.groups.describe("g").members == ()
        old = commit(5, member=who(joined), generation=joined.generation)
        assert (await fixture.groups.commit_offsets(old)).verdict is V.UNKNOWN_MEMBER
        staged = await fixture.groups.txn_commit_offsets(old, PRODUCER)
        assert staged.verdict is V.UNKNOWN_MEMBER
        heard = await fixture.groups.heartbeat("g", who(joined), joined.generation)
        assert heard is V.UNKNOWN_MEMBER
        again = await fixture.groups.join("g", join_request())
        assert again.generation == joined.generation + 2**16 + 1


async def test_T26_generations_of_two_takeovers_from_one_cut_never_meet() -> None:
    given = []
    for region_epoch in (17, 26):
        async with running(Fixture()) as fixture:
            await stable_member(fixture)
            await fixture.groups.clamp(lambda _: None, region_epoch=RegionEpoch(region_epoch))
            again = await fixture.groups.join("g", join_request())
            given.append(again.generation)
    # Each region epoch has 2**16 generations of its own, as it has leader epochs (T19).
    assert given == [(17 << 16) + 1, (26 << 16) + 1]


async def test_T26_a_group_above_the_cut_gets_no_generation_of_the_lost_region() -> None:
    """Region epoch 8 is the one that a cluster is born with; 17 and 26 are of takeovers."""
    given = []
    for region_epoch in (8, 17, 26):
        async with running(Fixture()) as fixture:
            await fixture.groups.load(region_epoch=RegionEpoch(region_epoch))
            classic = await fixture.groups.join("classic", join_request())
            fixture.topics.put("orders", 1)
            beat = HeartbeatRequest(
                group_id="modern", member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
                topic_names=("orders",), owned={},
            )  # fmt: skip
            modern = await fixture.groups.consumer_heartbeat(beat)
            given.append((classic.generation, modern.member_epoch))
    assert given == [(1, 1), ((17 << 16) + 1, (17 << 16) + 1), ((26 << 16) + 1, (26 << 16) + 1)]


async def test_T26_commit_without_a_generation_beyond_its_leader_epoch_is_refused() -> None:
    async with running(Fixture()) as fixture:
        epoch = FIRST_LEADER_EPOCH + 5
        fixture.ends.ends[tp(), epoch] = 90
        refused = await fixture.groups.commit_offsets(commit(91, leader_epoch=epoch))
        assert refused.of(tp()) is V.OFFSET_BEYOND_EPOCH
        for offset, under in ((90, epoch), (95, epoch + 1)):
            taken = await fixture.groups.commit_offsets(commit(offset, leader_epoch=under))
            assert taken.of(tp()) is V.OK


async def test_T26_commit_without_generation_and_epoch_is_held_against_the_end_of_a_cut_log() -> (
    None
):
    """aiokafka and kafka-python with assign(): nothing but the offset tells that it lies behind the cut."""
    async with running(Fixture()) as fixture:
        assert (await fixture.groups.commit_offsets(commit(4))).of(tp()) is V.OK  # nothing was cut
        fixture.ends.after_takeover[tp()] = 1
        for offset, verdict in ((1, V.OK), (2, V.OFFSET_BEYOND_EPOCH)):
            outcome = await fixture.groups.commit_offsets(commit(offset))
            assert outcome.of(tp()) is verdict
            staged = await fixture.groups.txn_commit_offsets(commit(offset), PRODUCER)
            assert staged.of(tp()) is verdict
        assert await committed(fixture) == [1]


async def test_T26_a_leader_epoch_that_no_region_gave_is_taken_as_kafka_takes_it() -> None:
    async with running(Fixture()) as fixture:
        fixture.ends.ends[tp(), 1] = 0
        taken = await fixture.groups.commit_offsets(commit(10, leader_epoch=1))
        assert taken.of(tp()) is V.OK
        assert await committed(fixture) == [10]
