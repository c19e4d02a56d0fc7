"""What a node answers over HTTP that does not lead its region, and that of one that is about to."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from aiohttp import ClientSession
from msgspec import structs
from prometheus_client import CollectorRegistry

from geo_replicator.failover import Phase
from idempotency.identity import LeaderEpoch, Member
from region_broker.controller.cluster_image import AddedNode, Leadership
from region_broker.http_api.app import HttpServer, make_app
from region_broker.http_api.ports import RegionApi
from region_broker.region.cluster.region_places import PlacedNode, RegionPlaces
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.view import AmongNodes, RegionService
from tests.fixtures.failover_regions import Pair
from tests.unit.region_broker.test_region_http import get, url

SECOND = PlacedNode(5, "us5:9092", ("us5", 9094), "us5:9093")
THIRD = PlacedNode(6, "us6:9092", ("us6", 9094), "us6:9093")
WHY = "node 4 does not lead region us: node 5 does"


class Place(RegionPlaces):
    """Where somebody else leads region us, or nobody."""

    leads: str | None = "http://us5:9093"

    def leader_http(self, *, but: int) -> str | None:
        return self.leads


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        await regions.us.until(Phase.MIRRORING)
        yield regions


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


def following(pair: Pair, why: str = WHY) -> tuple[RegionService, Place]:
    us = pair.us
    place = Place("us", lambda: us.metadata.image)
    among = AmongNodes(places=place, why_silent=lambda: why)
    return RegionService(us.driver, us.operations, us.table.kept, lambda: None, among=among), place


@pytest.fixture
async def place(pair: Pair) -> AsyncIterator[Place]:
    service, place = following(pair)
    server = HttpServer(make_app(cast("RegionApi", service), {}, CollectorRegistry()))
    await server.start(pair.us.region.http_host, pair.us.region.http_port)
    yield place
    await server.stop()


async def test_INV_RVW1_a_follower_tells_what_it_knows_and_waits_for_nothing(pair: Pair) -> None:
    pair.us.driver.outlook.nobody_acts = True  # of a time when it led
    service, _ = following(pair)
    view = service.describe()
    assert (view["role"], view["phase"], view["acting"]) == ("follower", "mirroring", False)
    assert (view["waits_for"], view["stands_aside"], view["runs_twice"]) == ("", "", {})
    assert view["tidemark"] == {
        "region_epoch": None, "number": None, "published_wall_ms": None, "age_ms": -1
    }  # fmt: skip
    assert view["lag"] == {}


async def test_a_follower_asks_nothing_of_what_only_a_leader_has(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked() -> Any:
        raise AssertionError("another node knows")

    monkeypatch.setattr(pair.us.tidemarks, "lag", asked)
    monkeypatch.setattr(pair.us.driver.outlook, "known_claim", asked)
    service, _ = following(pair)
    service.describe()


async def test_INV_HND5_in_brief_no_log_is_named_and_none_is_looked_at(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _ = following(pair, "")
    pair.us.role.close_gate("what orders-0 showed up to 7 is not here")
    monkeypatch.setattr(pair.us.role, "logs", pytest.fail)
    brief = service.describe_in_brief()
    assert (brief["region"], brief["acting"]) == ("us", False)
    assert brief["reason_not_acting"] == (
        "its phase is mirroring; who may describe the cluster is told more"
    )


async def test_a_mirror_that_nobody_leads_is_not_ready(pair: Pair) -> None:
    service, _ = following(pair)
    assert service.not_ready() == pair.us.role.reason_not_acting
    assert following(pair, "")[0].not_ready() is None


@pytest.mark.parametrize("path", ["failover", "switch", "accept-loss"])
async def test_an_order_at_a_follower_is_sent_to_who_leads(
    pair: Pair, http: ClientSession, place: Place, path: str
) -> None:
    order, address = {"to": "us", "confirm": True}, f"{url(pair.us)}/v1/region/{path}"
    async with http.post(address, json=order, allow_redirects=False) as response:
        assert response.status == 307
        assert response.headers["Location"] == f"http://us5:9093/v1/region/{path}"
        told = await response.json(content_type=None)
    assert (told["code"], told["url"]) == ("not-leading", f"http://us5:9093/v1/region/{path}")
    assert "node 5 does" in told["detail"]
    place.leads = None
    async with http.post(address, json=order, allow_redirects=False) as response:
        assert response.status == 503
        assert (await response.json(content_type=None))["code"] == "not-leading"
    assert pair.us.driver.state.phase is Phase.MIRRORING


@pytest.mark.parametrize(
    "path",
    ["region/loss-statement?to=us", "region/loss-to-accept", "region/losses", "operations/abc"],
)
async def test_what_only_a_leader_knows_is_asked_there(
    pair: Pair, http: ClientSession, place: Place, path: str
) -> None:
    assert place.leads is not None
    told = await get(http, f"{url(pair.us)}/v1/{path}", 307)
    assert told["url"] == f"http://us5:9093/v1/{path}"


async def test_INV_RGP1_INV_RGP2_a_region_lists_all_nodes_of_each_and_which_one_let_it_in(
    pair: Pair,
) -> None:
    image = pair.eu.metadata.image
    first = PlacedNode.of(image.regions["us"])
    addresses = RegionAddresses({"us": [node.peer for node in (first, SECOND, THIRD)]})
    places = RegionPlaces("eu", lambda: image, {"us": [first, SECOND, THIRD]}, addresses)
    eu, us = places.rows("eu")
    assert [node["leads"] for node in eu["nodes"]] == [True]
    assert [node["node_id"] for node in us["nodes"]] == [first.node_id, 5, 6]
    assert [node["leads"] for node in us["nodes"]] == [None] * 3
    assert us["http"] == places.http_of("us") == f"http://{first.http}"
    addresses.let_in("us", SECOND.peer)
    us = places.rows("eu")[1]
    assert [node["leads"] for node in us["nodes"]] == [False, True, False]
    assert (us["http"], us["kafka"]) == ("http://us5:9093", "us5:9092")
    assert places.http_of("us") == "http://us5:9093"
    assert places.http_of("mars") is None


async def test_INV_RGP1_a_node_that_was_added_is_told_with_its_rack(pair: Pair) -> None:
    """Else a check of its own file remarks another rack (INV-CFC2), though the addition named that one."""
    added = AddedNode(node_id=9, kafka="eu9:9092", peer="eu9:9094", http="eu9:9093", rack="b")
    image = structs.replace(pair.eu.metadata.image, added_nodes={9: added})
    eu, _ = RegionPlaces("eu", lambda: image).rows("eu")
    assert [(node["node_id"], node["rack"]) for node in eu["nodes"]][-1] == (9, "b")


async def test_INV_RGP1_a_node_that_moved_is_met_where_the_metadata_say_and_orders_are_sent_there(
    pair: Pair,
) -> None:
    """As INV-GRW1 has it for all others. The file of who is asked has the former addresses, and so had what it read of it at its start."""
    own = PlacedNode(1, "eu1:9092", ("eu1", 9094), "eu1:9093")
    former = PlacedNode(2, "old:9092", ("old", 9094), "old:9093")
    member = Member(2, UUID(int=2))
    led = Leadership(leader=member, leader_epoch=LeaderEpoch(1), in_sync=(member,), version=1)
    moved = {
        2: AddedNode(node_id=2, kafka="new:9092", peer="new:9094", http="new:9093"),
        1: AddedNode(node_id=1, kafka="x:9092", peer="x:9094", http="x:9093"),
    }
    image = structs.replace(pair.eu.metadata.image, added_nodes=moved, leadership=led)
    places = RegionPlaces("eu", lambda: image, {"eu": [own, former]}, me=1)
    assert places.leader_http(but=1) == places.http_of("eu") == "http://new:9093"
    eu, _ = places.rows("eu")
    assert [node["kafka"] for node in eu["nodes"]] == ["eu1:9092", "new:9092"], (
        "its own file counts of itself"
    )
    assert [node["leads"] for node in eu["nodes"]] == [False, True]
