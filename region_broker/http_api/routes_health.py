"""`/livez`, `/readyz`, `/metrics`: for supervisors, load balancers and Prometheus.

`/livez` says that the event loop turns, and nothing else: a region that may not act is alive. `/readyz` names every
check, with the reason of each that fails.

Not here: what a check looks at.
"""

from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from region_broker.http_api.problems import answer

Check = Callable[[], str | None]
"""None when fine, else the reason why not."""

READY: Final = "ready"


def add_health_routes(
    app: web.Application,
    checks: Mapping[str, Check],
    registry: CollectorRegistry,
    remark: Callable[[], str],
) -> None:
    """Add the three routes; `remark` says what is wrong elsewhere, and does not make this node unready."""

    async def livez(_request: web.Request) -> web.Response:
        return answer({"status": "alive"})

    async def readyz(_request: web.Request) -> web.Response:
        reasons = {name: check() for name, check in checks.items()}
        ready = all(reason is None for reason in reasons.values())
        body = {
            "status": READY if ready else "not ready",
            "checks": {name: reason or "ok" for name, reason in reasons.items()},
            "remark": remark(),
        }
        return answer(body, 200 if ready else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
