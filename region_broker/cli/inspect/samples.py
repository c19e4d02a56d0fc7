"""Two scrapes of `/metrics`, and what happened between them. Pure: text in, figures out.

A rate is the difference of two counters over the time between them; a counter that went down was started anew and
counts from zero. A quantile is linear within its histogram bucket, as in Prometheus; above the last bound it is that
bound.
Not here: fetching and printing (`top`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
_BUCKET: Final = "tidemark_request_seconds_bucket"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape: values by name and labels; `at_s` is when, on a clock that never goes back."""

    at_s: float
    values: Mapping[tuple[str, Labels], float] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str, at_s: float) -> "Scrape":
        """Read Prometheus text; raises ValueError where it is not."""
        values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return cls(at_s, values)

    def value(self, name: str, **labels: str) -> float:
        """Return one value, 0 where there is none."""
        return self.values.get((name, frozenset(labels.items())), 0.0)

    def label_values(self, name: str, label: str) -> set[str]:
        """Return the values of `label` among the samples called `name`."""
        return {
            value
            for sample, labels in self.values
            if sample == name
            for key, value in labels
            if key == label
        }


@dataclass(frozen=True, slots=True)
class ApiRate:
    """One API between two scrapes; times in ms, NaN where nothing was asked."""

    api: str
    requests_per_s: float
    errors_per_s: float
    p50_ms: float
    p99_ms: float
    in_bytes_per_s: float
    out_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Between:
    """What happened between two scrapes of one node."""

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        """Return the time between them."""
        return max(self.after.at_s - self.before.at_s, 1e-9)

    def grown(self, name: str, labels: Labels) -> float:
        """Return how much a counter grew."""
        now = self.after.values.get((name, labels), 0.0)
        then = self.before.values.get((name, labels), 0.0)
        return now if now < then else now - then

    def rate(self, name: str, **labels: str) -> float:
        """Return a counter's growth per second."""
        return self.grown(name, frozenset(labels.items())) / self.seconds

    def apis(self) -> list[ApiRate]:
        """Return every API that was asked for anything, busiest first."""
        names = self.after.label_values("tidemark_requests_total", "api")
        rates = [self._api(name) for name in sorted(names)]
        asked = [rate for rate in rates if rate.requests_per_s > 0]
        return sorted(asked, key=lambda rate: -rate.requests_per_s)

    def _api(self, api: str) -> ApiRate:
        errors = sum(
            self.grown(name, labels)
            for name, labels in self.after.values
            if name == "tidemark_answered_errors_total" and ("api", api) in labels
        )
        return ApiRate(
            api=api,
            requests_per_s=self.rate("tidemark_requests_total", api=api),
            errors_per_s=errors / self.seconds,
            p50_ms=self._quantile(api, 0.50) * 1000,
            p99_ms=self._quantile(api, 0.99) * 1000,
            in_bytes_per_s=self.rate("tidemark_request_bytes_total", api=api),
            out_bytes_per_s=self.rate("tidemark_response_bytes_total", api=api),
        )

    def _quantile(self, api: str, quantile: float) -> float:
        """Return the quantile of an API's latency in seconds."""
        buckets = sorted(self._buckets(api))
        total = buckets[-1][1] if buckets else 0.0
        if total <= 0:
            return math.nan
        wanted, low_s, below = quantile * total, 0.0, 0.0
        for bound_s, count in buckets:
            if count >= wanted:
                if math.isinf(bound_s):
                    return low_s
                share = (wanted - below) / (count - below) if count > below else 1.0
                return low_s + (bound_s - low_s) * share
            low_s, below = bound_s, count
        return low_s

    def _buckets(self, api: str) -> Iterator[tuple[float, float]]:
        for name, labels in self.after.values:
            if name == _BUCKET and ("api", api) in labels:
                yield float(dict(labels)["le"]), self.grown(name, labels)
