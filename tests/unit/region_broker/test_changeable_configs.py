"""What comes of a node's file and of what was set while it ran, and what follows in each part of a node.

Sources: KIP-226 for what goes before what; docs/reference/config.md for what each key does.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from region_broker.config.changeable import (
    CHANGEABLE,
    KAFKA_NAMES,
    KEYS,
    counting,
    normal,
    problem_of_change,
)
from region_broker.config.node_config import NodeConfig
from region_broker.controller.metadata_commands import SetNodeConfigs
from region_broker.controller.metadata_image import ALL_NODES
from region_broker.node import Node
from tests.fixtures.kafka_port import node_file
from tests.unit.region_broker.test_start_checks import PORTS, config_of

UNBOUND = [9092, 9093, 9094]
"""Ports that nobody binds here: nodes are opened, and do not run."""


# --- what counts ---------------------------------------------------------------------------------


def test_INV_CHG1_the_nodes_own_goes_before_all_nodes_and_that_before_the_file() -> None:
    file = node_file(metrics_names_max=1, group_count_max=1, log_level="error")
    own = {"metrics_names_max": "3"}
    common = {"metrics_names_max": "2", "group_count_max": "2"}
    found = counting(file, own, common)
    config = found.config
    assert (config.metrics_names_max, config.group_count_max, config.log_level) == (3, 2, "error")
    assert (found.own, found.common, found.ignored) == (own, common, ())
    assert counting(file, {}, {}).config == file


@pytest.mark.parametrize(
    ("key", "value"),
    [("of_the_future", "1"), ("metrics_names_max", "-1"), ("log_level", "loud"), ("data_dir", "/x"),
     ("shard_count", "8"), ("regions", "[]")],
)  # fmt: skip
def test_INV_CHG2_what_is_not_right_counts_for_nothing_and_is_told(key: str, value: str) -> None:
    file = node_file()
    good = {"group_count_max": "7"}
    for own, common in (({key: value, **good}, {}), (good, {key: value})):
        found = counting(file, own, common)
        assert found.config.group_count_max == 7
        assert found.config == counting(file, good, {}).config
        assert (found.own, found.common) == (good, {})
        [told] = found.ignored
        assert told.startswith(key)


def test_INV_CHG3_what_does_not_go_together_with_the_file_of_today_counts_for_nothing() -> None:
    set_before = {"tidemark_interval_ms": "100", "metrics_names_max": "5"}
    assert counting(node_file(), set_before, {}).config.tidemark_interval_ms == 100
    edited = node_file(mirror_whole_wait_ms=50)
    found = counting(edited, set_before, {})
    assert (found.config.tidemark_interval_ms, found.config.metrics_names_max) == (20, 5)
    assert found.own == {"metrics_names_max": "5"}
    assert [told.partition(" is ")[0] for told in found.ignored] == ["mirror_whole_wait_ms = 50"]


def test_INV_CHG3_keys_that_need_each_other_count_together() -> None:
    session, beat = "group_consumer_session_timeout_ms", "group_consumer_heartbeat_interval_ms"
    both = {beat: "50000", session: "60000"}
    assert counting(node_file(), both, {}).ignored == ()
    # Beside a third that fits nowhere, they still do.
    edited = node_file(mirror_whole_wait_ms=50)
    found = counting(edited, {**both, "tidemark_interval_ms": "100"}, {})
    assert (found.config.group_consumer_heartbeat_interval_ms, len(found.ignored)) == (50_000, 1)


def test_a_change_is_not_refused_for_what_was_wrong_before() -> None:
    file, before = node_file(), {"metrics_names_max": "-1"}
    after = {**before, "group_count_max": "5"}
    assert problem_of_change(file, (before, {}), (after, {})) is None
    worse = {**before, "group_count_max": "-5"}
    told = problem_of_change(file, (before, {}), (worse, {})) or ""
    assert told.startswith("group_count_max = '-5' is not in 1..10000000: ")


def test_INV_CHG4_of_very_many_problems_the_first_are_told_and_no_more_is_looked_at() -> None:
    """An AlterConfigs of a node names as many keys as a request holds: nobody else was served for two seconds."""
    many = {f"metrics_names_mox{number:05}": "1" for number in range(19_000)}
    told = problem_of_change(node_file(), ({}, {}), (many, {})) or ""
    assert re.findall(r"metrics_names_mox(\d+)", told) == [f"{number:05}" for number in range(10)]
    assert told.count("; did you mean metrics_names_max?") == 10


def test_what_was_wrong_before_takes_no_room_from_what_is_wrong_now() -> None:
    before = {f"a_key_of_the_future{number}": "1" for number in range(15)}
    told = problem_of_change(node_file(), (before, {}), ({**before, "group_count_max": "-5"}, {}))
    assert (told or "").startswith("group_count_max = '-5' is not in")


def test_of_a_long_value_the_first_letters_are_looked_at() -> None:
    long = "debg" + " " * 3_000_000
    told = problem_of_change(node_file(), ({}, {}), ({"log_level": long}, {})) or ""
    assert told.startswith("log_level = 'debg ")
    assert len(told) < 1_500


def test_values_are_kept_as_their_types_write_them() -> None:
    given = {"auto_create_topics": "TRUE", "group_count_max": "5", "of_the_future": "x"}
    assert normal(given) == {
        "auto_create_topics": "true", "group_count_max": "5", "of_the_future": "x",
    }  # fmt: skip


def test_every_name_of_kafka_stands_for_a_key_that_may_change() -> None:
    assert set(KAFKA_NAMES.values()) <= CHANGEABLE < set(KEYS)


# --- what follows --------------------------------------------------------------------------------

PROBES: dict[str, tuple[Any, Callable[[Node], Any]]] = {
    "auto_create_topics": (True, lambda node: node._services.config.auto_create_topics),
    "catch_up_sent_bytes_per_s": (20, lambda node: node._effects.catch_up.sent_bytes_per_s),
    "catch_up_taken_bytes_per_s": (21, lambda node: node._effects.catch_up.taken_bytes_per_s),
    "committed_offsets_max": (24, lambda node: node.groups._settings.committed_offsets_max),
    "connection_order_fence": (False, lambda node: node.transactions._settings.connection_order),
    "connection_rate_per_address": (3, lambda node: node.kafka._admission.caps.rate),
    "connections_per_address_max": (4, lambda node: node.kafka._admission.caps.per_address),
    "default_partition_count": (5, lambda node: node._services.config.default_partition_count),
    "deleted_topic_retention_ms": (6, lambda node: node.storage.partitions.kept.kept_ms),
    "disk_free_bytes_min": (7, lambda node: node.storage.partitions.room.free_bytes_min),
    "group_consumer_heartbeat_interval_ms": (
        8, lambda node: node.groups._settings.consumer_heartbeat_interval_ms,
    ),
    "group_consumer_session_timeout_ms": (
        9_000, lambda node: node.groups._settings.consumer_session_timeout_ms,
    ),
    "group_count_max": (10, lambda node: node.groups._settings.group_count_max),
    "group_initial_rebalance_delay_ms": (
        11, lambda node: node.groups._settings.initial_rebalance_delay_ms,
    ),
    "group_min_session_timeout_ms": (
        12, lambda node: node.groups._settings.session_timeout_ms_min,
    ),
    "log_level": ("error", lambda node: node.configs.present.log_level),
    "metrics_names_max": (13, lambda node: node._effects.names._topics.names_max),
    "mirror_whole_wait_ms": (14_000, lambda node: node.tidemarks._whole_wait_ms),
    "partition_producers_max": (22, lambda node: node.storage.partitions.producers.partition_max),
    "producers_max": (23, lambda node: node.storage.partitions.producers.node_max),
    "replica_selector": ("leader", lambda node: node._services.config.replica_selector),
    "request_memory_bytes": (15 << 20, lambda node: node.memory.left_bytes),
    "retention_check_interval_ms": (
        16, lambda node: node.configs.present.retention_check_interval_ms,
    ),
    "tidemark_interval_ms": (17, lambda node: node.tidemarks._interval_ms),
    "transaction_max_timeout_ms": (18, lambda node: node.transactions._settings.timeout_max_ms),
    "transactional_id_count_max": (19, lambda node: node.transactions._settings.id_count_max),
}  # fmt: skip
"""By key: a value that is not its default, and where a node has it."""


async def closed(node: Node) -> None:
    node.kafka.close()
    node.peers.close()
    await node.http.stop()
    await node.storage.close()


def seen(node: Node) -> dict[str, Any]:
    return {key: probe(node) for key, (_, probe) in PROBES.items()}


async def test_INV_NDC1_every_key_that_may_change_takes_effect_and_a_restart_keeps_it(
    tmp_path: Path,
) -> None:
    assert set(PROBES) == CHANGEABLE
    config = config_of(tmp_path, UNBOUND)
    in_file = {key: getattr(config, key) for key in PROBES}
    wanted = {key: value for key, (value, _) in PROBES.items()}
    assert all(in_file[key] != wanted[key] for key in PROBES)
    node = await Node.open(config, PORTS)
    assert seen(node) == in_file
    texts = {key: str(value).lower() for key, value in wanted.items()}
    await node.storage.metadata.apply(SetNodeConfigs(1, texts))
    assert seen(node) == wanted
    await closed(node)
    again = await Node.open(config, PORTS)
    assert seen(again) == wanted
    assert again.storage.partitions._config.deleted_topic_retention_ms == 6
    await again.storage.metadata.apply(SetNodeConfigs(1, {}))
    assert seen(again) == in_file
    await closed(again)


async def test_INV_NDC2_a_start_warns_of_what_it_ignores_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, UNBOUND)
    node = await Node.open(config, PORTS)
    odd = {"of_the_future": "1", "metrics_names_max": "many", "group_count_max": "5"}
    await node.storage.metadata.apply(SetNodeConfigs(ALL_NODES, odd))
    await closed(node)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        again = await Node.open(config, PORTS)
        await again.storage.metadata.apply(SetNodeConfigs(1, {"log_level": "error"}))
    told = [record.message for record in caplog.records if "ignored" in record.message]
    assert len(told) == 2
    assert "metrics_names_max = 'many' is no whole number" in told[0]
    assert "of_the_future is unknown" in told[1]
    assert again.configs.present.group_count_max == 5
    await closed(again)


async def test_another_nodes_configs_are_not_this_ones(tmp_path: Path) -> None:
    node = await Node.open(config_of(tmp_path, UNBOUND), PORTS)
    taken: list[NodeConfig] = []
    node.configs.follow(taken.append)
    await node.storage.metadata.apply(SetNodeConfigs(2, {"metrics_names_max": "5"}))
    assert node.configs.present.metrics_names_max == 200
    assert [config.metrics_names_max for config in taken] == [200, 200]
    await closed(node)
