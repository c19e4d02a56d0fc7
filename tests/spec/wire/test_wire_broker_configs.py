"""Configs of a node that change while it runs, over a real socket (KIP-226, KIP-339).

Sources: KIP-226 (resources, precedence, sources, synonyms, what is read-only), KIP-339 (operations), Kafka's
DynamicBrokerConfig and ConfigHelper. Numbers of sources: DescribeConfigsResponse.ConfigSource.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from region_broker.controller.metadata_commands import SetNodeConfigs
from region_broker.controller.metadata_image import ALL_NODES
from tests.fixtures.kafka_port import RawClient, WireFixture, node_file, wire_fixture

NONE, NOT_CONTROLLER, INVALID_CONFIG, INVALID_REQUEST = 0, 41, 40, 42
SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
OF_NODE, OF_ALL_NODES, STATIC, DEFAULT = 2, 3, 4, 5
NODE, ALL = "1", ""


def op(operation: int, name: str, value: str | None = None) -> dict[str, Any]:
    return {"name": name, "config_operation": operation, "value": value}


def resource(name: str, *configs: dict[str, Any], kind: int = BROKER) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configs": configs}


async def change(client: RawClient, *resources: Any, dry: bool = False, version: int = 1) -> Any:
    asked = {"resources": resources, "validate_only": dry}
    return (await client.call(44, version, asked)).responses


async def changed(client: RawClient, name: str, *configs: Any, dry: bool = False) -> None:
    [row] = await change(client, resource(name, *configs), dry=dry)
    assert (row.error_code.value, row.error_message) == (NONE, None)


async def refused(client: RawClient, name: str, *configs: Any) -> tuple[int, str]:
    [row] = await change(client, resource(name, *configs))
    return row.error_code.value, row.error_message


async def told(client: RawClient, name: str = NODE, keys: Any = None) -> dict[str, Any]:
    asked = {"resource_type": BROKER, "resource_name": name, "configuration_keys": keys}
    [result] = (await client.call(32, 4, {
        "resources": [asked], "include_synonyms": True, "include_documentation": True,
    })).results  # fmt: skip
    assert result.error_code.value == NONE, result.error_message
    return {row.name: row for row in result.configs}


def sources(row: Any) -> list[tuple[str, int]]:
    assert (row.value, row.config_source) == (row.synonyms[0].value, row.synonyms[0].source)
    assert {each.name for each in row.synonyms} == {row.name}
    return [(each.value, each.source) for each in row.synonyms]


def present(fixture: WireFixture) -> Any:
    return fixture.services.node_configs.present  # type: ignore[attr-defined]


async def test_KIP226_the_nodes_own_goes_before_all_nodes_and_that_before_the_file(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path, file=node_file(metrics_names_max=7)) as fixture:
        client = await fixture.connect()
        key = "metrics_names_max"

        async def row() -> Any:
            return (await told(client, keys=[key]))[key]

        assert sources(await row()) == [("7", STATIC), ("200", DEFAULT)]
        await changed(client, ALL, op(SET, key, "8"))
        assert sources(await row()) == [("8", OF_ALL_NODES), ("7", STATIC), ("200", DEFAULT)]
        assert present(fixture).metrics_names_max == 8
        await changed(client, NODE, op(SET, key, "9"))
        assert sources(await row()) == [
            ("9", OF_NODE), ("8", OF_ALL_NODES), ("7", STATIC), ("200", DEFAULT),
        ]  # fmt: skip
        assert present(fixture).metrics_names_max == 9
        await changed(client, ALL, op(DELETE, key))
        assert sources(await row()) == [("9", OF_NODE), ("7", STATIC), ("200", DEFAULT)]
        await changed(client, NODE, op(DELETE, key))
        assert sources(await row()) == [("7", STATIC), ("200", DEFAULT)]
        assert present(fixture).metrics_names_max == 7


async def test_KIP226_without_a_name_only_what_was_set_for_all_nodes_is_told(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        assert await told(client, ALL) == {}
        await changed(client, ALL, op(SET, "log_level", "debug"))
        await changed(client, NODE, op(SET, "log_level", "error"), op(SET, "group_count_max", "5"))
        rows = await told(client, ALL)
        assert {name: sources(row) for name, row in rows.items()} == {
            "log_level": [("debug", OF_ALL_NODES)]
        }


async def test_KIP226_what_is_read_only_is_told_so(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        rows = await told(client)
        may_change = {name for name, row in rows.items() if not row.read_only}
        assert may_change == {
            "auto_create_topics", "catch_up_sent_bytes_per_s", "catch_up_taken_bytes_per_s", "committed_offsets_max",
            "connection_order_fence", "connection_rate_per_address", "connections_per_address_max", "default_partition_count", "deleted_topic_retention_ms",
            "disk_free_bytes_min", "group_consumer_heartbeat_interval_ms",
            "group_consumer_session_timeout_ms", "group_count_max",
            "group_initial_rebalance_delay_ms", "group_min_session_timeout_ms", "log_level",
            "metrics_names_max", "mirror_whole_wait_ms", "partition_producers_max", "producers_max", "replica_selector", "request_memory_bytes",
            "retention_check_interval_ms", "tidemark_interval_ms", "transaction_max_timeout_ms",
            "transactional_id_count_max",
            # Kafka's names of keys that mean the same there.
            "auto.create.topics.enable", "num.partitions", "max.connections.per.ip",
            "transaction.max.timeout.ms", "group.initial.rebalance.delay.ms",
            "group.min.session.timeout.ms", "group.consumer.session.timeout.ms",
            "group.consumer.heartbeat.interval.ms", "leader.replication.throttled.rate",
            "follower.replication.throttled.rate",
        }  # fmt: skip
        assert rows["data_dir"].value == "/srv/eu"
        assert sources(rows["data_dir"]) == [("/srv/eu", STATIC)]
        assert (rows["node.id"].value, rows["node.id"].read_only) == ("1", True)
        assert all(row.documentation for row in rows.values())


async def test_the_node_tells_all_its_listeners_and_what_each_speaks_as_kafka_does(
    tmp_path: Path,
) -> None:
    """Kafka's `advertised.listeners` is `name://host:port` for each, `listener.security.protocol.map` `name:protocol` (SocketServerConfigs)."""
    outside = {
        "name": "OUTSIDE", "bind": "0.0.0.0:9095", "advertised": "eu1.example.org:9095", "security_protocol": "SASL_SSL",
    }  # fmt: skip
    given = node_file(
        listeners=[outside], security_protocol="SSL", tls_certificate="/c.pem", tls_key="/k.pem",
    )  # fmt: skip
    async with wire_fixture(tmp_path, file=given) as fixture:
        fixture.config.told_listeners = given.told_listeners
        rows = await told(await fixture.connect())
        listed = rows["advertised.listeners"]
        assert listed.value == "SSL://127.0.0.1:9092,OUTSIDE://eu1.example.org:9095"
        assert rows["listener.security.protocol.map"].value == "SSL:SSL,OUTSIDE:SASL_SSL"
        assert (listed.read_only, sources(listed)) == (True, [(listed.value, STATIC)])


@pytest.mark.parametrize("name", [NODE, ALL])
@pytest.mark.parametrize("key", ["data_dir", "shard_count", "listen_host", "flush_policy",
                                 "journal_bytes", "log.dirs", "node.id", "regions"])  # fmt: skip
async def test_KIP226_read_only_keys_are_refused_with_what_to_do(
    tmp_path: Path, name: str, key: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        good = op(SET, "metrics_names_max", "5")
        for order in (op(SET, key, "1"), op(DELETE, key)):
            error, text = await refused(client, name, good, order)
            assert error == INVALID_REQUEST
            assert text.startswith(key)
            assert "configuration file" in text
        replaced = await client.call(33, 2, {
            "resources": [resource(name, {"name": key, "value": "1"})], "validate_only": False,
        })  # fmt: skip
        assert replaced.responses[0].error_code.value == INVALID_REQUEST
        assert fixture.store.image.node_configs == {}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("metrics_names_max", "100001",
         "is not in 0..100000: a whole number from 0 to 100000 (each is several series; 0: none)"),
        ("metrics_names_max", "many", "metrics_names_max = 'many' is no whole number: "),
        ("auto.create.topics.enable", "perhaps", "is none of the values to choose from: true or false"),
        ("log_level", "loud", "is none of the values to choose from"),
        ("mirror_whole_wait_ms", "5",
         "mirror_whole_wait_ms = 5 is below tidemark_interval_ms = 20: "),
        ("group.consumer.heartbeat.interval.ms", "45000",
         "group_consumer_heartbeat_interval_ms = 45000 is not below group_consumer_session_timeout_ms = 45000: "),
        ("tidemark_intervall_ms", "5", "there is no such key; did you mean tidemark_interval_ms?"),
    ],
)  # fmt: skip
async def test_values_are_held_against_the_rules_of_the_file(
    tmp_path: Path, key: str, value: str, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        for name in (NODE, ALL):
            good = op(SET, "group_count_max", "5")
            error, said = await refused(client, name, good, op(SET, key, value))
            assert error == INVALID_CONFIG
            assert text in said
        assert fixture.store.image.node_configs == {}


async def test_keys_that_need_each_other_change_together(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        session, beat = "group_consumer_session_timeout_ms", "group_consumer_heartbeat_interval_ms"
        assert (await refused(client, NODE, op(SET, beat, "50000")))[0] == INVALID_CONFIG
        await changed(client, NODE, op(SET, beat, "50000"), op(SET, session, "60000"))
        assert (await refused(client, NODE, op(DELETE, session)))[0] == INVALID_CONFIG
        assert present(fixture).group_consumer_session_timeout_ms == 60_000


async def test_KIP226_validate_only_changes_nothing(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await changed(client, NODE, op(SET, "metrics_names_max", "5"), dry=True)
        [row] = await change(client, resource(NODE, op(SET, "data_dir", "/x")), dry=True)
        assert row.error_code.value == INVALID_REQUEST
        [row] = await change(client, resource(NODE, op(SET, "metrics_names_max", "x")), dry=True)
        assert row.error_code.value == INVALID_CONFIG
        assert fixture.store.image.node_configs == {}
        assert present(fixture).metrics_names_max == 200


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
async def test_KIP339_only_lists_are_appended_to(tmp_path: Path, operation: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        error, text = await refused(client, NODE, op(operation, "metrics_names_max", "5"))
        assert (error, "is no list" in text) == (INVALID_CONFIG, True)


async def test_KIP339_a_key_is_named_once_in_whatever_words(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        twice = op(SET, "num.partitions", "3"), op(SET, "default_partition_count", "4")
        assert await refused(client, NODE, *twice) == (
            INVALID_REQUEST, "a config key is there twice",
        )  # fmt: skip
        error, text = await refused(client, NODE, op(SET, "num.partitions"))
        assert (error, "null" in text) == (INVALID_REQUEST, True)


async def test_kafkas_names_stand_for_ours(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await changed(client, NODE, op(SET, "num.partitions", "3"),
                      op(SET, "auto.create.topics.enable", "TRUE"))  # fmt: skip
        assert fixture.store.image.node_configs == {
            1: {"auto_create_topics": "true", "default_partition_count": "3"}
        }
        rows = await told(client)
        for name in ("num.partitions", "default_partition_count"):
            assert sources(rows[name]) == [("3", OF_NODE), ("1", DEFAULT)]
        await changed(client, NODE, op(DELETE, "default_partition_count"))
        assert (await told(client))["num.partitions"].value == "1"


async def test_alter_configs_replaces_all_that_was_set(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await changed(
            client, NODE, op(SET, "metrics_names_max", "5"), op(SET, "log_level", "error")
        )
        for version in range(3):
            values = [{"name": "group_count_max", "value": str(10 + version)}]
            [row] = (await client.call(33, version, {
                "resources": [resource(NODE, *values)], "validate_only": False,
            })).responses  # fmt: skip
            assert row.error_code.value == NONE
            assert fixture.store.image.node_configs == {1: {"group_count_max": str(10 + version)}}


@pytest.mark.parametrize("name", ["2", "x", "01", "-1"])
async def test_KIP226_a_node_answers_for_itself_and_for_all(tmp_path: Path, name: str) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        error, text = await refused(client, name, op(SET, "metrics_names_max", "5"))
        assert (error, "this is node 1" in text) == (INVALID_REQUEST, True)


async def test_INV_BKC1_a_change_that_another_one_came_before_is_made_on_top_of_it(
    tmp_path: Path,
) -> None:
    """Compare and set: neither of two changes at once undoes the other."""
    async with wire_fixture(tmp_path) as fixture:
        clients = [await fixture.connect() for _ in range(2)]
        keys = ("metrics_names_max", "group_count_max")
        await asyncio.gather(*(
            changed(client, NODE, op(SET, key, "5"))
            for client, key in zip(clients, keys, strict=True)
        ))  # fmt: skip
        assert fixture.store.image.node_configs == {1: dict.fromkeys(keys, "5")}


async def test_what_another_version_set_stays_until_it_is_removed(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        odd = {"of_the_future": "1", "shard_count": "9", "metrics_names_max": "-3"}
        await fixture.store.apply(SetNodeConfigs(1, odd))
        rows = await told(client)
        assert sources(rows["metrics_names_max"]) == [("200", DEFAULT)]
        assert sources(rows["shard_count"]) == [("4", DEFAULT)]
        await changed(client, NODE, op(SET, "group_count_max", "5"))
        assert fixture.store.image.node_configs == {1: {**odd, "group_count_max": "5"}}
        await changed(client, NODE, *(op(DELETE, key) for key in odd))
        assert fixture.store.image.node_configs == {1: {"group_count_max": "5"}}
        error, _ = await refused(client, NODE, op(DELETE, "shard_count"))
        assert error == INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1])
async def test_a_mirror_changes_its_own_configs_itself(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.region.acting = False
        client = await fixture.connect()
        mine = resource(NODE, op(SET, "metrics_names_max", "5"))
        everyones = resource(ALL, op(SET, "metrics_names_max", "6"))
        rows = await change(client, mine, everyones, version=version)
        assert [row.error_code.value for row in rows] == [NONE, NONE]
        assert fixture.store.image.node_configs == {
            1: {"metrics_names_max": "5"}, ALL_NODES: {"metrics_names_max": "6"},
        }  # fmt: skip
        topic = resource("t", op(SET, "retention.ms", "5"), kind=TOPIC)
        both = await change(client, mine, topic, version=version)
        assert [row.error_code.value for row in both] == [NONE, INVALID_REQUEST]
        assert "without nodes" in both[1].error_message
        replaced = await client.call(33, version, {
            "resources": [resource(NODE)], "validate_only": False,
        })  # fmt: skip
        assert replaced.responses[0].error_code.value == NONE
        assert fixture.forwarder.frames == []
        assert fixture.services.metadata.image.topics["t"].configs == {}


async def test_a_change_is_durable_before_it_is_answered(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await changed(client, NODE, op(SET, "metrics_names_max", "5"))
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        assert sources((await told(client))["metrics_names_max"]) == [
            ("5", OF_NODE),
            ("200", DEFAULT),
        ]
        assert present(fixture).metrics_names_max == 5
