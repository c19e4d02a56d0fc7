"""What the keys of a configuration must be together.

A relation is looked at where all of its keys are right by themselves: nothing is told twice.

Pure. Each relation takes the values that are right and yields the problems.
Not here: what one value may be (`config.rules`), which keys there are (`config`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from region_broker.config.listener_relations import listener_problems
from region_broker.config.login_relations import login_problems
from region_broker.config.rules import Problem, same_host, split
from region_broker.config.tls_relations import tls_problems
from region_broker.controller.near_words import nearest

REGION_COUNT_MAX: Final = 8
NODE_COUNT_MAX: Final = 7
"""Nodes of one region: their quorum goes on without three of seven, and each further node is one more to wait for."""
ANY_NODE: Final = -1
"""The node of a file that names none: its region has only one."""
PORTS: Final = ("kafka", "peer", "http")

Values = Mapping[str, Any]


class NodeTable(NamedTuple):
    """What is right by itself of a node's keys, and where they stand (`regions[0].nodes[1]`)."""

    path: str
    values: Values


class RegionTable(NamedTuple):
    """The same of a region's own keys, and its nodes."""

    path: str
    values: Values
    nodes: Sequence[NodeTable]


Tables = Sequence[NodeTable | RegionTable]
Regions = Sequence[RegionTable]


def problems_together(values: Values, regions: Regions) -> Iterator[Problem]:
    """Yield what contradicts another key."""
    for relation in _OF_NODE:
        yield from relation(values)
    if not regions:
        return
    nodes = [node for region in regions for node in region.nodes]
    yield from _regions_told(values, regions)
    yield from _node_counts(regions)
    for key in ("name", "ordinal"):
        yield from _unique(regions, key, "each region has its own")
    yield from _unique(nodes, "node_id", "each node has its own")
    yield from _addresses(nodes)
    own = _own(values, regions)
    if own is not None:
        yield from _own_node(values, own)
        yield from _own_ports(values, own)
        yield from listener_problems(
            values.get("listeners", ()), _meant_node(values, own), own.nodes,
            listen_host=values.get("listen_host", ""),
        )  # fmt: skip


def _heartbeat(values: Values) -> Iterator[Problem]:
    heartbeat_ms = values.get("group_consumer_heartbeat_interval_ms")
    session_ms = values.get("group_consumer_session_timeout_ms")
    if heartbeat_ms is not None and session_ms is not None and heartbeat_ms >= session_ms:
        yield Problem(
            f"group_consumer_heartbeat_interval_ms = {heartbeat_ms}",
            f"is not below group_consumer_session_timeout_ms = {session_ms}",
            "a member must be heard in time: at most a third of the session is usual",
        )


def _whole_wait(values: Values) -> Iterator[Problem]:
    wait_ms, interval_ms = values.get("mirror_whole_wait_ms"), values.get("tidemark_interval_ms")
    if wait_ms is not None and interval_ms is not None and 0 < wait_ms < interval_ms:
        yield Problem(
            f"mirror_whole_wait_ms = {wait_ms}",
            f"is below tidemark_interval_ms = {interval_ms}",
            "a wait that ends before the next tidemark can come is none: more, or 0 for no wait, -1 for ever",
        )


_OF_NODE: Final[tuple[Callable[[Values], Iterator[Problem]], ...]] = (
    _heartbeat, _whole_wait, tls_problems, login_problems,
)  # fmt: skip


def _regions_told(values: Values, regions: Regions) -> Iterator[Problem]:
    if len(regions) > REGION_COUNT_MAX:
        yield Problem(
            "regions",
            f"are {len(regions)}",
            f"at most {REGION_COUNT_MAX}, as many as there are ordinals",
        )
    if not all("name" in region.values for region in regions):
        return
    names = [region.values["name"] for region in regions]
    for key in ("region", "initial_primary_region"):
        value = values.get(key)
        if value is not None and value not in names:
            yield Problem(
                f"{key} = {value!r}",
                "is none of the regions",
                f"one of {', '.join(names)}{nearest(value, names)}",
            )


def _node_counts(regions: Regions) -> Iterator[Problem]:
    for region in regions:
        if len(region.nodes) > NODE_COUNT_MAX:
            yield Problem(
                f"{region.path}.nodes",
                f"are {len(region.nodes)}",
                f"at most {NODE_COUNT_MAX}: three or five are usual",
            )


def _unique(tables: Tables, key: str, right: str) -> Iterator[Problem]:
    first: dict[Any, str] = {}
    for table in tables:
        if key not in table.values:
            continue
        value = table.values[key]
        same = value.lower() if isinstance(value, str) else value  # some file systems know no case
        other = first.setdefault(same, table.path)
        if other != table.path:
            yield Problem(f"{table.path}.{key} = {value!r}", f"is that of {other}, too", right)


def _addresses(nodes: Sequence[NodeTable]) -> Iterator[Problem]:
    first: dict[tuple[str, int], str] = {}
    for node in nodes:
        for key in PORTS:
            if key not in node.values:
                continue
            host, port = split(node.values[key])
            name = f"{node.path}.{key}"
            other = first.setdefault((same_host(host), port), name)
            if other != name:
                yield Problem(
                    f"{name} = {node.values[key]!r}",
                    f"is the address of {other}, too",
                    "each port of each node has an address of its own",
                )


def _own(values: Values, regions: Regions) -> RegionTable | None:
    """Return this node's region, None where the file does not tell which one that is."""
    told = (region for region in regions if "name" in region.values)
    return next((each for each in told if each.values["name"] == values.get("region")), None)


def _own_node(values: Values, own: RegionTable) -> Iterator[Problem]:
    """Yield where `node_id` names no node of this region, or names none though there are several."""
    node_id, region = values.get("node_id"), own.values["name"]
    if node_id is None or not own.nodes or not all("node_id" in node.values for node in own.nodes):
        return
    known = [node.values["node_id"] for node in own.nodes]
    listed = ", ".join(map(str, known))
    if node_id == ANY_NODE and len(known) > 1:
        right = f"which of the nodes of region {region} this file is for: one of {listed}"
        yield Problem("node_id", "is missing", right)
    elif node_id != ANY_NODE and node_id not in known:
        right = f"one of {listed}" if len(known) > 1 else f"{listed}, or leave it out"
        yield Problem(f"node_id = {node_id}", f"is that of no node of region {region}", right)


def _meant_node(values: Values, own: RegionTable) -> NodeTable | None:
    """Return this node's table, None where the file does not tell which one that is."""
    node_id = values.get("node_id")
    is_told = node_id is not None and node_id != ANY_NODE
    meant = [n for n in own.nodes if not is_told or n.values.get("node_id") == node_id]
    return meant[0] if len(meant) == 1 else None


def _own_ports(values: Values, own: RegionTable) -> Iterator[Problem]:
    """Where one host is bound for all, the three ports of this node must differ by themselves."""
    node = _meant_node(values, own)
    if not values.get("listen_host") or node is None:
        return
    first: dict[int, tuple[str, str]] = {}
    for key in PORTS:
        if key not in node.values:
            continue
        host, port = split(node.values[key])
        other_key, other_host = first.setdefault(port, (key, host))
        # Where the hosts are the same `_addresses` has told it.
        if other_key != key and same_host(other_host) != same_host(host):
            yield Problem(
                f"{key} of region {own.values['name']}",
                f"has port {port}, as {other_key} has",
                f"another port: all three are bound on listen_host = {values['listen_host']!r}",
            )
