"""What administrators look at: topics page by page, log folders, operations, offsets at special times.

Sources: KIP-966 (DescribeTopicPartitions), KIP-113, KIP-784 and KIP-827 (DescribeLogDirs), KIP-430 (operations),
KIP-405 and KIP-1005 (ListOffsets without tiers); Kafka's DescribeTopicPartitionsRequestHandler, UnifiedLog.
"""

from pathlib import Path
from typing import Any

import pytest

from region_broker.records.batches import Record, build_batch
from tests.fixtures.kafka_port import LEADER_EPOCH, RawClient, wire_fixture

UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_REQUEST = 3, 17, 42
# Bits by the codes of AclOperation: READ 3 ... DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11.
TOPIC_BITS = 0b1101_1111_1000
CLUSTER_BITS = 0b1_1111_1010_0000
NOT_ASKED = -(2**31)


async def pages(client: RawClient, *names: str, limit: int, cursor: Any = None) -> Any:
    return await client.call(75, 0, {
        "topics": [{"name": name} for name in names], "response_partition_limit": limit,
        "cursor": cursor,
    })  # fmt: skip


def shape(answer: Any) -> list[tuple[str, list[int]]]:
    return [(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics]


async def test_KIP966_pages_follow_the_cursor_in_name_order(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        for name, count in (("c", 1), ("a", 3), ("b", 2)):
            await fixture.topic(name, count)
        client = await fixture.connect()
        first = await pages(client, limit=4)
        assert shape(first) == [("a", [0, 1, 2]), ("b", [0])]
        cursor = first.next_cursor
        assert (cursor.topic_name, cursor.partition_index) == ("b", 1)
        at = {"topic_name": cursor.topic_name, "partition_index": cursor.partition_index}
        second = await pages(client, limit=4, cursor=at)
        assert shape(second) == [("b", [1]), ("c", [0])]
        assert second.next_cursor is None
        exact = await pages(client, "a", "b", limit=3)
        assert shape(exact) == [("a", [0, 1, 2])]
        assert (exact.next_cursor.topic_name, exact.next_cursor.partition_index) == ("b", 0)
        least = await pages(client, "a", limit=0)  # Kafka: at least one
        assert shape(least) == [("a", [0])]


async def test_KIP966_topic_has_id_leader_and_operations(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("a")
        client = await fixture.connect()
        (row,) = (await pages(client, "a", limit=10)).topics
        assert (row.error_code, row.topic_id, row.is_internal) == (0, topic.topic_id, False)
        assert row.topic_authorized_operations == TOPIC_BITS
        (partition,) = row.partitions
        assert (partition.leader_id, partition.leader_epoch) == (1, LEADER_EPOCH)
        assert (partition.replica_nodes, partition.isr_nodes) == ((1,), (1,))


async def test_KIP966_INV_HTP2_lists_of_eligible_leaders_are_never_null(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("a", 2)
        client = await fixture.connect()
        (row,) = (await pages(client, "a", limit=10)).topics
        lists = [(p.eligible_leader_replicas, p.last_known_elr) for p in row.partitions]
        assert lists == [((), ()), ((), ())]


async def test_KIP966_unknown_topics_and_bad_cursors_are_errors_of_the_topics(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("a")
        client = await fixture.connect()
        rows = (await pages(client, "nope", "b/c", "a", limit=10)).topics
        errors = {row.name: row.error_code for row in rows}
        assert errors == {"a": 0, "b/c": INVALID_TOPIC, "nope": UNKNOWN_TOPIC}
        for cursor in (
            {"topic_name": "z", "partition_index": 0},
            {"topic_name": "a", "partition_index": -1},
        ):
            (row,) = (await pages(client, "a", limit=10, cursor=cursor)).topics
            assert row.error_code == INVALID_REQUEST
        beyond = await pages(client, "a", limit=9, cursor={"topic_name": "a", "partition_index": 7})
        assert shape(beyond) == [("a", [])]


@pytest.mark.parametrize("version", range(1, 5))
async def test_KIP113_log_dirs_tell_sizes(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        for name in ("a", "b"):
            await fixture.topic(name, 2)
        batch = build_batch([Record(None, b"v" * 100)])
        partition = fixture.partition("a", 1)
        await partition.wait_committed(partition.writer.append(batch).next_offset)
        client = await fixture.connect()
        (every,) = (await client.call(35, version, {"topics": None})).results
        assert every.error_code == 0
        assert every.log_dir == str(tmp_path / "log")
        sizes = {
            (topic.name, row.partition_index): row.partition_size
            for topic in every.topics
            for row in topic.partitions
        }
        assert sizes == {("a", 0): 0, ("a", 1): len(batch), ("b", 0): 0, ("b", 1): 0}
        assert {row.offset_lag for topic in every.topics for row in topic.partitions} == {0}
        asked = [{"topic": "b", "partitions": [1, 9]}, {"topic": "nope", "partitions": [0]}]
        (some,) = (await client.call(35, version, {"topics": asked})).results
        assert [(t.name, [p.partition_index for p in t.partitions]) for t in some.topics] == [
            ("b", [1])
        ]
        if version >= 4:
            assert 0 < every.usable_bytes <= every.total_bytes


async def test_one_admin_request_names_a_bounded_number_of_partitions(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        asked = [{"topic": "t", "partitions": list(range(20_001))}]
        answer = await client.call(35, 4, {"topics": asked})
        assert (answer.error_code, answer.results) == (INVALID_REQUEST, ())


async def test_KIP430_operations_are_told_when_asked(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("a")
        client = await fixture.connect()
        for asked, of_topic, of_cluster in (
            (True, TOPIC_BITS, CLUSTER_BITS),
            (False, NOT_ASKED, NOT_ASKED),
        ):
            answer = await client.call(3, 8, {
                "topics": [{"name": "a"}], "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": asked,
                "include_cluster_authorized_operations": asked})  # fmt: skip
            assert answer.topics[0].topic_authorized_operations == of_topic
            assert answer.cluster_authorized_operations == of_cluster
            cluster = await client.call(60, 0, {"include_cluster_authorized_operations": asked})
            assert cluster.cluster_authorized_operations == of_cluster


@pytest.mark.parametrize("version", range(14))
async def test_metadata_of_every_version(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("a")
        client = await fixture.connect()
        row = {"name": "a"} | ({"topic_id": None} if version >= 10 else {})
        fields: dict[str, Any] = {"topics": [row]}
        if version >= 4:
            fields["allow_auto_topic_creation"] = False
        if version >= 8:
            fields["include_topic_authorized_operations"] = False
        if 8 <= version <= 10:
            fields["include_cluster_authorized_operations"] = False
        (found,) = (await client.call(3, version, fields)).topics
        assert (found.error_code, found.name) == (0, "a")
        assert [p.partition_index for p in found.partitions] == [0]
        if version >= 10:
            assert found.topic_id == topic.topic_id


LATEST, EARLIEST, MAX_TIMESTAMP, LOCAL, TIERED, PENDING = -1, -2, -3, -4, -5, -6


async def test_KIP405_special_times_as_kafka_without_tiers(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()

        async def at(timestamp: int, version: int) -> tuple[int, int, int, int]:
            timeout = {"timeout": 1000} if version >= 10 else {}
            part = {"partition_index": 0, "timestamp": timestamp}
            answer = await client.call(2, version, {
                "replica_id": -1, "isolation_level": 0,
                "topics": [{"name": "t", "partitions": [part]}], **timeout})  # fmt: skip
            row = answer.topics[0].partitions[0]
            return row.error_code, row.offset, row.timestamp, row.leader_epoch

        assert await at(MAX_TIMESTAMP, 10) == (0, -1, -1, -1)
        partition = fixture.partition("t")
        outcome = partition.writer.append(build_batch([Record(None, b"v", (), 1000)]))
        await partition.wait_committed(outcome.next_offset)
        unsupported = (35, -1, -1, -1)
        assert await at(EARLIEST, 10) == (0, 0, -1, LEADER_EPOCH)
        assert await at(LATEST, 11) == (0, 1, -1, LEADER_EPOCH)
        assert await at(MAX_TIMESTAMP, 10) == (0, 0, 1000, LEADER_EPOCH)
        assert await at(LOCAL, 10) == (0, 0, -1, LEADER_EPOCH)
        assert await at(LOCAL, 7) == unsupported
        assert await at(TIERED, 10) == (0, -1, -1, -1)
        assert await at(TIERED, 8) == unsupported
        assert await at(PENDING, 11) == (0, -1, -1, -1)
        assert await at(PENDING, 10) == unsupported
        assert await at(-7, 11) == unsupported


@pytest.mark.parametrize("version", range(2, 5))
async def test_KIP101_epoch_ends_in_every_version(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        part = {"partition": 0, "leader_epoch": LEADER_EPOCH, "current_leader_epoch": -1}
        answer = await client.call(23, version, {
            "topics": [{"topic": "t", "partitions": [part]}],
            **({"replica_id": -1} if version >= 3 else {})})  # fmt: skip
        row = answer.topics[0].partitions[0]
        assert (row.error_code, row.leader_epoch, row.end_offset) == (0, LEADER_EPOCH, 0)
