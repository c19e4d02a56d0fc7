"""The demo's report: one HTML file with the timeline, the figures and every loss.

The file needs nothing else: no script, no font, no address on the network.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from region_broker.cli.demo.story import Moment

_WIDTH: Final = 960
_HEIGHT: Final = 260
_MARGIN: Final = 40
_LABEL_ROWS: Final = 4
_BUCKET_S: Final = 0.25

_LABELS: Final = {
    "rows": "rows of the data set",
    "rows_in_source": "  of so many",
    "transactions_committed": "transactions committed (read back)",
    "torn": "torn",
    "doubled": "doubled",
    "missing": "missing",
    "lost_then_done_again": "lost by the failover, then done again",
    "named_beforehand": "  named by the loss statement beforehand",
    "not_arrived": "  had not left eu, listed after its return",
    "equal_to_the_statement": "  equal to the statement",
    "lost_and_never_answered": "  of these, commits without an answer",
    "sum_over_accounts": "sum over accounts",
    "accounts": "accounts",
    "mirror_audits": "sum unchanged on the mirror",
    "differing_between_regions": "records that differ between the regions",
    "seconds_without_a_commit": "seconds without a commit",
    "tidemark_age_ms": "age of the tidemark at the failover, ms",
    "commits_per_second": "commits per second before the kill",
    "workers_started_anew": "workers started anew",
    "reconciliation": "reconciliation",
    "coverage": "coverage",
    "leaders_killed": "leading nodes killed, while their region went on",
    "nodes_killed_with_the_region": "nodes killed at once, the whole region",
    "logs_differing_between_nodes": "logs that differ between the nodes of a region",
}

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --bar: #2a7de1; --mark: #d1495b; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.ok { color: #2e8b57; } .bad { color: #d1495b; } svg { width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
code { font-size: .9em; }
"""


def labelled(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures as people read them; those of several nodes where there are any."""
    shown = {key: _shown(figures[key]) for key in _LABELS if key in figures}
    shown["mirror_audits"] = (
        f"{figures['mirror_audits']} audits of up to {figures['mirror_audits_transfers']:,} transfers,"
        f" {figures['mirror_audits_torn']} torn"
    )
    return {_LABELS[key]: value for key, value in shown.items()}


def _shown(figure: object) -> object:
    if isinstance(figure, bool):
        return "yes" if figure else "NO"
    return f"{figure:,}" if isinstance(figure, int) else figure


def render(
    *, figures: Mapping[str, Any], broken: Sequence[str], moments: Sequence[Moment],
    commits_at_s: Sequence[float], lost: Sequence[str],
) -> str:  # fmt: skip
    """Return the report as HTML. `commits_at_s`: when commits were answered, in demo seconds."""
    verdict = (
        '<p class="ok"><strong>Every invariant holds.</strong></p>'
        if not broken
        else f'<p class="bad"><strong>Broken: {escape("; ".join(broken))}</strong></p>'
    )
    rows = "".join(
        f"<tr><th>{escape(key)}</th><td>{escape(str(value))}</td></tr>"
        for key, value in figures.items()
    )
    lines = "".join(
        f"<tr><td>{moment.at_s:.1f} s</td><td>{escape(moment.text)}</td></tr>" for moment in moments
    )
    losses = (
        "<p>None.</p>"
        if not lost
        else "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in lost) + "</ul>"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidemark demo</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>Tidemark demo</h1>{verdict}
<h2>Commits per second</h2>{_chart(moments, commits_at_s)}
<h2>Figures</h2><table>{rows}</table>
<h2>Committed, cut off by the failover, and done again</h2>{losses}
<h2>What happened when</h2><table>{lines}</table></body></html>
"""


def _mark(x: float, text: str, row: int) -> str:
    top = 12 + 13 * (row % _LABEL_ROWS)
    anchor, shift = ("end", -3) if x > _WIDTH * 3 / 4 else ("start", 3)
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8}" y2="{_HEIGHT - _MARGIN}" stroke="var(--mark)"/>'
        f'<text x="{x + shift:.1f}" y="{top}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _chart(moments: Sequence[Moment], commits_at_s: Sequence[float]) -> str:
    end_s = max([moment.at_s for moment in moments] + list(commits_at_s) + [1.0])
    counts = [0] * (int(end_s / _BUCKET_S) + 1)
    for at_s in commits_at_s:
        counts[int(at_s / _BUCKET_S)] += 1
    top = max(*counts, 1)
    x_scale, y_scale = (_WIDTH - 2 * _MARGIN) / end_s, (_HEIGHT - 3 * _MARGIN) / top
    bars = "".join(
        f'<rect x="{_MARGIN + i * _BUCKET_S * x_scale:.1f}" width="{_BUCKET_S * x_scale:.2f}"'
        f' y="{_HEIGHT - _MARGIN - count * y_scale:.1f}" height="{count * y_scale:.1f}"'
        ' fill="var(--bar)"/>'
        for i, count in enumerate(counts)
        if count
    )
    marks = "".join(
        _mark(_MARGIN + moment.at_s * x_scale, moment.mark, row)
        for row, moment in enumerate(moment for moment in moments if moment.mark)
    )
    ticks = "".join(
        f'<text x="{_MARGIN + second * x_scale:.1f}" y="{_HEIGHT - _MARGIN + 16}">{second} s</text>'
        for second in range(0, int(end_s) + 1, max(1, int(end_s / 10)))
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Commits over time">{bars}{marks}'
        f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{_HEIGHT - _MARGIN}" y2="{_HEIGHT - _MARGIN}"'
        f' stroke="currentColor"/>{ticks}<text x="4" y="{2 * _MARGIN}">{int(top / _BUCKET_S)}/s</text></svg>'
    )
