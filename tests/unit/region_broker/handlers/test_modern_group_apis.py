"""The APIs of the new group protocol through the real codec: bytes in, bytes out, in every version."""

from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from region_broker.handlers.dispatch.registry import Api
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    list_groups,
    offset_commit,
    offset_fetch,
)
from region_broker.handlers.transactions import txn_offset_commit
from region_broker.wire.codec.answers import encode_response
from tests.unit.region_broker.groups.fakes import Fixture, running
from tests.unit.region_broker.handlers.test_group_apis import ORDERS, Client, fill, named

HEARTBEAT = consumer_group_heartbeat.API
DESCRIBE = consumer_group_describe.API


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running(Fixture()) as fixture:
        fixture.topics.put("orders", 3, number=ORDERS.topic_id.int)
        yield Client(fixture)


def beat_of(member_id: str, epoch: int, **values: Any) -> Any:
    def make(m: Any) -> Any:
        joining: dict[str, Any] = {
            "rebalance_timeout": timedelta(seconds=60),
            "subscribed_topic_names": ("orders",),
            "topic_partitions": (),
        }
        said = {"topic_partitions": None} | (joining if epoch == 0 else {}) | values
        return fill(
            m.ConsumerGroupHeartbeatRequest, group_id="g", member_id=member_id,
            member_epoch=epoch, **said,
        )  # fmt: skip

    return make


def assigned(answer: Any) -> dict[UUID, tuple[int, ...]] | None:
    if answer.assignment is None:
        return None
    return {each.topic_id: tuple(each.partitions) for each in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", HEARTBEAT.versions)
async def test_a_member_joins_goes_on_and_leaves(client: Client, version: int) -> None:
    joined = await client.send(HEARTBEAT, version, beat_of("m", 0))
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "m", 1)
    assert joined.heartbeat_interval == timedelta(seconds=5)
    assert assigned(joined) == {ORDERS.topic_id: (0, 1, 2)}
    again = await client.send(HEARTBEAT, version, beat_of("m", 1))
    assert (again.error_code, again.member_epoch, assigned(again)) == (0, 1, None)
    left = await client.send(HEARTBEAT, version, beat_of("m", -1))
    assert (left.error_code, left.member_epoch) == (0, -1)
    gone = await client.send(HEARTBEAT, version, beat_of("m", 1))
    assert (gone.error_code, gone.error_message) == (25, "Member m is not a member of the group.")


async def test_INV_NC1_what_a_member_owns_may_be_named_in_several_rows_of_a_topic(
    client: Client,
) -> None:
    def owning(m: Any) -> Any:
        row = m.TopicPartitions
        rows = tuple(row(topic_id=ORDERS.topic_id, partitions=each) for each in ((2,), (0, 1)))
        return beat_of("a", 1, topic_partitions=rows)(m)

    await client.send(HEARTBEAT, 0, beat_of("a", 0))
    await client.send(HEARTBEAT, 0, beat_of("b", 0))
    (kept,) = (assigned(await client.send(HEARTBEAT, 0, beat_of("a", 1))) or {}).values()
    assert len(kept) < 3
    assert (await client.send(HEARTBEAT, 0, owning)).member_epoch == 1, "it gave nothing back"
    assert not assigned(await client.send(HEARTBEAT, 0, beat_of("b", 2)))


async def test_version_0_draws_the_id_and_version_1_demands_it(client: Client) -> None:
    drawn = await client.send(HEARTBEAT, 0, beat_of("", 0))
    assert drawn.error_code == 0
    assert drawn.member_id == str(UUID(int=1))
    demanded = await client.send(HEARTBEAT, 1, beat_of("", 0))
    assert (demanded.error_code, demanded.error_message) == (42, "MemberId can't be empty.")


async def test_version_1_subscribes_by_a_pattern(client: Client) -> None:
    nothing: Any = {"subscribed_topic_names": ()}
    joined = await client.send(
        HEARTBEAT, 1, beat_of("m", 0, subscribed_topic_regex="ord.*", **nothing)
    )
    assert assigned(joined) == {ORDERS.topic_id: (0, 1, 2)}
    refused = await client.send(
        HEARTBEAT, 1, beat_of("n", 0, subscribed_topic_regex="(a", **nothing)
    )
    assert refused.error_code == 128
    assert "missing closing )" in refused.error_message


@pytest.mark.parametrize(
    ("values", "error_code"),
    [
        ({"member_id": "m", "epoch": 9}, 110),
        ({"member_id": "n", "epoch": 0, "server_assignor": "sticky"}, 112),
        ({"member_id": "n", "epoch": 0, "instance_id": "i"}, 111),
        ({"member_id": "n", "epoch": 1, "instance_id": "i"}, 82),
    ],
)
async def test_errors_have_Kafkas_numbers(
    client: Client, values: dict[str, Any], error_code: int
) -> None:
    await client.send(HEARTBEAT, 1, beat_of("m", 0, instance_id="i"))
    answer = await client.send(HEARTBEAT, 1, beat_of(**values))
    assert answer.error_code == error_code
    assert answer.error_message


@pytest.mark.parametrize("version", DESCRIBE.versions)
async def test_groups_are_described(client: Client, version: int) -> None:
    await client.send(HEARTBEAT, 1, beat_of("m", 0, instance_id="i", rack_id="r"))

    def make(m: Any) -> Any:
        asked = {"group_ids": ("g", "no"), "include_authorized_operations": True}
        return fill(m.ConsumerGroupDescribeRequest, **asked)

    known, unknown = (await client.send(DESCRIBE, version, make)).groups
    assert (known.error_code, known.group_state, known.assignor_name) == (0, "Stable", "uniform")
    assert (known.group_epoch, known.assignment_epoch) == (1, 1)
    [member] = known.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("m", "i", "r")
    assert (member.client_id, member.client_host) == ("cl", "/127.0.0.1")
    assert (member.member_epoch, member.subscribed_topic_names) == (1, ("orders",))
    for held in (member.assignment, member.target_assignment):
        [topic] = held.topic_partitions
        assert (topic.topic_id, topic.topic_name) == (ORDERS.topic_id, "orders")
        assert topic.partitions == (0, 1, 2)
    if version >= 1:
        assert member.member_type == 1
    assert (unknown.error_code, unknown.group_state) == (69, "Dead")


async def test_other_APIs_tell_the_two_protocols_apart(client: Client) -> None:
    await client.send(HEARTBEAT, 1, beat_of("m", 0))
    for types, expected in (((), ["g"]), (("Consumer",), ["g"]), (("classic",), [])):
        listed = await client.send(
            list_groups.API, 5, lambda m, t=types: fill(m.ListGroupsRequest, types_filter=t)
        )
        assert [each.group_id for each in listed.groups] == expected
        for group in listed.groups:
            assert (group.group_type, group.group_state) == ("consumer", "Stable")
    for version, error_code in ((5, 0), (6, 69)):
        [classic] = (
            await client.send(
                describe_groups.API,
                version,
                lambda m: fill(
                    m.DescribeGroupsRequest, groups=("g",), include_authorized_operations=False
                ),
            )
        ).groups
        assert (classic.error_code, classic.group_state) == (error_code, "Dead")


def commit_of(epoch: int, kind: str = "OffsetCommit") -> Any:
    def make(m: Any) -> Any:
        part = fill(
            getattr(m, f"{kind}RequestPartition"), partition_index=0, committed_offset=5,
            committed_leader_epoch=-1, committed_metadata="md",
        )  # fmt: skip
        return fill(
            getattr(m, f"{kind}Request"), group_id="g", member_id="m", transactional_id="t",
            producer_id=7, producer_epoch=0, generation_id=epoch,
            generation_id_or_member_epoch=epoch, retention_time=timedelta(milliseconds=-1),
            topics=(named(getattr(m, f"{kind}RequestTopic"), partitions=(part,)),),
        )  # fmt: skip

    return make


def error_of(answer: Any) -> int:
    [topic] = answer.topics
    [part] = topic.partitions
    return int(part.error_code)


@pytest.mark.parametrize("version", offset_commit.API.versions)
async def test_C42_a_member_commits_at_its_epoch(client: Client, version: int) -> None:
    await client.send(HEARTBEAT, 1, beat_of("m", 0))
    answer = await client.send(offset_commit.API, version, commit_of(1))
    assert error_of(answer) == (0 if version >= 9 else 35)
    stale = await client.send(offset_commit.API, version, commit_of(2))
    assert error_of(stale) == (113 if version >= 9 else 35)


@pytest.mark.parametrize("version", range(3, 6))
async def test_C42_a_transaction_of_a_stale_member_is_refused(client: Client, version: int) -> None:
    await client.send(HEARTBEAT, 1, beat_of("m", 0))
    api = txn_offset_commit.API
    assert error_of(await client.send(api, version, commit_of(1, "TxnOffsetCommit"))) == 0
    assert error_of(await client.send(api, version, commit_of(2, "TxnOffsetCommit"))) == 22


def fetch_of(member_id: str | None, epoch: int, topic_id: UUID = ORDERS.topic_id) -> Any:
    def make(m: Any) -> Any:
        topic = fill(
            m.OffsetFetchRequestTopics, name="orders", topic_id=topic_id, partition_indexes=(0,)
        )
        group = fill(
            m.OffsetFetchRequestGroup, group_id="g", member_id=member_id, member_epoch=epoch,
            topics=(topic,),
        )  # fmt: skip
        return m.OffsetFetchRequest(groups=(group,))

    return make


@pytest.mark.parametrize("version", [9, 10])
async def test_a_member_asks_for_offsets_at_its_epoch(client: Client, version: int) -> None:
    await client.send(HEARTBEAT, 1, beat_of("m", 0))
    await client.send(offset_commit.API, 9, commit_of(1))
    for who, error_code in ((("m", 1), 0), ((None, -1), 0), (("m", 2), 113), (("n", 1), 25)):
        [group] = (await client.send(offset_fetch.API, version, fetch_of(*who))).groups
        assert group.error_code == error_code
        if error_code == 0:
            [topic] = group.topics
            [part] = topic.partitions
            assert (part.committed_offset, part.metadata) == (5, "md")
            assert (topic.topic_id if version >= 10 else topic.name) in (ORDERS.topic_id, "orders")


async def test_an_unknown_topic_id_is_an_error_of_its_partitions(client: Client) -> None:
    [group] = (await client.send(offset_fetch.API, 10, fetch_of(None, -1, UUID(int=77)))).groups
    [topic] = group.topics
    assert (group.error_code, topic.topic_id) == (0, UUID(int=77))
    assert [(part.committed_offset, part.error_code) for part in topic.partitions] == [(-1, 100)]


@pytest.mark.parametrize("api", [HEARTBEAT, DESCRIBE])
def test_both_are_forwarded_to_the_primary_region(api: Api) -> None:
    assert api.forward
    assert api.on_error is not None
    request = SimpleNamespace(group_ids=["g"])
    services: Any = SimpleNamespace()
    for version in api.versions:
        ctx = RequestContext(services, 1, api.key, version, 77)
        body = bytes(encode_response(api.key, version, 77, api.on_error(ctx, request, 15)))
        assert b"\x00\x0f" in body[4:]
