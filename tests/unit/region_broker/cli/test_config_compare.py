"""A configuration that lacks a node which others name, or has one that they lack, is remarked (INV-CFC1)."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from region_broker.cli import config_compare
from region_broker.cli.broker import broker
from region_broker.cli.config_compare import differences
from region_broker.config.node_config import NodeConfig
from region_broker.workbench.node_http import ApiError
from tests.fixtures.failover_regions import free_ports

US = (4, 5, 6)


def node(node_id: int) -> dict[str, Any]:
    return {"node_id": node_id, "kafka": f"h{node_id}:9092", "peer": f"h{node_id}:9091", "http": f"h{node_id}:9093"}  # fmt: skip


def config(*us: int, **more: Any) -> NodeConfig:
    """Return that of node 1, the only one of eu, with these nodes of us."""
    raw = {
        "region": "eu", "node_id": 1, "cluster_id": "c1", "data_dir": "/nowhere", "initial_primary_region": "eu",
        "regions": [{"name": "eu", "ordinal": 0, "nodes": [node(1)]}, {"name": "us", "ordinal": 1, "nodes": list(map(node, us))}],
    }  # fmt: skip
    return NodeConfig.build({**raw, **more}, "node.toml")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Nodes that run, by address, with what they say."""
    views: dict[str, Any] = {}

    def request(url: str, *_: Any, **_more: Any) -> Any:
        if url not in views:
            raise ConnectionRefusedError(111, "Connection refused")
        return views[url]

    monkeypatch.setattr(config_compare, "request", request)
    return views


def naming(*us: int) -> dict[str, Any]:
    of = {"eu": (1,), "us": us}
    return {"peers": [{"region": name, "nodes": [{"node_id": at, "http": f"http://h{at}:9093"} for at in ids]} for name, ids in of.items()]}  # fmt: skip


def test_INV_CFC1_a_node_that_is_lacking_here_is_named(running: dict[str, Any]) -> None:
    running["http://h5:9093"] = naming(*US)
    (told,) = differences(config(4, 5))
    assert told.startswith(
        "node 5 of region us runs, and names node 6 of region us (HTTP at h6:9093), which this configuration lacks"
    )


def test_INV_CFC1_and_so_is_one_that_a_node_which_runs_lacks(running: dict[str, Any]) -> None:
    running["http://h4:9093"] = naming(*US)
    running["http://h5:9093"] = naming(4, 5)
    (told,) = differences(config(*US))
    assert "node 5 of region us runs with a configuration that lacks node 6 of region us" in told


def test_INV_CFC1_and_so_is_another_address(running: dict[str, Any]) -> None:
    running["http://h4:9093"] = naming(*US)
    running["http://h4:9093"]["peers"][1]["nodes"][1] |= {
        "kafka": "h5:9092",
        "http": "http://other:9093",
    }
    (told,) = differences(config(*US))
    assert told.startswith(
        "node 4 of region us runs, and has http = 'other:9093' for node 5 of region us, this configuration 'h5:9093'"
    )


def test_who_says_nothing_of_it_is_not_compared(running: dict[str, Any]) -> None:
    assert differences(config(*US)) == []
    running["http://h4:9093"] = {"region": "us"}
    running["http://h5:9093"] = ["no view"]
    assert differences(config(*US)) == []


def test_INV_CFC3_who_answers_and_does_not_say_is_remarked_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: dict[str, Exception | dict[str, Any]] = {
        "http://h4:9093": ApiError(401, "unknown-caller", "say who you are"),
        "http://h5:9093": ConnectionError("shows a certificate that does not count"),
        "http://h6:9093": {"in_brief": True, "region": "us", "peers": []},
        "http://h7:9093": ConnectionRefusedError(111, "Connection refused"),
        "http://h8:9093": ApiError(503, "node-waits", "this node waits for the quorum"),
    }

    def request(url: str, *_: Any, **_more: Any) -> Any:
        if isinstance(answer := answers[url], Exception):
            raise answer
        return answer

    monkeypatch.setattr(config_compare, "request", request)
    (told,) = differences(config(4, 5, 6, 7, 8))
    assert told.startswith("nodes that run, and do not say")
    assert ": 4, 5, 6 (say who you are)" in told


def test_a_check_remarks_it(running: dict[str, Any], tmp_path: Path) -> None:
    kafka, peer, http = free_ports(3)
    running["http://h4:9093"] = naming(*US)
    file = tmp_path / "node.toml"
    file.write_text(f"""
region = "eu"
node_id = 1
cluster_id = "c1"
data_dir = "{tmp_path / "data"}"
initial_primary_region = "eu"

[[regions]]
name = "eu"
ordinal = 0
node_id = 1
kafka = "127.0.0.1:{kafka}"
peer = "127.0.0.1:{peer}"
http = "127.0.0.1:{http}"

[[regions]]
name = "us"
ordinal = 1
node_id = 4
kafka = "h4:9092"
peer = "h4:9091"
http = "h4:9093"
""")
    result = CliRunner().invoke(broker, ["--config", str(file), "--check"])
    assert result.exit_code == 0, result.output
    assert "names node 5 of region us" in result.output
    assert "names node 6 of region us" in result.output
    assert "is a valid configuration" in result.output


def test_INV_CFC2_another_rack_is_named(running: dict[str, Any]) -> None:
    view = running["http://h4:9093"] = naming(*US)
    view["peers"][1]["nodes"][2]["rack"] = "b"
    (told,) = differences(config(*US))
    assert "has rack = 'b' for node 6 of region us, this configuration ''" in told


def test_INV_CFC2_and_so_are_shards_ordinals_and_the_order_of_nodes(
    running: dict[str, Any],
) -> None:
    view = running["http://h4:9093"] = naming(5, 4, 6)
    view["shard_count"] = 8
    view["peers"][1]["ordinal"] = 3
    shards, ordinal, order = differences(config(*US))
    assert "shard_count = 8, this configuration has 4" in shards
    assert "ordinal 3 for region us, this configuration has 1" in ordinal
    assert "region us in the order [5, 4, 6], this configuration has [4, 5, 6]" in order


def test_INV_CFC2_what_an_older_version_does_not_tell_is_no_difference(
    running: dict[str, Any],
) -> None:
    running["http://h4:9093"] = naming(*US)
    running["http://h4:9093"] |= {"shard_count": config(*US).shard_count}
    assert differences(config(*US)) == []
