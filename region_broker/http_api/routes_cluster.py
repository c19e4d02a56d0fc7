"""`/v1/cluster`: the nodes of a region with several, who leads its logs, its quorum, and orders.

An order is carried out by the node that leads the quorum; any other answers where to go (307, with `Location`), or, while
nobody leads, 503. It is answered when it is done, within ten seconds. Orders must be sent as application/json, so no web page
can give one by a plain form. `dry_run` judges and changes nothing. An unclean election without `confirm: true` changes nothing.

    GET  /v1/cluster                       nodes, leadership, quorum, and what this node does
    GET  /v1/cluster/partitions[?topic=t]  this node's logs: who leads them, who is in sync, high watermark
    POST /v1/cluster/drain                 {"node_id": 1}
    POST /v1/cluster/elect                 {"node_id": 2}, or {}: whoever is best
    POST /v1/cluster/unclean-election      {"node_id": 2, "confirm": true}
    POST /v1/cluster/remove                {"node_id": 3}
    POST /v1/cluster/spread                {}: leaders of partitions are to be spread over the nodes (ADR 53)
    POST /v1/cluster/gather                {}: one node is to lead all partitions

Adding a node is taken by any node, that of a region with one node, too: it changes the metadata of all. Such a node turns into one of
several then, and binds its HTTP port anew.

    POST /v1/cluster/nodes                 {"node_id": 2, "peer": "eu2.example.org:9094"}, and kafka, http, rack, data_dir; unreached:
                                           its machine need not be there yet

Not here: what an order does (`region_broker.region.cluster.cluster_orders`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
import orjson
from aiohttp import web

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.refusals import CommandRefused
from region_broker.http_api.orders import metadata_problem, order_of
from region_broker.http_api.problems import answer, problem
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

KINDS: Final = ("drain", "elect", "unclean-election", "remove", "spread", "gather")
OF_NO_NODE: Final = frozenset({"elect", "spread", "gather"})
"""Orders that may, or do, name no node."""
_STATUS: Final = {"unknown-node": 404, "no-quorum": 503}


class ClusterApi(Protocol):
    """A region of several nodes, as this one knows it. All values are plain JSON."""

    @property
    def refusal(self) -> type[Exception]:
        """Return the exception of refused orders; it has `code`, `url` and `unknown`."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return nodes, leadership, quorum, and what this node does."""
        ...

    async def partitions(self, topic: str | None) -> Sequence[Mapping[str, Any]]:
        """Return the logs of this node, of `topic` alone where one is given."""
        ...

    async def order(
        self, kind: str, node_id: int | None, *, dry_run: bool, confirmed: bool
    ) -> Mapping[str, Any]:
        """Carry out one of `KINDS` and return how things stand then; raises `refusal`."""
        ...


class AddingApi(Protocol):
    """Takes nodes into the region of this one. All values are plain JSON."""

    async def add(self, wanted: "AddNodeBody", *, dry_run: bool) -> Mapping[str, Any]:
        """Add a node and return what is known then; raises `CommandRefused`, `MetadataUnwritable`."""
        ...


class AddNodeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of an addition: addresses are `host:port`; None: as at the node that is asked, on the new node's host.

    `unreached`: its machine need not be there yet. `data_dir` None: as at the node that is asked.
    """

    node_id: int
    peer: str
    kafka: str | None = None
    http: str | None = None
    rack: str = ""
    data_dir: str | None = None
    unreached: bool = False
    dry_run: bool = False


class ClusterOrderBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an order."""

    node_id: int | None = None
    dry_run: bool = False
    confirm: bool = False


def add_cluster_routes(app: web.Application, api: ClusterApi) -> None:
    """Add the routes of a region with several nodes."""

    async def describe(_request: web.Request) -> web.Response:
        return answer(api.describe())

    async def partitions(request: web.Request) -> web.Response:
        found = await api.partitions(request.query.get("topic"))
        return answer({"partitions": await each_yielding(found, _written, CooperativeYield())})

    app.router.add_get("/v1/cluster", describe)
    app.router.add_get("/v1/cluster/partitions", partitions)
    for kind in KINDS:
        app.router.add_post(f"/v1/cluster/{kind}", _order_route(api, kind))


def _written(row: Mapping[str, Any]) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(row))


def add_node_routes(app: web.Application, api: AddingApi) -> None:
    """Add the route by which a region grows."""

    async def add_node(request: web.Request) -> web.Response:
        body = await order_of(request, AddNodeBody, '{"node_id": 2, "peer": "host:port"}')
        if isinstance(body, web.Response):
            return body
        try:
            return answer(await api.add(body, dry_run=body.dry_run))
        except CommandRefused as error:
            return problem(_STATUS.get(error.code, 409), error.code, error.reason)
        except MetadataUnwritable as error:
            return metadata_problem(error)

    app.router.add_post("/v1/cluster/nodes", add_node)


def _order_route(
    api: ClusterApi, kind: str
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def take(request: web.Request) -> web.Response:
        body = await order_of(request, ClusterOrderBody, '{"node_id": 1}')
        if isinstance(body, web.Response):
            return body
        if body.node_id is None and kind not in OF_NO_NODE:
            return problem(400, "bad-order", 'say which node is meant: {"node_id": 1}')
        try:
            done = await api.order(kind, body.node_id, dry_run=body.dry_run, confirmed=body.confirm)
        except api.refusal as error:
            return _refused(request, error)
        return answer(done)

    return take


def _refused(request: web.Request, error: Exception) -> web.Response:
    code = str(getattr(error, "code", "refused"))
    if getattr(error, "unknown", False):
        return problem(504, code, str(error))
    address = getattr(error, "url", None)
    if code != "other-node" or address is None:
        return problem(_STATUS.get(code, 409), code, str(error))
    url = f"{address}{request.path_qs}"
    response = problem(307, code, str(error), url=url)
    response.headers["Location"] = url
    return response
