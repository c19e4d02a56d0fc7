"""The CLI before regions of several nodes: it asks and orders the one that leads, wherever that is by now."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from region_broker.cli import region as commands
from region_broker.cli import region_client, region_orders
from region_broker.cli.region_client import Cluster, NoNode
from region_broker.workbench import leading_node
from region_broker.workbench.node_http import ApiError

NODES = {name: [f"http://{name}{n}" for n in range(first, first + 3)] for name, first in (("eu", 1), ("us", 4))}  # fmt: skip


class Regions:
    """Two regions of three nodes each, of which some are dead; `leads` is a node's number, 0: nobody does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leads = {"eu": 2, "us": 5}
        self.dead: set[int] = set()
        self.asked: list[str] = []
        self.serve: Callable[[int, str, str], Any] = self._nothing
        for module in (region_client, leading_node):
            monkeypatch.setattr(module, "request", self._request)
        monkeypatch.setattr(leading_node, "AGAIN_S", 0)
        monkeypatch.setattr(region_orders, "POLL_S", 0)

    def _nothing(self, _node: int, method: str, path: str) -> Any:
        raise AssertionError(f"{method} {path}")

    def _request(self, url: str, method: str, path: str, *_body: Any, **_more: Any) -> Any:
        node = int(url[-1])
        self.asked.append(f"{method} {node}")
        if node in self.dead:
            raise ConnectionRefusedError(111, "Connection refused")
        if path == "/v1/region":
            return self.view(node)
        leads = self.leads[url[7:9]]
        if leads == node:
            return self.serve(node, method, path)
        named = f"http://{url[7:9]}{leads}" if leads else ""
        raise ApiError(307, "not-leading", f"node {node} does not lead", named and named + path)

    def view(self, node: int) -> dict[str, Any]:
        region = "eu" if node < 4 else "us"
        leads = self.leads[region] == node
        acts = leads and region == "eu"
        role = "follower" if not leads else "acting" if acts else "mirror"
        return {
            "region": region, "node_id": node, "role": role, "acting": acts, "domain": "main", "region_epoch": 8,
            "phase": "acting" if region == "eu" else "mirroring", "leader_epoch": 3, "stands_aside": "",
            "reason_not_acting": "" if acts else f"{role} here", "tidemark": {"number": 7, "age_ms": 3}, "lag": {},
            "peers": [
                {
                    "region": name, "http": self._met(name, known=name == region),
                    "nodes": [{"node_id": int(each[-1]), "http": each, "leads": None} for each in urls],
                }
                for name, urls in NODES.items()
            ],
        }  # fmt: skip

    def _met(self, name: str, *, known: bool) -> str:
        leads = self.leads[name]
        return f"http://{name}{leads}" if known and leads else NODES[name][0]

    def run(self, *words: str, at: str = "http://eu1,http://eu3") -> Result:
        return CliRunner().invoke(commands.region, [*words, "--url", at])


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> Regions:
    return Regions(monkeypatch)


@pytest.mark.parametrize("dead", [set(), {4}, {1, 4}, {3, 6}, {1, 6}])
def test_who_leads_speaks_for_each_region_whichever_minority_is_dead(
    regions: Regions, dead: set[int]
) -> None:
    regions.dead = dead
    views = (cluster := Cluster(["http://eu1", "http://eu3"])).views()
    assert {name: view["node_id"] for name, view in views.items()} == {"eu": 2, "us": 5}
    assert cluster.http == {"eu": "http://eu2", "us": "http://us5"}
    assert cluster.nodes_of("us") == ["http://us5", "http://us4", "http://us6"]
    assert cluster.acting() == "http://eu2"


def test_no_node_is_asked_without_need(regions: Regions) -> None:
    regions.leads = {"eu": 1, "us": 4}
    Cluster(["http://eu1"]).views()
    assert regions.asked == ["GET 1", "GET 4"]


def test_a_region_in_which_nobody_leads_is_told_by_a_node_that_waits(regions: Regions) -> None:
    regions.leads["us"], regions.dead = 0, {4}
    cluster = Cluster(["http://eu2"])
    assert cluster.views()["us"]["role"] == "follower"
    assert "follower here" in regions.run("status").output


def test_a_region_in_which_nobody_leads_is_asked_at_a_node_that_answers(regions: Regions) -> None:
    """The first node of the configuration is no place to ask, nor to show, where it is the one that is dead."""
    regions.leads["eu"], regions.dead = 0, {1, 3}
    cluster = Cluster(NODES["eu"])
    cluster.views()
    assert cluster.http == {"eu": "http://eu2", "us": "http://us5"}
    assert cluster.address_of("eu") == "http://eu2"


def test_a_region_that_is_dead_is_named_with_all_of_its_nodes(regions: Regions) -> None:
    regions.dead = {4, 5, 6}
    with pytest.raises(NoNode, match=r"us4 .*us5 .*us6 .*Nothing was changed"):
        Cluster(["http://eu2"]).address_of("us")


OPERATION = {
    "operation_id": "x", "kind": "switch", "status": "running", "phase": "fencing", "steps": ["fencing"], "to_region": "us",
    "region_epoch": 17, "writes_paused_ms": -1,
}  # fmt: skip


def test_INV_CRO1_an_order_goes_on_at_the_next_leader_and_is_waited_for_there(
    regions: Regions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(node: int, method: str, _path: str) -> Any:
        if method == "POST":
            return OPERATION
        if node == 5:
            regions.dead.add(5)
            regions.leads["us"] = 0
            raise ConnectionResetError(104, "Connection reset by peer")
        return OPERATION | {"status": "succeeded"}

    def elect(url: str, *more: Any, **named: Any) -> Any:
        if regions.leads["us"] == 0 and regions.asked.count("GET 4") > 2:
            regions.leads["us"] = 6
        return regions._request(url, *more, **named)

    regions.serve = serve
    monkeypatch.setattr(leading_node, "request", elect)
    result = regions.run("switch", "--to", "us")
    assert result.exit_code == 0, result.output
    assert "region us acts under region epoch 17" in result.output
    assert sum(asked.startswith("POST") for asked in regions.asked) == 1


@pytest.mark.parametrize(
    ("acts", "told_epoch", "exit_code"), [(True, 17, 0), (True, 0, 0), (True, 16, 1), (False, 17, 1), (False, 0, 1)]
)  # fmt: skip
def test_INV_CRO2_an_operation_that_nobody_knows_any_more_ended_as_the_region_says(
    regions: Regions, acts: bool, told_epoch: int, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that began it may be gone before it told under which region epoch: 0."""

    def serve(_node: int, method: str, _path: str) -> Any:
        if method == "POST":
            view = regions.view
            changed = {"acting": acts, "region_epoch": 17 if acts else 8}
            monkeypatch.setattr(regions, "view", lambda node: view(node) | changed)
            return OPERATION | {"region_epoch": told_epoch}
        raise ApiError(404, "unknown-operation", "region us knows no operation 'x'")

    regions.serve = serve
    result = regions.run("switch", "--to", "us")
    assert result.exit_code == exit_code, result.output
    assert ("order it again" in result.output) == bool(exit_code)


def test_a_follower_that_is_ordered_is_left_for_who_leads(regions: Regions) -> None:
    regions.serve = lambda _node, _method, _path: OPERATION | {"status": "succeeded"}
    node = leading_node.LeadingNode(NODES["us"])
    assert node.order("/v1/region/switch", {"to": "us"}, 1)["status"] == "succeeded"
    assert regions.asked == ["POST 4", "POST 5"]


def test_INV_WLN1_an_order_whose_answer_is_lost_is_not_given_again(regions: Regions) -> None:
    def serve(*_: Any) -> Any:
        raise ConnectionResetError(104, "Connection reset by peer")

    regions.serve = serve
    with pytest.raises(ConnectionResetError):
        leading_node.LeadingNode(["http://us5", "http://us4"]).order("/v1/region/switch", {}, 1)
    assert regions.asked == ["POST 5"]


def test_INV_WLN2_nobody_is_sent_to_an_address_that_the_cluster_did_not_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def request(url: str, *_: Any) -> Any:
        asked.append(url)
        raise ApiError(307, "not-leading", "go elsewhere", "http://elsewhere/v1/region")

    monkeypatch.setattr(leading_node, "request", request)
    monkeypatch.setattr(leading_node, "AGAIN_S", 0)
    with pytest.raises(ApiError, match="elsewhere"):
        leading_node.LeadingNode(["http://us4"]).ask("/v1/region", 0)
    assert asked == ["http://us4"]
