"""Gauges of a region with several nodes for Prometheus, read when they are asked for, as one node knows them.

Not here: what they are made of (`region_broker.region.cluster.cluster_view`).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from region_broker.http_api.routes_cluster import ClusterApi


class ClusterCollector(Collector):
    """Offers quorum, leadership, and how far followers are. Labels: region and node ids, which are few."""

    def __init__(self, api: ClusterApi) -> None:
        """Read from `api`."""
        self._api = api

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand: at registration the node is not joined together yet."""
        return []

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the gauges of now."""
        view = self._api.describe()
        region, quorum, leadership, here = (
            view["region"], view["quorum"], view["leadership"], view["here"],
        )  # fmt: skip
        nodes = view["nodes"]
        for name, text, value in (
            ("quorum_leader_known", "1 while this node knows who leads the quorum.", quorum["leader"] is not None),
            ("quorum_without_leader_ms", "Milliseconds since it knew one; 0 while it does.", quorum["without_leader_ms"]),
            ("quorum_term", "Term of the quorum.", quorum["term"]),
            ("quorum_commit_index", "Newest entry that this node knows to be committed.", quorum["commit_index"]),
            ("quorum_voters", "Members that vote.", len(quorum["voters"])),
            ("quorum_is_voter", "1 where this node votes.", quorum["is_voter"]),
            ("cluster_leads", "1 where this node leads the logs.", here["leads"]),
            ("cluster_leader_known", "1 while a node leads the logs, as this one knows.", leadership["leader"] is not None),
            ("cluster_leader_epoch", "Leader epoch of the region.", leadership["leader_epoch"]),
            ("cluster_in_sync", "Nodes that are in sync.", len(leadership["in_sync"])),
            ("cluster_is_in_sync", "1 where this node is in sync.", here["in_sync"]),
            ("cluster_nodes", "Nodes that are registered.", len(nodes)),
            ("cluster_fenced_nodes", "Nodes that are not heard.", sum(node["fenced"] for node in nodes)),
            ("cluster_serves_readers", "1 while this follower serves readers in its rack.", here["serves_readers"]),
            ("cluster_readers_sent_away", "Partitions of answers that sent a reader to a follower, since this process began.", here["readers_sent_away"]),
            ("cluster_copy_bytes_read", "Bytes that this node, as a follower, gave to readers since this process began.", here["copy_bytes_read"]),
            ("cluster_elections_seen", "Elections of a leader since this process began.", here["elections_seen"]),
            ("cluster_unclean_elections", "Elections, ever, that may have lost records.", leadership["unclean"]),
        ):  # fmt: skip
            family = GaugeMetricFamily(f"tidemark_{name}", text, labels=["region"])
            family.add_metric([region], float(value))
            yield family
        yield from _followers(region, nodes)


def _followers(region: str, nodes: Iterable[Mapping[str, Any]]) -> Iterable[Metric]:
    known = [node for node in nodes if node["connected"] is not None and not node["leads"]]
    for name, text, key in (
        ("connected", "1 while the follower copies from this node, which leads.", "connected"),
        (
            "serves_readers",
            "1 while readers in its rack are sent to the follower.",
            "serves_readers",
        ),
        ("lag_records", "Records that the follower does not have durably yet.", "records_behind"),
        ("lag_bytes", "About how many bytes these are.", "bytes_behind"),
        (
            "sent_bytes_per_second",
            "How fast it is sent what it lacks; NaN: it is in sync, or has begun just now.",
            "sent_bytes_per_s",
        ),
        ("lag_ms", "Milliseconds since it had all; NaN: it never had.", "behind_ms"),
    ):
        family = GaugeMetricFamily(f"tidemark_follower_{name}", text, labels=["region", "node"])
        for node in known:
            value = node[key]
            family.add_metric(
                [region, str(node["node_id"])], math.nan if value is None else float(value)
            )
        yield family
