"""The node's counters: one registry per node, bound label sets, cheap on the request path.

INV-ME1  labels come from fixed sets (API names, reasons), never from what a client sends
Not here: the HTTP route that shows them (`http_api`), gauges of other parts: they register their own
collectors with `Metrics.registry`.
"""

from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

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


@dataclass(frozen=True, slots=True)
class ApiMetrics:
    """The bound children of one API."""

    requests: Counter
    failures: Counter
    latency_s: Histogram
    request_bytes: Counter
    response_bytes: Counter

    def answered(self, *, duration_s: float, request_bytes: int, response_bytes: int) -> None:
        """Count one request that was served."""
        self.requests.inc()
        self.latency_s.observe(duration_s)
        self.request_bytes.inc(request_bytes)
        self.response_bytes.inc(response_bytes)


class Metrics:
    """Counters of the Kafka port; `registry` takes the collectors of everyone else."""

    def __init__(self) -> None:
        """Create an empty registry with the Kafka port's metrics."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = self._counter("requests", "Requests served", "api")
        self._failures = self._counter(
            "request_failures", "Requests ended by a failure inside this node", "api"
        )
        self._errors = Counter(
            "tidemark_answered_errors", "Error codes in answers, other than none",
            ["api", "error"], registry=self.registry,
        )  # fmt: skip
        self._request_bytes = self._counter("request_bytes", "Bytes of requests", "api")
        self._response_bytes = self._counter("response_bytes", "Bytes of answers", "api")
        self._latency_s = Histogram(
            "tidemark_request_seconds", "Time from the whole request to its answer", ["api"],
            registry=self.registry, buckets=_LATENCY_BUCKETS_S,
        )  # fmt: skip
        self.connections = Gauge(
            "tidemark_connections", "Open Kafka connections", registry=self.registry
        )
        self.connections_refused = self._counter(
            "connections_refused", "Connections closed by this node", "reason"
        )
        self.loop_lag_s = Histogram(
            "tidemark_loop_lag_seconds", "How much later than asked the event loop came back",
            registry=self.registry, buckets=_LATENCY_BUCKETS_S,
        )  # fmt: skip
        self._by_api: dict[str, ApiMetrics] = {}

    def _counter(self, name: str, text: str, label: str) -> Counter:
        return Counter(f"tidemark_{name}", text, [label], registry=self.registry)

    def api(self, name: str) -> ApiMetrics:
        """Return the (cached) metrics of one API; `name` is an API's name, never client input."""
        bound = self._by_api.get(name)
        if bound is None:
            bound = self._by_api[name] = ApiMetrics(
                self._requests.labels(name),
                self._failures.labels(name),
                self._latency_s.labels(name),
                self._request_bytes.labels(name),
                self._response_bytes.labels(name),
            )
        return bound

    def error(self, api: str, error: str) -> None:
        """Count one error code in an answer; both are names of the protocol."""
        self._errors.labels(api, error).inc()

    def render(self) -> bytes:
        """Return everything in Prometheus text format."""
        return generate_latest(self.registry)
