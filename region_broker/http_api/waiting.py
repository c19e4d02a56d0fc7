"""What a node of a region with several answers over HTTP before it has joined: that it is alive, and whom it waits for.

All other routes are answered 503 with the same reason: 404 would say that there is no such thing.
Not here: what it waits for (`node.cluster_node`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from region_broker.http_api.app import DEFAULT_LIMITS, OPEN_DOORS, bounded
from region_broker.http_api.doors import Doors
from region_broker.http_api.needs import ANY_METHOD
from region_broker.http_api.problems import problem
from region_broker.http_api.routes_health import add_health_routes

WAITS: Final = "node-waits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A node that waits. `reason`: for what, now; `without_leader_ms`: since when it knows nobody who leads its quorum, 0 where it does."""

    region: str
    reason: Callable[[], str]
    without_leader_ms: Callable[[], int]


class WaitingCollector(Collector):
    """Offers what is known of the quorum, under the names that a node has for it that has joined."""

    def __init__(self, waiting: Waiting) -> None:
        """Read from `waiting`."""
        self._waiting = waiting

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand."""
        return []

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the gauges of now."""
        without_ms = self._waiting.without_leader_ms()
        for name, text, value in (
            ("node_waits", "1 while the node waits to join its region.", 1),
            ("quorum_leader_known", "1 while this node knows who leads the quorum.", not without_ms),
            ("quorum_without_leader_ms", "Milliseconds since it knew one; 0 while it does.", without_ms),
        ):  # fmt: skip
            family = GaugeMetricFamily(f"tidemark_{name}", text, labels=["region"])
            family.add_metric([self._waiting.region], float(value))
            yield family


def waiting_app(
    waiting: Waiting, doors: Doors = OPEN_DOORS, collectors: Iterable[Collector] = (), *, warning: Callable[[], str] = lambda: "",
) -> web.Application:  # fmt: skip
    """Return the application of a node that waits; `collectors`: what `/metrics` offers besides."""
    app, registry = bounded(DEFAULT_LIMITS, doors), CollectorRegistry()
    for each in (WaitingCollector(waiting), *collectors):
        registry.register(each)
    add_health_routes(app, {"joined": waiting.reason}, registry, lambda: "", warning=warning)

    async def not_yet(_request: web.Request) -> web.StreamResponse:
        return problem(503, WAITS, waiting.reason())

    app.router.add_route(ANY_METHOD, "/{path:.*}", not_yet)
    return app
