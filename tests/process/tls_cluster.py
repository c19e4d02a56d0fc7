"""Real nodes that speak TLS: each with a certificate of its own, of a CA that the test is."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from typing_extensions import override

from region_broker.security.certificates import issue_node
from region_broker.security.node_names import NodeName
from region_broker.security.tls_contents import TlsFiles
from region_broker.workbench.cluster_plan import RegionPlace, free_ports
from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.certificates import NOW, authority, leaf_key, put

LISTENERS: Final = ("MUTUAL", "INSIDE")


class TlsCluster(LocalCluster):
    """Each node has files of its own; `further` are ports of its further listeners, by node and listener."""

    further: Mapping[str, Mapping[str, int]] = {}
    crl: bytes = b""

    @property
    def listening(self) -> Mapping[str, int]:
        """Return the ports of further listeners of the only node."""
        (ports,) = self.further.values()
        return ports

    def met_by(self, listener: str) -> dict[str, str]:
        """Return where each node is met by a listener."""
        return {name: f"localhost:{ports[listener]}" for name, ports in self.further.items()}

    def issue(self, name: str) -> TlsFiles:
        """Put a fresh certificate in the place of a node's."""
        node = self.node(name)
        whose = NodeName(name.partition("/")[0], node.node_id, self.plan.cluster_id)
        hosts = ["localhost", "127.0.0.1"]
        certificate = issue_node(authority(), whose, hosts, leaf_key().public_key(), now=NOW)
        return put(self.folder / f"tls-{node.node_id}", certificate, crl=self.crl)

    @override
    def _config(self, name: str) -> dict[str, Any]:
        files = self.issue(name)
        return {
            **super()._config(name),
            "tls_certificate": files.certificate, "tls_key": files.key, "tls_ca": files.ca, "tls_crl": files.crl,
            "listeners": [
                {"name": "MUTUAL", "security_protocol": "SSL", "tls_client_auth": "required", **_at(port)}
                if listener == "MUTUAL"
                else {"name": listener, "security_protocol": "PLAINTEXT", **_at(port)}
                for listener, port in self.further.get(name, {}).items()
            ],
        }  # fmt: skip

    @override
    def _entry(self, place: RegionPlace, name: str) -> dict[str, Any]:
        entry = super()._entry(place, name)
        for node, table in zip(place.nodes, entry.get("nodes", ()), strict=False):
            ports = self.further.get(node.name, {})
            table["advertised"] = {each: f"localhost:{port}" for each, port in ports.items()}
        return entry


def _at(port: int) -> dict[str, str]:
    return {"bind": f"127.0.0.1:{port}", "advertised": f"localhost:{port}"}


@contextmanager
def open_tls_cluster(
    folder: Path, region_count: int, *, node_count: int = 1, crl: bytes = b"", further: bool = False,
    **settings: str,
) -> Iterator[TlsCluster]:  # fmt: skip
    """Yield a cluster, not started yet; `further`: each node has the `LISTENERS`, too."""
    with (
        contextlib.ExitStack() as held,
        TlsCluster.open(
            folder, region_count=region_count, node_count=node_count, port=0, new_cluster_id=UUID(int=7),
            settings=settings,
        ) as cluster,
    ):  # fmt: skip
        cluster.crl = crl
        if further:
            cluster.further = {
                node.name: dict(zip(LISTENERS, free_ports(len(LISTENERS), held), strict=True))
                for node in cluster.plan.nodes
            }
        yield cluster
