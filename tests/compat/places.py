"""Where programs and suites of strangers are aimed: regions of which shape, started, and whole before anybody asks them.

Not here: the programs (`run`, `librdkafka_suite`).
"""

from typing import Final, NamedTuple

from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request
from region_broker.workbench.stage import wait_until

WHOLE_S: Final = 60.0


class Place(NamedTuple):
    """The name in the table, how many regions are started, and how many nodes in each."""

    title: str
    region_count: int
    node_count: int = 1


# The last node of the last region is asked: a mirror, or a node that follows.
PLACES: Final = {
    "one": Place("one region", 1),
    "mirror": Place("mirror of a pair", 2),
    "nodes": Place("region of three nodes", 1, 3),
}


def start(cluster: LocalCluster) -> None:
    """Start all nodes, and return once those of each region are in sync and vote; raises `StageError`."""
    cluster.start()
    wait_until("all nodes to be in sync, and to vote", WHOLE_S, lambda: _whole(cluster))


def _whole(cluster: LocalCluster) -> bool:
    for region in cluster.plan.regions:
        if not region.siblings:
            continue
        try:
            told = request(region.nodes[0].http, "GET", "/v1/cluster")
        except (ApiError, OSError):
            return False
        count = len(region.nodes)
        if len(told["leadership"]["in_sync"]) != count or len(told["quorum"]["voters"]) != count:
            return False
    return True
