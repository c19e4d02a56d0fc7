"""The nodes that a node's file names, and those that were added; the file of a new one."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from region_broker.cli.cluster_add import toml_of
from region_broker.config.node_config import ConfigError, NodeConfig, RegionNode
from region_broker.config.region_growth import new_node_file, with_added
from region_broker.controller.cluster_image import AddedNode


def addresses(node_id: int, host: str = "") -> dict[str, Any]:
    host = host or f"eu{node_id}"
    return {"node_id": node_id, "kafka": f"{host}:9092", "peer": f"{host}:9094", "http": f"{host}:9093"}  # fmt: skip


def file_of(*node_ids: int, own: int | None = None, **more: Any) -> NodeConfig:
    """Return the configuration of a node of region eu, which has these; of one, as one-node.toml has it."""
    nodes = [addresses(node_id) for node_id in node_ids]
    eu = {"name": "eu", "ordinal": 0, **(nodes[0] if own is None else {"nodes": nodes})}
    us = {"name": "us", "ordinal": 1, **addresses(9, "us")}
    return NodeConfig.build(
        {"region": "eu", "cluster_id": "c", "data_dir": "/data", "initial_primary_region": "eu", "regions": [eu, us],
         **({} if own is None else {"node_id": own}), **more},
        "a test",
    )  # fmt: skip


def added(node_id: int, host: str = "") -> AddedNode:
    return AddedNode(**addresses(node_id, host))


def test_INV_GRW1_a_file_that_names_one_node_has_those_that_were_added_too() -> None:
    alone = file_of(1)
    assert with_added(alone, {}) is alone
    grown = with_added(alone, {3: added(3), 2: added(2)})
    assert [node.node_id for node in grown.own.nodes] == [1, 2, 3]
    assert (grown.own_node.node_id, [node.node_id for node in grown.siblings]) == (1, [2, 3])
    assert grown.others == alone.others


def test_INV_GRW1_of_others_the_metadata_say_where_they_are_of_itself_its_file() -> None:
    grown = with_added(file_of(3, 1, 2, own=1), {1: added(1, "old"), 2: added(2, "moved")})
    assert [node.node_id for node in grown.own.nodes] == [3, 1, 2], "who is first stays first"
    assert grown.own_node.peer == "eu1:9094"
    assert grown.own.nodes[2].peer == "moved:9094"


def test_INV_GRW2_the_file_of_a_new_node_is_what_its_region_counts_on_and_can_be_started_with() -> (
    None
):
    config = file_of(1, auto_create_topics=True, shard_count=2, listen_host="0.0.0.0")
    told = new_node_file(config, RegionNode(**addresses(2), rack="b"), "/data2")
    built = NodeConfig.build(tomllib.loads(toml_of(told)), "printed")
    assert (built.own_node.node_id, built.data_dir, built.own_node.rack) == (2, "/data2", "b")
    assert [node.node_id for node in built.own.nodes] == [1, 2]
    assert (built.cluster_id, built.shard_count, built.auto_create_topics) == ("c", 2, True)
    assert (built.listen_host, built.others) == ("0.0.0.0", config.others)
    assert "tidemark_interval_ms" not in told, "a default is left to the new node's version"


def test_INV_GRW2_an_address_of_this_machine_is_not_bound_on_the_new_one() -> None:
    config = file_of(1, listen_host="10.0.0.1")
    assert "listen_host" not in new_node_file(config, RegionNode(**addresses(2)), "/data")


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (addresses(9), "node_id = 9"),
        ({**addresses(2), "kafka": "us:9092"}, "is the address of"),
        ({**addresses(2), "peer": "eu1:9094"}, "is the address of"),
        ({**addresses(2), "peer": "0.0.0.0:9094"}, "peer"),
        ({**addresses(2), "http": "nowhere"}, "http"),
        (addresses(-1), "node_id"),
    ],
)
def test_INV_GRW2_what_could_not_start_so_is_refused(wanted: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        new_node_file(file_of(1), RegionNode(**wanted), "/data")


def test_texts_are_written_as_toml_reads_them(tmp_path: Path) -> None:
    odd = str(tmp_path / 'a "quoted"\\path\u00e9')
    told = new_node_file(file_of(1), RegionNode(**addresses(2)), odd)
    assert tomllib.loads(toml_of(told))["data_dir"] == odd
