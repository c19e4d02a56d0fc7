"""Answers that a small request makes large: each name as often as it is asked, within a budget (CVE class: amplification).

What Kafka does with a name that is asked twice: DescribeGroups, ConsumerGroupDescribe, DescribeTransactions,
DescribeProducers, DescribeConfigs, FindCoordinator and OffsetFetch answer it twice (KafkaApis.scala, GroupCoordinatorService,
TransactionCoordinator.handleDescribeTransactions, ConfigHelper.describeConfigs map over what is asked); ListOffsets refuses it
(ReplicaManager.fetchOffset: INVALID_REQUEST, one row).
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from region_broker.handlers.dispatch import answer_budget
from region_broker.limits import ADMIN_ITEMS_MAX, ELEMENTS_AT_ONCE_MAX, LISTINGS_AT_ONCE_MAX
from region_broker.wire.memory_budget import Share
from tests.simulation.kafka_client import Connection
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region

INVALID_REQUEST = 42
Rows = Callable[[Any], list[Any]]


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    """A whole node with a topic, a group with an offset, a transactional id and a producer."""
    made = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    await made.start()
    await made.node.topics.create_topic("t", 2, {})
    client = await connect(made)
    producer = await client.init_producer_id("x" * 200)
    await client.add_partitions("x" * 200, producer, "t", [0, 1])
    committed = await client.call(8, 8, {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": "t", "partitions": [
            {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "m" * 4_000}]}]})  # fmt: skip
    assert committed.topics[0].partitions[0].error_code == 0
    client.close()
    yield made
    await made.kill()


async def connect(region: Region) -> Connection:
    return await Connection.open(region.fabric.site("client"), region.kafka_port)


def offset_fetch(count: int) -> dict[str, Any]:
    return {"require_stable": False, "groups": [{"group_id": "g", "topics": None}] * count}


ASKED: dict[str, tuple[int, int, Callable[[int], dict[str, Any]], Rows]] = {
    "DescribeGroups": (15, 6, lambda n: {
        "groups": ["g"] * n, "include_authorized_operations": False}, lambda a: list(a.groups)),
    "ConsumerGroupDescribe": (69, 1, lambda n: {
        "group_ids": ["g"] * n, "include_authorized_operations": False}, lambda a: list(a.groups)),
    "DescribeTransactions": (65, 0, lambda n: {
        "transactional_ids": ["x" * 200] * n}, lambda a: list(a.transaction_states)),
    "DescribeProducers": (61, 0, lambda n: {
        "topics": [{"name": "t", "partition_indexes": [0] * n}]}, lambda a: list(a.topics[0].partitions)),
    "OffsetFetch": (9, 8, offset_fetch, lambda a: list(a.groups)),
    "DescribeConfigs": (32, 4, lambda n: {
        "resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": ["retention.ms", "segment.ms"]}] * n,
        "include_synonyms": True, "include_documentation": True}, lambda a: list(a.results)),
}  # fmt: skip


@pytest.mark.parametrize("api", ASKED)
async def test_INV_AB2_a_name_asked_again_is_answered_again(region: Region, api: str) -> None:
    key, version, asked, rows = ASKED[api]
    client = await connect(region)
    (once,) = rows(await client.call(key, version, asked(1)))
    assert rows(await client.call(key, version, asked(3))) == [once] * 3
    client.close()


@pytest.mark.parametrize("api", ASKED)
async def test_INV_AB1_an_answer_that_describes_is_bounded(
    region: Region, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is described though it is too large alone; what is beyond the budget is INVALID_REQUEST."""
    key, version, asked, rows = ASKED[api]
    client = await connect(region)
    (whole,) = rows(await client.call(key, version, asked(1)))
    monkeypatch.setattr(answer_budget, "DESCRIBED_BYTES_MAX", 100)
    first, *others = rows(await client.call(key, version, asked(50)))
    assert first == whole
    assert {row.error_code.value for row in others} == {INVALID_REQUEST}
    assert len(others) == 49
    monkeypatch.setattr(answer_budget, "DESCRIBED_BYTES_MAX", 15_000)
    found = rows(await client.call(key, version, asked(50)))
    described = [row for row in found if row == whole]
    assert 1 < len(described) < 50
    assert found[: len(described)] == described
    client.close()


async def test_INV_AB1_what_is_being_described_counts_for_the_memory_budget(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the budget full, DESCRIBED_BYTES_FREE are, and one thing whatever its size: an administrator can still look."""
    memory = region.node.memory
    key, version, asked, rows = ASKED["OffsetFetch"]
    client = await connect(region)
    (whole,) = rows(await client.call(key, version, asked(1)))
    filler = Share()
    memory.hold(filler, memory.left_bytes)
    assert rows(await client.call(key, version, asked(2))) == [whole] * 2
    monkeypatch.setattr(answer_budget, "DESCRIBED_BYTES_FREE", 1)
    first, second = rows(await client.call(key, version, asked(2)))
    assert first == whole
    assert second.error_code.value == INVALID_REQUEST
    memory.hold(filler, 0)
    assert rows(await client.call(key, version, asked(2))) == [whole] * 2
    assert memory.held_bytes == 0
    client.close()


LARGELY = 200
"""So often each of `ASKED` takes more than FREE_HELD_BYTES."""


@pytest.mark.parametrize("api", ASKED)
async def test_INV_AB3_in_a_full_budget_what_is_large_waits_and_what_is_small_does_not(
    region: Region, api: str
) -> None:
    """An administrator and a consumer that starts are served, whoever asks for what fills memory, and on however many connections."""
    memory = region.node.memory
    key, version, asked, rows = ASKED[api]
    filler = Share()
    memory.hold(filler, memory.left_bytes)
    greedy = [await connect(region) for _ in range(2 * LISTINGS_AT_ONCE_MAX)]
    client = await connect(region)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        late = [tasks.create_task(each.call(key, version, asked(LARGELY))) for each in greedy]
        for _ in range(5):  # which would be answered behind them
            assert len(rows(await client.call(key, version, asked(1)))) == 1
        assert not any(each.done() for each in late)
        memory.hold(filler, 0)
    assert [len(rows(each.result())) for each in late] == [LARGELY] * len(greedy)
    for each in (client, *greedy):
        each.close()


async def test_INV_WQ5_a_client_that_sends_many_descriptions_ahead_is_answered_all_in_order(
    region: Region,
) -> None:
    """As admin clients do, with what a consumer sends in between."""
    client = await connect(region)
    coordinator = (10, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    metadata = (3, 12, {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False})  # fmt: skip
    sent = [(key, version, asked(1)) for key, version, asked, _ in ASKED.values()]
    for _ in range(30):
        for each in (*sent, coordinator, metadata):
            client.send(*each)
    async with asyncio.timeout(60):
        for _ in range(30):
            for (key, version, _asked), (*_, rows) in zip(sent, ASKED.values(), strict=True):
                (row,) = rows(await client.receive(key, version))
                assert row.error_code.value != INVALID_REQUEST
            (found,) = (await client.receive(*coordinator[:2])).coordinators
            assert found.error_code == 0
            assert (await client.receive(*metadata[:2])).topics
    client.close()


async def test_INV_AB3_offsets_of_one_group_are_described_in_the_same_bounds_by_older_clients(
    region: Region,
) -> None:
    memory = region.node.memory
    client = await connect(region)
    partitions = [{"name": "t", "partition_indexes": [0] * LARGELY}]
    filler = Share()
    memory.hold(filler, memory.left_bytes)
    client.send(9, 7, {"group_id": "g", "require_stable": False, "topics": partitions})
    small = await connect(region)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        late = tasks.create_task(client.receive(9, 7))
        for _ in range(5):
            found = await small.call(
                9, 7, {"group_id": "g", "require_stable": False, "topics": None}
            )
            assert [len(each.partitions) for each in found.topics] == [1]
        assert not late.done()
        memory.hold(filler, 0)
    (topic,) = late.result().topics
    assert len(topic.partitions) == LARGELY
    client.close()
    small.close()


MANY: dict[str, tuple[int, int, dict[str, Any]]] = {
    "DescribeGroups": (15, 5, {"groups": ["g"] * (ADMIN_ITEMS_MAX + 1), "include_authorized_operations": False}),
    "ConsumerGroupDescribe": (69, 0, {
        "group_ids": ["g"] * (ADMIN_ITEMS_MAX + 1), "include_authorized_operations": False}),
    "DescribeTransactions": (65, 0, {"transactional_ids": ["x"] * (ADMIN_ITEMS_MAX + 1)}),
    "DescribeProducers": (61, 0, {
        "topics": [{"name": "t", "partition_indexes": [0] * (ADMIN_ITEMS_MAX + 1)}]}),
    "FindCoordinator": (10, 4, {"key_type": 0, "coordinator_keys": ["g"] * (ADMIN_ITEMS_MAX + 1)}),
    "OffsetFetch": (9, 8, offset_fetch(ADMIN_ITEMS_MAX + 1)),
    "LeaveGroup": (13, 5, {"group_id": "g", "members": [
        {"member_id": "m", "group_instance_id": None, "reason": None}] * (ADMIN_ITEMS_MAX + 1)}),
    "JoinGroup": (11, 9, {
        "group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "", "group_instance_id": None,
        "protocol_type": "consumer", "protocols": [{"name": "p", "metadata": b""}] * (ADMIN_ITEMS_MAX + 1), "reason": None}),
    "SyncGroup": (14, 5, {
        "group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None, "protocol_type": None, "protocol_name": None,
        "assignments": [{"member_id": "m", "assignment": b""}] * (ADMIN_ITEMS_MAX + 1)}),
    "ListGroups": (16, 5, {"states_filter": ["Empty"], "types_filter": ["classic"] * ADMIN_ITEMS_MAX}),
    "ListTransactions": (66, 1, {
        "state_filters": ["Ongoing"], "producer_id_filters": [1] * ADMIN_ITEMS_MAX, "duration_filter": -1}),
    "DescribeConfigs": (32, 4, {
        "resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": ["x"] * (ADMIN_ITEMS_MAX + 1)}],
        "include_synonyms": False, "include_documentation": False}),
    "WriteTxnMarkers": (27, 1, {"markers": [{
        "producer_id": 1, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0,
        "topics": [{"name": "t", "partition_indexes": [0] * (ADMIN_ITEMS_MAX + 1)}]}]}),
    "AlterClientQuotas": (49, 1, {"validate_only": True, "entries": [{
        "entity": [{"entity_type": "user", "entity_name": "u"}] * (ADMIN_ITEMS_MAX + 1), "ops": []}]}),
}  # fmt: skip


@pytest.mark.parametrize("api", MANY)
async def test_one_request_describes_a_bounded_number_of_things(region: Region, api: str) -> None:
    client, other = await connect(region), await connect(region)
    with pytest.raises(OSError, match="closed"):
        await client.call(*MANY[api])
    (row,) = (await other.call(10, 4, {"key_type": 0, "coordinator_keys": ["g"]})).coordinators
    assert row.error_code == 0
    other.close()


async def test_KAFKA_ListOffsets_refuses_a_partition_that_is_asked_twice(region: Region) -> None:
    client = await connect(region)
    latest = {"current_leader_epoch": -1, "timestamp": -1}
    partitions = [
        {"partition_index": 0, **latest},
        {"partition_index": 1, **latest},
        {"partition_index": 0, **latest},
    ]
    answer = await client.call(2, 7, {
        "replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": partitions}]})  # fmt: skip
    (topic,) = answer.topics
    assert [(row.partition_index, row.error_code.value) for row in topic.partitions] == [
        (0, INVALID_REQUEST), (1, 0)
    ]  # fmt: skip
    client.close()


async def test_FindCoordinator_answers_a_key_as_often_as_it_is_asked(region: Region) -> None:
    client = await connect(region)
    found = (await client.call(10, 4, {"key_type": 0, "coordinator_keys": ["g", "g"]})).coordinators
    assert [row.key for row in found] == ["g", "g"]
    client.close()


def commit(indexes: range, offset: int) -> dict[str, Any]:
    parts = [{"partition_index": i, "committed_offset": offset, "committed_leader_epoch": -1,
              "committed_metadata": ""} for i in indexes]  # fmt: skip
    return {"group_id": "late", "generation_id_or_member_epoch": -1, "member_id": "",
            "group_instance_id": None, "topics": [{"name": "t", "partitions": parts}]}  # fmt: skip


async def test_INV_HW1_a_large_commit_is_not_overtaken_by_the_next(region: Region) -> None:
    """Both are sent at once over one connection; the small one, though begun and done sooner, counts last."""
    client = await connect(region)
    client.send(8, 8, commit(range(3_000), 1))
    client.send(8, 8, commit(range(1), 2))
    large, _ = await client.receive(8, 8), await client.receive(8, 8)
    codes = [row.error_code.value for row in large.topics[0].partitions]
    assert codes == [0, 0, *[3] * 2_998]  # of a topic with two partitions
    found = await client.call(9, 7, {
        "group_id": "late", "require_stable": False,
        "topics": [{"name": "t", "partition_indexes": [0, 1]}]})  # fmt: skip
    assert [row.committed_offset for row in found.topics[0].partitions] == [2, 1]
    client.close()


COUNT = 15_000
LARGE: dict[str, tuple[int, int, dict[str, Any]]] = {
    "ListOffsets": (2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [
        {"partition_index": i, "current_leader_epoch": -1, "timestamp": -1} for i in range(COUNT)]}]}),
    "Metadata": (3, 9, {
        "topics": [{"name": f"n{i}"} for i in range(COUNT)], "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}),
    "OffsetCommit": (8, 8, commit(range(COUNT), 1)),
    "OffsetFetch": (9, 7, {"group_id": "g", "require_stable": False, "topics": [
        {"name": "t", "partition_indexes": list(range(COUNT))}]}),
    "DescribeGroups": (15, 5, {"groups": [f"g{i}" for i in range(COUNT)], "include_authorized_operations": False}),
    "DeleteTopics": (20, 4, {"timeout": 1_000, "topic_names": [f"n{i}" for i in range(COUNT)]}),
}  # fmt: skip


@pytest.mark.parametrize("api", LARGE)
async def test_INV_HW2_others_are_served_while_a_large_request_is_worked_on(
    region: Region, api: str
) -> None:
    key, version, values = LARGE[api]
    client, other = await connect(region), await connect(region)
    answered = asyncio.get_running_loop().create_task(client.call(key, version, values))
    served = 0
    while not answered.done():
        await other.call(10, 4, {"key_type": 0, "coordinator_keys": ["g"]})
        served += 1
    await answered
    assert served > COUNT // ELEMENTS_AT_ONCE_MAX
    client.close()
    other.close()


async def test_INV_AB1_what_is_written_already_counts_by_its_bytes(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configs are written as soon as they are looked at: all of a topic, with their texts, are 2.5 kB and more."""
    key, version, asked, rows = ASKED["DescribeConfigs"]
    whole = asked(3)
    whole["resources"] = [each | {"configuration_keys": None} for each in whole["resources"]]
    monkeypatch.setattr(answer_budget, "DESCRIBED_BYTES_MAX", 2_500)
    client = await connect(region)
    found = rows(await client.call(key, version, whole))
    assert [row.error_code.value for row in found] == [0, INVALID_REQUEST, INVALID_REQUEST]
    assert sum(len(row.documentation) + len(row.name) for row in found[0].configs) > 2_500
    client.close()
