"""What supervisors and load balancers are told."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry

from region_broker.http_api import routes_health
from region_broker.http_api.doors import IN_BRIEF
from region_broker.http_api.routes_health import add_health_routes


async def test_INV_HTM3_checks_are_made_once_for_all_who_ask_soon_after_and_are_told_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes_health, "BRIEF_KEPT_S", 0)
    made = 0

    def check() -> str | None:
        nonlocal made
        made += 1
        return "not yet" if made == 1 else None

    app = web.Application()
    add_health_routes(app, {"region": check}, CollectorRegistry(), lambda: "")
    [route] = [each for each in app.router.routes() if _is_readyz(each)]
    brief = make_mocked_request("GET", "/readyz")
    brief[IN_BRIEF] = True
    first = [route.handler(brief) for _ in range(250)]
    statuses = {each.status for each in [await answer for answer in first]}
    assert (statuses, made) == ({503}, 1)
    await asyncio.sleep(0.001)
    assert (await route.handler(brief)).status == 200
    assert made == 2


def _is_readyz(route: web.AbstractRoute) -> bool:
    return (
        route.method == "GET"
        and route.resource is not None
        and route.resource.canonical == "/readyz"
    )
