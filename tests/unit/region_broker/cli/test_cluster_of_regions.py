"""`tidemark cluster` where the addresses are those of nodes of several regions."""

from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from region_broker.cli import cluster as commands
from region_broker.cli import cluster_client, region_client
from region_broker.workbench.node_http import ApiError

REGIONS = {"eu": (1, 2, 3), "us": (4, 5, 6), "ap": (7,)}
LEAD = {1, 5, 7}


def http(node_id: int) -> str:
    return f"http://n{node_id}"


def nodes(region: str) -> list[dict[str, Any]]:
    return [{"node_id": each, "http": http(each), "leads": each in LEAD} for each in REGIONS[region]]  # fmt: skip


class Nodes:
    """Three regions, the third of one node, which has no cluster to look at."""

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self.refusing: set[int] = set()
        self.ordered: list[str] = []

    def request(self, url: str, method: str, path: str, *_body: Any, **_more: Any) -> Any:
        node_id = int(url.removeprefix("http://n"))
        (region,) = [name for name, ids in REGIONS.items() if node_id in ids]
        if node_id in self.dead:
            raise ConnectionRefusedError(111, "Connection refused")
        if node_id in self.refusing and path != "/v1/region":
            raise ApiError(403, "forbidden", "you may not")
        if method == "POST":
            self.ordered.append(f"{path} at {node_id}")
            leadership = {"leader": 5, "leader_epoch": 2, "in_sync": [5]}
            return {"order": "drain", "node_id": 4, "dry_run": False, "changed": True, "costs": "", "leadership": leadership}  # fmt: skip
        return self.cluster(region, node_id) if path == "/v1/cluster" else self.region(region)

    def cluster(self, region: str, node_id: int) -> Mapping[str, Any]:
        ids = REGIONS[region]
        if len(ids) == 1:
            raise ApiError(404, "not-found", "no route")
        leads = min(LEAD & set(ids))
        return {
            "region": region, "node_id": node_id, "nodes": nodes(region), "here": {"leads": node_id == leads},
            "quorum": {"leader": leads, "http": http(leads), "commit_index": 9},
        }  # fmt: skip

    def region(self, region: str) -> Mapping[str, Any]:
        return {
            "region": region, "node_id": REGIONS[region][0], "acting": region == "eu", "role": "acting",
            "peers": [{"region": name, "http": http(ids[0]), "nodes": nodes(name)} for name, ids in REGIONS.items()],
        }  # fmt: skip


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    known = Nodes()
    for module in (cluster_client, region_client):
        monkeypatch.setattr(module, "request", known.request)
    return known


def region_of(*urls: str, region: str = "", node_id: int | None = None) -> str:
    views = cluster_client.RegionOfNodes(urls, region).views(node_id)
    (name,) = {view["region"] for view in views.values()}
    return str(name)


@pytest.mark.usefixtures("known")
def test_INV_CCL2_one_region_is_looked_at() -> None:
    assert region_of(http(4), http(1)) == "us"
    assert region_of(http(1), http(4)) == "eu"
    assert region_of(http(7), http(4)) == "us"
    assert region_of(http(1), region="us") == "us"
    assert region_of(http(1), node_id=6) == "us"
    assert region_of(http(4), node_id=6) == "us"
    assert region_of(http(1), node_id=99) == "eu"


def test_the_first_region_that_answers_counts(known: Nodes) -> None:
    known.dead = {1, 4}
    assert region_of(http(1), http(5)) == "us"
    assert region_of(http(2), region="us") == "us"


def test_INV_CCL2_an_order_goes_to_the_region_that_has_the_node(known: Nodes) -> None:
    result = CliRunner().invoke(commands.cluster, ["drain", "6", "--url", f"{http(1)},{http(4)}"])
    assert result.exit_code == 0, result.output
    assert known.ordered == ["/v1/cluster/drain at 5"]


@pytest.mark.parametrize(
    ("words", "said", "exit_code"),
    [
        (("--url", http(7)), "has one node", 3),
        (("--url", http(1), "--region", "ap"), "has one node", 3),
        (("--url", http(1), "--region", "mars"), "no region is called 'mars'", 3),
    ],
)
@pytest.mark.usefixtures("known")
def test_a_region_that_has_no_nodes_to_look_at_is_named(
    words: tuple[str, ...], said: str, exit_code: int
) -> None:
    result = CliRunner().invoke(commands.cluster, ["status", *words])
    assert (result.exit_code, said in result.output) == (exit_code, True), result.output


def test_a_region_that_is_dead_as_a_whole_is_named_with_what_to_do(known: Nodes) -> None:
    known.dead = {4, 5, 6}
    result = CliRunner().invoke(commands.cluster, ["status", "--region", "us", "--url", http(1)])
    assert result.exit_code == 1
    assert "no node of region us answers" in result.output
    for node_id in known.dead:
        assert f"{http(node_id)} ([Errno 111] Connection refused)" in result.output
    assert "quorum_lost.md" in result.output
    assert "Nothing was changed" not in result.output, "nobody wanted to"
    assert "has one node" not in result.output


def test_a_dead_region_of_several_is_not_taken_for_the_one_with_one_node(known: Nodes) -> None:
    known.dead = {4, 5, 6}
    result = CliRunner().invoke(commands.cluster, ["status", "--region", "us", "--url", http(7)])
    assert "no node of region us answers" in result.output


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("url", [1, 4, 7])
def test_a_region_of_one_node_is_the_one_that_was_named_whoever_is_asked(url: int) -> None:
    (place,) = cluster_client.RegionOfNodes([http(url)], "ap").places()
    assert (place["region"], place["node_id"], place["http"]) == ("ap", 7, http(7))


@pytest.mark.parametrize("words", [["status"], ["drain", "2"], ["upgrade", "--finalize"]])
def test_who_may_not_is_told_so_though_a_region_of_one_node_answers(
    known: Nodes, words: list[str]
) -> None:
    """The token's role is too low in eu: that ap has one node is not what the operator asked for."""
    known.refusing = {1, 2, 3}
    result = CliRunner().invoke(commands.cluster, [*words, "--url", f"{http(1)},{http(7)}"])
    assert (result.exit_code, known.ordered) == (4, []), result.output
    assert "you may not" in result.output
    assert "has one node" not in result.output


def test_where_a_region_of_one_node_answers_alone_the_silent_ones_are_named(known: Nodes) -> None:
    known.dead = {1, 2, 3}
    result = CliRunner().invoke(commands.cluster, ["status", "--url", f"{http(1)},{http(7)}"])
    assert result.exit_code == 3, result.output
    assert "has one node" in result.output
    assert f"{http(1)}: [Errno 111] Connection refused" in result.output


@pytest.mark.usefixtures("known")
def test_who_may_not_see_a_region_of_one_node_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(_url: str, _method: str, path: str, *_body: Any, **_more: Any) -> Any:
        if path == "/v1/cluster":
            raise ApiError(404, "not-found", "no route")
        return {"in_brief": True, "region": "ap", "acting": True, "region_epoch": 8, "reason_not_acting": "", "peers": []}  # fmt: skip

    for module in (cluster_client, region_client):
        monkeypatch.setattr(module, "request", request)
    result = CliRunner().invoke(commands.cluster, ["upgrade", "--finalize", "--url", http(7)])
    assert result.exit_code == 4, result.output
    assert "Describe on the cluster is needed" in result.output
