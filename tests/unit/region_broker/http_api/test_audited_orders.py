"""Orders over HTTP are recorded before and behind, whoever serves them, and no secret of a body (INV-HAO1, INV-HAO2)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiohttp import ClientSession, web
from prometheus_client import CollectorRegistry

from region_broker.http_api.app import DEFAULT_LIMITS, HttpServer, bounded, make_app
from region_broker.http_api.audited_orders import told
from region_broker.http_api.doors import IDENTITY
from region_broker.http_api.ports import RegionApi
from region_broker.http_api.problems import answer, problem
from region_broker.security.audit.events import Outcome, present_actor
from region_broker.security.identity import Identity
from tests.fixtures.audit_trails import ToldTrail

ADMIN = Identity("User:admin", "", "bearer")


@web.middleware
async def _as_admin(request: web.Request, handler: Any) -> web.StreamResponse:
    if "X-Admin" in request.headers:
        request[IDENTITY] = ADMIN
    response: web.StreamResponse = await handler(request)
    return response


async def _switch(request: web.Request) -> web.Response:
    assert present_actor().request_id.startswith("http 127.0.0.1:")
    return answer({"operation_id": "op-7", "seen": await request.json()}, 202)


async def _refuse(_request: web.Request) -> web.Response:
    return problem(409, "not-now", "no")


async def _fail(_request: web.Request) -> web.Response:
    raise ZeroDivisionError


async def _late(_request: web.Request) -> web.Response:
    return problem(504, "not-answered", "nobody knows")


async def _raise(_request: web.Request) -> web.Response:
    raise web.HTTPServiceUnavailable


@asynccontextmanager
async def serving(trail: ToldTrail) -> AsyncIterator[tuple[ClientSession, str]]:
    app = bounded(DEFAULT_LIMITS, audit=trail)
    app.middlewares.insert(-3, _as_admin)  # before the one that records
    app.router.add_post("/v1/region/switch", _switch)
    app.router.add_post("/v1/cluster/drain", _refuse)
    app.router.add_post("/v1/cluster/elect", _fail)
    app.router.add_post("/v1/cluster/remove", _late)
    app.router.add_post("/v1/cluster/nodes", _raise)
    app.router.add_get("/v1/region", _refuse)
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    try:
        async with ClientSession() as session:
            yield session, f"http://{host}:{port}"
    finally:
        await server.stop()


BODY = {"to": "us", "domain": "main", "password": "hunter2", "nested": {"to": "x"}}


async def test_an_order_is_recorded_with_who_asks_and_what_came_of_it() -> None:
    trail = ToldTrail()
    async with (
        serving(trail) as (session, url),
        session.post(f"{url}/v1/region/switch", json=BODY, headers={"X-Admin": "1"}) as response,
    ):
        assert (response.status, (await response.json())["seen"]) == (202, BODY)
    intent, outcome = trail.told
    assert (intent.actor.principal, intent.actor.host) == ("User:admin", "127.0.0.1")
    assert (intent.operation, intent.details) == ("POST /v1/region/switch", {"to": "us", "domain": "main"})  # fmt: skip
    assert (outcome.outcome, outcome.reason, outcome.answers) == (Outcome.DONE, "202 op-7", 1)
    assert "hunter2" not in repr(trail.told)


@pytest.mark.parametrize(
    ("method", "path", "outcome", "reason"),
    [
        ("POST", "/v1/cluster/drain", "refused", "409 not-now"), ("POST", "/v1/cluster/elect", "unknown", "it ended without an answer"),
        ("POST", "/v1/cluster/remove", "unknown", "504 not-answered"), ("POST", "/v1/cluster/nodes", "failed", "503"),
    ],
)  # fmt: skip
async def test_refused_and_failed_orders_say_so(
    method: str, path: str, outcome: str, reason: str
) -> None:
    trail = ToldTrail()
    async with serving(trail) as (session, url), session.request(method, url + path):
        pass
    assert [(each.outcome.value, each.reason) for each in trail.told[1:]] == [(outcome, reason)]


@pytest.mark.parametrize(
    ("path", "status", "code", "outcome"),
    [
        ("/v1/transactions/abort", 409, "busy", "unknown"), ("/v1/transactions/abort", 503, "no-coordinator", "unknown"),
        ("/v1/transactions/abort", 404, "not-open", "refused"), ("/v1/region/switch", 409, "busy", "refused"),
        ("/v1/cluster/remove", 409, "membership-unchanged", "unknown"), ("/v1/cluster/remove", 409, "node-runs", "refused"),
    ],
)  # fmt: skip
async def test_INV_HAO3_what_may_have_been_done_is_not_called_refused(
    path: str, status: int, code: str, outcome: str
) -> None:
    """An abort whose markers could not be written in time is decided (INV-TN1); a node that is removed may be in the quorum still."""
    trail = ToldTrail()

    async def answers(_request: web.Request) -> web.Response:
        return problem(status, code, "why")

    app = bounded(DEFAULT_LIMITS, audit=trail)
    app.router.add_post(path, answers)
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    try:
        async with ClientSession() as session, session.post(f"http://{host}:{port}{path}", json={}):
            pass
    finally:
        await server.stop()
    assert [(each.outcome.value, each.reason) for each in trail.told[1:]] == [
        (outcome, f"{status} {code}")
    ]


async def test_questions_and_paths_without_a_route_are_no_orders() -> None:
    trail = ToldTrail()
    async with serving(trail) as (session, url):
        for method, path, status in (("GET", "/v1/region", 409), ("POST", "/v1/none", 404), ("POST", "/v1/region", 405)):  # fmt: skip
            async with session.request(method, url + path, json=BODY) as response:
                assert response.status == status
    assert trail.told == []


async def test_an_order_that_cannot_be_recorded_is_not_carried_out() -> None:
    """INV-ATR1."""
    trail = ToldTrail(refuses="the audit trail cannot be written: No space left on device")
    async with (
        serving(trail) as (session, url),
        session.post(f"{url}/v1/region/switch", json=BODY) as response,
    ):
        found = await response.json()
    assert (response.status, found["code"]) == (503, "audit-unwritable")
    assert "No space" in found["detail"]


async def test_a_body_that_no_parser_goes_through_is_recorded_as_that() -> None:
    """INV-HAO1: it is judged by who carries the order out, and the record is there before."""
    trail, headers = ToldTrail(), {"Content-Type": "application/json"}
    async with serving(trail) as (session, url):
        for body in (b"[" * 50_000, b'{"to": "\xff"}', b"{"):
            async with session.post(f"{url}/v1/cluster/drain", data=body, headers=headers) as got:
                assert got.status == 409
    assert [each.details for each in trail.told[::2]] == [{"body": "no JSON"}] * 3


def test_a_body_that_is_no_object_tells_nothing() -> None:
    assert told([BODY]) == told("to") == told(None) == {}
    assert told({"to": {"a": 1}, "node_id": 3}) == {"node_id": 3}


class _Ready:
    """A region that is ready."""

    def not_ready(self) -> str | None:
        """See `RegionApi`."""
        return None

    def remark(self) -> str:
        """See `RegionApi`."""
        return "us is away"


class _Unwritable(ToldTrail):
    """Cannot be written."""

    def problem(self) -> str | None:
        """See `AuditTrail`."""
        return "the audit trail cannot be written: No space left on device"


async def test_a_region_whose_trail_is_full_is_ready_with_a_remark() -> None:
    app = make_app(cast("RegionApi", _Ready()), {}, CollectorRegistry(), audit=_Unwritable())
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    try:
        async with ClientSession() as session, session.get(f"http://{host}:{port}/readyz") as got:
            assert (got.status, (await got.json())["remark"]) == (
                200, "us is away; the audit trail cannot be written: No space left on device",
            )  # fmt: skip
    finally:
        await server.stop()
