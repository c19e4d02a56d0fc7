"""The nodes of a region that grows: those of a node's file, and those that were added while it ran; and the file of a new one.

INV-GRW1  which nodes a region has is what the file says, and the nodes that were added: of those the metadata say where they are
          met, whatever the file says. Of a node itself its own file counts alone, and whom the file names first stays first. Where a
          node is met by further listeners only files say
INV-GRW2  the configuration of a new node is checked as a file is, so a region that takes it in could start anew with it

Pure. Not here: where additions are kept (`controller.cluster_nodes`), who makes them (`node.node_adding`).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from region_broker.config.node_config import NodeConfig, RegionNode
from region_broker.config.rules import WILDCARDS
from region_broker.controller.cluster_image import AddedNode

_OF_ONE_MACHINE: Final = frozenset({"node_id", "data_dir", "listen_host", "listeners", "regions"})
"""What a new node does not have from the node that was asked, or not as it is."""
_UNSAID: Final = ("rack", "advertised")
"""Keys of a node that are written only where they say something."""


def with_added(config: NodeConfig, added: Mapping[int, AddedNode]) -> NodeConfig:
    """Return the configuration of a node whose region was given the nodes `added`, by node id (INV-GRW1)."""
    own = config.own_node
    nodes = [
        node if node is own or node.node_id not in added else _moved(node, added[node.node_id])
        for node in config.own.nodes
    ]
    known = {node.node_id for node in nodes}
    nodes += [as_told(node) for node_id, node in sorted(added.items()) if node_id not in known]
    if nodes == config.own.nodes:
        return config
    region = msgspec.structs.replace(config.own, nodes=nodes)
    regions = [region if each is config.own else each for each in config.regions]
    return msgspec.structs.replace(config, node_id=own.node_id, regions=regions)


def _moved(node: RegionNode, added: AddedNode) -> RegionNode:
    return msgspec.structs.replace(as_told(added), advertised=node.advertised)


def as_told(node: AddedNode) -> RegionNode:
    """Return a node as a file says it."""
    return RegionNode(**msgspec.structs.asdict(node))


def new_node_file(config: NodeConfig, node: RegionNode, data_dir: str) -> dict[str, Any]:
    """Return the configuration of a new node of the region of `config`, as plain values: what differs from a default.

    Raises `ConfigError` where it could not start so, with each reason (INV-GRW2).
    """
    defaults = {
        field.name: field.default
        for field in msgspec.structs.fields(NodeConfig)
        if not field.required
    }
    told: dict[str, Any] = {
        "region": config.region, "node_id": node.node_id, "cluster_id": config.cluster_id, "data_dir": data_dir,
    }  # fmt: skip
    for key in NodeConfig.__struct_fields__:
        value = getattr(config, key)
        if key not in {*told, *_OF_ONE_MACHINE} and value != defaults.get(key):
            told[key] = msgspec.to_builtins(value)
    if config.listen_host in WILDCARDS:
        told["listen_host"] = config.listen_host
    told["regions"] = [
        {
            "name": region.name,
            "ordinal": region.ordinal,
            "nodes": [
                _table(_with_listeners(config) if each is config.own_node else each)
                for each in (
                    *(n for n in region.nodes if region is not config.own or n.node_id != node.node_id),
                    *((node,) if region is config.own else ()),
                )
            ],
        }
        for region in config.regions
    ]  # fmt: skip
    NodeConfig.build(told, f"node {node.node_id} of region {config.region}")
    return told


def _with_listeners(config: NodeConfig) -> RegionNode:
    """Return the node that was asked, with where it is met by its listeners: others hear of that from their files alone."""
    by_name = {each.name: each.advertised for each in config.listeners}
    return msgspec.structs.replace(config.own_node, advertised=by_name)


def _table(node: RegionNode) -> dict[str, Any]:
    values = msgspec.structs.asdict(node)
    return {key: values[key] for key in values if key not in _UNSAID or values[key]}
