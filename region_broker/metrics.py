"""The node's counters: one registry per node, bound label sets, cheap on the request path.

Counting a request takes no lock and makes no object. Labels come from fixed sets (API names, reasons), never from what
a client sends.
Not here: the HTTP route that shows them (`http_api`), gauges of other parts: they register their own
collectors with `Metrics.registry`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

_LATENCY_BUCKETS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
    30.0,
)


class ApiMetrics:
    """The counts of one API: plain numbers of the event loop, made into samples when they are asked for."""

    __slots__ = ("buckets", "failures", "request_bytes", "requests", "response_bytes", "seconds")

    def __init__(self) -> None:
        """Start at 0."""
        self.requests = self.failures = self.request_bytes = self.response_bytes = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(_LATENCY_BUCKETS_S) + 1)

    def answered(self, duration_s: float, request_bytes: int, response_bytes: int) -> None:
        """Count one request that was served."""
        self.requests += 1
        self.seconds += duration_s
        self.request_bytes += request_bytes
        self.response_bytes += response_bytes
        self.buckets[bisect_left(_LATENCY_BUCKETS_S, duration_s)] += 1

    def failed(self) -> None:
        """Count one request that a failure ended."""
        self.failures += 1


class _ApiCollector(Collector):
    """Offers the counts of all APIs."""

    def __init__(self, by_api: Mapping[str, ApiMetrics]) -> None:
        self._by_api = by_api

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        """Return the counts of now."""
        for name, text, attribute in (
            ("requests", "Requests served", "requests"),
            ("request_failures", "Requests ended by a failure inside this node", "failures"),
            ("request_bytes", "Bytes of requests", "request_bytes"),
            ("response_bytes", "Bytes of answers", "response_bytes"),
        ):
            family = CounterMetricFamily(f"tidemark_{name}", text, labels=["api"])
            for api, counts in self._by_api.items():
                family.add_metric([api], getattr(counts, attribute))
            yield family
        seconds = HistogramMetricFamily(
            "tidemark_request_seconds", "Time from the whole request to its answer", labels=["api"]
        )
        for api, counts in self._by_api.items():
            bounds = [*(str(bound) for bound in _LATENCY_BUCKETS_S), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts.buckets), strict=True))
            seconds.add_metric([api], buckets, counts.seconds)
        yield seconds


class Metrics:
    """Counters of the Kafka port; `registry` takes the collectors of everyone else."""

    def __init__(self) -> None:
        """Create an empty registry with the Kafka port's metrics."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._by_api: dict[str, ApiMetrics] = {}
        self.registry.register(_ApiCollector(self._by_api))
        self._errors = Counter(
            "tidemark_answered_errors", "Error codes in answers, other than none",
            ["api", "error"], registry=self.registry,
        )  # fmt: skip
        self.connections = Gauge(
            "tidemark_connections", "Open Kafka connections", registry=self.registry
        )
        self.connections_refused = self._counter(
            "connections_refused", "Connections closed by this node", "reason"
        )
        self.logins = Counter(
            "tidemark_logins", "Logins on the Kafka port that came to an end", ["mechanism", "outcome"],
            registry=self.registry,
        )  # fmt: skip
        self.loop_lag_s = Histogram(
            "tidemark_loop_lag_seconds", "How much later than asked the event loop came back",
            registry=self.registry, buckets=_LATENCY_BUCKETS_S,
        )  # fmt: skip

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"tidemark_{name}", text, [label], registry=self.registry)

    def api(self, name: str) -> ApiMetrics:
        """Return the (cached) metrics of one API; `name` is an API's name, never client input."""
        bound = self._by_api.get(name)
        if bound is None:
            bound = self._by_api[name] = ApiMetrics()
        return bound

    def error(self, api: str, error: str, count: int = 1) -> None:
        """Count an error code that is so often in one answer; both are names of the protocol."""
        self._errors.labels(api, error).inc(count)

    def render(self) -> bytes:
        """Return everything in Prometheus text format."""
        return generate_latest(self.registry)
