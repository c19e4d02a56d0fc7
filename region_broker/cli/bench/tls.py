"""`tidemark bench tls`: what TLS costs: the same loads through a port of one node that speaks TLS and through one that does not.

Both are ports of the same process, measured in alternation, so ratios are of TLS alone. Certificates are made for the run, and removed with it.
Not here: the loads (`loads`), how figures are printed (`command`).
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from region_broker.cli.bench.stage import Stage
from region_broker.workbench.cluster_plan import free_ports
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import secured

LOADS: Final = ("produce", "requests", "consume", "transactions")
PLAIN: Final = "plain"


class TwoPorts:
    """The only node of a cluster that is not started yet: TLS at its Kafka port, and a second one without."""

    def __init__(self, cluster: LocalCluster, held: ExitStack) -> None:
        """Make certificates, and tell the node; `held` keeps other clusters from the second port."""
        made = secured(cluster.folder, cluster.plan)
        self._ca = made.admin.ca
        self._plain = plain = f"127.0.0.1:{free_ports(1, held)[0]}"
        settings = {
            "security_protocol": "SSL",
            "tls_ca": self._ca,
            "listeners": [
                {"name": "PLAIN", "security_protocol": "PLAINTEXT", "bind": plain, "advertised": plain}
            ],
        }  # fmt: skip
        cluster.tell(settings, made.of_node, "http")

    def stages(self, stage: Stage) -> list[Stage]:
        """Return the node, which runs by now, as who speaks TLS and as who does not."""
        login = {"security.protocol": "SSL", "ssl.ca.location": self._ca}
        return [
            replace(stage, name="tls", login=login),
            replace(stage, name=PLAIN, bootstrap=self._plain, mark=f"{stage.mark}-plain"),
        ]
