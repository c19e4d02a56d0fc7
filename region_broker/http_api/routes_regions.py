"""`/v1/region`, `/v1/operations`: how a region stands, switch and failover, and what they cost.

An order is served by the node of the region that is to act, of several by the one that leads; any other answers where to go (307),
or, while none leads, 503 (`not-leading`). So are loss statements, losses and operations. Orders must be sent as
application/json, so no web page can give one by a plain form. A failover, or a loss accepted, without `confirm: true`
changes nothing.

    GET  /v1/region                        role, region epoch, tidemark, lag, link, peers, topics
    GET  /v1/region/loss-statement?to=us   what acting in `us` now would lose at most
    POST /v1/region/failover               {"to": "us", "domain": "main", "confirm": true}
    POST /v1/region/switch                 {"to": "us", "domain": "main"}
    GET  /v1/region/loss-to-accept?to=eu   in a dispute: what `eu` gives up if it acts with what it holds
    POST /v1/region/accept-loss            {"to": "eu", "domain": "main", "confirm": true}
    GET  /v1/region/losses                 what takeovers lost, from this region's quarantine
    GET  /v1/region/deleted-topics         which deletions this region keeps on disk, and until when
    GET  /v1/operations/{id}               progress

Not here: the orders' execution (`region_broker.region.failover.operations`).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

from region_broker.former_names import with_former_fields
from region_broker.http_api.doors import IN_BRIEF
from region_broker.http_api.needs import brief_region
from region_broker.http_api.ports import RegionApi
from region_broker.http_api.problems import answer, problem

_JSON: Final = "application/json"


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a switch or failover."""

    to: str
    domain: str = "main"
    confirm: bool = False
    accept_behind: bool = False


def add_region_routes(app: web.Application, api: RegionApi) -> None:
    """Add the routes of this node's region."""
    routes = _RegionRoutes(api)
    app.router.add_get("/v1/region", routes.describe)
    app.router.add_get("/v1/region/loss-statement", routes.loss_statement)
    app.router.add_post("/v1/region/failover", routes.failover)
    app.router.add_post("/v1/region/switch", routes.switch)
    app.router.add_get("/v1/region/loss-to-accept", routes.loss_to_accept)
    app.router.add_post("/v1/region/accept-loss", routes.accept_loss)
    app.router.add_get("/v1/region/losses", routes.losses)
    app.router.add_get("/v1/region/deleted-topics", routes.deleted_topics)
    app.router.add_get("/v1/operations/{operation_id}", routes.operation)


class _RegionRoutes:
    def __init__(self, api: RegionApi) -> None:
        self._api = api

    async def describe(self, request: web.Request) -> web.Response:
        if request.get(IN_BRIEF, False):
            return answer(brief_region(self._api.describe_in_brief()))
        topics = await self._api.topics()
        return answer(with_former_fields({**self._api.describe(), "topics": topics}))

    async def loss_statement(self, request: web.Request) -> web.Response:
        return await self._statement(request, self._api.loss_statement)

    async def loss_to_accept(self, request: web.Request) -> web.Response:
        return await self._statement(request, self._api.loss_to_accept)

    async def _statement(
        self, request: web.Request, state: Callable[[], Awaitable[Mapping[str, Any]]]
    ) -> web.Response:
        region = request.query.get("to", self._api.region)
        elsewhere = self._elsewhere(request, region) or self._not_leading(request)
        if elsewhere is not None:
            return elsewhere
        try:
            return answer(await state())
        except self._api.refusal as error:
            return _refused(error)

    async def failover(self, request: web.Request) -> web.Response:
        return await self._order(
            request,
            lambda o: self._api.begin_failover(confirmed=o.confirm, accept_behind=o.accept_behind),
        )

    async def switch(self, request: web.Request) -> web.Response:
        return await self._order(request, lambda _order: self._api.begin_switch())

    async def accept_loss(self, request: web.Request) -> web.Response:
        return await self._order(
            request, lambda o: self._api.begin_accept_loss(confirmed=o.confirm)
        )

    async def losses(self, request: web.Request) -> web.Response:
        if (elsewhere := self._not_leading(request)) is not None:
            return elsewhere
        try:
            losses = await self._api.losses()
            known = {"region": self._api.region, "losses": losses}
            return answer({**known, **self._api.losses_elsewhere()})
        except self._api.refusal as error:
            return _refused(error)

    async def deleted_topics(self, _request: web.Request) -> web.Response:
        return answer({"region": self._api.region, "deleted": await self._api.deleted_topics()})

    async def operation(self, request: web.Request) -> web.Response:
        if (elsewhere := self._not_leading(request)) is not None:
            return elsewhere
        operation_id = request.match_info["operation_id"]
        known = self._api.operation(operation_id)
        if known is None:
            detail = f"region {self._api.region} knows no operation {operation_id!r}"
            return problem(404, "unknown-operation", detail)
        return answer(known)

    async def _order(
        self, request: web.Request, begin: Callable[[Order], Mapping[str, Any]]
    ) -> web.Response:
        if request.content_type != _JSON:
            return problem(415, "not-json", f"send the order as {_JSON}")
        try:
            order = msgspec.json.decode(await request.read(), type=Order)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return problem(400, "bad-order", f'{error}; send {{"to": "<region>"}}')
        elsewhere = self._elsewhere(request, order.to) or self._other_domain(order.domain)
        elsewhere = elsewhere or self._not_leading(request)
        if elsewhere is not None:
            return elsewhere
        try:
            operation = begin(order)
        except self._api.refusal as error:
            return _refused(error)
        response = answer(operation, 202)
        response.headers["Location"] = f"/v1/operations/{operation['operation_id']}"
        return response

    def _elsewhere(self, request: web.Request, region: str) -> web.Response | None:
        if region == self._api.region:
            return None
        address = self._api.http_address(region)
        if address is None:
            return problem(404, "unknown-region", f"no region is called {region!r}")
        url = f"{address}{request.path_qs}"
        detail = f"this is region {self._api.region}; region {region} answers at {address}"
        response = problem(307, "other-region", detail, region=region, url=url)
        response.headers["Location"] = url
        return response

    def _not_leading(self, request: web.Request) -> web.Response | None:
        """Answer where another node of this region leads it, or none does."""
        if (found := self._api.not_leading()) is None:
            return None
        why, address = found
        if address is None:
            return problem(503, "not-leading", f"{why}; try again")
        url = f"{address}{request.path_qs}"
        response = problem(307, "not-leading", f"{why}, and answers at {address}", url=url)
        response.headers["Location"] = url
        return response

    def _other_domain(self, domain: str) -> web.Response | None:
        if domain == self._api.domain:
            return None
        detail = f"no domain is called {domain!r}; this cluster has {self._api.domain!r}"
        return problem(404, "unknown-domain", detail)


def _refused(error: Exception) -> web.Response:
    return problem(409, str(getattr(error, "code", "refused")), str(error))
