"""What a region of several nodes offers to Prometheus."""

import math
from typing import Any

from region_broker.http_api.cluster_metrics import ClusterCollector
from tests.fixtures.cluster_views import view


class Api:
    """A node that says `says`."""

    def __init__(self, says: dict[str, Any]) -> None:
        self._says = says

    def describe(self) -> dict[str, Any]:
        return self._says


def offered(says: dict[str, Any]) -> dict[str, list[float]]:
    families = ClusterCollector(Api(says)).collect()  # type: ignore[arg-type]  # a part of it
    return {family.name: [each.value for each in family.samples] for family in families}


def test_a_leader_knows_how_far_its_followers_are() -> None:
    found = offered(view(1))
    assert found["tidemark_follower_connected"] == [1, 0]
    assert found["tidemark_follower_lag_records"] == [5, 5]
    lag_ms = found["tidemark_follower_lag_ms"]
    assert (lag_ms[0], math.isnan(lag_ms[1])) == (30, True)
    assert found["tidemark_cluster_leads"] == [1]


def test_every_node_knows_the_quorum_and_who_is_in_sync() -> None:
    found = offered(view(2))
    assert found["tidemark_follower_lag_records"] == []
    assert found["tidemark_quorum_leader_known"] == [1]
    assert found["tidemark_quorum_term"] == [3]
    assert found["tidemark_quorum_is_voter"] == [1]
    assert found["tidemark_cluster_leads"] == [0]
    assert found["tidemark_cluster_leader_known"] == [1]
    assert found["tidemark_cluster_leader_epoch"] == [524_290]
    assert found["tidemark_cluster_in_sync"] == [2]
    assert found["tidemark_cluster_nodes"] == [3]
    assert found["tidemark_cluster_fenced_nodes"] == [1]
    assert found["tidemark_cluster_elections_seen"] == [2]


def test_nobody_leads_and_there_is_no_quorum() -> None:
    says = view(2)
    says["leadership"]["leader"] = None
    says["quorum"] |= {"leader": None, "without_leader_ms": 900}
    found = offered(says)
    assert found["tidemark_cluster_leader_known"] == [0]
    assert found["tidemark_quorum_leader_known"] == [0]
    assert found["tidemark_quorum_without_leader_ms"] == [900]
