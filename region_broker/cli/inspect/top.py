"""`tidemark top`: the regions live in a terminal.

A region that does not answer is a row that says so, and is asked again.
Not here: figures (`samples`), where nodes are (`region_client`).
"""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import click

from region_broker.cli.inspect.samples import Between, Scrape
from region_broker.cli.output import output_option, print_json, print_table
from region_broker.cli.region_client import Cluster, parse_urls, reports_errors, url_option
from region_broker.workbench.node_http import ApiError, metrics_text

_CLEAR: Final = "\033[2J\033[H"
_BYTES_PER_MB: Final = 1_000_000
_APIS_SHOWN: Final = 12
_LAG: Final = ("records", "bytes", "ms")


@click.command(
    epilog="""\b
Examples:
  tidemark top
  tidemark top --url http://127.0.0.1:9093 --interval 5
  tidemark top --count 1 -o json
"""
)
@click.option("--interval", "interval_s", default=1.0, show_default=True,
              type=click.FloatRange(0.1, 3600), help="Seconds between two looks.")  # fmt: skip
@click.option("--count", type=click.IntRange(1), help="Stop after so many looks.")
@url_option
@output_option
@reports_errors
def top(interval_s: float, count: int | None, url: str | None, output: str) -> None:
    """Show requests, latencies, transactions, tidemarks and lag of every region, until Ctrl-C."""
    urls = parse_urls(url)
    scrapes: dict[str, Scrape] = {}
    _look(urls, scrapes)
    shown = 0
    while count is None or shown < count:
        time.sleep(interval_s)
        views, betweens = _look(urls, scrapes)
        shown += 1
        if output == "json":
            print_json(_document(views, betweens))
            continue
        if sys.stdout.isatty():
            click.echo(_CLEAR, nl=False)
        _print(views, betweens)


def _look(
    urls: list[str], scrapes: dict[str, Scrape]
) -> tuple[dict[str, Mapping[str, Any] | None], dict[str, Between]]:
    """Ask every region; return its view (None: no answer) and what happened since the last look."""
    cluster = Cluster(urls)
    answered = cluster.whole_views()
    views: dict[str, Mapping[str, Any] | None] = {
        name: answered.get(name) for name in sorted({*cluster.http, *answered})
    }
    betweens: dict[str, Between] = {}
    for name in answered:
        try:
            text = metrics_text(cluster.http[name])
        except (OSError, ApiError):
            views[name] = None
            scrapes.pop(name, None)
            continue
        scrape = Scrape.of(text, time.monotonic())
        if name in scrapes:
            betweens[name] = Between(scrapes[name], scrape)
        scrapes[name] = scrape
    return views, betweens


def _document(
    views: Mapping[str, Mapping[str, Any] | None], betweens: Mapping[str, Between]
) -> dict[str, Any]:
    regions = []
    for name, view in views.items():
        between = betweens.get(name)
        figures = {} if between is None else _figures(between)
        apis = [] if between is None else [_finite(asdict(rate)) for rate in between.apis()]
        told = {} if view is None else told_by(view)
        regions.append(
            {"region": name, "reachable": view is not None, **told, **figures, "apis": apis}
        )
    return {"regions": regions}


def told_by(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return role, region epoch, tidemark and lag of a region; what nobody knows is None.

    `lag` is a mirror's own, or that of the furthest mirror where the region acts; `mirrors` are those of a region that acts.
    """
    known = view.get("lag") or {}
    mirrors, mark = known.get("mirrors") or {}, view["tidemark"]
    shown = (*_LAG, "heard_ms_ago", "silent_ms", "link_age_ms")
    return {
        "role": view["role"],
        "acting": view["acting"],
        "waits_for": view.get("waits_for", ""),
        "region_epoch": view["region_epoch"],
        "tidemark": {
            "number": mark["number"],
            "age_ms": None if mark["age_ms"] < 0 else mark["age_ms"],
        },
        "lag": lag_of(view),
        "heard_ms_ago": known.get("heard_ms_ago"),
        "mirrors": {
            name: {key: {**one, **one["lag"]}.get(key) for key in shown}
            for name, one in mirrors.items()
        },
    }


def _figures(between: Between) -> dict[str, float]:
    after = between.after
    return {
        "requests_per_s": sum(rate.requests_per_s for rate in between.apis()),
        "connections": after.value("tidemark_connections"),
        "open_transactions": after.value("tidemark_transactions", state="ongoing"),
        "undecided_records": after.value("tidemark_undecided_records"),
        "held_back_ms": after.value("tidemark_held_back_ms"),
        "log_bytes": after.value("tidemark_log_bytes"),
        "resident_bytes": after.value("process_resident_memory_bytes"),
        "cpu_percent": 100 * between.rate("process_cpu_seconds_total"),
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in row.items()
    }


def _print(views: Mapping[str, Mapping[str, Any] | None], betweens: Mapping[str, Between]) -> None:
    columns = (
        "region", "role", "epoch#", "tidemark#", "age ms#", "lag records#", "lag bytes#", "lag ms#",
        "requests/s#",
        "connections#", "open txns#", "held back ms#", "log MB#", "memory MB#", "cpu %#",
    )  # fmt: skip
    print_table("", columns, [_row(name, view, betweens.get(name)) for name, view in views.items()])
    for name, between in betweens.items():
        rows = [
            (
                rate.api,
                f"{rate.requests_per_s:.0f}",
                f"{rate.errors_per_s:.1f}",
                f"{rate.p50_ms:.2f}",
                f"{rate.p99_ms:.2f}",
                f"{rate.in_bytes_per_s / _BYTES_PER_MB:.2f}",
                f"{rate.out_bytes_per_s / _BYTES_PER_MB:.2f}",
            )
            for rate in between.apis()[:_APIS_SHOWN]
        ]
        if rows:
            click.echo()
            names = (
                "api",
                "requests/s#",
                "errors/s#",
                "p50 ms#",
                "p99 ms#",
                "in MB/s#",
                "out MB/s#",
            )
            print_table(name, names, rows)


def lag_of(view: Mapping[str, Any]) -> dict[str, int | None]:
    """Return a mirror's lag; where the region acts, that of its furthest mirror. None: not known."""
    known = view.get("lag") or {}
    lags = [known] if "lag" in known else [*(known.get("mirrors") or {}).values()]
    furthest: dict[str, int | None] = {}
    for name in _LAG:
        values = [one["lag"][name] for one in lags]
        furthest[name] = None if None in values else max(values, default=0)
    return furthest


def _row(name: str, view: Mapping[str, Any] | None, between: Between | None) -> tuple[object, ...]:
    if view is None or between is None:
        return (name, "does not answer", *["-"] * 13)
    figures = _figures(between)
    return (
        name,
        view["role"],
        view["region_epoch"],
        view["tidemark"]["number"],
        view["tidemark"]["age_ms"],
        *("unknown" if value is None else value for value in lag_of(view).values()),
        f"{figures['requests_per_s']:.0f}",
        f"{figures['connections']:.0f}",
        f"{figures['open_transactions']:.0f}",
        f"{figures['held_back_ms']:.0f}",
        f"{figures['log_bytes'] / _BYTES_PER_MB:.1f}",
        f"{figures['resident_bytes'] / _BYTES_PER_MB:.0f}",
        f"{figures['cpu_percent']:.0f}",
    )
