"""Gauges of a region for Prometheus, read when they are asked for.

Nothing is counted twice: a gauge is what `describe` says at the moment of the scrape.

Not here: counters of requests and bytes (`region_broker.metrics`).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from geo_replicator.link.core import LinkState
from region_broker.former_names import METRICS
from region_broker.http_api.ports import RegionApi

WAITS: Final = (
    "history", "dispute", "lost_logs", "home_without_shown", "other_start", "nobody_acts"
)  # fmt: skip
"""What a region may wait for that does not end by itself (`waits_for` of its description)."""
LINK_STATES: Final = tuple(state.name.lower() for state in LinkState)


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
            "tidemark_number": (
                "Last tidemark published or reached; NaN: another node of the region knows it.",
                _number(mark["number"]),
            ),
            "tidemark_age_ms": (
                "Milliseconds since it was published; NaN: as above.",
                math.nan if mark["number"] is None else mark["age_ms"],
            ),
            "lag_records": (
                "Records that this mirror has not copied; NaN: not known.",
                lag["records"],
            ),
            "lag_bytes": ("Bytes that this mirror has not copied; NaN: not known.", lag["bytes"]),
            "lag_ms": ("Milliseconds that this mirror is behind; NaN: not known.", lag["ms"]),
            "others_run_twice": (
                "Other regions that two nodes run as, by what this one hears.",
                len(view["runs_twice"]),
            ),
            "diverged_records": (
                "Offsets in quarantine since this node's start: copied here, and not held by the region that acts.",
                view["diverged_records"],
            ),
            "primary_silent_ms": (
                "Milliseconds since this mirror heard the primary.",
                _silent_ms(view),
            ),
            "link_age_ms": (
                "Milliseconds since this mirror's link to the primary began; NaN: it has none.",
                _number(view["link"]["age_ms"]),
            ),
        }
        for name, (help_text, value) in gauges.items():
            family = GaugeMetricFamily(
                f"tidemark_region_{name}", help_text, labels=["region", "domain"]
            )
            family.add_metric([view["region"], view["domain"]], value)
            yield family
            if family.name in METRICS:
                former = GaugeMetricFamily(
                    METRICS[family.name],
                    f"Former name of {family.name}.",
                    labels=["region", "domain"],
                )
                former.add_metric([view["region"], view["domain"]], value)
                yield former

        waits_for, state = view["waits_for"], view["link"]["state"]
        yield _one_of(view, "waits", "1: it waits for this.", "reason", WAITS, waits_for)
        yield _one_of(view, "link_state", "1: this mirror's link.", "state", LINK_STATES, state)
        yield from self._mirrors(view)

    def _mirrors(self, view: Mapping[str, Any]) -> Iterable[Metric]:
        """Return what the primary region knows of each mirror: it needs nobody to tell it."""
        mirrors: Mapping[str, Any] = view["lag"].get("mirrors") or {}
        gauges = {
            "lag_records": (
                "Records that the mirror has not taken; NaN: not known.",
                ("lag", "records"),
            ),
            "lag_bytes": ("Bytes that the mirror has not taken; NaN: not known.", ("lag", "bytes")),
            "lag_ms": (
                "Milliseconds since the first tidemark it has not reached; NaN: not known.",
                ("lag", "ms"),
            ),
            "silent_ms": (
                "Milliseconds since the mirror was heard, or since this node started.",
                ("silent_ms",),
            ),
            "link_age_ms": (
                "Milliseconds since the mirror's link began; NaN: it has none.",
                ("link_age_ms",),
            ),
            "connected": ("1 while the mirror has a link to this region.", ("connected",)),
        }
        for name, (help_text, path) in gauges.items():
            family = GaugeMetricFamily(
                f"tidemark_mirror_{name}", help_text, labels=["region", "domain", "mirror"]
            )
            for mirror, known in mirrors.items():
                value = known
                for part in path:
                    value = value[part]
                family.add_metric([view["region"], view["domain"], mirror], _number(value))
            yield family


def _one_of(
    view: Mapping[str, Any],
    name: str,
    help_text: str,
    label: str,
    values: Iterable[str],
    present: str | None,
) -> Metric:
    """Return a gauge that is 1 for the value that is present, and 0 for the others."""
    labels = ["region", "domain", label]
    family = GaugeMetricFamily(f"tidemark_region_{name}", help_text, labels=labels)
    for value in values:
        family.add_metric([view["region"], view["domain"], value], int(value == present))
    return family


def _lag_of(view: Mapping[str, Any]) -> Mapping[str, float]:
    """Return a mirror's own lag; nothing is behind where the region acts. A follower does not know it."""
    if view["tidemark"]["number"] is None:
        return dict.fromkeys(("records", "bytes", "ms"), math.nan)
    lag: Mapping[str, float | None] = view["lag"].get("lag") or {}
    return {name: _number(lag.get(name, 0)) for name in ("records", "bytes", "ms")}


def _silent_ms(view: Mapping[str, Any]) -> float:
    silent_ms: float = view["lag"].get("silent_ms", 0)
    return silent_ms


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
