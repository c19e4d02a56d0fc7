"""Where programs and suites of strangers are aimed: regions of which shape, started, and whole before anybody asks them.

Not here: the programs (`run`, `librdkafka_suite`).
"""

import os
from typing import Final, NamedTuple

from chaos.nodes.looks import RegionLook
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request
from region_broker.workbench.stage import wait_until

WHOLE_S: Final = 60.0


class Place(NamedTuple):
    """The name in the table, how many regions are started, how many nodes in each, and whether all of them lead partitions (ADR 53)."""

    title: str
    region_count: int
    node_count: int = 1
    spreads: bool = False


# The last node of the last region is asked: a mirror, or a node that follows.
PLACES: Final = {
    "one": Place("one region", 1),
    "mirror": Place("mirror of a pair", 2),
    "nodes": Place("region of three nodes", 1, 3),
    "spread": Place("its leaders spread", 1, 3, spreads=True),
}
# What the normal tests are run against; each place more costs each run minutes.
TESTED_PLACES: Final = os.environ.get("TIDEMARK_COMPAT_PLACES", "one,mirror,nodes").split(",")

NEW_GROUPS: Final = {
    "group_consumer_heartbeat_interval_ms": 200,
    "group_consumer_session_timeout_ms": 4_000,
}
"""What members of the new group protocol are told: a member that was killed is missed soon."""


def start(cluster: LocalCluster, place: Place) -> None:
    """Start all nodes, and return once those of each region are in sync, vote, and lead what they are to; raises `StageError`."""
    cluster.start()
    wait_until("all nodes to be in sync, and to vote", WHOLE_S, lambda: _whole(cluster))
    if place.spreads:
        look = RegionLook(cluster.plan.regions[0])
        wait_until("leaders to be spread", WHOLE_S, look.is_spread)


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
