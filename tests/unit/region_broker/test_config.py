"""What a node's configuration may be (INV-CF1): each problem names its key, what is wrong, and what would be right."""

import codecs
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from region_broker.config.node_config import ConfigError, NodeConfig, unknown_overlays
from tests.tidy.tree import DOCS, ROOT

NEVER = object()


def whole(**changed: Any) -> dict[str, Any]:
    """Return a valid configuration of two regions, with keys changed; NEVER: left out."""
    raw: dict[str, Any] = {
        "region": "eu", "cluster_id": "c1", "data_dir": "/srv/eu", "initial_primary_region": "eu",
        "regions": [region(0), region(1)],
    }  # fmt: skip
    raw.update(changed)
    return {key: value for key, value in raw.items() if value is not NEVER}


def region(at: int, **changed: Any) -> dict[str, Any]:
    host = f"{('eu', 'us')[at]}.example.org"
    raw = {"name": ("eu", "us")[at], "ordinal": at, "node_id": at + 1,
           "kafka": f"{host}:9092", "peer": f"{host}:9094", "http": f"{host}:9093"}  # fmt: skip
    return {key: value for key, value in (raw | changed).items() if value is not NEVER}


def node(number: int, **changed: Any) -> dict[str, Any]:
    """Return a node of region eu in a region's list of nodes."""
    host = f"n{number}.example.org"
    raw = {
        "node_id": number,
        "kafka": f"{host}:9092",
        "peer": f"{host}:9094",
        "http": f"{host}:9093",
    }
    return {key: value for key, value in (raw | changed).items() if value is not NEVER}


def with_nodes(*nodes: Any, node_id: Any = 11, **changed: Any) -> dict[str, Any]:
    """Return keys of a configuration in which region eu has these nodes and us one, and this file is one node's."""
    eu = {"name": "eu", "ordinal": 0, "nodes": list(nodes), **changed}
    return {"node_id": node_id, "regions": [eu, region(1)]}


def three(**changed: Any) -> dict[str, Any]:
    """Return the same with three nodes, of which the last is changed."""
    return with_nodes(node(11), node(12), node(13, **changed))


def refused(raw: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as found:
        NodeConfig.build(raw, "node.toml")
    assert str(found.value).startswith("node.toml: ")
    return [str(problem) for problem in found.value.problems]


def two(**changed: Any) -> list[dict[str, Any]]:
    return [region(0), region(1, **changed)]


LONG = "x" * 65


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        # numbers
        ({"shard_count": 0}, "shard_count = 0 is not in 1..64: a whole number from 1 to 64 (each "),
        ({"shard_count": "five"}, "shard_count = 'five' is no whole number: a whole number from 1 to"),
        ({"retention_check_interval_ms": 0}, "retention_check_interval_ms = 0 is not in 1.."),
        ({"flush_interval_ms": -1}, "flush_interval_ms = -1 is not in 1.."),
        ({"default_partition_count": 1001}, "default_partition_count = 1001 is not in 1..1000"),
        ({"transaction_max_timeout_ms": 2**31}, "transaction_max_timeout_ms = 2147483648 is not in"),
        ({"group_min_session_timeout_ms": 0}, "group_min_session_timeout_ms = 0 is not in 1.."),
        ({"mirror_whole_wait_ms": -2}, "mirror_whole_wait_ms = -2 is not in -1.."),
        ({"group_count_max": True}, "group_count_max = True is no whole number"),
        # words
        ({"flush_policy": "comit"}, ("flush_policy = 'comit' is none of the values to choose from: "
         "commit or interval or os; did you mean commit?")),
        ({"log_level": 3}, "log_level = 3 is none of the values to choose from: debug or info or"),
        ({"auto_create_topics": "maybe"}, "auto_create_topics = 'maybe' is none of the values"),
        # names, folders, hosts
        ({"cluster_id": ""}, "cluster_id = '' is empty: 1 to 64 of a-z"),
        ({"cluster_id": 7}, "cluster_id = 7 is no text: 1 to 64 of a-z"),
        ({"data_dir": " "}, "data_dir = ' ' is empty: the path of a folder"),
        ({"data_dir": "~/eu"}, "data_dir = '~/eu' begins with '~', which nobody expands here"),
        ({"data_dir": "/srv/\x00"}, "data_dir = '/srv/\\x00' holds characters that no path may have"),
        ({"data_dir": "\ud800"}, "data_dir = '\\ud800' holds characters that no path may have"),
        ({"listen_host": "0.0.0.0:9092"}, "listen_host = '0.0.0.0:9092' has a port: a host name or"),
        ({"listen_host": "eu example"}, "listen_host = 'eu example' has no host name or IP address"),
        ({"listen_host": "300.1.1.1"}, "listen_host = '300.1.1.1' is no IPv4 address"),
        ({"regions": [region(0), region(1, name="../us")]}, "regions[1].name = '../us' is not safe"),
        ({"regions": [region(0), region(1, name="..")]}, "regions[1].name = '..' is not safe as the"),
        ({"regions": [region(0), region(1, name=LONG)]}, f"regions[1].name = {LONG!r} has 65 charact"),
        ({"regions": two(kafka="us:0")}, "regions[1].kafka = 'us:0' has no port in 1..65535: host:"),
        ({"regions": two(kafka="us:0000010000000000")}, "regions[1].kafka = 'us:0000010000000000' has no port in"),
        ({"regions": two(kafka="u..s:9092")}, "regions[1].kafka = 'u..s:9092' has no host name or IP"),
        ({"regions": two(kafka="us")}, "regions[1].kafka = 'us' is not host:port: host:port as"),
        ({"regions": two(kafka="::1:9092")}, "regions[1].kafka = '::1:9092' has colons in its host"),
        ({"regions": two(kafka="0.0.0.0:1")}, "regions[1].kafka = '0.0.0.0:1' is an address that nob"),
        ({"regions": two(kafka="u s:9092")}, "regions[1].kafka = 'u s:9092' has no host name or IP"),
        # what is missing or unknown
        ({"data_dir": NEVER}, "data_dir is missing: it has no default"),
        ({"regions": NEVER}, "regions is missing: one [[regions]] for every region"),
        ({"regions": []}, "regions is missing: one [[regions]] for every region"),
        ({"regions": "eu"}, "regions is no list of tables: one [[regions]] for every"),
        ({"regions": [region(0), "us"]}, "regions[1] is no table: keys and their values"),
        ({"regions": two(peer=NEVER)}, "regions[1].peer is missing: it has no default"),
        ({"flush_polcy": "os"}, "flush_polcy is unknown: there is no such key; did you mean flush_po"),
        ({"colour": "red"}, "colour is unknown: there is no such key"),
        ({"regions": two(shard_count=8)}, "regions[1].shard_count is unknown: it is a key of the node"),
        ({"ordinal": 4}, "ordinal is unknown: it is a key of a region: write it below [[regions]]"),
        ({"kafka": "eu:1"}, ("kafka is unknown: it is a key of a region's node: write it below [[regions]],"
         " or below [[regions.nodes]]")),
        # nodes of a region
        (with_nodes(), "regions[0].nodes is missing: one [[regions.nodes]] for every node of the region"),
        (with_nodes(node(11)) | {"regions": [region(0, nodes="n1")]}, "regions[0].nodes is no list of tables"),
        (with_nodes(node(11), 12), "regions[0].nodes[1] is no table: keys and their values"),
        (three(kafka=NEVER), "regions[0].nodes[2].kafka is missing: it has no default"),
        (three(peer="n3"), "regions[0].nodes[2].peer = 'n3' is not host:port"),
        (three(node_id=-1), "regions[0].nodes[2].node_id = -1 is not in 0..2147483647"),
        (three(rack="a b"), "regions[0].nodes[2].rack = 'a b' is not safe as the name of a file: 1 to 64 of"),
        (three(rak="a"), "regions[0].nodes[2].rak is unknown: there is no such key; did you mean rack?"),
        (three(ordinal=1), "regions[0].nodes[2].ordinal is unknown: it is a key of a region: write it below"),
        (three(shard_count=1), "regions[0].nodes[2].shard_count is unknown: it is a key of the node: write"),
        (with_nodes(node(11), kafka="eu:1"), ("regions[0].kafka stands beside regions[0].nodes: each node has its"
         " own, below [[regions.nodes]]")),
        (with_nodes(node(11), node_id=11, rack="a"), "regions[0].rack stands beside regions[0].nodes: each"),
        (with_nodes(*(node(11 + at) for at in range(8))), "regions[0].nodes are 8: at most 7: three or five"),
        ({"regions": two(rak="a")}, "regions[1].rak is unknown: there is no such key; did you mean rack?"),
        # relations
        ({"region": "us-1"}, "region = 'us-1' is none of the regions: one of eu, us"),
        ({"initial_primary_region": "EU"}, "initial_primary_region = 'EU' is none of the regions: one of eu, us; did you me"),
        ({"group_consumer_heartbeat_interval_ms": 45_000}, ("group_consumer_heartbeat_interval_ms = 45"
         "000 is not below group_consumer_session_timeout_ms = 45000: a member must be heard in time")),
        ({"mirror_whole_wait_ms": 5}, "mirror_whole_wait_ms = 5 is below tidemark_interval_ms = 20"),
        ({"regions": two(ordinal=0)}, "regions[1].ordinal = 0 is that of regions[0], too: each region"),
        ({"regions": two(node_id=1)}, "regions[1].node_id = 1 is that of regions[0], too: each node has"),
        (three(node_id=11), "regions[0].nodes[2].node_id = 11 is that of regions[0].nodes[0], too: each node"),
        (three(node_id=2), "regions[1].node_id = 2 is that of regions[0].nodes[2], too: each node has its own"),
        (three(http="N11.example.org:9092"), ("regions[0].nodes[2].http = 'N11.example.org:9092'"
         " is the address of regions[0].nodes[0].kafka, too: each port of each node has")),
        (three(peer="us.example.org:9094"), ("regions[1].peer = 'us.example.org:9094' is the address of"
         " regions[0].nodes[2].peer, too")),
        (three() | {"node_id": NEVER}, ("node_id is missing: which of the nodes of region eu this file is for: one"
         " of 11, 12, 13")),
        (three() | {"node_id": -1}, "node_id is missing: which of the nodes of region eu this file is for"),
        (three() | {"node_id": 2}, "node_id = 2 is that of no node of region eu: one of 11, 12, 13"),
        ({"node_id": 4}, "node_id = 4 is that of no node of region eu: 1, or leave it out"),
        ({"node_id": "one"}, "node_id = 'one' is no whole number"),
        (three(http="elsewhere:9092") | {"node_id": 13, "listen_host": "::"},
         "http of region eu has port 9092, as kafka has: another port: all three are bound on listen_host = '::'"),
        ({"regions": two(name="Eu")}, "regions[1].name = 'Eu' is that of regions[0], too: each region"),
        ({"regions": two(http="us.example.org:9092")}, ("regions[1].http = 'us.example.org:9092' is the"
         " address of regions[1].kafka, too")),
        ({"regions": two(peer="EU.example.org:9092")}, ("regions[1].peer = 'EU.example.org:9092' is the"
         " address of regions[0].kafka, too")),
        ({"regions": [region(0, http="localhost:9"), region(1, http="127.0.0.1:9")]},
         "regions[1].http = '127.0.0.1:9' is the address of regions[0].http, too"),
        ({"listen_host": "::", "regions": [region(0, http="10.0.0.1:9092")]}, ("http of region eu has p"
         "ort 9092, as kafka has: another port: all three are bound on listen_host = '::'")),
        ({"regions": [{**region(0), "name": f"r{at}", "ordinal": at % 8} for at in range(9)]},
         "regions are 9: at most 8, as many as there are ordinals"),
    ],
)  # fmt: skip
def test_INV_CF1_what_is_wrong_is_refused_by_its_key(changed: dict[str, Any], said: str) -> None:
    assert any(problem.startswith(said) for problem in refused(whole(**changed))), refused(
        whole(**changed)
    )


def test_INV_CF1_all_problems_are_told_at_once() -> None:
    found = refused(
        whole(shard_count=0, data_dir="", colour="red", regions=two(ordinal=9, kafka="us"))
    )
    assert [problem.split()[0] for problem in found] == [
        "colour", "data_dir", "shard_count", "regions[1].ordinal", "regions[1].kafka",
    ]  # fmt: skip


@pytest.mark.parametrize("right", [
    {}, {"listen_host": "0.0.0.0"}, {"listen_host": "[::]"}, {"mirror_whole_wait_ms": -1},
    {"mirror_whole_wait_ms": 0}, {"shard_count": "8"}, {"auto_create_topics": "true"},
    {"regions": [region(0, kafka="[2001:db8::1]:9092", http="127.0.0.1:9092")]},
    {"regions": [region(0), region(1, kafka="eu.example.org:9192")]},
    {"node_id": 1}, {"node_id": -1}, {"node_id": "1"}, {"regions": two(rack="a")}, {"regions": two(rack="")},
    three(), three(rack="a"), three() | {"node_id": "13"}, with_nodes(node(11)),
    with_nodes(node(11), node_id=NEVER), with_nodes(*(node(11 + at) for at in range(7))),
    three() | {"region": "us", "node_id": NEVER},
    three(http="elsewhere:9092") | {"listen_host": "::"},  # that node's file is another one
])  # fmt: skip
def test_what_is_right_is_taken(right: dict[str, Any]) -> None:
    NodeConfig.build(whole(**right), "node.toml")


def test_a_node_knows_itself_and_the_others_of_its_region() -> None:
    config = NodeConfig.build(whole(**three(rack="b") | {"node_id": 12}), "node.toml")
    assert (config.own.name, [each.name for each in config.others]) == ("eu", ["us"])
    assert (config.own_node.node_id, config.own_node.kafka) == (12, "n12.example.org:9092")
    assert [each.node_id for each in config.siblings] == [11, 13]
    assert [each.rack for each in config.own.nodes] == ["", "", "b"]
    assert config.node_ids == {11, 12, 13, 2}
    met = config.own.image()  # of a region the metadata keeps one address: the first node's
    assert (met.node_id, met.kafka_host, met.peer_port) == (11, "n11.example.org", 9094)


def test_a_region_of_one_node_is_the_same_in_either_form() -> None:
    keys = ("node_id", "kafka", "peer", "http")
    listed = [
        {**{key: value for key, value in each.items() if key not in keys},
         "nodes": [{key: each[key] for key in keys}]}
        for each in (region(0), region(1))
    ]  # fmt: skip
    config = NodeConfig.build(whole(), "node.toml")
    assert config == NodeConfig.build(whole(regions=listed), "node.toml")
    assert (config.own_node.node_id, config.siblings) == (1, [])
    assert config.node_ids == {1, 2}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "node.toml",
            "region = ",
            "node.toml: one problem (docs/reference/config.md lists every key)\n  the file is not readable (Invalid value",
        ),
        (
            "node.toml",
            "\xff\xfe",
            "node.toml: one problem (docs/reference/config.md lists every key)\n  the file is not readable (",
        ),
        (
            "node.json",
            "[]",
            "node.json: one problem (docs/reference/config.md lists every key)\n  the file is no table: keys and their values",
        ),
        (
            "node.json",
            "[" * 100_000,
            "node.json: one problem (docs/reference/config.md lists every key)\n  the file is not readable (",
        ),
        (
            "gone.toml",
            None,
            "gone.toml: one problem (docs/reference/config.md lists every key)\n  the file is not there: the path of a configu",
        ),
    ],
)
def test_INV_CF1_a_file_that_is_no_configuration_is_said_to_be_none(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError) as found:
        NodeConfig.load(tmp_path / name, {})
    assert str(found.value).removeprefix(f"{tmp_path}/").startswith(said)


def test_the_examples_of_the_reference_are_configurations() -> None:
    text = (DOCS / "reference" / "config.md").read_text("utf-8")
    [two_regions, three_nodes] = [
        NodeConfig.build(tomllib.loads(example), "config.md")
        for example in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
        if "cluster_id" in example  # else it is a part of one
    ]
    assert [each.name for each in two_regions.regions] == ["eu", "us"]
    assert [(each.node_id, each.rack) for each in three_nodes.own.nodes] == [
        (1, "a"),
        (2, "b"),
        (3, "c"),
    ]
    assert three_nodes.own_node.node_id == 2


@pytest.mark.parametrize("name", ["node.toml", "node.json"])
def test_a_byte_order_mark_is_no_part_of_a_configuration(tmp_path: Path, name: str) -> None:
    """Editors of some systems begin a file with one, and nobody sees it."""
    path = tmp_path / name
    path.write_bytes(codecs.BOM_UTF8 + (b"{}" if name.endswith("json") else b"# nothing\r\n"))
    with pytest.raises(ConfigError) as found:
        NodeConfig.load(path, {})
    assert "region is missing" in str(found.value)
    assert "readable" not in str(found.value)


def loaded(tmp_path: Path, **environment: str) -> NodeConfig:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(whole()))
    return NodeConfig.load(path, environment)


def test_a_variable_overlays_a_key_and_is_judged_as_one(tmp_path: Path) -> None:
    assert loaded(tmp_path, TIDEMARK_SHARD_COUNT="8").shard_count == 8
    for name, value, said in (
        ("TIDEMARK_SHARD_COUNT", "80", "shard_count = '80' is not in 1..64: a whole number"),
        ("TIDEMARK_DATA_DIR", "", "data_dir = '' is empty: the path of a folder"),
        ("TIDEMARK_DATADIR", "/srv", "TIDEMARK_DATADIR overlays no key: unset it; did you mean TIDEMARK_DATA_DIR?"),
        ("TIDEMARK_NODE_ID", "4", "node_id = 4 is that of no node of region eu: 1, or leave it out"),
        ("TIDEMARK_REGIONS", "[]", "TIDEMARK_REGIONS overlays nothing: regions come from the file"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as found:
            loaded(tmp_path, **{name: value})
        assert said in str(found.value)


def test_variables_of_others_are_named_and_refuse_no_start(tmp_path: Path) -> None:
    """Kubernetes sets the second and third for a service that is called tidemark."""
    environment = {"TIDEMARK_URL": "http://eu:9093", "TIDEMARK_SERVICE_HOST": "10.0.0.1",
                   "TIDEMARK_PORT_9092_TCP_ADDR": "10.0.0.1", "PATH": "/bin"}  # fmt: skip
    assert loaded(tmp_path, **environment).shard_count == 4
    assert [overlay.name for overlay in unknown_overlays(environment)] == [
        "TIDEMARK_PORT_9092_TCP_ADDR", "TIDEMARK_SERVICE_HOST",
    ]  # fmt: skip


def test_no_variable_of_a_command_is_taken_for_an_overlay() -> None:

    used = {
        name
        for path in (ROOT / "region_broker" / "cli").rglob("*.py")
        for name in re.findall(r'"(TIDEMARK_[A-Z_]+)"', path.read_text("utf-8"))
    }
    assert "TIDEMARK_URL" in used
    assert not unknown_overlays(dict.fromkeys(used, ""))
