"""The region's HTTP API and the commands that use it, over real sockets and two real regions."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import ClientSession
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from geo_replicator.failover import Phase
from region_broker.cli.region import region
from region_broker.http_api.app import HttpServer, make_app
from region_broker.http_api.ports import RegionApi
from region_broker.partitions.disk_room import DiskRoom
from tests.fixtures.failover_regions import Pair, Site


def _fine() -> str | None:
    return None


DEAD = "http://127.0.0.1:1"


class _Latest:
    """Serves the service of a site's present life: HTTP outlives the restarts of these tests."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site.service, name)


async def serve(site: Site) -> HttpServer:
    server = HttpServer(
        make_app(cast("RegionApi", _Latest(site)), {"disk": _fine}, CollectorRegistry())
    )
    await server.start(site.region.http_host, site.region.http_port)
    return server


def url(site: Site) -> str:
    return f"http://{site.region.http_host}:{site.region.http_port}"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        servers = [await serve(regions.eu), await serve(regions.us)]
        await regions.us.until(Phase.MIRRORING)
        yield regions
        for server in servers:
            await server.stop()


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def get(http: ClientSession, address: str, status: int = 200) -> Mapping[str, Any]:
    async with http.get(address, allow_redirects=False) as response:
        assert response.status == status, await response.text()
        return json.loads(await response.text())  # type: ignore[no-any-return]


async def command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, region, list(arguments))


async def test_health(pair: Pair, http: ClientSession) -> None:
    assert await get(http, f"{url(pair.eu)}/livez") == {"status": "alive"}
    ready = await get(http, f"{url(pair.eu)}/readyz")
    assert ready["checks"] == {"region": "ok", "disk": "ok"}
    pair.eu.role.close_gate("fenced for a test")
    ready = await get(http, f"{url(pair.eu)}/readyz", 503)
    assert ready["checks"]["region"] == "fenced for a test"
    async with http.get(f"{url(pair.us)}/metrics") as response:
        assert response.status == 200
        metrics = await response.text()
    assert 'tidemark_region_acting{domain="main",region="us"} 0.0' in metrics
    assert 'tidemark_region_epoch{domain="main",region="us"} 8.0' in metrics


async def test_a_region_describes_itself(pair: Pair, http: ClientSession) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    eu = await get(http, f"{url(pair.eu)}/v1/region")
    us = await get(http, f"{url(pair.us)}/v1/region")
    assert (eu["role"], eu["acting"], eu["region_epoch"]) == ("acting", True, 8)
    assert (us["role"], us["acting"], us["acting_region"]) == ("mirror", False, "eu")
    assert [peer["region"] for peer in us["peers"]] == ["eu", "us"]
    assert us["tidemark"]["number"] >= 1
    assert {topic["topic"] for topic in us["topics"]} >= {"orders", "__tidemarks"}


async def test_an_error_that_nobody_expects_is_a_problem_and_the_log_tells_it(
    pair: Pair,
    http: ClientSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks() -> Mapping[str, object]:
        raise ZeroDivisionError("by accident")

    monkeypatch.setattr(pair.eu.service, "describe", breaks)
    told = await get(http, f"{url(pair.eu)}/v1/region", 500)
    assert (told["code"], told["status"]) == ("internal-error", 500)
    assert "GET /v1/region failed" in caplog.text
    assert "by accident" in caplog.text
    assert await get(http, f"{url(pair.eu)}/livez") == {"status": "alive"}


@pytest.mark.parametrize(
    "order",
    [("failover", "--to", "us", "--yes"), ("switch", "--to", "us"), ("accept-loss", "--at", "us")],
)
async def test_an_order_for_a_domain_that_is_none_is_refused_before_anything_is_told(
    pair: Pair, order: tuple[str, ...]
) -> None:
    done = await command(*order, "--domain", "other", "--url", url(pair.eu))
    assert done.exit_code == 3
    said = "no domain is called 'other'; region us has 'main'. Nothing was changed."
    assert done.output.strip() == f"tidemark: {said}"
    assert pair.us.driver.state.phase is Phase.MIRRORING


async def test_orders_for_another_region_say_where_to_go(pair: Pair, http: ClientSession) -> None:
    order = {"to": "us", "confirm": True}
    address = f"{url(pair.eu)}/v1/region/failover"
    async with http.post(address, json=order, allow_redirects=False) as response:
        assert response.status == 307
        assert response.content_type == "application/problem+json"
        assert response.headers["Location"] == f"{url(pair.us)}/v1/region/failover"
    assert pair.us.driver.state.phase is Phase.MIRRORING


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        ('{"to": "us"}', "application/json", 409, "not-confirmed"),
        ('{"to": "us", "confirm": true, "domain": "x"}', "application/json", 404, "unknown-domain"),
        ('{"to": "mars"}', "application/json", 404, "unknown-region"),
        ('{"to": "us", "force": 1}', "application/json", 400, "bad-order"),
        ('{"to"', "application/json", 400, "bad-order"),
        ("[" * 5000, "application/json", 400, "bad-order"),
        ("to=us&confirm=true", "application/x-www-form-urlencoded", 415, "not-json"),
    ],
)
async def test_bad_orders_get_a_problem_and_change_nothing(
    pair: Pair, http: ClientSession, body: str, content_type: str, status: int, code: str
) -> None:
    address = f"{url(pair.us)}/v1/region/failover"
    headers = {"Content-Type": content_type}
    async with http.post(address, data=body, headers=headers) as response:
        assert response.status == status
        problem = await response.json(content_type="application/problem+json")
    assert problem["code"] == code
    assert problem["detail"]
    assert pair.us.driver.state.phase is Phase.MIRRORING


async def test_too_much_and_unknown_are_problems_too(pair: Pair, http: ClientSession) -> None:
    assert (await get(http, f"{url(pair.us)}/v1/nothing", 404))["status"] == 404
    assert (await get(http, f"{url(pair.us)}/v1/operations/none", 404))[
        "code"
    ] == "unknown-operation"
    async with http.post(
        f"{url(pair.us)}/v1/region/failover",
        data="x" * 100_000,
        headers={"Content-Type": "application/json"},
    ) as response:
        assert response.status == 413
        assert response.content_type == "application/problem+json"


async def test_status_finds_all_regions_through_any_live_one(pair: Pair) -> None:
    result = await command("status", "--url", f"{DEAD},{url(pair.us)}", "-o", "json")
    assert result.exit_code == 0, result.output
    status = json.loads(result.stdout)
    assert [found["region"] for found in status["regions"]] == ["eu", "us"]
    assert list(status["unreachable"]) == [DEAD]
    result = await command("status", "--url", url(pair.us))
    assert result.exit_code == 0
    assert "acting" in result.stdout


async def test_status_says_that_a_primary_region_whose_disk_is_nearly_full_refuses_records(
    pair: Pair, http: ClientSession
) -> None:
    assert (await get(http, f"{url(pair.eu)}/v1/region"))["refuses_writes"] == ""
    pair.eu.table.room = DiskRoom(free_bytes_min=100)
    pair.eu.table.room.note(1_000, 99)
    found = await get(http, f"{url(pair.eu)}/v1/region")
    assert found["acting"] is True
    assert "the disk is nearly full" in found["refuses_writes"]
    (row,) = (
        line
        for line in (await command("status", "--url", url(pair.eu))).output.splitlines()
        if line.startswith("eu ")
    )
    assert "in part" in row
    assert "the disk is nearly full" in row


async def test_switch_ends_when_the_new_region_takes_writes(pair: Pair) -> None:
    await pair.eu.write("first")
    result = await command("switch", "--to", "us", "--url", url(pair.eu), "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["writes_paused_ms"] >= 0
    assert pair.us.role.acting


async def test_failover_asks_with_the_statement_and_does_nothing_on_no(pair: Pair) -> None:
    result = await asyncio.to_thread(
        CliRunner().invoke, region, ["failover", "--to", "us", "--url", url(pair.us)], "n\n"
    )
    assert result.exit_code == 1
    assert "Loss statement" in result.output
    assert pair.us.driver.state.phase is Phase.MIRRORING


async def test_failover_and_losses(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    await pair.eu.write("lost", producer_id=4711, sequence=0)
    await pair.eu.kill()
    await pair.us.start()
    result = await command("failover", "--to", "us", "--yes", "--url", f"{DEAD},{url(pair.us)}")
    assert result.exit_code == 0, result.output
    assert "region us acts under region epoch 17" in result.stdout
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    result = await command("losses", "--url", url(pair.us), "-o", "json")
    losses = json.loads(result.stdout)["losses"]
    (at_primary,) = [found for found in losses if found["region"] == "eu"]
    assert at_primary["exact"] is True
    assert at_primary["plain_record_count"] == 1
    assert at_primary["records"][0]["producer_id"] == 4711
    assert at_primary["unexplained"] == []
    assert at_primary["statement"]["to_region"] == "us"
    result = await command("losses", "--url", url(pair.us))
    assert result.stdout.count("equal to the statement  yes") == 1


@pytest.mark.parametrize(
    ("arguments", "exit_code"),
    [
        (("status", "--url", DEAD), 1),
        (("status", "--url", "ftp://x"), 2),
        (("switch", "--to", "mars"), 3),
        (("switch",), 2),
    ],
)
async def test_exit_codes(pair: Pair, arguments: tuple[str, ...], exit_code: int) -> None:
    if "--url" not in arguments:
        arguments = (*arguments, "--url", url(pair.eu))
    result = await command(*arguments)
    assert result.exit_code == exit_code, result.output
