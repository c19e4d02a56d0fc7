"""Gauges of a region for Prometheus, read when they are asked for.

INV-HM1  nothing is counted twice: a gauge is what `describe` says at the moment of the scrape

Not here: counters of requests and bytes (`region_broker.metrics`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from region_broker.http_api.ports import RegionApi


class RegionCollector(Collector):
    """Offers a region's role, tidemark and lag."""

    def __init__(self, api: RegionApi) -> None:
        """Read from `api`."""
        self._api = api

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand: at registration the region is not there yet."""
        return []

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the gauges of now."""
        view = self._api.describe()
        mark, lag = view["tidemark"], _lag_of(view)
        gauges = {
            "acting": ("1 where this region takes writes.", int(view["acting"])),
            "epoch": ("Region epoch of the domain.", view["region_epoch"]),
            "tidemark_number": ("Last tidemark published or reached.", mark["number"]),
            "tidemark_age_ms": ("Milliseconds since it was published.", mark["age_ms"]),
            "lag_records": ("Records that this mirror has not copied.", lag.get("records", 0)),
            "lag_bytes": ("Bytes that this mirror has not copied.", lag.get("bytes", 0)),
            "lag_ms": ("Milliseconds that this mirror is behind.", lag.get("ms", 0)),
        }
        for name, (help_text, value) in gauges.items():
            family = GaugeMetricFamily(
                f"tidemark_region_{name}", help_text, labels=["region", "domain"]
            )
            family.add_metric([view["region"], view["domain"]], value)
            yield family


def _lag_of(view: Mapping[str, Any]) -> Mapping[str, float]:
    lag: Mapping[str, float] = view["lag"].get("lag") or {}
    return lag
