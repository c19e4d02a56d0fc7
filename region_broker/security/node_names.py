"""Which node a certificate is of, as a value and as the URI that says it.

Not here: reading certificates (`tls_identity`).
"""

from typing import Final, NamedTuple

NODE_URI_SCHEME: Final = "tidemark:node/"


class NodeName(NamedTuple):
    """Which node a certificate is of."""

    region: str
    node_id: int
    cluster_id: str


def node_uri(node: NodeName) -> str:
    """Return what a node's certificate must hold as a URI."""
    return f"{NODE_URI_SCHEME}{node.cluster_id}/{node.region}/{node.node_id}"
