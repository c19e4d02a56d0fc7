"""What nodes that run name of the cluster, beside what a configuration does: `tidemark broker --check`.

INV-CFC2  and so are another ordinal of a region, another `shard_count`, another rack of a node, and another order of a region's nodes: the
         first two are part of what is stored, and refused as a node starts that is not told of them here
INV-CFC1  a node that another one names and the configuration does not, or the other way round, is remarked, and one that has another Kafka
         or HTTP address there: to a start both are valid
INV-CFC3  who answers, and does not say, is remarked with the reason: nothing was compared with it
Who does not answer says nothing. Not here: what a configuration says of itself (`config`), of this machine (`node.start_checks`).
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from region_broker.config.node_config import NodeConfig
from region_broker.config.tls_relations import ENCRYPTED
from region_broker.workbench.node_http import ApiError, BadUrl, request

ASK_TIMEOUT_S: Final = 2.0
_REFUSALS: Final = frozenset({401, 403})
_TOLD: Final = ("kafka", "http", "rack")
Named = dict[tuple[str, int], Mapping[str, str]]
"""(region, node id) -> Kafka and HTTP address and rack, as far as they are told, by key of the configuration."""


def differences(config: NodeConfig) -> list[str]:
    """Return how the nodes that `config` names, and that answer, see the cluster otherwise."""
    others = [
        (region.name, node)
        for region in config.regions
        for node in region.nodes
        if node.node_id != config.own_node.node_id
    ]
    if not others:
        return []
    with ThreadPoolExecutor(len(others)) as asking:
        scheme = "https" if config.http_security_protocol in ENCRYPTED else "http"
        views = asking.map(lambda each: _view_of(f"{scheme}://{each[1].http}"), others)
        told = list(zip(others, views, strict=True))
    own: Named = {
        (region.name, node.node_id): {"kafka": node.kafka, "http": node.http, "rack": node.rack}
        for region in config.regions
        for node in region.nodes
    }
    found = [
        text
        for (region, node), view in told
        if isinstance(view, dict)
        for who in (f"node {node.node_id} of region {region}",)
        for text in (*_compared(who, own, _named_by(view)), *_told_otherwise(who, config, view))
    ]
    return [
        *found,
        *_untold([(node.node_id, why) for (_, node), why in told if isinstance(why, str)]),
    ]


def _untold(nodes: Sequence[tuple[int, str]]) -> Iterator[str]:
    """Yield that nodes run and do not say what they name (INV-CFC3): once, with the reason of the first."""
    if nodes:
        ids = ", ".join(str(node_id) for node_id, _ in nodes)
        yield (
            f"nodes that run, and do not say what they name of the cluster, so nothing was compared: {ids} ({nodes[0][1]}). A context or TIDEMARK_*"
            " says as whom they are asked (docs/reference/security.md#commands)"
        )


def nodes_that_run(config: NodeConfig) -> tuple[list[int] | None, str]:
    """Return the nodes of the region of `config`, as the first of them that says so knows them; None, and why, where none does."""
    whys: list[str] = []
    scheme = "https" if config.http_security_protocol in ENCRYPTED else "http"
    for node in (config.own_node, *config.siblings):
        view = _view_of(f"{scheme}://{node.http}", "/v1/cluster")
        if isinstance(view, str):
            whys.append(f"node {node.node_id} runs, and does not say: {view}")
        elif view is not None:
            rows = (*view.get("nodes", ()), *view.get("awaited", ()))
            return sorted({int(row["node_id"]) for row in rows}), ""
    return None, [*whys, "no node answers"][0]


def _view_of(url: str, route: str = "/v1/region") -> dict[str, Any] | str | None:
    """Return what a node says; a text where it runs and does not say, with the reason; None where it does not answer."""
    try:
        view: Any = request(url, "GET", route, timeout_s=ASK_TIMEOUT_S)
    except ApiError as error:
        return str(error) if error.status in _REFUSALS else None
    except BadUrl as error:
        return str(error)
    except OSError as error:  # one that `request` made itself: TLS, or no HTTP
        return str(error) if type(error) is ConnectionError else None
    if not isinstance(view, dict):
        return None
    return (
        "Describe on the cluster is needed, or a token for readers"
        if view.get("in_brief")
        else view
    )


def _named_by(view: Mapping[str, Any]) -> Named:
    return {
        (str(peer["region"]), int(node["node_id"])): {
            key: str(node[key]).removeprefix("http://").removeprefix("https://")
            for key in _TOLD
            if key in node
        }
        for peer in view.get("peers", ())
        for node in peer.get("nodes", ())
    }


def _compared(who: str, own: Named, theirs: Named) -> Iterator[str]:
    if not theirs:  # a node that waits to join, or one of an older version
        return
    for region, node_id in sorted(theirs.keys() - own.keys()):
        yield (
            f"{who} runs, and names node {node_id} of region {region} (HTTP at {theirs[region, node_id]['http']}), which this configuration lacks: where"
            " that node leads its region, it would not be met. Add it, or take it out there"
        )
    for region, node_id in sorted(own.keys() - theirs.keys()):
        yield (
            f"{who} runs with a configuration that lacks node {node_id} of region {region}: add it there, and start that node anew"
        )
    for region, node_id in sorted(own.keys() & theirs.keys()):
        for key, address in theirs[region, node_id].items():
            if address != own[region, node_id][key]:
                yield (
                    f"{who} runs, and has {key} = {address!r} for node {node_id} of region {region}, this configuration"
                    f" {own[region, node_id][key]!r}. If it changes, put it into the files of all nodes, and restart them one by one"
                )


def _told_otherwise(who: str, config: NodeConfig, view: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a node that runs has otherwise, and no change of a file is to change (INV-CFC2); an older version tells less."""
    shards = view.get("shard_count")
    if shards is not None and shards != config.shard_count:
        yield (
            f"{who} runs with shard_count = {shards}, this configuration has {config.shard_count}: it was set when the cluster was born,"
            f" and never changes. Write {shards} here"
        )
    rows = {str(peer["region"]): peer for peer in view.get("peers", ())}
    for region in config.regions:
        row = rows.get(region.name)
        if row is None:
            continue
        ordinal = row.get("ordinal", region.ordinal)
        if ordinal != region.ordinal:
            yield (
                f"{who} runs with ordinal {ordinal} for region {region.name}, this configuration has {region.ordinal}: it is part of producer"
                f" ids, and never changes. Write {ordinal} here"
            )
        theirs, ours = (
            [int(node["node_id"]) for node in row.get("nodes", ())],
            [node.node_id for node in region.nodes],
        )
        if theirs != ours and sorted(theirs) == sorted(ours):
            yield (
                f"{who} runs with the nodes of region {region.name} in the order {theirs}, this configuration has {ours}: others meet the"
                " first one, and try them in that order. Write all files alike"
            )
