"""One node: its storage, its composition, its life.

Begin in `node`, the one place where the parts get each other; `storage` opens the folder before, `start_checks` refuses
what cannot run, `birth` is `tidemark init`. May import: every room but `cli`.
"""

from region_broker.node.node import Node
from region_broker.node.storage import START_REFUSALS, NodeRefused, Ports

__all__ = ["START_REFUSALS", "Node", "NodeRefused", "Ports"]
