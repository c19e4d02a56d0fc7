"""What nodes that run name of the cluster, beside what a configuration does: `tidemark broker --check`.

INV-CFC1  a node that another one names and the configuration does not, or the other way round, is remarked: to a start both are valid
Who does not answer says nothing. Not here: what a configuration says of itself (`config`), of this machine (`node.start_checks`).
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from region_broker.config.node_config import NodeConfig, RegionNode
from region_broker.workbench.node_http import ApiError, BadUrl, request

ASK_TIMEOUT_S: Final = 2.0
Named = dict[tuple[str, int], str]
"""(region, node id) -> HTTP address."""


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
        views = asking.map(lambda each: _view_of(each[1]), others)
        told = zip(others, views, strict=True)
    own = {(region.name, node.node_id) for region in config.regions for node in region.nodes}
    return [
        text
        for (region, node), view in told
        if view is not None
        for text in _compared(f"node {node.node_id} of region {region}", own, _named_by(view))
    ]


def _view_of(node: RegionNode) -> Mapping[str, Any] | None:
    try:
        view: Any = request(f"http://{node.http}", "GET", "/v1/region", timeout_s=ASK_TIMEOUT_S)
    except (OSError, ApiError, BadUrl):
        return None
    return view if isinstance(view, dict) else None


def _named_by(view: Mapping[str, Any]) -> Named:
    return {
        (str(peer["region"]), int(node["node_id"])): str(node["http"])
        for peer in view.get("peers", ())
        for node in peer.get("nodes", ())
    }


def _compared(who: str, own: set[tuple[str, int]], theirs: Named) -> Iterator[str]:
    if not theirs:  # a node that waits to join, or one of an older version
        return
    for region, node_id in sorted(theirs.keys() - own):
        yield (
            f"{who} runs, and names node {node_id} of region {region} ({theirs[region, node_id]}), which this configuration lacks: where"
            " that node leads its region, it would not be met. Add it, or take it out there"
        )
    for region, node_id in sorted(own - theirs.keys()):
        yield (
            f"{who} runs with a configuration that lacks node {node_id} of region {region}: add it there, and start that node anew"
        )
