"""The files of docs/deploy are what the page says: loaded by the real parser, and fit for each other."""

import configparser
from pathlib import Path

import pytest

from region_broker.cli.main import main
from region_broker.config.node_config import NodeConfig

DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_one_file_does_for_all_three_nodes(node_id: int) -> None:
    config = NodeConfig.load(DEPLOY / "node.toml", {"TIDEMARK_NODE_ID": str(node_id)})
    assert config.own_node.node_id == node_id
    assert config.own_node.kafka == f"eu{node_id}.example.org:9092"
    assert sorted(node.node_id for node in config.siblings) == sorted({1, 2, 3} - {node_id})
    assert len(config.regions) == 1


@pytest.mark.parametrize(
    ("region", "node_id"), [("eu", 1), ("eu", 2), ("eu", 3), ("us", 4), ("us", 5), ("us", 6)]
)
def test_one_file_does_for_all_nodes_of_two_regions(region: str, node_id: int) -> None:
    where = {"TIDEMARK_REGION": region, "TIDEMARK_NODE_ID": str(node_id)}
    config = NodeConfig.load(DEPLOY / "two-regions.toml", where)
    assert (config.region, config.own_node.node_id) == (region, node_id)
    assert config.own_node.http == f"{region}{(node_id - 1) % 3 + 1}.example.org:9093"
    assert [len(each.nodes) for each in config.regions] == [3, 3]
    assert config.initial_primary_region == "eu"
    alone = NodeConfig.load(DEPLOY / "node.toml", {})
    assert config.regions[0] == alone.own  # a region of three gets another one beside it


def test_the_region_of_one_node_grows_into_the_one_of_three_as_it_is() -> None:
    one = NodeConfig.load(DEPLOY / "one-node.toml", {})
    first = NodeConfig.load(DEPLOY / "node.toml", {})
    assert (one.cluster_id, one.region, one.own.ordinal, one.shard_count, one.data_dir) == (
        first.cluster_id, first.region, first.own.ordinal, first.shard_count, first.data_dir,
    )  # fmt: skip
    assert (one.own_node.node_id, one.own_node.kafka, one.own_node.http, one.own_node.peer) == (
        first.own_node.node_id, first.own_node.kafka, first.own_node.http, first.own_node.peer,
    )  # fmt: skip


def test_the_unit_starts_what_there_is_and_gives_it_time_to_hand_over() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "tidemark.service")
    service = unit["Service"]
    for key in ("ExecStart", "ExecStartPre"):
        program, command, *arguments = service[key].split()
        assert program.endswith("/tidemark")
        found = main.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None
        assert arguments[:2] == ["--config", "/etc/tidemark/node.toml"]
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) >= 30
    assert service["LimitCORE"] == "1", "INV-NCF1"


def test_the_container_runs_the_node_and_keeps_its_data() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    data_dir = NodeConfig.load(DEPLOY / "node.toml", {}).data_dir
    assert f"VOLUME {data_dir}" in text
    assert 'ENTRYPOINT ["tidemark", "broker", "--config", "/etc/tidemark/node.toml"]' in text
    assert "STOPSIGNAL SIGTERM" in text
