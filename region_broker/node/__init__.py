"""One node: its storage, its composition, its life."""

from region_broker.node.node import Node
from region_broker.node.storage import NodeRefused, Ports

__all__ = ["Node", "NodeRefused", "Ports"]
