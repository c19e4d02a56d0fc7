"""Topics, configs, offsets by time, coordinators and cluster facts over a real socket.

Sources: Kafka protocol guide, KIP-4, KIP-101, KIP-207, KIP-516, KIP-699, KIP-734.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import LeaderEpoch
from region_broker.records.batches import Record, build_batch
from region_broker.region import topics as topics_module
from tests.fixtures.kafka_port import LEADER_EPOCH, RawClient, wire_fixture

INVALID_TOPIC, EXISTS, INVALID_PARTITIONS, INVALID_CONFIG = 17, 36, 37, 40


def create_of(
    name: str = "orders", count: int = 2, replicas: int = 1, **configs: str | None
) -> Any:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {
        "topics": [{"name": name, "num_partitions": count, "replication_factor": replicas,
                    "assignments": [], "configs": rows}],
        "timeout": 5000, "validate_only": False,
    }  # fmt: skip


async def metadata(client: RawClient, *names: str, version: int = 12, **more: Any) -> Any:
    return await client.call(3, version, {
        "topics": [{"topic_id": None, "name": name} for name in names],
        "allow_auto_topic_creation": False, "include_topic_authorized_operations": False,
    } | more)  # fmt: skip


@pytest.mark.parametrize("version", range(2, 8))
async def test_created_topic_is_in_the_metadata(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await client.call(19, version, create_of(retention_ms="1000"))
        assert answer.topics[0].error_code == 0
        (topic,) = (await metadata(client, "orders")).topics
        assert (topic.error_code, topic.is_internal) == (0, False)
        rows = [
            (p.partition_index, p.leader_id, p.leader_epoch, p.isr_nodes) for p in topic.partitions
        ]
        assert rows == [(0, 1, LEADER_EPOCH, (1,)), (1, 1, LEADER_EPOCH, (1,))]
        if version >= 7:
            assert answer.topics[0].topic_id == topic.topic_id


@pytest.mark.parametrize(
    ("request_fields", "error", "text"),
    [
        (create_of("a/b"), INVALID_TOPIC, "characters"),
        (create_of(".."), INVALID_TOPIC, "reserved"),
        (create_of("x" * 250), INVALID_TOPIC, "249"),
        (create_of(""), INVALID_TOPIC, "empty"),
        (create_of("known.topic"), INVALID_TOPIC, "known_topic"),
        (create_of("known_topic"), EXISTS, "exists"),
        (create_of(count=0), INVALID_PARTITIONS, "1 to"),
        (create_of(count=2_000_000_000), INVALID_PARTITIONS, "1 to"),
        (create_of(replicas=3), 38, "one node"),
        (create_of(no_such_key="1"), INVALID_CONFIG, "no.such.key"),
        (create_of(retention_ms="soon"), INVALID_CONFIG, "whole number"),
        (create_of(retention_ms="-5"), INVALID_CONFIG, "-1.."),
        (create_of(cleanup_policy="shrink"), INVALID_CONFIG, "delete"),
        (create_of(tidemark_domain="elsewhere"), INVALID_CONFIG, "domain"),
        (create_of(retention_ms=None), INVALID_CONFIG, "default"),
    ],
)
async def test_bad_topic_is_refused_with_the_reason(
    tmp_path: Path, request_fields: Any, error: int, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("known_topic")
        client = await fixture.connect()
        (row,) = (await client.call(19, 7, request_fields)).topics
        assert row.error_code == error
        assert text in (row.error_message or "")
        assert set(fixture.services.metadata.image.topics) == {"known_topic"}


@pytest.mark.parametrize(("nodes", "error"), [([1], 0), ([2], 0), ([9], 39), ([1, 2], 39)])
async def test_an_assignment_names_one_node_that_of_any_region(
    tmp_path: Path, nodes: list[int], error: int
) -> None:
    """A client of a mirror sees that one's node, 2, only; what it asks for is forwarded to the region of node 1."""
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        asked = create_of(count=-1, replicas=-1)
        asked["topics"][0]["assignments"] = [{"partition_index": 0, "broker_ids": nodes}]
        (topic,) = (await client.call(19, 5, asked)).topics
        assert topic.error_code == error
        assert ("orders" in fixture.services.metadata.image.topics) == (error == 0)


async def test_validate_only_and_a_topic_named_twice_create_nothing(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        (row,) = (await client.call(19, 7, create_of() | {"validate_only": True})).topics
        assert (row.error_code, row.num_partitions) == (0, 2)
        twice = create_of()
        twice["topics"] *= 2
        rows = (await client.call(19, 7, twice)).topics
        assert [row.error_code for row in rows] == [42, 42]
        assert not fixture.services.metadata.image.topics


async def test_deleted_topic_is_gone_and_ledgers_stay(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("orders")
        client = await fixture.connect()
        asked = [{"name": None, "topic_id": topic.topic_id}, {"name": "nope", "topic_id": None}]
        rows = (await client.call(20, 6, {"topics": asked, "timeout": 1000})).responses
        assert [row.error_code for row in rows] == [0, 3]
        assert (await metadata(client, "orders")).topics[0].error_code == 3


async def test_metadata_lists_all_topics_by_null_and_none_by_an_empty_list(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        for name in ("a", "b"):
            await fixture.topic(name)
        client = await fixture.connect()
        every = await metadata(client, topics=None)
        assert sorted(topic.name for topic in every.topics) == ["a", "b"]
        assert (await metadata(client)).topics == ()
        oldest = await client.call(3, 0, {"topics": []})
        assert sorted(topic.name for topic in oldest.topics) == ["a", "b"]
        assert [(b.host, b.port) for b in every.brokers] == [("127.0.0.1", fixture.server.port)]


async def test_metadata_creates_topics_only_where_configured_and_asked(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        asked = {"allow_auto_topic_creation": True}
        assert (await metadata(client, "auto", **asked)).topics[0].error_code == 3
        fixture.config.auto_create_topics = True
        assert (await metadata(client, "auto")).topics[0].error_code == 3
        assert (await metadata(client, "a b", **asked)).topics[0].error_code == INVALID_TOPIC
        assert (await metadata(client, "auto", **asked)).topics[0].error_code == 0


async def test_metadata_by_topic_id(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("orders")
        client = await fixture.connect()
        by_id = [{"topic_id": topic.topic_id, "name": None},
                 {"topic_id": fixture.services.chance.uuid(), "name": None}]  # fmt: skip
        rows = (await metadata(client, topics=by_id)).topics
        assert [(row.error_code, row.name) for row in rows] == [(0, "orders"), (100, None)]


def offsets_of(timestamp: int, isolation: int = 0) -> Any:
    part = {"partition_index": 0, "timestamp": timestamp}
    return {"replica_id": -1, "isolation_level": isolation,
            "topics": [{"name": "t", "partitions": [part]}]}  # fmt: skip


async def test_list_offsets_by_end_and_by_time(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        partition = fixture.partition("t")
        for timestamp_ms in (1000, 3000, 2000):
            partition.writer.append(build_batch([Record(None, b"v", (), timestamp_ms)]))
        await partition.wait_committed(3)
        client = await fixture.connect()

        async def at(timestamp: int, version: int = 7) -> tuple[int, int, int]:
            answer = await client.call(2, version, offsets_of(timestamp))
            row = answer.topics[0].partitions[0]
            return row.error_code, row.offset, row.timestamp

        assert await at(-2) == (0, 0, -1)
        assert await at(-1) == (0, 3, -1)
        assert await at(0) == (0, 0, 1000)
        assert await at(1001) == (0, 1, 3000)
        assert await at(9999) == (0, -1, -1)
        assert await at(-3) == (0, 1, 3000)  # KIP-734: the largest timestamp, not the last record
        assert (await at(-3, version=6))[0] == 35
        assert await at(-4, version=8) == (0, 0, -1)


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("key_type", [0, 1])
async def test_coordinator_is_always_this_node(tmp_path: Path, version: int, key_type: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        asked: dict[str, Any] = {"key": "g"} | ({"key_type": key_type} if version else {})
        if version >= 4:
            asked = {"key_type": key_type, "coordinator_keys": ["g", "h"]}
        answer = await client.call(10, version, asked)
        rows = answer.coordinators if version >= 4 else (answer,)
        assert [(row.error_code, row.node_id, row.port) for row in rows] == [
            (0, 1, fixture.server.port)
        ] * len(rows)
        assert [row.key for row in rows if version >= 4] == ["g", "h"][: 2 * (version >= 4)]


@pytest.mark.parametrize("version", [4, 5, 6])
async def test_KIP699_an_unknown_key_type_is_an_error_of_every_key(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        for key_type in (2, 7):  # 2: share groups (KIP-932), for which there is no coordinator here
            asked = {"key_type": key_type, "coordinator_keys": ["g", "", "h"]}
            rows = (await client.call(10, version, asked)).coordinators
            assert [row.key for row in rows] == ["g", "", "h"]
            assert {(row.error_code, row.node_id, row.host, row.port) for row in rows} == {
                (42, -1, "", -1)
            }
        assert (
            await client.call(10, version, {"key_type": 1, "coordinator_keys": []})
        ).coordinators == ()


async def test_KIP101_end_of_a_leader_epoch(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        partition = fixture.partition("t")
        await partition.wait_committed(
            partition.writer.append(build_batch([Record(None, b"v")])).next_offset
        )
        partition.become_leader(LeaderEpoch(LEADER_EPOCH + 1))
        client = await fixture.connect()

        async def end_of(leader_epoch: int, current: int = -1) -> tuple[int, int, int]:
            part = {"partition": 0, "leader_epoch": leader_epoch, "current_leader_epoch": current}
            answer = await client.call(23, 4, {
                "replica_id": -1, "topics": [{"topic": "t", "partitions": [part]}]})  # fmt: skip
            row = answer.topics[0].partitions[0]
            return row.error_code, row.leader_epoch, row.end_offset

        assert await end_of(LEADER_EPOCH) == (0, LEADER_EPOCH, 1)
        assert (await end_of(LEADER_EPOCH, LEADER_EPOCH))[0] == 74
        assert (await end_of(LEADER_EPOCH, LEADER_EPOCH + 2))[0] == 75


async def test_configs_of_topics_and_of_this_node(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await client.call(19, 7, create_of(retention_ms="1000"))
        asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys}
                 for kind, name, keys in ((2, "orders", None), (2, "orders", ["retention.ms"]),
                                          (4, "1", None), (2, "nope", None), (4, "9", None))]  # fmt: skip
        results = (await client.call(32, 4, {
            "resources": asked, "include_synonyms": True, "include_documentation": True,
        })).results  # fmt: skip
        assert [result.error_code for result in results] == [0, 0, 0, 3, 42]
        every = {row.name: (row.value, row.config_source) for row in results[0].configs}
        assert every["retention.ms"] == ("1000", 1)
        assert every["cleanup.policy"] == ("delete", 5)
        assert [row.name for row in results[1].configs] == ["retention.ms"]
        assert all(row.documentation for row in results[0].configs)


async def test_cluster_is_this_node(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        for version in range(3):
            answer = await client.call(60, version, {
                "include_cluster_authorized_operations": False,
                **({"endpoint_type": 1} if version >= 1 else {}),
                **({"include_fenced_brokers": False} if version >= 2 else {}),
            })  # fmt: skip
            assert (answer.cluster_id, answer.controller_id) == ("wire-world", 1)
            assert [broker.broker_id for broker in answer.brokers] == [1]


async def test_T18_no_change_is_acknowledged_once_writes_were_stopped_for_a_switch(
    tmp_path: Path,
) -> None:
    """The request came while the region acted: each row is refused with an error that clients retry."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("orders")
        client = await fixture.connect()
        records = build_batch([Record(None, b"first")])
        assert fixture.partition("orders").writer.append(records).base_offset == 0
        await fixture.partition("orders").wait_committed(1)
        fixture.region.drained = True
        image = fixture.services.metadata.image
        created = await client.call(19, 7, create_of("payments"))
        deleted = await client.call(20, 1, {"topic_names": ["orders"], "timeout": 1000})
        grown = await client.call(37, 3, {
            "topics": [{"name": "orders", "count": 9, "assignments": None}],
            "timeout": 1000, "validate_only": False,
        })  # fmt: skip
        kept = [{"name": "retention.ms", "value": "77"}]
        resource = {"resource_type": 2, "resource_name": "orders"}
        replaced = await client.call(
            33, 2, {"resources": [{**resource, "configs": kept}], "validate_only": False}
        )
        changed = await client.call(44, 1, {
            "resources": [{**resource, "configs": [{**kept[0], "config_operation": 0}]}],
            "validate_only": False,
        })  # fmt: skip
        below = {"partition_index": 0, "offset": 1}
        trimmed = await client.call(
            21, 2, {"topics": [{"name": "orders", "partitions": [below]}], "timeout": 1000}
        )
        fixture.config.auto_create_topics = True
        asked = await metadata(client, "payments", allow_auto_topic_creation=True)
        errors = [
            created.topics[0].error_code,
            deleted.responses[0].error_code,
            grown.results[0].error_code,
            replaced.responses[0].error_code,
            changed.responses[0].error_code,
            trimmed.topics[0].partitions[0].error_code,
            asked.topics[0].error_code,
        ]
        not_controller, not_leader, unknown_topic = 41, 6, 3
        assert errors == [not_controller] * 5 + [not_leader, unknown_topic]
        assert fixture.services.metadata.image is image
        assert fixture.partition("orders").log_start_offset == 0


async def test_all_topics_together_have_a_bounded_number_of_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a folder and open files at each node, and a place in what names all logs of a region."""
    monkeypatch.setattr(topics_module, "ALL_PARTITIONS_MAX", 3)
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        (row,) = (await client.call(19, 7, create_of("a", count=4))).topics
        assert (row.error_code, "3 are the most" in row.error_message) == (44, True)
        (row,) = (await client.call(19, 7, create_of("a", count=2))).topics
        assert row.error_code == 0
        (row,) = (await client.call(19, 7, create_of("b", count=2))).topics
        assert row.error_code == 44
        asked = {"timeout": 5000, "validate_only": False, "topics": [{"name": "a", "count": 4, "assignments": None}]}  # fmt: skip
        (row,) = (await client.call(37, 3, asked)).results
        assert row.error_code == 44
        asked["topics"] = [{"name": "a", "count": 3, "assignments": None}]
        (row,) = (await client.call(37, 3, asked)).results
        assert row.error_code == 0


async def test_INV_TG3_topics_of_two_clients_at_once_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "ALL_PARTITIONS_MAX", 3)
    async with wire_fixture(tmp_path) as fixture:
        clients = [await fixture.connect() for _ in range(2)]
        asked = [client.call(19, 7, create_of(name, count=2)) for client, name in zip(clients, "ab", strict=True)]  # fmt: skip
        answers = await asyncio.gather(*asked)
        assert sorted(row.error_code for answer in answers for row in answer.topics) == [0, 44]
