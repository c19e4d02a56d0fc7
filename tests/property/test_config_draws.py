"""Drawn configurations, right and broken ones (INV-CF1): a right one starts, a broken one is refused by its key.

`tidemark broker` and `--check` read a file by the same function; what only the machine can tell is compared in
`tests/unit/region_broker/test_start_checks.py`.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from region_broker.config.node_config import ConfigError, NodeConfig, RegionConfig, RegionNode
from region_broker.config.rules import (
    AddressByListener,
    FileOrNone,
    Folder,
    FolderOrNone,
    HttpsOrFile,
    MappingRules,
    Principals,
    TextOrNone,
    Within,
    choices_of,
    plain_type,
    rule_of,
)
from region_broker.node import Node, Ports
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.network import AsyncioNetwork
from tests.simulation.disk import SimulatedDisk

KINDS = get_type_hints(NodeConfig, include_extras=True)
REGION_KINDS = get_type_hints(RegionConfig, include_extras=True)
NODE_KINDS = get_type_hints(RegionNode, include_extras=True)
OF_SECURITY = (
    "tls_",
    "sasl_",
    "audit_",
    "encryption_",
    "http_",
    "super_users",
    "delegation_token_",
    "listeners",
)
"""Beginnings of keys that need files, or each other: they have tests of their own (tests/unit/region_broker/test_tls_keys.py and its like)."""
OPTIONAL = [
    field.name
    for field in msgspec.structs.fields(NodeConfig)
    if not field.required
    and field.name != "node_id"
    and not field.name.startswith(OF_SECURITY)
    and "security_protocol" not in field.name
]
NODES = 12
TABLES: dict[str, list[Any]] = {"regions": [7, None], "nodes": [7, None], "listeners": [7]}
"""What keys that hold tables may not be."""
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", fullmatch=True)
HOSTS = st.sampled_from(["eu", "eu.example.org", "10.1.2.3", "[2001:db8::1]", "localhost"])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


def right_value(key: str) -> st.SearchStrategy[Any]:
    kind = KINDS[key]
    rule = rule_of(kind)
    if isinstance(rule, Within):
        numbers = st.integers(rule.low, rule.high) | st.sampled_from([rule.low, rule.high])
        return numbers | numbers.map(str)  # as an overlay says it
    return st.sampled_from(choices_of(kind) or ["", "0.0.0.0", "::", "eu.example.org"])


def contradicts(raw: dict[str, Any]) -> bool:
    """Return whether keys that are right by themselves are not so together, by what the reference says."""
    session_ms = int(raw.get("group_consumer_session_timeout_ms", 45_000))
    heartbeat_ms = int(raw.get("group_consumer_heartbeat_interval_ms", 5_000))
    wait_ms = int(raw.get("mirror_whole_wait_ms", 120_000))
    return heartbeat_ms >= session_ms or 0 < wait_ms < int(raw.get("tidemark_interval_ms", 20))


def nodes_of(region: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tables that hold the keys of a region's nodes."""
    return region.get("nodes") or [region]


@st.composite
def right_configurations(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique_by=str.lower))
    ordinals = draw(st.permutations(range(8)))
    node_ids = iter(
        draw(st.lists(st.integers(0, 2**31 - 1), min_size=NODES, max_size=NODES, unique=True))
    )
    ports = iter(
        draw(st.lists(st.integers(1, 65_535), min_size=3 * NODES, max_size=3 * NODES, unique=True))
    )

    def node() -> dict[str, Any]:
        rack = draw(st.sampled_from([{}, {"rack": ""}, {"rack": "a-1"}]))
        addresses = {key: f"{draw(HOSTS)}:{next(ports)}" for key in ("kafka", "peer", "http")}
        advertised: dict[str, Any] = draw(st.sampled_from([{}, {"advertised": {}}]))
        return {"node_id": next(node_ids), **addresses, **rack, **advertised}

    regions: list[dict[str, Any]] = []
    for at, name in enumerate(names):
        count = draw(
            st.integers(0, 3)
        )  # 0: the keys of the only node stand in the region's own table
        nodes = {"nodes": [node() for _ in range(count)]} if count else node()
        regions.append({"name": name, "ordinal": ordinals[at], **nodes})
    keys = draw(st.lists(st.sampled_from(OPTIONAL), unique=True))
    own = draw(st.sampled_from(regions))
    own_ids = [each["node_id"] for each in nodes_of(own)]
    own_id = draw(st.sampled_from(own_ids))
    is_told = len(own_ids) > 1 or draw(st.booleans())
    return {
        **({"node_id": own_id} if is_told else {}),
        "region": own["name"], "initial_primary_region": draw(st.sampled_from(names)),
        "cluster_id": draw(NAMES), "data_dir": "/srv/tidemark", "regions": regions,
        **{key: draw(right_value(key)) for key in keys},
    }  # fmt: skip


SPACED: Final = "a b:1"
LONG: Final = "x" * 5_000
FIT: Final = {
    (Folder, FolderOrNone, FileOrNone, HttpsOrFile): (SPACED, LONG),
    (TextOrNone, Principals): (SPACED,),
    (MappingRules,): (SPACED, "\x00 "),  # looked at as a node starts
}
"""What is right for keys whose texts are free."""


def wrong_values(kind: Any) -> list[Any]:
    """Return what a key of this type may not be."""
    rule = rule_of(kind)
    wrong: list[Any] = [None, [], {}, "\x00 "]
    if isinstance(rule, Within):
        return [*wrong, rule.low - 1, rule.high + 1, "", "many", 0.5, True, 10**30]
    if choices_of(kind):
        return [*wrong, "", "tru", 7]
    if isinstance(rule, AddressByListener):
        return [None, [], 7, "eu:1", {"": "eu:1"}, {"A": "eu"}, {"A": 7}]
    fit = next((fit for kinds, fit in FIT.items() if isinstance(rule, kinds)), ())
    return [each for each in (*wrong, 7, SPACED, LONG) if each not in fit]


@settings(max_examples=60, deadline=None)
@given(right_configurations())
def test_INV_CF1_a_right_configuration_is_taken(raw: dict[str, Any]) -> None:
    if contradicts(raw):
        with pytest.raises(ConfigError):
            NodeConfig.build(raw, "drawn")
        return
    config = NodeConfig.build(raw, "drawn")
    for key, value in raw.items():
        if plain_type(KINDS[key]) is int:
            assert getattr(config, key) == int(value)
    own = next(region for region in raw["regions"] if region["name"] == raw["region"])
    assert config.own.name == raw["region"]
    assert [node.node_id for node in config.own.nodes] == [
        node["node_id"] for node in nodes_of(own)
    ]
    assert config.own_node.node_id == raw.get("node_id", config.own.nodes[0].node_id)
    assert config.own_node not in config.siblings
    assert len(config.siblings) == len(config.own.nodes) - 1


def tables_of(raw: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any], str]]:
    """Yield each table of a configuration with its keys, and what these begin with."""
    yield raw, KINDS, ""
    for at, region in enumerate(raw["regions"]):
        path = f"regions[{at}]"
        yield region, REGION_KINDS, f"{path}."
        if "nodes" not in region:
            yield region, NODE_KINDS, f"{path}."
        for number, node in enumerate(region.get("nodes", [])):
            yield node, NODE_KINDS, f"{path}.nodes[{number}]."


@settings(max_examples=60, deadline=None)
@given(right_configurations(), st.data())
def test_INV_CF1_a_broken_configuration_is_refused_by_its_key(
    raw: dict[str, Any], data: st.DataObject
) -> None:
    table, kinds, prefix = data.draw(st.sampled_from(list(tables_of(raw))))
    key = data.draw(st.sampled_from(sorted(kinds)))
    how = data.draw(st.sampled_from(["wrong", "gone", "misspelt"]))
    if how == "misspelt":
        key = key[:-1] + ("y" if key.endswith("x") else "x")
        table[key] = 1
    elif (
        how == "gone"
        and key in table
        and key not in (*OPTIONAL, "node_id", "rack", "advertised", "nodes")
    ):
        del table[key]
    else:
        table[key] = data.draw(st.sampled_from(TABLES.get(key) or wrong_values(kinds[key])))
    with pytest.raises(ConfigError) as found:
        NodeConfig.build(raw, "drawn")
    assert any(problem.key.split(" ")[0] == prefix + key for problem in found.value.problems)
    assert all(problem.wrong and problem.right for problem in found.value.problems)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from([*KINDS, "x"]) | st.text(max_size=9), JUNK))
def test_INV_CF1_whatever_a_file_holds_is_taken_or_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as found:
        NodeConfig.build({**raw, "regions": [raw, raw.get("x")]}, "drawn")
    assert found.value.problems


async def _open(raw: dict[str, Any]) -> None:
    ports = Ports(SystemClock(), SystemChance(), SimulatedDisk(), AsyncioNetwork())
    with tempfile.TemporaryDirectory() as folder:
        config = NodeConfig.build({**raw, "data_dir": str(Path(folder))}, "drawn")
        node = await Node.open(config, ports)
        await node.storage.close()


@settings(max_examples=4, deadline=None)
@given(right_configurations().filter(lambda raw: not contradicts(raw)))
def test_INV_STC2_a_start_refuses_no_right_configuration(raw: dict[str, Any]) -> None:
    raw["shard_count"] = 1
    asyncio.run(_open(raw))


@pytest.mark.parametrize("end", ["low", "high"])
def test_INV_STC2_a_start_takes_the_ends_of_all_ranges(end: str) -> None:
    region = {
        "name": "eu",
        "ordinal": 7,
        "node_id": 0,
        "kafka": "eu:1",
        "peer": "eu:2",
        "http": "eu:3",
    }
    ends = {key: getattr(rule_of(KINDS[key]), end) for key in OPTIONAL
            if isinstance(rule_of(KINDS[key]), Within)}  # fmt: skip
    ends |= {"group_consumer_heartbeat_interval_ms": ends["group_consumer_session_timeout_ms"] - 1}
    ends |= {"mirror_whole_wait_ms": -1}
    asyncio.run(
        _open(
            {
                "region": "eu",
                "initial_primary_region": "eu",
                "cluster_id": "c",
                "regions": [region],
                **ends,
            }
        )
    )
