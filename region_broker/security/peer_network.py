"""The network between nodes: TLS of both sides on every connection, in either direction.

INV-PNT1  where nodes speak TLS to each other, nothing is read from a connection, nor said on it, unless its other side proved to be a
          node of this cluster: by a certificate of our CA that names it
INV-PNT3  who proves to be none is counted, recorded and told as one whose handshake failed (INV-FHS1): a user's certificate floods no log
INV-PNT2  what a message says of who speaks must be what the certificate says (`contradiction`): nobody is another region's node by
          saying so
Whoever has no TLS has no certificates: there what is said counts, as in versions before.
Not here: who is let in of those (`region.peers`, `region.cluster.standing`), contexts (`tls`).
"""

import errno
from typing import Final

from region_broker.ports.handshakes import BAD_CERTIFICATE
from region_broker.ports.network import (
    Admits,
    ByteStream,
    FailedHandshake,
    Listener,
    Network,
    OnConnection,
    OnFailedHandshake,
    TlsContexts,
    everybody,
    unheard,
)
from region_broker.security.node_names import NodeName

OTHER_CERTIFICATE: Final = "other-certificate"


class PeerNetwork:
    """A `Network` on which only nodes of one cluster meet."""

    def __init__(
        self, network: Network, server: TlsContexts, client: TlsContexts, cluster_id: str,
        on_failed: OnFailedHandshake = unheard,
    ) -> None:  # fmt: skip
        """Use `network`; `server` must ask for certificates, `client` must show one."""
        self._network = network
        self._server = server
        self._client = client
        self._cluster_id = cluster_id
        self._on_failed = on_failed

    async def listen(
        self, host: str, port: int, on_connection: OnConnection,
        *, tls: TlsContexts | None = None, on_failed: OnFailedHandshake = unheard, admits: Admits = everybody,
    ) -> Listener:  # fmt: skip
        """See `Network`; all that comes in is of nodes of this cluster."""
        assert tls is None, "nodes have their own"
        assert on_failed is unheard, "nodes have their own"

        async def judged(stream: ByteStream) -> None:
            problem = self._stranger(stream)
            if problem is None:
                await on_connection(stream)
                return
            self._on_failed(FailedHandshake(stream.peer, BAD_CERTIFICATE, problem))
            stream.abort()

        return await self._network.listen(
            host, port, judged, tls=self._server, on_failed=self._on_failed, admits=admits
        )

    async def connect(
        self,
        host: str,
        port: int,
        *,
        tls: TlsContexts | None = None,
        server_name: str | None = None,
    ) -> ByteStream:
        """See `Network`; what answers is a node of this cluster, or it is an OSError."""
        assert tls is None, "nodes have their own"
        stream = await self._network.connect(host, port, tls=self._client, server_name=server_name)
        problem = self._stranger(stream)
        if problem is not None:
            stream.abort()
            raise ConnectionAbortedError(errno.ECONNABORTED, f"{host}:{port}: {problem}")
        return stream

    def _stranger(self, stream: ByteStream) -> str | None:
        """Return why the other side is none of this cluster's nodes (INV-PNT1)."""
        certificate = stream.certificate
        node = None if certificate is None else proved_node(certificate)
        if node is None:
            return "its certificate is no node's: tidemark cert issue makes one for each node"
        if node.cluster_id != self._cluster_id:
            return f"its certificate is of a node of cluster {node.cluster_id}, this is {self._cluster_id}"
        return None


def proved_node(certificate: bytes) -> NodeName | None:
    """Return the node that a certificate is of (`tls_identity`, which whoever made the contexts has imported: INV-LEAN3)."""
    from region_broker.security.tls_identity import node_of  # noqa: PLC0415

    return node_of(certificate)


def contradiction(certificate: bytes | None, said: NodeName) -> str | None:
    """Return what the certificate of a connection says otherwise of who speaks (INV-PNT2); None where there is none."""
    if certificate is None:
        return None
    proved = proved_node(certificate)
    if proved == said:
        return None
    shown = "no node" if proved is None else _named(proved)
    return f"{_named(said)} speaks, and its certificate is of {shown}: give each node its own"


def _named(node: NodeName) -> str:
    return f"node {node.node_id} of region {node.region} of cluster {node.cluster_id}"
