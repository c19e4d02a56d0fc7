"""The HTML report of a benchmark: one file, charts as inline SVG, nothing fetched from anywhere.

A bar is a median; the line on it goes from the least to the greatest run.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from region_broker.cli.bench.figures import Row

_WIDTH: Final = 720
_BAR: Final = 22
_LABEL: Final = 170
_COLORS: Final = ("#1f6f8b", "#c9803c")


def render(document: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """Return the report; `document` is what `-o json` prints."""
    charts = "".join(
        _chart(
            f"{what}, {size} B{f', {producers} producers' if producers > 1 else ''}", list(group)
        )
        for (what, size, producers), group in groupby(
            rows, key=lambda row: (row.what, row.size_bytes, row.producers)
        )
    )
    results = [
        {key: value for key, value in row.as_dict().items() if key != "nodes"} for row in rows
    ]
    compared = document["ratios"]
    title = f"tidemark bench: {document['bootstrap']}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}}
table{{border-collapse:collapse}}td,th{{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){{text-align:left}}
svg text{{font:13px system-ui,sans-serif}}pre{{background:#f5f5f5;padding:1rem;overflow:auto}}</style></head>
<body><h1>{escape(title)}</h1>
<p>{escape(_machine(document))}. Medians of {document["settings"]["runs"]} runs; lines show least and greatest.</p>
{charts}
{_table("Ours over theirs: rates above 1 and latencies below 1 are in our favour", compared)}
{_table("All figures", results)}
<h2>Settings</h2><pre>{escape(json.dumps({**document["machine"], **document["settings"]}, indent=1))}</pre>
</body></html>
"""


def _machine(document: Mapping[str, Any]) -> str:
    machine = document["machine"]
    return f"{machine['cores']} cores shared by client and broker, {machine['cpu']}"


def _chart(title: str, rows: Sequence[Row]) -> str:
    figures = [row.as_dict() for row in rows]
    most = max(row["max"] for row in figures) or 1.0
    scale = (_WIDTH - _LABEL - 160) / most
    bars = "".join(_bar(number, row, scale) for number, row in enumerate(figures))
    height = len(figures) * (_BAR + 10) + 6
    return (
        f'<h2>{escape(title)}</h2><svg width="{_WIDTH}" height="{height}" role="img"'
        f' aria-label="{escape(title)}">{bars}</svg>'
    )


def _bar(number: int, row: Mapping[str, Any], scale: float) -> str:
    top = number * (_BAR + 10) + 4
    middle = top + _BAR / 2
    width, low, high = (row[key] * scale for key in ("median", "min", "max"))
    latency = (
        "" if row["p99_ms"] is None else f", p50 {row['p50_ms']:g} ms, p99 {row['p99_ms']:g} ms"
    )
    text = f"{row['median']:,.0f} {row['unit']}{latency}"
    return (
        f'<text x="0" y="{middle + 5}">{escape(row["broker"])}</text>'
        f'<rect x="{_LABEL}" y="{top}" width="{width:.1f}" height="{_BAR}"'
        f' fill="{_COLORS[number % len(_COLORS)]}"/>'
        f'<line x1="{_LABEL + low:.1f}" x2="{_LABEL + high:.1f}" y1="{middle}" y2="{middle}"'
        ' stroke="#222" stroke-width="2"/>'
        f'<text x="{_LABEL + high + 8:.1f}" y="{middle + 5}">{escape(text)}</text>'
    )


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(key.replace('_', ' '))}</th>" for key in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,g}" if isinstance(value, float) else escape(str(value))
