"""Configs of topics through the wire: known as Kafka knows them, changed whole, in effect at once.

Sources: the table below is LogConfig of kafka-storage 4.1.1 (names, types, defaults); KIP-133, KIP-226 (sources and
synonyms), KIP-339, KIP-569 (types), KIP-1142; Kafka ConfigAdminManager and ConfigurationControlManager for errors.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from region_broker.controller import metadata_store
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.topic_configs import TOPIC_CONFIGS
from region_broker.log.log_config import FlushPolicy
from region_broker.records.batches import Record, build_batch
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture

NONE, UNKNOWN_TOPIC, TOO_LARGE, INVALID_TOPIC, UNSUPPORTED = 0, 3, 10, 17, 35
INVALID_CONFIG, INVALID_REQUEST, POLICY = 40, 42, 44
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
FROM_TOPIC, FROM_DEFAULT = 1, 5

INT64_MAX = str(2**63 - 1)
# name, type number of DescribeConfigs (KIP-569: BOOLEAN 1, STRING 2, INT 3, LONG 5, DOUBLE 6, LIST 7), default
KAFKA_CONFIGS = (
    ("cleanup.policy", 7, "delete"),
    ("compression.gzip.level", 3, "-1"),
    ("compression.lz4.level", 3, "9"),
    ("compression.type", 2, "producer"),
    ("compression.zstd.level", 3, "3"),
    ("delete.retention.ms", 5, "86400000"),
    ("file.delete.delay.ms", 5, "60000"),
    ("flush.messages", 5, INT64_MAX),
    ("flush.ms", 5, INT64_MAX),
    ("follower.replication.throttled.replicas", 7, ""),
    ("index.interval.bytes", 3, "4096"),
    ("leader.replication.throttled.replicas", 7, ""),
    ("local.retention.bytes", 5, "-2"),
    ("local.retention.ms", 5, "-2"),
    ("max.compaction.lag.ms", 5, INT64_MAX),
    ("max.message.bytes", 3, "1048588"),
    ("message.timestamp.after.max.ms", 5, "3600000"),
    ("message.timestamp.before.max.ms", 5, INT64_MAX),
    ("message.timestamp.type", 2, "CreateTime"),
    ("min.cleanable.dirty.ratio", 6, "0.5"),
    ("min.compaction.lag.ms", 5, "0"),
    ("min.insync.replicas", 3, "1"),
    ("preallocate", 1, "false"),
    ("remote.log.copy.disable", 1, "false"),
    ("remote.log.delete.on.disable", 1, "false"),
    ("remote.storage.enable", 1, "false"),
    ("retention.bytes", 5, "-1"),
    ("retention.ms", 5, "604800000"),
    ("segment.bytes", 3, "1073741824"),
    ("segment.index.bytes", 3, "10485760"),
    ("segment.jitter.ms", 5, "0"),
    ("segment.ms", 5, "604800000"),
    ("unclean.leader.election.enable", 1, "false"),
)


def resource(name: str = "t", *configs: dict[str, Any], kind: int = TOPIC) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def op(operation: int, name: str, value: str | None = None) -> dict[str, Any]:
    return {"name": name, "config_operation": operation, "value": value}


async def change(client: RawClient, *resources: Any, dry: bool = False, version: int = 1) -> Any:
    fields = {"resources": resources, "validate_only": dry}
    return (await client.call(44, version, fields)).responses


async def replace(client: RawClient, *resources: Any, dry: bool = False, version: int = 2) -> Any:
    fields = {"resources": resources, "validate_only": dry}
    return (await client.call(33, version, fields)).responses


async def described(client: RawClient, name: str = "t", *, version: int = 4, **more: Any) -> Any:
    asked = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
    fields = {"resources": [asked], "include_synonyms": True} | more
    if version >= 3:
        fields = {"include_documentation": True} | fields
    (result,) = (await client.call(32, version, fields)).results
    assert result.error_code == NONE
    return {row.name: row for row in result.configs}


def set_configs(fixture: WireFixture, name: str = "t") -> dict[str, str]:
    return dict(fixture.services.metadata.image.topics[name].configs)


def test_every_topic_config_of_kafka_is_known_with_its_type_and_default() -> None:
    known = {(c.name, int(c.type), c.default) for c in TOPIC_CONFIGS.values()}
    assert set(KAFKA_CONFIGS) - known == set()


async def test_KIP226_configs_say_where_they_come_from(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await change(client, resource("t", op(SET, "segment.bytes", "5000000")))
        rows = await described(client)
        changed, default = rows["segment.bytes"], rows["max.message.bytes"]
        assert (changed.value, changed.config_source) == ("5000000", FROM_TOPIC)
        assert [(s.name, s.value, s.source) for s in changed.synonyms] == [
            ("segment.bytes", "5000000", FROM_TOPIC),
            ("log.segment.bytes", "1073741824", FROM_DEFAULT),
        ]
        assert (default.value, default.config_source) == ("1048588", FROM_DEFAULT)
        assert [(s.name, s.source) for s in default.synonyms] == [
            ("message.max.bytes", FROM_DEFAULT)
        ]
        assert rows["retention.ms"].synonyms == ()  # Kafka has no default of that very name
        assert all(row.documentation for row in rows.values())
        assert {(row.name, row.config_type) for row in rows.values()} >= {
            (name, kind) for name, kind, _ in KAFKA_CONFIGS
        }
        bare = await described(client, include_synonyms=False, include_documentation=False)
        assert {(row.synonyms, row.documentation) for row in bare.values()} == {((), None)}
        for version in (1, 2, 3):
            assert (await described(client, version=version))["segment.bytes"].value == "5000000"


@pytest.mark.parametrize("version", range(2))
async def test_KIP339_changes_are_merged_and_undone(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        ops = (op(SET, "retention.ms", "5"), op(SET, "segment.ms", "7"))
        (row,) = await change(client, resource("t", *ops), version=version)
        assert (row.error_code, row.resource_type, row.resource_name) == (NONE, TOPIC, "t")
        await change(client, resource("t", op(SET, "retention.ms", "6")), version=version)
        assert set_configs(fixture) == {"retention.ms": "6", "segment.ms": "7"}
        await change(client, resource("t", op(DELETE, "retention.ms")), version=version)
        assert set_configs(fixture) == {"segment.ms": "7"}


async def test_KIP339_lists_grow_and_shrink(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        (row,) = await change(client, resource("t", op(APPEND, "cleanup.policy", "delete")))
        assert (row.error_code, set_configs(fixture)) == (NONE, {"cleanup.policy": "delete"})
        (row,) = await change(client, resource("t", op(APPEND, "cleanup.policy", "nonsense")))
        assert (row.error_code, set_configs(fixture)) == (
            INVALID_CONFIG,
            {"cleanup.policy": "delete"},
        )
        for operation in (APPEND, SUBTRACT):
            (row,) = await change(client, resource("t", op(operation, "retention.ms", "5")))
            assert row.error_code == INVALID_CONFIG


@pytest.mark.parametrize("version", range(3))
async def test_AlterConfigs_sets_back_what_it_does_not_name(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.services.metadata.create_topic("t", 1, {"tidemark.domain": "main"})
        client = await fixture.connect()
        first = resource("t", {"name": "retention.ms", "value": "5"})
        (row,) = await replace(client, first, version=version)
        assert row.error_code == NONE
        second = resource("t", {"name": "segment.ms", "value": "7"})
        await replace(client, second, version=version)
        assert set_configs(fixture) == {"segment.ms": "7", "tidemark.domain": "main"}
        (row,) = await replace(client, first, dry=True, version=version)
        assert (row.error_code, "retention.ms" in set_configs(fixture)) == (NONE, False)


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (resource("t", op(SET, "no.such.key", "1")), INVALID_CONFIG, "no.such.key"),
        (resource("t", op(SET, "retention.ms", "soon")), INVALID_CONFIG, "whole number"),
        (resource("t", op(SET, "retention.ms", "-5")), INVALID_CONFIG, "-1.."),
        (resource("t", op(SET, "min.insync.replicas", "2")), INVALID_CONFIG, "one node"),
        (resource("t", op(SET, "tidemark.domain", "other")), INVALID_CONFIG, "fixed"),
        (resource("t", op(SET, "retention.ms")), INVALID_REQUEST, "null"),
        (resource("t", op(9, "retention.ms", "5")), INVALID_REQUEST, "operation 9"),
        (
            resource("t", op(SET, "segment.ms", "5"), op(DELETE, "segment.ms")),
            INVALID_REQUEST,
            "twice",
        ),
        (resource("nope", op(SET, "retention.ms", "5")), UNKNOWN_TOPIC, "nope"),
        (resource("a/b", op(SET, "retention.ms", "5")), INVALID_TOPIC, "characters"),
        (resource("", op(SET, "retention.ms", "5")), INVALID_REQUEST, "name one"),
        (resource("1", op(SET, "x", "5"), kind=BROKER), INVALID_CONFIG, "no such key"),
        (resource("", op(SET, "x", "5"), kind=BROKER), INVALID_CONFIG, "no such key"),
        (resource("g", op(SET, "x", "5"), kind=32), INVALID_REQUEST, "type 32"),
    ],
)
async def test_refused_change_says_why_and_changes_nothing(
    tmp_path: Path, asked: Any, error: int, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        good = op(SET, "segment.bytes", "5000")
        both = {**asked, "configs": (*asked["configs"], good)}
        (row,) = await change(client, both)
        assert row.error_code == error
        assert text in (row.error_message or "")
        assert set_configs(fixture) == {}


async def test_resources_named_twice_are_refused_and_others_are_changed(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        for name in ("a", "b"):
            await fixture.topic(name)
        client = await fixture.connect()
        ops = op(SET, "retention.ms", "5")
        rows = await change(client, resource("a", ops), resource("b", ops), resource("a", ops))
        assert [row.error_code for row in rows] == [INVALID_REQUEST, NONE, INVALID_REQUEST]
        assert (set_configs(fixture, "a"), set_configs(fixture, "b")) == ({}, {"retention.ms": "5"})


async def test_validate_only_changes_nothing(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        (good,) = await change(client, resource("t", op(SET, "retention.ms", "5")), dry=True)
        (bad,) = await change(client, resource("t", op(SET, "retention.ms", "x")), dry=True)
        assert (good.error_code, bad.error_code, set_configs(fixture)) == (NONE, INVALID_CONFIG, {})


async def test_changes_at_the_same_time_are_all_there(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        values = {"retention.ms": "5", "segment.ms": "6", "segment.bytes": "7000"}
        clients = [await fixture.connect() for _ in values]
        async with asyncio.TaskGroup() as tasks:
            for client, (name, value) in zip(clients, values.items(), strict=True):
                tasks.create_task(change(client, resource("t", op(SET, name, value))))
        assert set_configs(fixture) == values


async def test_ledgers_keep_their_configs(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.internal_topic("__consumer_offsets")
        client = await fixture.connect()
        asked = resource("__consumer_offsets", op(SET, "retention.ms", "5"))
        assert [row.error_code for row in await change(client, asked)] == [POLICY]


async def test_change_is_in_effect_at_once(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        batch = build_batch([Record(None, b"v" * 3000)])
        produce = {"acks": -1, "timeout": 5000, "transactional_id": None, "topic_data": [
            {"name": "t", "partition_data": [{"index": 0, "records": batch}]}]}  # fmt: skip
        await change(client, resource("t", op(SET, "max.message.bytes", "2000")))
        answer = await client.call(0, 9, produce)
        assert answer.responses[0].partition_responses[0].error_code == TOO_LARGE
        await change(client, resource("t", op(DELETE, "max.message.bytes")))
        answer = await client.call(0, 9, produce)
        assert answer.responses[0].partition_responses[0].error_code == NONE


async def test_flush_is_honoured_where_all_is_synced_before_the_answer(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        (row,) = await change(client, resource("t", op(SET, "flush.messages", "1")))
        assert (row.error_code, set_configs(fixture)) == (NONE, {"flush.messages": "1"})
        for policy in (FlushPolicy.INTERVAL, FlushPolicy.OS):
            fixture.group_commit.policy = policy
            (row,) = await change(client, resource("t", op(SET, "flush.ms", "1")))
            assert row.error_code == INVALID_CONFIG
            assert policy.value in (row.error_message or "")
        fixture.group_commit.policy = FlushPolicy.COMMIT


async def test_one_request_names_a_bounded_number_of_keys(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        many = [op(SET, f"k{number}", "1") for number in range(20_000)]
        (row,) = await change(client, resource("t", *many))
        assert row.error_code == INVALID_REQUEST
        asked = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
        answer = await client.call(32, 4, {"resources": [asked] * 2_001, "include_synonyms": False,
                                           "include_documentation": False})  # fmt: skip
        assert {row.error_code for row in answer.results} == {INVALID_REQUEST}


async def test_KIP1142_resources_with_configs_are_listed(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        for name in ("b", "a"):
            await fixture.topic(name)
        client = await fixture.connect()

        async def listed(*kinds: int) -> tuple[int, list[tuple[int, str]]]:
            answer = await client.call(74, 1, {"resource_types": kinds})
            rows = [(row.resource_type, row.resource_name) for row in answer.config_resources]
            return answer.error_code, rows

        topics = [(TOPIC, "a"), (TOPIC, "b")]
        assert await listed(TOPIC) == (NONE, topics)
        assert await listed() == (NONE, [*topics, (BROKER, "1")])
        assert await listed(16) == (NONE, [])
        assert await listed(99) == (UNSUPPORTED, [])
        assert (await client.call(74, 0, {})).config_resources == ()


LONG_FIVE = " " * 30_000 + "5"


async def test_INV_CT4_no_value_is_kept_that_is_longer_than_any_that_means_something(
    tmp_path: Path,
) -> None:
    """What is kept of a topic is kept of ten thousand deleted ones, too, and told each mirror in one answer."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        set_it = await change(client, resource("t", op(SET, "retention.ms", LONG_FIVE)))
        replaced = await replace(
            client, resource("t", {"name": "retention.ms", "value": LONG_FIVE})
        )
        for (row,) in (set_it, replaced):
            assert row.error_code == INVALID_CONFIG
            assert "has 30001 characters" in row.error_message
        assert set_configs(fixture) == {}
        made = await created(client, "long", {"retention.ms": LONG_FIVE})
        assert (made.error_code, "long" in fixture.services.metadata.image.topics) == (
            INVALID_CONFIG,
            False,
        )


async def created(client: RawClient, name: str, configs: dict[str, str]) -> Any:
    rows = [{"name": key, "value": value} for key, value in configs.items()]
    asked = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": (),
        "configs": rows,
    }
    answer = await client.call(
        19, 7, {"topics": [asked], "timeout_ms": 5_000, "validate_only": False}
    )
    return answer.topics[0]


async def test_INV_CT4_configs_are_kept_and_told_as_kafka_tells_them(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        made = await created(client, "t", {"retention.ms": "  0005", "compression.type": " gzip "})
        assert made.error_code == NONE
        assert {row.value for row in made.configs if row.name == "retention.ms"} == {"5"}
        await change(client, resource("t", op(SET, "min.cleanable.dirty.ratio", " .50")))
        kept = {"retention.ms": "5", "compression.type": "gzip", "min.cleanable.dirty.ratio": "0.5"}
        assert set_configs(fixture) == kept
        assert (await described(client))["retention.ms"].value == "5"


async def test_INV_CT4_what_an_older_version_kept_is_changed_with_the_next_change(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.services.metadata.create_topic("t", 1, {"retention.ms": LONG_FIVE})
        client = await fixture.connect()
        assert (await described(client))["retention.ms"].value == "5"
        (row,) = await change(client, resource("t", op(SET, "segment.ms", "7")))
        assert (row.error_code, set_configs(fixture)) == (
            NONE,
            {"retention.ms": "5", "segment.ms": "7"},
        )


async def test_INV_M23_a_change_that_has_no_room_in_the_log_of_the_metadata_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change names what is there, which an older version kept as it came; in a region of several nodes an entry has 4 MiB."""
    monkeypatch.setattr(metadata_store, "_SETTINGS", RaftSettings())
    old = {"retention.ms": " " * (RaftSettings().payload_bytes_max - 500) + "5"}
    async with wire_fixture(tmp_path) as fixture:
        await fixture.services.metadata.create_topic("t", 1, old)
        client = await fixture.connect()
        new = {f"compression.{codec}.level": "1" for codec in ("gzip", "lz4", "zstd")}
        keys = [
            key
            for key in TOPIC_CONFIGS
            if TOPIC_CONFIGS[key].low == 0 and TOPIC_CONFIGS[key].type == 5
        ]
        values = {
            **new,
            **dict.fromkeys(keys, "9" * 18),
            "file.delete.delay.ms": "60000",
            "segment.jitter.ms": "0",
        }
        values |= {"local.retention.ms": "-2", "local.retention.bytes": "-2"}
        (row,) = await change(client, resource("t", *(op(SET, *each) for each in values.items())))
        assert (row.error_code, "one change of the metadata" in row.error_message) == (POLICY, True)
        assert set_configs(fixture) == old
