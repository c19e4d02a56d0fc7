"""One node: its storage, its composition, its life.

Begin in `growing_node`, which is one or the other of a node alone in its region (`node`) and a node with others (`cluster_node`). In `node`, the one place where the parts get each other; `storage` opens the folder before, `start_checks` refuses
what cannot run, `birth` is `tidemark init`. May import: every room but `cli`.
"""

from region_broker.node.growing_node import GrowingNode
from region_broker.node.node import Node
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.node.storage import START_REFUSALS

__all__ = ["START_REFUSALS", "GrowingNode", "Node", "NodeRefused", "Ports"]
