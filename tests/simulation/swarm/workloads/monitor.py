"""Who watches each region over HTTP: a supervisor, a scraper of metrics and an operator, also while all goes wrong.

INV-SWH1  whatever happens, no answer is a 5xx but 503, which has a reason; every error is problem+json with a code and a detail
INV-SWH2  `/readyz` is 200 where every check is fine, else 503 with the reason of each that is not; its check of the region
          agrees with what the node is
INV-SWH3  `/metrics` is text that Prometheus reads, each series once, and agrees with what the node is
INV-SWH4  `/v1/region` says what the node is, and no tidemark but those that it has known meanwhile
INV-SWH5  once all is well each region is alive and ready

"What the node is" is looked at before the question and after the answer, and judged where both looks find the same: what
changes under way may be told either way.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from geo_replicator.failover import Phase, State
from geo_replicator.lineage import TidemarkPoint
from region_broker.http_api.problems import PROBLEM_TYPE
from region_broker.node.node import Node
from region_broker.region.ports import Term
from tests.simulation.http_client import Answer, get
from tests.simulation.swarm.workloads.setting import End, Load, Setting

REST_S: Final = 2.0
CALL_S: Final = 5.0
UNAVAILABLE: Final = 503
PATHS: Final = {
    "/livez": 1, "/readyz": 4, "/v1/region": 4, "/metrics": 1, "/v1/region/losses": 1,
    "/v1/region/loss-statement": 1, "/v1/region/loss-to-accept": 1, "/v1/region/deleted-topics": 1,
    "/v1/transactions": 1, "/v1/transactions/open": 1, "/v1/operations/none": 1,
    "/v1/verdict?topic=plain&partition=0&offset=0": 1,
}  # fmt: skip
"""What is asked, and how often of all."""


class Facts(NamedTuple):
    """What a node is at one moment."""

    node: Node
    term: Term | None
    state: State
    region_epoch: int
    acting: bool
    lineage: Sequence[object]
    """What is known or was heard: once another region took over below, no tidemark beyond is claimed (T25)."""
    tidemark: TidemarkPoint

    def is_still(self, now: "Facts") -> bool:
        """Return whether it is the same as before, but for newer tidemarks."""
        return self.term is now.term and self[:-1] == now[:-1]


def facts_of(node: Node) -> Facts:
    """Look at a node."""
    domain = node.storage.metadata.image.main_domain
    return Facts(
        node, node.role.serving, node.failover.state, domain.region_epoch, node.role.acting,
        node.failover.outlook.lineage().entries, node.failover.outlook.known_claim().point,
    )  # fmt: skip


class Monitor:
    """Asks one region, now this and now that."""

    def __init__(self, setting: Setting, name: str) -> None:
        """Nothing is asked before `run`."""
        self.name = name
        self.closed = asyncio.Event()
        self.answers: Counter[int] = Counter()
        self.found: list[str] = []
        self._chance = setting.drawn()
        self._region = setting.reach.regions[name]
        self._network = setting.reach.fabric.site(f"monitor-{name}")

    async def run(self) -> None:
        """Ask until closed."""
        while not self.closed.is_set():
            [path] = self._chance.choices(list(PATHS), list(PATHS.values()))
            await self.ask(path)
            await asyncio.sleep(self._chance.uniform(0, 2 * REST_S))

    async def ask(self, path: str) -> int:
        """Ask once and judge the answer; return its status, 0 where there is none."""
        before = facts_of(self._region.node)
        try:
            async with asyncio.timeout(CALL_S):
                answer = await get(self._network, self._region.http_port, path)
        except OSError:  # TimeoutError included
            return 0
        self.answers[answer.status] += 1
        now = facts_of(self._region.node)
        wrong = list(judged(path, answer, before if before.is_still(now) else None, now))
        self.found += [f"{self.name} answers {path} with {answer.status}: {each}" for each in wrong]
        return answer.status


def judged(path: str, answer: Answer, before: Facts | None, now: Facts) -> Iterator[str]:
    """Yield what is wrong with an answer; `before` is None where what the node is has changed."""
    if answer.status >= 500 and answer.status != UNAVAILABLE:
        yield f"INV-SWH1: {answer.body[:300]!r}"
    elif path in _JUDGES and (answer.status == 200 or path == "/readyz"):
        yield from _JUDGES[path](answer, before, now)
    elif answer.status >= 400:
        problem = answer.json() if answer.headers.get("content-type") == PROBLEM_TYPE else {}
        if not (problem.get("code") and problem.get("detail")):
            yield f"INV-SWH1: an error without its reason: {answer.body[:300]!r}"
    elif path in _JUDGES:
        yield f"INV-SWH1: {answer.body[:300]!r}"


def _judge_alive(answer: Answer, _before: Facts | None, _now: Facts) -> Iterator[str]:
    if answer.json() != {"status": "alive"}:
        yield f"INV-SWH1: {answer.body!r}"


def _judge_ready(answer: Answer, before: Facts | None, _now: Facts) -> Iterator[str]:
    body = answer.json()
    bad = {name: reason for name, reason in body["checks"].items() if reason != "ok"}
    is_ready = answer.status == 200
    if is_ready == bool(bad) or is_ready != (body["status"] == "ready"):
        yield f"INV-SWH2: {body}"
    if not all(bad.values()):
        yield f"INV-SWH2: a check fails without a reason: {body}"
    if before is not None:
        serves = before.acting or before.state.phase is Phase.MIRRORING
        if not serves and "region" not in bad:
            yield f"INV-SWH2: it neither acts nor mirrors: {body}"
        if serves and "region" in bad and not any(p.failed for p in before.node.storage.partitions):
            yield f"INV-SWH2: it serves, and nothing has failed: {body}"


def _judge_metrics(answer: Answer, before: Facts | None, _now: Facts) -> Iterator[str]:
    values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            if series in values:
                yield f"INV-SWH3: {sample.name} {sample.labels} twice"
            values[series] = sample.value
    for name, value in (("acting", "acting"), ("epoch", "region_epoch")):
        said = [v for (n, _), v in values.items() if n == f"tidemark_region_{name}"]
        if len(said) != 1 or (before is not None and said != [getattr(before, value)]):
            yield f"INV-SWH3: tidemark_region_{name} is {said}, the node {before}"


def _judge_region(answer: Answer, before: Facts | None, now: Facts) -> Iterator[str]:
    if before is None:
        return
    view: Mapping[str, Any] = answer.json()
    says = (view["region"], view["acting"], view["phase"], view["region_epoch"])
    is_so = (
        before.node.config.region,
        before.acting,
        before.state.phase.value,
        before.region_epoch,
    )
    if says != is_so:
        yield f"INV-SWH4: it says {says} and is {is_so}"
    if before.acting == bool(view["reason_not_acting"]):
        yield f"INV-SWH4: acting {before.acting}, for {view['reason_not_acting']!r}"
    mark = TidemarkPoint(view["tidemark"]["region_epoch"], view["tidemark"]["number"])
    if not before.tidemark <= mark <= now.tidemark:
        yield f"INV-SWH4: tidemark {mark}, known {before.tidemark} before and {now.tidemark} after"


_JUDGES: Final[Mapping[str, Callable[[Answer, Facts | None, Facts], Iterator[str]]]] = {
    "/livez": _judge_alive, "/readyz": _judge_ready, "/metrics": _judge_metrics, "/v1/region": _judge_region,
}  # fmt: skip


class MonitorLoad(Load):
    """A monitor of each region."""

    def __init__(self, setting: Setting) -> None:
        """See `Workload`."""
        super().__init__()
        self._monitors = [Monitor(setting, name) for name in setting.reach.regions]
        self.clients = [*self._monitors]

    def progress(self) -> Mapping[str, int]:
        """See `Workload`: it asks seldom, so nobody waits for it."""
        return {}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {}

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {
            f"{each.name} {status}": count
            for each in self._monitors
            for status, count in sorted(each.answers.items())
        }

    async def violations(self, _end: End) -> list[str]:
        """See `Workload`."""
        wrong = [
            f"INV-SWH5: {path} of {each.name}, and all is well: {status or 'no answer'}"
            for each in self._monitors
            for path in _JUDGES
            if (status := await each.ask(path)) != 200
        ]
        return [*(text for each in self._monitors for text in each.found), *wrong]
