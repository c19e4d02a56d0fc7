"""`/livez`, `/readyz`, `/metrics`: for supervisors, load balancers and Prometheus.

`/livez` says that the event loop turns, and nothing else: a region that may not act is alive. `/readyz` names every
check, with the reason of each that fails.

INV-HTM2  who may not see the checks is told whether the node is ready, and no more
INV-HTM3  for those who are told no more than that, checks are made once in BRIEF_KEPT_S, however many ask: nobody must log in to ask
INV-HTM1  metrics are collected a few families at a time, and made into text by a thread: the loop goes on. A family, which is a value
          for each label, is of one moment; two of them may be of two
Not here: what a check looks at.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from typing_extensions import override

from region_broker.http_api.doors import IN_BRIEF
from region_broker.http_api.problems import answer
from region_broker.ports.offload import Offload

Check = Callable[[], str | None]
"""None when fine, else the reason why not."""

READY: Final = "ready"
FAMILIES_AT_ONCE: Final = 4
BRIEF_KEPT_S: Final = 0.2


class _Collected(CollectorRegistry):
    """What was collected, for the text to be made of."""

    def __init__(self, families: Sequence[Metric]) -> None:
        super().__init__()
        self._families = families

    @override
    def collect(self) -> Iterable[Metric]:
        return self._families


async def rendered(registry: CollectorRegistry, offload: Offload = asyncio.to_thread) -> bytes:
    """Return the metrics of now as text (INV-HTM1)."""
    families: list[Metric] = []
    for number, family in enumerate(registry.collect()):
        families.append(family)
        if number % FAMILIES_AT_ONCE == FAMILIES_AT_ONCE - 1:
            await asyncio.sleep(0)
    text: list[bytes] = []
    await offload(lambda: text.append(generate_latest(_Collected(families))))
    return text[0]


class _KeptBriefly:
    """What is found once, for all who ask soon after (INV-HTM3)."""

    def __init__(self, find: Callable[[], bool]) -> None:
        self._find = find
        self._found: bool | None = None

    def value(self) -> bool:
        if self._found is None:
            self._found = self._find()
            asyncio.get_running_loop().call_later(BRIEF_KEPT_S, self._forget)
        return self._found

    def _forget(self) -> None:
        self._found = None


def _ready(*, is_ready: bool, **told: Any) -> web.Response:
    body = {"status": READY if is_ready else "not ready", **told}
    return answer(body, 200 if is_ready else 503)


def add_health_routes(
    app: web.Application,
    checks: Mapping[str, Check],
    registry: CollectorRegistry,
    remark: Callable[[], str],
    *,
    warning: Callable[[], str] = lambda: "",
) -> None:
    """Add the three routes; `remark` says what is wrong elsewhere, `warning` what is of this node; neither makes it unready."""

    brief = _KeptBriefly(lambda: all(check() is None for check in checks.values()))

    async def livez(_request: web.Request) -> web.Response:
        return answer({"status": "alive"})

    async def readyz(request: web.Request) -> web.Response:
        if request.get(IN_BRIEF, False):
            return _ready(is_ready=brief.value())
        reasons = {name: check() for name, check in checks.items()}
        told: dict[str, Any] = {
            "checks": {name: reason or "ok" for name, reason in reasons.items()},
            "remark": remark(),
        }
        if warned := warning():
            told["warning"] = warned
        return _ready(is_ready=all(reason is None for reason in reasons.values()), **told)

    async def metrics(_request: web.Request) -> web.Response:
        body = await rendered(registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
