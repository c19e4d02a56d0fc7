"""`/v1/features`: which feature levels this node's code knows, what its region has finalized, and the order to raise that.

Any node of the region takes the order: it changes the metadata of all. It must be sent as application/json, so no web page can give
one by a plain form. `dry_run` judges and changes nothing. Without `level` the newest one that this node's code knows is meant.

    GET  /v1/features
    POST /v1/features                      {"level": 2}, or {}

Not here: when it is refused (`region_broker.controller.cluster_levels`).
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from aiohttp import web

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.refusals import CommandRefused
from region_broker.http_api.orders import metadata_problem, order_of
from region_broker.http_api.problems import answer


class FeaturesApi(Protocol):
    """The feature level of this node's region. All values are plain JSON."""

    @property
    def supported(self) -> range:
        """Return the levels that the code of this node knows."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return what this node runs, what it knows, and what is finalized."""
        ...

    async def raise_to(self, level: int, *, dry_run: bool) -> bool:
        """Raise the region to `level`; return whether anything changes. Raises `CommandRefused`, `MetadataUnwritable`."""
        ...


class RaiseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an order."""

    level: int | None = None
    dry_run: bool = False


def add_feature_routes(app: web.Application, api: FeaturesApi) -> None:
    """Add the routes of the feature level."""

    async def describe(_request: web.Request) -> web.Response:
        return answer(api.describe())

    async def raise_level(request: web.Request) -> web.Response:
        body = await order_of(request, RaiseBody, '{"level": 2}')
        if isinstance(body, web.Response):
            return body
        level = api.supported[-1] if body.level is None else body.level
        before = api.describe()["finalized"]
        try:
            changed = await api.raise_to(level, dry_run=body.dry_run)
        except (CommandRefused, MetadataUnwritable) as error:
            return metadata_problem(error)
        outcome = {"level": level, "before": before, "changed": changed, "dry_run": body.dry_run}
        return answer({**api.describe(), **outcome})

    app.router.add_get("/v1/features", describe)
    app.router.add_post("/v1/features", raise_level)
