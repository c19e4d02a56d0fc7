"""`tidemark bench tls`: what TLS costs: the same loads through a port of one node that speaks TLS and through one that does not.

Both are ports of the same process, measured in alternation, so ratios are of TLS alone. Certificates are made for the run, and removed with it.
Not here: the loads (`loads`), how figures are printed (`command`).
"""

from contextlib import ExitStack
from typing import Any, Final

from region_broker.cli.bench.stage import Stage
from region_broker.workbench.cluster_plan import free_ports
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import secured

LOADS: Final = ("produce", "requests", "consume", "transactions")
PLAIN: Final = "plain"


def speak_tls(cluster: LocalCluster, held: ExitStack) -> str:
    """Let the only node of a cluster that is not started yet have TLS at its Kafka port, and a second one without; return where that one is.

    `held` keeps other clusters from that port.
    """
    made = secured(cluster.folder, cluster.plan)
    plain = f"127.0.0.1:{free_ports(1, held)[0]}"
    settings = {
        "security_protocol": "SSL",
        "tls_ca": made.admin.ca,
        "listeners": [
            {"name": "PLAIN", "security_protocol": "PLAINTEXT", "bind": plain, "advertised": plain}
        ],
    }
    cluster.tell(settings, made.of_node, "http")
    return plain


def tls_stages(stage: Stage, plain: str) -> list[Stage]:
    """Return the node that was started as who speaks TLS, and as who does not."""
    assert stage.cluster is not None, "it was started here"
    ca = secured(stage.cluster.folder, stage.cluster.plan).admin.ca
    login = {"security.protocol": "SSL", "ssl.ca.location": ca}
    both: dict[str, Any] = {"pids": stage.pids, "cluster": stage.cluster}
    return [
        Stage(bootstrap=stage.bootstrap, mark=stage.mark, name="tls", login=login, **both),
        Stage(bootstrap=plain, mark=f"{stage.mark}-plain", name=PLAIN, **both),
    ]
