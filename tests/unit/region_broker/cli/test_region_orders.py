"""`tidemark region switch` and `failover` where there is nothing to do, or nobody to do it."""

import errno
import json
import socket
import threading
from typing import Any

import pytest
from click.testing import CliRunner, Result

from region_broker.cli import region as commands
from region_broker.cli import region_client, region_orders
from region_broker.cli.region_client import Cluster
from region_broker.cli.region_orders import RegionOrders
from region_broker.workbench import leading_node
from region_broker.workbench.node_http import ApiError, OutcomeUnknown

EU, US = "http://eu:9093", "http://us:9093"
CLUSTER_VIEWS = Cluster.views


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster whose region eu acts, and whose us is down; what it is asked to do is kept."""

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {"eu": EU, "us": US}
        self.dead = {US: "Connection refused"}
        return {"eu": {"region": "eu", "domain": "main", "acting": True, "region_epoch": 8}}

    asked: list[str] = []

    def request(_url: str, method: str, path: str, *_more: Any) -> Any:
        asked.append(f"{method} {path}")
        raise AssertionError

    monkeypatch.setattr(Cluster, "views", views)
    monkeypatch.setattr(leading_node, "request", request)
    return asked


def run(*words: str) -> Result:
    return CliRunner().invoke(commands.region, words)


@pytest.mark.parametrize("words", [("switch",), ("failover",), ("failover", "--yes")])
def test_who_acts_already_is_told_so_and_nothing_is_asked(
    orders: list[str], words: tuple[str, ...]
) -> None:
    result = run(*words, "--to", "eu")
    assert result.exit_code == 0
    assert result.output == "region eu acts already, under region epoch 8: there is nothing to do\n"
    assert orders == []


@pytest.mark.parametrize("words", [("switch",), ("failover", "--yes")])
def test_a_region_that_is_down_is_named_with_a_way_out(
    orders: list[str], words: tuple[str, ...]
) -> None:
    result = run(*words, "--to", "us")
    assert result.exit_code == 1
    for part in ("us does not answer", US, "Connection refused", "start its node first", "answer: eu",
                 "Nothing was changed"):  # fmt: skip
        assert part in result.output
    assert orders == []


@pytest.mark.parametrize("given", ["-5", "0", "86401"])
@pytest.mark.parametrize("words", [("switch", "--to", "us"), ("failover", "--yes", "--to", "us"),
                                   ("accept-loss", "--yes", "--at", "us")])  # fmt: skip
def test_a_wait_that_is_none_is_refused_before_the_order_is_given(
    orders: list[str], words: tuple[str, ...], given: str
) -> None:
    result = run(*words, "--timeout", given)
    assert result.exit_code == 2
    assert "1<=x<=86400" in result.output
    assert orders == []


def test_an_order_that_has_not_begun_when_the_wait_ends_is_told_without_a_phase(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = {"operation_id": "x", "kind": "switch", "status": "running", "phase": ""}
    monkeypatch.setattr(Cluster, "nodes_of", lambda *_: [EU])
    with pytest.raises(SystemExit, match="5"):
        RegionOrders(Cluster([]), "eu", -1, quiet=True).follow(operation)
    assert "it goes on" in (told := capsys.readouterr().err)
    assert "()" not in told


def test_a_port_that_is_not_http_is_named_once_with_what_it_may_be() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hear_and_hang_up() -> None:
            with listening.accept()[0] as connection:
                connection.recv(65_536)

        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        answering = threading.Thread(target=hear_and_hang_up)
        answering.start()
        result = run("status", "--url", url)
        answering.join()
    assert result.exit_code == 1
    assert result.output.count(url) == 1
    assert "is it the Kafka or the peer port" in result.output


def test_a_region_that_is_coming_back_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [
        ApiError(409, "busy", "region us is returning"),
        ApiError(409, "starting", "region us is starting"),
        {"operation_id": "x", "kind": "switch", "status": "succeeded", "to_region": "us",
         "region_epoch": 17, "writes_paused_ms": 3},
    ]  # fmt: skip

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {"us": US}
        return {"us": {"region": "us", "domain": "main", "acting": False, "region_epoch": 8}}

    def request(*_arguments: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    monkeypatch.setattr(Cluster, "views", views)
    monkeypatch.setattr(leading_node, "request", request)
    monkeypatch.setattr(region_orders, "POLL_S", 0)
    result = run("switch", "--to", "us")
    assert (result.exit_code, answers) == (0, [])
    assert "region us acts under region epoch 17; writes paused for 3 ms" in result.output
    monkeypatch.setattr(
        leading_node, "request", lambda *_: (_ for _ in ()).throw(ApiError(409, "disputed", "no"))
    )
    assert run("switch", "--to", "us").exit_code == 1


def test_losses_of_a_switch_in_peace_say_that_nothing_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = {
        "lineage_epoch": 17, "region": "eu", "domain": "main", "cause": "takeover", "exact": True,
        "base_number": 4, "base_region_epoch": 8, "unexplained": [], "unreadable": [],
        "transaction_count": 0, "plain_record_count": 0, "offset_commit_count": 0,
        "transactional_record_count": 0, "statement": {}, "named_count": 0, "not_arrived_count": 0,
        "transactions": [], "not_arrived": [], "records": [], "offsets": [],
    }  # fmt: skip

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {"eu": EU}
        return {"eu": {}}

    monkeypatch.setattr(Cluster, "views", views)
    monkeypatch.setattr(leading_node, "request", lambda *_: {"losses": [lost]})
    assert "found in region eu: nothing was lost" in run("losses").output
    lost["statement"] = {"accepted": True, "from_region": "eu", "to_region": "eu",
                         "open_bound": "all records of orders-2 (it goes on at 3789)"}  # fmt: skip
    given_up = run("losses").output
    assert "nothing was lost" not in given_up, "a log that is gone is in no quarantine"
    assert "not counted above: all records of orders-2 (it goes on at 3789)" in given_up
    lost["plain_record_count"] = 1
    assert "plain records lost" in run("losses").output


@pytest.mark.parametrize(
    ("may_hold_more", "told"), [(True, "records that were acknowledged"), (False, "acks=1")]
)
def test_INV_TLC6_losses_name_the_nodes_that_may_have_more(
    may_hold_more: bool, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outstanding = [{"node_id": 3, "reason": "it is not heard"}]

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {"eu": EU}
        return {"eu": {}}

    def request(*_: Any) -> Any:
        return {"losses": [], "outstanding": outstanding, "may_hold_more": may_hold_more}

    monkeypatch.setattr(Cluster, "views", views)
    monkeypatch.setattr(leading_node, "request", request)
    printed = run("losses").output
    assert "(node 3: it is not heard)" in printed
    assert told in printed
    assert "tidemark cluster node remove" in printed
    listed = json.loads(run("losses", "-o", "json").stdout)["elsewhere"]["eu"]
    assert listed == {"outstanding": outstanding, "may_hold_more": may_hold_more}


def view(role: str, number: int, **lag: object) -> dict[str, Any]:
    return {
        "role": role, "acting": role == "acting", "region_epoch": 8, "reason_not_acting": "eu acts",
        "tidemark": {"region_epoch": 8, "number": number, "age_ms": 3}, "lag": lag,
    }  # fmt: skip


def test_T24_a_mirror_that_has_shown_more_than_the_one_that_is_to_act_is_named() -> None:
    statement = {"to_region": "us", "tidemark_region_epoch": 8, "tidemark_number": 5}
    views = {"eu": view("acting", 9), "us": view("mirror", 5), "ap": view("mirror", 6)}
    assert commands.further_mirrors(views, statement) == [
        "region ap has reached tidemark 6 of region epoch 8"
    ]
    views["ap"] = view("mirror", 5)
    assert commands.further_mirrors(views, statement) == []


def test_status_says_what_a_mirrors_link_suffers_from(monkeypatch: pytest.MonkeyPatch) -> None:
    full = view("mirror", 5, state="paused", last_error="the disk is nearly full", lag={})
    sound = view("mirror", 5, state="streaming", last_error="of an hour ago", lag={})

    lacking = view("mirror", 5, state="streaming", lost_here="the disk has lost a part", lag={})

    stopped = view(
        "mirror", 5, state="streaming", waiting={"7f/1": "orders-1 has stopped", "7f/2": "."}
    )
    unborn = view("no history", 0, mirrors={"us": {"lag": {"records": 0}, "silent_ms": 9_000}})
    unborn["tidemark"]["age_ms"] = -1

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        found = {"ap": sound, "eu": unborn, "na": stopped, "sa": lacking, "us": full}
        self.http = {name: f"http://{name}:9093" for name in found}
        return found

    monkeypatch.setattr(Cluster, "views", views)
    output = run("status").output
    assert "no tidemark is reached: orders-1 has stopped (and 1 more)" in output
    assert "not heard" not in output, "who does not act has no mirrors"
    assert "-1" not in output.replace("orders-1", ""), "no tidemark has no age"
    assert "eu acts; the disk has lost a part" in output
    assert "eu acts; the disk is nearly full" in output
    assert "of an hour ago" not in output


def test_status_tells_a_refused_primary_from_a_silent_one_and_a_primary_region_with_a_full_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full = view("acting", 5) | {"refuses_writes": "the disk is nearly full"}
    refusal = "eu does not hold what was shown"
    refusing = view("mirror", 5, refused_history=refusal, last_error=refusal, lag={})
    refusing["reason_not_acting"] = "goes on by itself when it acts again"

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {"eu": EU, "us": US}
        return {"eu": full, "us": refusing}

    monkeypatch.setattr(Cluster, "views", views)
    output = run("status").output
    assert "in part" in output
    assert "the disk is nearly full" in output
    assert output.count(refusal) == 1
    assert "when it acts again" not in output


def test_status_names_damage_that_is_not_mended_in_any_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged = {"damage": "orders-0: segment 0 is damaged"}

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {"eu": EU, "us": US}
        return {"eu": view("acting", 5) | damaged, "us": view("mirror", 5, lag={}) | damaged}

    monkeypatch.setattr(Cluster, "views", views)
    assert run("status").output.count("orders-0: segment 0 is damaged") == 2


def test_T33_the_node_that_stands_aside_is_told_with_its_address_beside_the_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = "http://copy:9093"
    mirror = view("mirror", 5, lag={}) | {"region": "us", "peers": [{"region": "us", "http": US}]}
    answers = {copy: mirror | {"stands_aside": "another node runs as region us"}, US: mirror}
    monkeypatch.setattr(region_client, "request", lambda url, *_, **__: answers[url])
    output = run("status", "--url", copy).output
    assert f"{copy} is another node of region us, which stands aside: another node runs" in output
    assert f"{US} is another" not in output


def test_losses_are_told_in_the_order_of_takeovers_and_a_reader_may_stop_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = {"eu": (17, 33), "us": (24,)}

    def views(self: Cluster) -> dict[str, dict[str, Any]]:
        self.http = {"eu": EU, "us": US}
        return {"eu": {}, "us": {}}

    def request(url: str, *_more: Any) -> Any:
        name = "eu" if url == EU else "us"
        return {"losses": [{"lineage_epoch": epoch, "region": name} for epoch in of[name]]}

    monkeypatch.setattr(Cluster, "views", views)
    monkeypatch.setattr(leading_node, "request", request)
    told = json.loads(run("losses", "-o", "json").output)["losses"]
    assert [lost["lineage_epoch"] for lost in told] == [17, 24, 33]

    def closed(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(commands, "print_json", closed)
    result = run("losses", "-o", "json")
    assert (result.exit_code, result.output) == (1, "")


BRIEF = {
    "in_brief": True, "region": "eu", "acting": True, "region_epoch": 8, "reason_not_acting": "",
    "peers": [{"region": name, "kafka": "", "http": url} for name, url in (("eu", EU), ("us", US))],
}  # fmt: skip
"""What `GET /v1/region` tells who has logged in and may not describe the cluster (`http_api.needs`)."""


@pytest.mark.parametrize("words", [("switch", "--to", "us"), ("failover", "--yes", "--to", "us"),
                                   ("accept-loss", "--yes", "--at", "us")])  # fmt: skip
def test_who_may_not_see_a_region_is_told_so_and_orders_nothing(
    orders: list[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(Cluster, "views", CLUSTER_VIEWS)
    views = {EU: BRIEF, US: {**BRIEF, "region": "us", "acting": False}}
    monkeypatch.setattr(region_client, "request", lambda url, *_, **__: views[url])
    result = run(*words, "--url", EU)
    assert result.exit_code == 4, result.output
    for part in ("an order needs Alter on the cluster", "--http-token-file", "Nothing was changed"):
        assert part in result.output
    assert "domain" not in result.output
    assert orders == []


def test_INV_WNH3_an_order_of_which_no_answer_came_may_have_taken_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @region_client.reports_errors
    def order() -> None:
        raise OutcomeUnknown("http://us:9093 ended the connection before it answered")

    with pytest.raises(SystemExit, match="5"):
        order()
    assert "may have taken effect" in capsys.readouterr().err


def test_INV_CRO1_a_node_that_starts_again_meanwhile_is_asked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = {"operation_id": "x", "status": "succeeded"}
    answers = [ConnectionRefusedError("refused"), ApiError(503, "starting", "wait"), done]

    def request(*_arguments: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Cluster, "nodes_of", lambda *_: [EU])
    monkeypatch.setattr(leading_node, "request", request)
    monkeypatch.setattr(region_orders, "POLL_S", 0)
    operation = {"operation_id": "x", "kind": "failover", "status": "running", "phase": "cutting"}
    assert RegionOrders(Cluster([]), "eu", 60, quiet=True).follow(operation) == done
