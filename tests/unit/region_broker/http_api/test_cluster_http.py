"""`/v1/cluster` and `tidemark cluster` over real sockets: two nodes that say what a test tells them to."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from aiohttp import ClientSession, web
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from region_broker.cli.cluster import cluster
from region_broker.http_api.app import HttpServer, make_app
from region_broker.http_api.ports import RegionApi
from region_broker.http_api.routes_cluster import KINDS, add_cluster_routes
from region_broker.region.cluster.cluster_orders import ClusterOrderRefused
from tests.fixtures.cluster_views import view


@dataclass
class Told:
    """A node that says `describes`, and notes what it is ordered."""

    describes: dict[str, Any]
    refuses: ClusterOrderRefused | None = None
    orders: list[tuple[str, int | None, bool, bool]] = field(default_factory=list)
    refuses_times: int = 1_000_000
    leads_on: bool = False

    @property
    def refusal(self) -> type[ClusterOrderRefused]:
        return ClusterOrderRefused

    def describe(self) -> Mapping[str, Any]:
        return self.describes

    async def partitions(self, topic: str | None) -> Sequence[Mapping[str, Any]]:
        rows = [
            {"topic": name, "partition": 0, "leader": 1, "replicas": [1, 2, 3], "in_sync": [1, 2], "log_start_offset": 0,
             "high_watermark": 7, "log_end_offset": 8, "failed": None}
            for name in ("invoices", "orders")
        ]  # fmt: skip
        return [row for row in rows if topic in {None, row["topic"]}]

    async def order(
        self, kind: str, node_id: int | None, *, dry_run: bool, confirmed: bool
    ) -> Mapping[str, Any]:
        self.orders.append((kind, node_id, dry_run, confirmed))
        if self.refuses is not None and len(self.orders) <= self.refuses_times:
            raise self.refuses
        costs = "what only nodes 1 hold is lost" if kind == "unclean-election" else ""
        leadership = self.describes["leadership"]
        return {
            "order": kind, "node_id": node_id, "dry_run": dry_run, "changed": True, "before": leadership,
            "leadership": leadership, "costs": costs, "leads_on": self.leads_on,
        }  # fmt: skip


class Alone:
    """A node of a region of one, of which nothing but its health is asked."""

    def not_ready(self) -> str | None:
        return None

    def remark(self) -> str:
        return ""

    def __getattr__(self, _name: str) -> Any:
        return None


class Nodes:
    """Node 1 leads the logs, node 2 the quorum."""

    def __init__(self) -> None:
        self.servers: list[HttpServer] = []
        self.told: list[Told] = []
        self.urls: list[str] = []

    async def start(self) -> None:
        for node_id in (1, 2):
            told = Told(view(node_id))
            app = web.Application()
            add_cluster_routes(app, told)
            server = HttpServer(app)
            host, port = await server.start("127.0.0.1", 0)
            self.servers.append(server)
            self.told.append(told)
            self.urls.append(f"http://{host}:{port}")
        for told in self.told:
            told.describes["quorum"]["http"] = self.urls[1]
            for row, url in zip(told.describes["nodes"], self.urls, strict=False):
                row["http"] = url


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    await made.start()
    yield made
    for server in made.servers:
        await server.stop()


async def command(nodes: Nodes, *words: str, at: int = 0) -> Result:
    words = (*words, "--url", nodes.urls[at])
    return await asyncio.to_thread(CliRunner().invoke, cluster, list(words))


async def post(url: str, body: Any, **more: Any) -> tuple[int, Mapping[str, Any], Mapping[str, str]]:  # fmt: skip
    async with (
        ClientSession() as http,
        http.post(url, json=body, allow_redirects=False, **more) as answer,
    ):
        return answer.status, json.loads(await answer.text()), answer.headers


@pytest.mark.parametrize("kind", KINDS)
async def test_an_order_is_passed_on_as_it_was_given(nodes: Nodes, kind: str) -> None:
    body = {"node_id": 3, "dry_run": True, "confirm": True}
    status, done, _ = await post(f"{nodes.urls[0]}/v1/cluster/{kind}", body)
    assert (status, done["order"], done["changed"]) == (200, kind, True)
    assert nodes.told[0].orders == [(kind, 3, True, True)]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({}, "drain"),
        ({"node_id": "one"}, "drain"),
        ({"node_id": 1, "confirmed": True}, "unclean-election"),
        ([], "elect"),
    ],
)
async def test_an_order_that_is_none_is_refused(nodes: Nodes, body: Any, kind: str) -> None:
    status, told, _ = await post(f"{nodes.urls[0]}/v1/cluster/{kind}", body)
    assert (status, told["code"]) == (400, "bad-order")
    assert nodes.told[0].orders == []


async def test_an_order_by_a_form_is_refused(nodes: Nodes) -> None:
    async with (
        ClientSession() as http,
        http.post(f"{nodes.urls[0]}/v1/cluster/drain", data={"node_id": "1"}) as answer,
    ):
        assert answer.status == 415


@pytest.mark.parametrize(
    ("code", "unknown", "status"),
    [
        ("no-quorum", False, 503),
        ("unknown-node", False, 404),
        ("refused", False, 409),
        ("outcome-unknown", True, 504),
        ("other-node", False, 409),
    ],
)
async def test_a_refusal_has_a_status_of_its_own(
    nodes: Nodes, code: str, unknown: bool, status: int
) -> None:
    nodes.told[0].refuses = ClusterOrderRefused(code, "why", unknown=unknown)
    found = await post(f"{nodes.urls[0]}/v1/cluster/elect", {})
    assert (found[0], found[1]["code"], found[1]["detail"]) == (status, code, "why")


async def test_another_node_says_whom_to_ask(nodes: Nodes) -> None:
    nodes.told[0].refuses = ClusterOrderRefused("other-node", "node 2 does", url=nodes.urls[1])
    status, told, headers = await post(f"{nodes.urls[0]}/v1/cluster/elect", {})
    assert (status, told["url"]) == (307, f"{nodes.urls[1]}/v1/cluster/elect")
    assert headers["Location"] == told["url"]


# --- the commands -----------------------------------------------------------------------------------


async def test_status_says_who_leads_and_what_followers_lack(nodes: Nodes) -> None:
    done = await command(nodes, "status", at=1)
    assert done.exit_code == 0, done.output
    assert "leads the logs     node 1" in done.output
    assert "in sync            1, 2" in done.output
    assert "leads the quorum   node 2" in done.output
    assert "5 records in 1 logs" in done.output
    assert "not heard" in done.output


async def test_status_says_loudly_that_nobody_leads(nodes: Nodes) -> None:
    for told in nodes.told:
        told.describes["leadership"]["leader"] = None
        told.describes["quorum"]["leader"] = None
    done = await command(nodes, "status")
    assert "NOBODY LEADS: awaited are nodes 1, 2" in done.output
    assert "NO QUORUM" in done.output


async def test_status_says_that_an_election_is_under_way(nodes: Nodes) -> None:
    for told in nodes.told:
        told.describes["leadership"]["leader"] = None
    done = await command(nodes, "status")
    assert "NOBODY LEADS YET: one of nodes " in done.output
    for told in nodes.told:
        for row in told.describes["nodes"]:
            row["fenced"] = True
    done = await command(nodes, "status")
    assert "NOBODY LEADS: awaited are nodes 1, 2" in done.output


async def test_status_says_who_leads_which_part_while_leaders_are_spread(nodes: Nodes) -> None:
    for told in nodes.told:
        told.describes["spread"] = _spread(2, 1)
    told_of = (await command(nodes, "status")).output
    assert "node 1, and nodes 2 their parts: tidemark cluster rebalance --show" in told_of
    first, second = (line for line in told_of.splitlines() if "runs" in line)
    assert "main + 4 partitions" in first
    assert "of what it leads" in first
    assert ("4 partitions" in second, "main" in second) == (True, False)
    shown = (await command(nodes, "rebalance", "--show")).output
    assert [line.split()[0] for line in shown.splitlines()[-3:]] == ["main", "1", "2"]
    (told_of,) = {(await command(nodes, "rebalance", "--show", "-o", "json")).output}
    assert (json.loads(told_of)["region"], json.loads(told_of)["leader"]) == ("eu", 1)


@pytest.mark.parametrize(
    ("without_ms", "why"),
    [(900, "NO QUORUM YET: its leader is being elected"), (32_400, "NO QUORUM for 32 s")],
)
async def test_status_tells_an_election_of_the_quorum_from_its_loss_and_who_does_not_answer(
    nodes: Nodes, without_ms: int, why: str
) -> None:
    for told in nodes.told:
        told.describes["quorum"] |= {"leader": None, "without_leader_ms": without_ms}
        told.describes["nodes"][2] |= {"fenced": False, "http": "http://127.0.0.1:1"}
    done = await command(nodes, "status")
    assert why in done.output
    assert "NO ANSWER from node 3 at http://127.0.0.1:1" in done.output


async def test_an_order_says_of_which_region_it_was_and_how_a_drain_ends(nodes: Nodes) -> None:
    done = await command(nodes, "drain", "2")
    assert done.exit_code == 0
    assert "region eu: node 1 leads" in done.output
    assert "node 2 leads nothing and takes nothing on until it is started anew" in done.output


async def test_INV_CLO5_a_drain_after_which_the_node_leads_on_is_no_success(nodes: Nodes) -> None:
    for told in nodes.told:
        told.leads_on = True
    done = await command(nodes, "drain", "1")
    assert done.exit_code == 1
    assert "leads nothing" not in done.output
    assert (await command(nodes, "drain", "1", "--dry-run")).exit_code == 1


@pytest.mark.parametrize(("voters", "is_told"), [([1], True), ([1, 2], True), ([1, 2, 3], False)])
async def test_status_says_that_no_voter_may_be_gone(
    nodes: Nodes, voters: list[int], is_told: bool
) -> None:
    for told in nodes.told:
        told.describes["quorum"]["voters"] = voters
    done = await command(nodes, "status")
    assert ("TOO FEW VOTE" in done.output) == is_told


async def test_status_tells_the_damage_of_each_node_whoever_is_asked(nodes: Nodes) -> None:
    """The node that leads the logs knows nothing of the disks of the others."""
    nodes.told[1].describes["here"] |= {
        "damage": "orders-0: 00.log",
        "stopped": {"orders-1": "EIO"},
        "no_room": "the disk is nearly full: 3 MiB are free",
    }
    told = (await command(nodes, "status")).output
    assert "DAMAGE at node 2, see docs/runbooks/damaged_log.md: orders-0: 00.log" in told
    assert "STOPPED at node 2, see docs/runbooks/damaged_log.md: orders-1: EIO" in told
    assert (
        "NO ROOM at node 2, see docs/runbooks/disk_full.md: the disk is nearly full: 3 MiB" in told
    )
    assert "NO ROOM at node 1" not in told


async def test_the_quorum_is_told_by_its_leader(nodes: Nodes) -> None:
    done = await command(nodes, "quorum", "-o", "json")
    found = json.loads(done.output)
    assert [member["matched_index"] for member in found["members"]] == [40, 41, 12]
    assert "heard ms ago" in (await command(nodes, "quorum")).output


async def test_logs_are_told_of_the_leader_or_of_a_node_and_of_a_topic(nodes: Nodes) -> None:
    done = await command(nodes, "partitions", "--topic", "orders", "-o", "json")
    assert [row["topic"] for row in json.loads(done.output)] == ["orders"]
    assert "invoices" in (await command(nodes, "partitions", "--node", "2")).output
    gone = await command(nodes, "partitions", "--node", "3")
    assert (gone.exit_code, "node 3 does not answer (" in gone.output) == (3, True)
    for told in nodes.told:  # a region of two, so that node 3 is none
        del told.describes["nodes"][2:]
    none = await command(
        nodes, "partitions", "--node", "3", "--region", nodes.told[0].describes["region"]
    )
    assert (none.exit_code, "no node 3 is registered" in none.output) == (3, True), none.output
    none = await command(nodes, "partitions", "--topic", "nosuch")
    assert (none.exit_code, "no log of a topic 'nosuch'" in none.output) == (3, True), none.output


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (("drain", "1"), ("drain", 1, False, False)),
        (("drain", "1", "--dry-run"), ("drain", 1, True, False)),
        (("move",), ("elect", None, False, False)),
        (("move", "--to", "2"), ("elect", 2, False, False)),
        (("node", "remove", "3"), ("remove", 3, False, False)),
    ],
)
async def test_an_order_goes_to_the_node_that_leads_the_quorum(
    nodes: Nodes, words: tuple[str, ...], order: tuple[str, int | None, bool, bool]
) -> None:
    done = await command(nodes, *words)
    assert done.exit_code == 0, done.output
    assert ("would be carried out" if "--dry-run" in words else "was carried out") in done.output
    assert (nodes.told[0].orders, nodes.told[1].orders) == ([], [order])


async def test_an_unclean_election_is_planned_first_and_done_with_a_word_only(nodes: Nodes) -> None:
    done = await command(nodes, "unclean-elect", "2")
    assert done.exit_code == 1
    assert "what only nodes 1 hold is lost" in done.output
    assert nodes.told[1].orders == [("unclean-election", 2, True, False)]
    nodes.told[1].orders.clear()
    done = await command(nodes, "unclean-elect", "2", "--confirm")
    assert done.exit_code == 0
    assert nodes.told[1].orders == [
        ("unclean-election", 2, True, False), ("unclean-election", 2, False, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "unknown", "exit_code"),
    [("refused", False, 1), ("unknown-node", False, 3), ("outcome-unknown", True, 5)],
)
async def test_a_refusal_ends_with_its_exit_code(
    nodes: Nodes, code: str, unknown: bool, exit_code: int
) -> None:
    nodes.told[1].refuses = ClusterOrderRefused(code, "the way out", unknown=unknown)
    done = await command(nodes, "move", "--to", "2")
    assert (done.exit_code, "the way out" in done.output) == (exit_code, True)


async def test_INV_CCL1_while_the_quorum_elects_the_order_is_given_again(nodes: Nodes) -> None:
    nodes.told[1].refuses = ClusterOrderRefused("no-quorum", "nobody leads it")
    nodes.told[1].refuses_times = 3
    assert (await command(nodes, "move", "--to", "2")).exit_code == 0
    assert nodes.told[1].orders == [("elect", 2, False, False)] * 4


async def test_a_region_of_one_node_is_told_so() -> None:
    server = HttpServer(make_app(cast("RegionApi", Alone()), {}, CollectorRegistry()))
    host, port = await server.start("127.0.0.1", 0)
    words = ["status", "--url", f"http://{host}:{port}"]
    done = await asyncio.to_thread(CliRunner().invoke, cluster, words)
    await server.stop()
    assert done.exit_code == 3


def _spread(*leaders: int, wanted: bool = True, waiting: str = "") -> dict[str, Any]:
    rows = [
        {"group": number, "leader": leader, "preferred": 1 + number, "leader_epoch": 9, "in_sync": [1, 2, 3], "partitions": 4}
        for number, leader in enumerate(leaders, 1)
    ]  # fmt: skip
    return {"wanted": wanted, "groups": rows, "waiting": waiting}


async def test_INV_CRB5_a_rebalance_ends_well_where_leaders_are_as_they_were_ordered_to_be(
    nodes: Nodes,
) -> None:
    for told in nodes.told:
        told.describes["spread"] = _spread(2, 3)
    done = await command(nodes, "rebalance")
    assert (done.exit_code, "are to be spread" in done.output) == (0, True)
    assert nodes.told[1].orders == [("spread", None, False, False)]
    assert (await command(nodes, "rebalance", "--show")).exit_code == 0
    assert len(nodes.told[1].orders) == 1
    assert (await command(nodes, "rebalance", "--show", "--gather")).exit_code == 2


@pytest.mark.parametrize(
    ("words", "spread", "why"),
    [
        ((), _spread(waiting="not in sync: nodes [3]"), "not in sync: nodes [3]"),
        ((), _spread(3, 3), "group 1 is to be led by node 2"),
        (("--gather",), _spread(2, 3, wanted=False), "one node takes all leaders back"),
    ],
)
async def test_INV_CRB5_what_is_ordered_and_not_done_in_time_says_what_is_waited_for(
    nodes: Nodes, words: tuple[str, ...], spread: dict[str, Any], why: str
) -> None:
    for told in nodes.told:
        told.describes["spread"] = spread
    done = await command(nodes, "rebalance", *words, "--timeout", "1")
    assert (done.exit_code, why in done.output) == (5, True)
