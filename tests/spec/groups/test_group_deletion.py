"""Groups, offsets and topics that an administrator deletes: KIP-229 (DeleteGroups), KIP-496 (OffsetDelete).

Sources: the KIPs; Kafka GroupCoordinatorService, ClassicGroup.validateDeleteGroup, validateOffsetDelete,
isSubscribedToTopic; the layout of ConsumerProtocolSubscription.
"""

import asyncio
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from idempotency.identity import NO_LEADER_EPOCH, ProducerEpoch, ProducerId
from idempotency.pieces import drained
from region_broker.groups import offset_room
from region_broker.groups.coordinator import LOOKS_AT_ONCE
from region_broker.groups.deletion import judge_deletion, subscription_topics
from region_broker.groups.messages import CommitRequest, MemberIdentity, OffsetToCommit
from region_broker.groups.modern.messages import HeartbeatRequest
from region_broker.groups.modern.records import MemberMetadata
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.ports import TxnProducer
from region_broker.groups.shard import Shard
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.limits import YIELD_ROWS
from region_broker.wire.cooperative_yield import CooperativeYield
from tests.fixtures.kafka_port import wire_fixture
from tests.unit.region_broker.groups.fakes import (
    Fixture,
    ManualClock,
    join_request,
    running,
    settle,
    stable_member,
    tp,
)

PRODUCER = TxnProducer(ProducerId(7), ProducerEpoch(0))


def subscription(*topics: str, version: int = 1) -> bytes:
    """Return a ConsumerProtocolSubscription with user data and owned partitions behind the topics."""
    names = b"".join(struct.pack(">h", len(t.encode())) + t.encode() for t in topics)
    return struct.pack(">hi", version, len(topics)) + names + struct.pack(">ii", -1, 0)


def commit_of(*partitions: int, group_id: str = "g") -> CommitRequest:
    offsets = tuple(
        OffsetToCommit(tp(number, "t"), 5, NO_LEADER_EPOCH, "") for number in partitions
    )
    return CommitRequest(group_id=group_id, offsets=offsets)


async def offsets(fixture: Fixture) -> list[int]:
    outcome = await fixture.groups.fetch_offsets("g", None, require_stable=False)
    return [place.tp.partition for place in outcome.offsets]


async def test_KIP229_group_without_members_goes_with_its_offsets() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit_of(0, 1))
        assert await fixture.groups.delete_group("g") is V.OK
        assert await offsets(fixture) == []
        assert fixture.groups.list()[1] == []
        fixture.assert_live_is_replay()
        assert await fixture.groups.delete_group("g") is V.GROUP_NOT_FOUND
        assert await fixture.groups.delete_group("") is V.GROUP_NOT_FOUND


async def test_KIP229_the_group_of_the_empty_name_goes_as_any_other() -> None:
    """Kafka takes OffsetCommit and DeleteGroups for it, and neither members nor offsets in transactions."""
    async with running(Fixture()) as fixture:
        nameless = commit_of(0, group_id="")
        assert (await fixture.groups.commit_offsets(nameless)).verdict is V.OK
        staged = await fixture.groups.txn_commit_offsets(nameless, PRODUCER)
        assert staged.verdict is V.INVALID_GROUP_ID
        assert (await fixture.groups.join("", join_request())).verdict is V.INVALID_GROUP_ID
        assert await fixture.groups.delete_group("") is V.OK
        left = await fixture.groups.fetch_offsets("", None, require_stable=True)
        assert left.offsets == ()
        fixture.assert_live_is_replay()


def test_KIP229_a_group_of_the_new_protocol_stays_while_it_has_members() -> None:
    shard, group = Shard(0), ConsumerGroup("g")
    shard.table.modern["g"] = group
    group.metadata["m"] = MemberMetadata()
    assert judge_deletion(shard, "g") is V.NON_EMPTY_GROUP
    group.metadata.clear()
    assert judge_deletion(shard, "g") is V.OK


async def test_KIP229_group_with_members_stays_until_they_left() -> None:
    async with running(Fixture()) as fixture:
        joined = await stable_member(fixture)
        mine = replace(
            commit_of(0),
            who=MemberIdentity(joined.member_id),
            generation=joined.generation,
        )
        await fixture.groups.commit_offsets(mine)
        assert await fixture.groups.delete_group("g") is V.NON_EMPTY_GROUP
        assert await offsets(fixture) == [0]
        await fixture.groups.leave("g", [MemberIdentity(joined.member_id)])
        await settle()
        assert await fixture.groups.delete_group("g") is V.OK
        assert fixture.groups.describe("g").verdict is V.GROUP_NOT_FOUND
        fixture.assert_live_is_replay()
        again = await stable_member(fixture)
        assert again.generation == 1, "it is a new group"


async def test_KIP229_nothing_of_a_deleted_group_of_the_new_protocol_stays_in_memory() -> None:
    async with running(Fixture()) as fixture:
        join = HeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
            topic_names=("t",), owned={},
        )  # fmt: skip
        assert (await fixture.groups.consumer_heartbeat(join)).verdict is V.OK
        leave = HeartbeatRequest(group_id="g", member_id="m", member_epoch=-1)
        assert (await fixture.groups.consumer_heartbeat(leave)).verdict is V.OK
        assert await fixture.groups.delete_group("g") is V.OK
        assert not any(fixture.groups._modern._runtimes.values())
        fixture.assert_live_is_replay()


async def test_KIP229_offsets_of_open_transactions_do_not_bring_a_group_back() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.txn_commit_offsets(commit_of(0), PRODUCER)
        assert await fixture.groups.delete_group("g") is V.OK
        fixture.end_transaction("g", PRODUCER.producer_id, commit=True)
        assert await offsets(fixture) == []
        fixture.assert_live_is_replay()


async def test_KIP229_deletion_that_the_ledger_did_not_take_is_no_success() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit_of(0))
        fixture.ledger.fail()
        assert await fixture.groups.delete_group("g") is V.NOT_AVAILABLE


async def test_KIP496_offsets_of_an_empty_group_go() -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit_of(0, 1, 2))
        asked = [tp(0, "t"), tp(2, "t"), tp(9, "t")]
        verdict, each = await fixture.groups.delete_offsets("g", asked)
        assert (verdict, set(each.values())) == (V.OK, {V.OK})
        assert await offsets(fixture) == [1]
        fixture.assert_live_is_replay()
        assert await fixture.groups.delete_offsets("nope", asked) == (V.GROUP_NOT_FOUND, {})


# Holds INV-GD1.
@pytest.mark.parametrize(
    ("metadata", "kind", "verdict", "partition"),
    [
        (subscription("other"), "consumer", V.OK, V.OK),
        (subscription("other", "t"), "consumer", V.OK, V.SUBSCRIBED_TO_TOPIC),
        (b"nonsense", "consumer", V.OK, V.SUBSCRIBED_TO_TOPIC),
        (subscription("other"), "connect", V.NON_EMPTY_GROUP, None),
    ],
)
async def test_KIP496_offsets_that_members_read_stay(
    metadata: bytes, kind: str, verdict: V, partition: V | None
) -> None:
    async with running(Fixture()) as fixture:
        await fixture.groups.commit_offsets(commit_of(0))
        await stable_member(fixture, protocol_type=kind, protocols=(("range", metadata),))
        found, each = await fixture.groups.delete_offsets("g", [tp(0, "t")])
        assert found is verdict
        assert each == ({} if partition is None else {tp(0, "t"): partition})
        assert await offsets(fixture) == ([] if partition is V.OK else [0])


@pytest.mark.parametrize(
    ("data", "topics"),
    [
        (subscription(), set()),
        (subscription("a", "b", version=3), {"a", "b"}),
        (b"", None),
        (b"\x00\x01", None),
        (struct.pack(">hi", 0, 1_000_000_000), None),
        (struct.pack(">hi", 0, -1), None),
        (struct.pack(">hi", -1, 0), None),
        (struct.pack(">hih", 0, 1, 50) + b"short", None),
        (struct.pack(">hih", 0, 1, -3), None),
        (struct.pack(">hih", 0, 1, 2) + b"\xff\xff", None),
    ],
)
def test_subscriptions_are_read_whatever_a_member_sends(data: bytes, topics: Any) -> None:
    assert drained(subscription_topics(data, CooperativeYield())) == topics


@pytest.mark.parametrize("version", range(3))
async def test_KIP229_through_the_wire(tmp_path: Path, version: int) -> None:
    async with running(Fixture()) as groups, wire_fixture(tmp_path) as fixture:
        fixture.services.groups = groups.groups
        await groups.groups.commit_offsets(commit_of(0))
        await groups.groups.join("h", join_request())
        client = await fixture.connect()
        answer = await client.call(42, version, {"groups_names": ["g", "h", "nope", "g"]})
        rows = {row.group_id: row.error_code for row in answer.results}
        assert rows == {"g": 0, "h": 68, "nope": 69}
        assert len(answer.results) == 3
        many = await client.call(42, version, {"groups_names": [f"{n}" for n in range(20_001)]})
        assert {row.error_code for row in many.results} == {42}


async def test_KIP496_through_the_wire(tmp_path: Path) -> None:
    async with running(Fixture()) as groups, wire_fixture(tmp_path) as fixture:
        fixture.services.groups = groups.groups
        await fixture.topic("t", 2)
        await groups.groups.commit_offsets(commit_of(0, 1))
        client = await fixture.connect()
        asked = [{"name": "t", "partitions": [{"partition_index": n} for n in (0, 5)]},
                 {"name": "nope", "partitions": [{"partition_index": 0}]}]  # fmt: skip
        answer = await client.call(47, 0, {"group_id": "g", "topics": asked})
        rows = {
            (t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions
        }
        assert (answer.error_code, rows) == (0, {("t", 0): 0, ("t", 5): 3, ("nope", 0): 3})
        unknown = await client.call(47, 0, {"group_id": "nope", "topics": asked})
        assert (unknown.error_code, unknown.topics) == (69, ())
        assert await offsets(groups) == [1]


# --- topics that are deleted ----------------------------------------------------------------------


async def committed(fixture: Fixture) -> list[int]:
    """Return what is committed in partition 0 of `t`, -1: nothing; first by name, then among all."""
    named = await fixture.groups.fetch_offsets("g", [tp(0, "t")], require_stable=False)
    all_there = await fixture.groups.fetch_offsets("g", None, require_stable=False)
    return [place.committed_offset for place in (*named.offsets, *all_there.offsets)]


@pytest.mark.parametrize("how", ["the shard loads", "a crash", "a takeover"])
async def test_INV_GO6_offsets_of_a_deleted_topic_are_not_those_of_its_namesake(how: str) -> None:
    """The registry is durable first, the tombstones come after it: what falls between the two leaves them out."""
    fixture = Fixture()
    async with running(fixture):
        fixture.topics.put("t", 1, number=1)
        assert (await fixture.groups.commit_offsets(commit_of(0))).verdict is V.OK
        assert await committed(fixture) == [5, 5]
        if how == "the shard loads":
            fixture.ledger.hold()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fixture.groups.load())
                await settle()
                fixture.topics.drop("t")
                tasks.create_task(fixture.groups.forget_topic("t", UUID(int=1)))
                await settle()
                fixture.ledger.release()
        else:
            fixture.topics.drop("t")
            await fixture.groups.load()
            assert await committed(fixture) == [5, 5], "that a topic is not there deletes nothing"
            if how == "a takeover":
                await fixture.groups.clamp({tp(0, "t"): 3})
        fixture.topics.put("t", 1, number=2)
        assert await committed(fixture) == [-1]
        await fixture.groups.expire_offsets()
        fixture.topics.put("t", 1, number=1)
        assert await committed(fixture) == [-1], "they are removed once another topic has the name"
        fixture.assert_live_is_replay()


async def test_INV_GO6_a_new_leader_forgets_offsets_of_a_topic_that_is_known_to_be_deleted() -> (
    None
):
    """1. A node leads the metadata, another one the logs. 2. A topic is deleted, and who led the logs ends before it forgot the
    offsets. 3. Whoever leads next has the deletion in its metadata.
    """
    fixture = Fixture()
    async with running(fixture):
        topic_id = fixture.topics.put("t", 1, number=1)
        assert (await fixture.groups.commit_offsets(commit_of(0))).verdict is V.OK
        fixture.topics.drop("t")
        fixture.topics.deleted.add(topic_id)
        await fixture.groups.load()
        assert await committed(fixture) == [-1]
        await fixture.groups.expire_offsets()
        fixture.topics.deleted.clear()
        assert await committed(fixture) == [-1], "they are removed, not only hidden"
        fixture.assert_live_is_replay()


@pytest.mark.parametrize("comes_again", [False, True])
async def test_INV_GO6_a_deleted_topic_is_forgotten_a_few_groups_at_a_time(
    comes_again: bool,
) -> None:
    """Others are served between them; a topic that comes under its name meanwhile keeps what is committed for it."""
    fixture, count = Fixture(), 3 * YIELD_ROWS
    async with running(fixture):
        fixture.topics.put("t", 1, number=1)
        for number in range(count):
            commit = commit_of(0, group_id=f"g{number:04}")
            assert (await fixture.groups.commit_offsets(commit)).verdict is V.OK
        fixture.topics.drop("t")
        async with asyncio.TaskGroup() as tasks:
            forgetting = tasks.create_task(fixture.groups.forget_topic("t", UUID(int=1)))
            await asyncio.sleep(0)
            left = sum(len(shard.table.committed) for shard in fixture.groups.shards)
            assert 0 < left < count
            assert not forgetting.done()
            if comes_again:
                fixture.topics.put("t", 1, number=2)
                commit = commit_of(0, group_id=f"g{count - 1:04}")
                assert (await fixture.groups.commit_offsets(commit)).verdict is V.OK
        last = await fixture.groups.fetch_offsets(f"g{count - 1:04}", [tp(0, "t")], require_stable=False)  # fmt: skip
        assert [each.committed_offset for each in last.offsets] == [5 if comes_again else -1]
        if not comes_again:
            assert not any(shard.table.committed for shard in fixture.groups.shards)
        fixture.assert_live_is_replay()


@pytest.mark.parametrize("staged", [False, True])
async def test_INV_GO6_what_is_committed_for_a_namesake_meanwhile_stays(staged: bool) -> None:
    """1. A topic is deleted; the first shard waits for its disk. 2. It is made again, and an offset of it is acknowledged in a
    later shard. 3. That shard's turn comes.
    """
    fixture = Fixture()
    async with running(fixture):
        by_shard = {fixture.groups.shard_of(f"g{number}"): f"g{number}" for number in range(40)}
        first, last = by_shard[0], by_shard[3]
        fixture.topics.put("t", 2, number=1)
        for group_id in (first, last):
            commit = commit_of(0, 1, group_id=group_id)
            assert (await fixture.groups.commit_offsets(commit)).verdict is V.OK
        fixture.topics.drop("t")
        fixture.ledger.hold()
        async with asyncio.TaskGroup() as tasks:
            forgetting = tasks.create_task(fixture.groups.forget_topic("t", UUID(int=1)))
            await settle()
            assert not forgetting.done()
            fixture.topics.put("t", 2, number=2)
            again = replace(commit_of(0, group_id=last), offsets=(OffsetToCommit(tp(0, "t"), 9),))
            if staged:
                tasks.create_task(fixture.groups.txn_commit_offsets(again, PRODUCER))
            else:
                tasks.create_task(fixture.groups.commit_offsets(again))
            await settle()
            fixture.ledger.release()
        if staged:
            fixture.end_transaction(last, PRODUCER.producer_id, commit=True)
        left = await fixture.groups.fetch_offsets(last, None, require_stable=True)
        assert [(each.tp.partition, each.committed_offset) for each in left.offsets] == [(0, 9)]
        table = fixture.groups.shards[3].table
        assert list(table.committed[last]) == [tp(0, "t")], "the other one is removed"
        fixture.assert_live_is_replay()


class TurnClock(ManualClock):
    """Counts the turns that others get."""

    turns = 0

    async def sleep_ms(self, duration_ms: float) -> None:
        self.turns += duration_ms == 0
        await super().sleep_ms(duration_ms)


@pytest.mark.parametrize("what", ["a topic is deleted", "retention looks"])
async def test_INV_GC5_offsets_that_are_looked_at_for_nothing_give_way_too(what: str) -> None:
    """A hundred groups with offsets of another topic were gone through in one step."""
    clock = TurnClock()
    fixture, group_count, offset_count = Fixture(clock=clock), 100, 300
    async with running(fixture):
        fixture.topics.put("t", offset_count, number=1)
        for number in range(group_count):
            commit = commit_of(*range(offset_count), group_id=f"g{number}")
            assert (await fixture.groups.commit_offsets(commit)).verdict is V.OK
        turns, batches = clock.turns, fixture.ledger.batches
        if what == "a topic is deleted":
            await fixture.groups.forget_topic("another", UUID(int=7))
        else:
            await fixture.groups.expire_offsets()
        assert clock.turns - turns >= group_count * offset_count // LOOKS_AT_ONCE // 2
        assert fixture.ledger.batches == batches


async def test_INV_GC5_a_topic_is_forgotten_a_few_partitions_of_a_group_at_a_time() -> None:
    """Half a million offsets that transactions held open of one group went in one step of seconds. What is staged for a namesake meanwhile stays."""
    clock = TurnClock()
    fixture, count = Fixture(clock=clock), 100
    async with running(fixture):
        fixture.topics.put("t", count, number=1)
        for number in range(30):
            producer = TxnProducer(ProducerId(number), ProducerEpoch(0))
            staged = await fixture.groups.txn_commit_offsets(commit_of(*range(count)), producer)
            assert staged.verdict is V.OK
        fixture.topics.drop("t")
        turns = clock.turns
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fixture.groups.forget_topic("t", UUID(int=1)))
            await asyncio.sleep(0)
            table = fixture.groups.shards[fixture.groups.shard_of("g")].table
            assert 0 < table.offset_count("g") < count
            fixture.topics.put("t", count, number=2)
            await fixture.groups.txn_commit_offsets(commit_of(count - 1), PRODUCER)
        assert clock.turns - turns >= 10
        assert table.partitions("g") == [tp(count - 1, "t")]
        fixture.end_transaction("g", PRODUCER.producer_id, commit=True)
        assert await offsets(fixture) == [count - 1]
        fixture.assert_live_is_replay()


class CountedLooks(dict[Any, Any]):
    """Counts how often something is looked up in it."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        self.looks += 1
        return super().__getitem__(key)


async def test_INV_GO8_a_topic_is_deleted_without_a_look_at_transactions_that_hold_others() -> None:
    """A thousand transactions, with an offset each in a thousand partitions of one group, were looked up a million times in one step."""
    fixture, count = Fixture(), 60
    async with running(fixture):
        fixture.topics.put("t", count, number=1)
        producers = [TxnProducer(ProducerId(n), ProducerEpoch(0)) for n in range(count + 2)]
        for number, producer in enumerate(producers[:count]):
            staged = await fixture.groups.txn_commit_offsets(commit_of(number), producer)
            assert staged.verdict is V.OK
        for producer in producers[count:]:
            await fixture.groups.txn_commit_offsets(commit_of(0, 1), producer)
        fixture.end_transaction("g", producers[0].producer_id, commit=False)
        table = fixture.groups.shards[fixture.groups.shard_of("g")].table
        table.pending = counted = CountedLooks(table.pending)
        fixture.topics.drop("t")
        await fixture.groups.forget_topic("t", UUID(int=1))
        assert counted.looks <= 3 * count
        assert not table.pending
        assert not table.has_offsets("g")
        fixture.assert_live_is_replay()


async def test_INV_GO6_a_ledger_that_fails_keeps_no_topic_from_being_deleted() -> None:
    """The topic is gone by then: who is told anything else, or nothing, asks again for what is not there, and for no other of the request."""
    fixture = Fixture()
    async with running(fixture):
        fixture.topics.put("t", 1, number=1)
        assert (await fixture.groups.commit_offsets(commit_of(0))).verdict is V.OK
        fixture.topics.drop("t")
        fixture.ledger.fail()
        await fixture.groups.forget_topic("t", UUID(int=1))
        asked = await fixture.groups.fetch_offsets("g", [tp(0, "t")], require_stable=False)
        assert asked.verdict is V.NOT_AVAILABLE, "what failed is not served on"


async def test_INV_GO6_a_transaction_that_ends_after_the_deletion_brings_no_offset_back() -> None:
    fixture = Fixture()
    async with running(fixture):
        fixture.topics.put("t", 1, number=1)
        await fixture.groups.txn_commit_offsets(commit_of(0), PRODUCER)
        fixture.topics.put("t", 1, number=2)  # nobody told this shard
        fixture.end_transaction("g", PRODUCER.producer_id, commit=True)
        assert await committed(fixture) == [-1]
        assert (await fixture.groups.commit_offsets(commit_of(0))).verdict is V.OK
        assert await committed(fixture) == [5, 5]
        fixture.assert_live_is_replay()


async def test_INV_GO5_an_offset_in_an_open_transaction_does_not_go_with_that_of_a_deleted_namesake() -> (
    None
):
    fixture = Fixture()
    async with running(fixture):
        fixture.topics.put("t", 1, number=1)
        assert (await fixture.groups.commit_offsets(commit_of(0))).verdict is V.OK
        fixture.topics.put("t", 1, number=2)  # nobody told this shard
        await fixture.groups.txn_commit_offsets(commit_of(0), PRODUCER)
        await fixture.groups.expire_offsets()
        fixture.end_transaction("g", PRODUCER.producer_id, commit=True)
        assert await committed(fixture) == [5, 5]
        fixture.assert_live_is_replay()


@pytest.mark.parametrize("made_again", [False, True])
async def test_INV_GV4_a_large_commit_is_not_written_behind_the_deletion_of_its_topic(
    made_again: bool,
) -> None:
    fixture = Fixture()
    async with running(fixture):
        fixture.topics.put("t", 3_000, number=1)
        async with asyncio.TaskGroup() as tasks:
            large = tasks.create_task(fixture.groups.commit_offsets(commit_of(*range(3_000))))
            await asyncio.sleep(0)
            fixture.topics.drop("t")
            await fixture.groups.forget_topic("t", UUID(int=1))
            assert not large.done()
            if made_again:
                fixture.topics.put("t", 3_000, number=2)
        assert large.result().verdict is V.LOADING, "ask again"
        assert await offsets(fixture) == []


async def test_INV_GV4_a_commit_for_a_topic_that_is_another_now_is_refused() -> None:
    fixture = Fixture()
    async with running(fixture):
        fixture.topics.put("t", 1, number=2)
        wanted = OffsetToCommit(tp(0, "t"), 5, topic_id=UUID(int=1))
        outcome = await fixture.groups.commit_offsets(
            CommitRequest(group_id="g", offsets=(wanted,))
        )
        assert outcome.of(wanted.tp) is V.UNKNOWN_PARTITION
        assert await committed(fixture) == [-1]


def same_shard(fixture: Fixture, group_id: str) -> str:
    """Return another group of the same shard."""
    shard_of = fixture.groups.shard_of
    names = (f"another-{number}" for number in range(99))
    return next(name for name in names if shard_of(name) == shard_of(group_id))


def another_shard(fixture: Fixture, group_id: str) -> str:
    """Return a group of another shard."""
    shard_of = fixture.groups.shard_of
    names = (f"another-{number}" for number in range(99))
    return next(name for name in names if shard_of(name) != shard_of(group_id))


async def test_INV_GO7_what_open_transactions_have_staged_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that stages offsets under many transactional ids, with metadata, and ends none, filled memory: also of who leads next."""
    monkeypatch.setattr(offset_room, "PENDING_OFFSETS_MAX", 100)
    fixture, others = Fixture(), [TxnProducer(ProducerId(n), ProducerEpoch(0)) for n in range(9)]
    async with running(fixture):
        fixture.topics.put("t", 200, number=1)
        staged = fixture.groups.txn_commit_offsets
        assert (await staged(commit_of(*range(60)), others[0])).verdict is V.OK
        assert (await staged(commit_of(*range(60)), others[0])).verdict is V.OK, "the same again"
        (table,) = [shard.table for shard in fixture.groups.shards if shard.table.pending]
        assert table.pending_weight == 60
        large = commit_of(*range(60))
        assert (await staged(large, others[1])).verdict is V.NOT_AVAILABLE
        assert table.pending_weight == 60
        for other in others[2:5]:  # few are let in, or one client keeps all others out
            assert (await staged(commit_of(*range(40)), other)).verdict is V.OK
        noted = replace(large.offsets[0], metadata="m" * 64 * 41)
        with_metadata = replace(large, offsets=(noted,))
        more = commit_of(*range(100, 140))
        assert (await staged(more, others[2])).verdict is V.NOT_AVAILABLE, (
            "few in all, not each time"
        )
        assert (await staged(commit_of(*range(40)), others[2])).verdict is V.OK, "nothing is added"
        elsewhere = replace(large, group_id=another_shard(fixture, "g"))
        assert (await staged(elsewhere, others[7])).verdict is V.NOT_AVAILABLE, "of all shards"
        in_another_group = replace(more, group_id=same_shard(fixture, "g"))
        assert (await staged(in_another_group, others[2])).verdict is V.NOT_AVAILABLE
        assert (await staged(with_metadata, others[6])).verdict is V.NOT_AVAILABLE
        fixture.assert_live_is_replay()
        for other in (others[0], *others[2:5]):
            fixture.end_transaction("g", other.producer_id, commit=other is others[0])
        assert table.pending_weight == 0
        assert (await staged(with_metadata, others[6])).verdict is V.OK
        assert table.pending_weight == 42
        await fixture.groups.delete_offsets("g", [tp(0, "t")])
        assert table.pending_weight == 0
        fixture.assert_live_is_replay()
