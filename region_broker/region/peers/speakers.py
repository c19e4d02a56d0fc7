"""Who speaks on a connection between nodes: what its handshake says must be what its certificate says.

INV-PSP1  nobody is let in, and nothing of an answer is believed, where the two differ; without TLS there is no certificate to differ from
INV-PSP2  a refusal names nobody: that the region goes on without this node's folder is believed of a node of this very region alone, by
          its certificate
Not here: that there is a certificate of this cluster at all (`security.peer_network`).
"""

from typing import Protocol

from region_broker.ports.network import ByteStream
from region_broker.region.peers.protocol import PeerRefused
from region_broker.security.node_names import NodeName
from region_broker.security.peer_network import OTHER_CERTIFICATE, contradiction, proved_node


class Says(Protocol):
    """A `Hello`, or a `NodeHello`."""

    @property
    def cluster_id(self) -> str:
        """Return the cluster."""
        ...

    @property
    def region(self) -> str:
        """Return the region."""
        ...

    @property
    def node_id(self) -> int:
        """Return the node."""
        ...


def check_speaker(stream: ByteStream, hello: Says) -> None:
    """Raise `PeerRefused` where whoever said `hello` is somebody else by its certificate (INV-PSP1)."""
    problem = contradiction(
        stream.certificate, NodeName(hello.region, hello.node_id, hello.cluster_id)
    )
    if problem is not None:
        raise PeerRefused(OTHER_CERTIFICATE, problem)


def is_of_place(stream: ByteStream, cluster_id: str, region: str) -> bool:
    """Return whether the other side is a node of that region, as far as its certificate tells (INV-PSP2)."""
    if stream.certificate is None:
        return True
    node = proved_node(stream.certificate)
    return node is not None and (node.cluster_id, node.region) == (cluster_id, region)
