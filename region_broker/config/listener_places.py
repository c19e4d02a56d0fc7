"""Where the nodes of this one's region are met by each of its listeners, as its file says it, and of which nodes nobody knows it.

A file that names all nodes of its region has no gap (INV-CFT3): one comes by a node that was added while the region runs.
Pure. Not here: what clients are told (`handlers.dispatch.nodes`), who says that there is a gap (`node.listener_gaps`, `cli.doctor`).
"""

from collections.abc import Iterable, Mapping

from region_broker.config.node_config import ListenerConfig, NodeConfig
from region_broker.config.rules import split


def met_by(config: NodeConfig, listener: ListenerConfig) -> Mapping[int, tuple[str, int]]:
    """Return where clients that come by a listener of this node meet the nodes of its region: node id -> host and port."""
    others = {
        node.node_id: split(node.advertised[listener.name])
        for node in config.siblings
        if listener.name in node.advertised
    }
    return {config.own_node.node_id: split(listener.advertised), **others}


def gaps_of(config: NodeConfig, node_ids: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
    """Return, by listener, those of the nodes of this one's region that are not met by it."""
    known = set(node_ids)
    found = {
        each.name: tuple(sorted(known - met_by(config, each).keys())) for each in config.listeners
    }
    return {name: gaps for name, gaps in found.items() if gaps}


def text_of(config: NodeConfig, listener: str, gaps: Iterable[int]) -> str:
    """Return what is the matter with a listener, and what to do."""
    return (
        f"clients that come by listener {listener} are not told of {named(gaps)}: this file does not say where they are met by it. Give them"
        f' such a listener, write advertised = {{ {listener} = "host:port" }} at their [[regions.nodes]] of region {config.region} in the'
        " file of each other node, and restart those one by one"
    )


def named(node_ids: Iterable[int]) -> str:
    """Return nodes as a text names them."""
    return " and ".join(f"node {each}" for each in node_ids)
