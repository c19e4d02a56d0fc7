"""What a run says: verdict, summary and one HTML page. Pure, and byte-stable for the same facts.

INV-RCRP1  coverage is part of the verdict: less than all of the horizon is never "consistent"
Exit codes: 0 consistent and all covered, 1 differences, 3 incomplete coverage, 4 behind the budget or the failover not
followed yet; the worst wins: differences, incomplete, behind. Nothing in it depends on when or where the run was made.

Not here: writing files (`job`), usage errors (exit 2) and internal ones (70), which have no report.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import msgspec

from geo_replicator.reconciliation.diff import PartitionResult
from geo_replicator.reconciliation.findings import MEANING, Finding, Kind, Severity, in_order
from geo_replicator.reconciliation.plan import Plan

EXIT_CONSISTENT: Final = 0
EXIT_DIFFERENCES: Final = 1
EXIT_INCOMPLETE: Final = 3
EXIT_BEHIND: Final = 4
SHOWN_MAX: Final = 50

_VERDICTS: Final = {
    EXIT_CONSISTENT: "consistent",
    EXIT_DIFFERENCES: "differences",
    EXIT_INCOMPLETE: "incomplete",
    EXIT_BEHIND: "behind",
}


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine brings back."""

    engine: str
    partitions: list[PartitionResult]
    transaction_findings: list[Finding] = []
    decisions_checked: int = 0
    unreadable: list[str] = []


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    """One topic in the report."""

    topic: str
    partitions: int
    batches: int
    records: int
    compared_offsets: int
    horizon_offsets: int
    lag_offsets: int
    faults: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`summary.json`."""

    run_id: str
    verdict: str
    exit_code: int
    sentence: str
    jobs: list[str]
    engine: str
    source: str
    mirror: str
    horizon: str
    coverage: float
    compared_offsets: int
    horizon_offsets: int
    partitions: int
    batches: int
    records: int
    bytes_read: int
    decisions_checked: int
    faults: int
    roots: dict[str, int]
    consequences: dict[str, int]
    findings_total: int
    findings_listed: int
    lag_offsets: int
    lag_ms: int
    not_read: list[str]
    topics: list[TopicRow]


def is_fault(finding: Finding) -> bool:
    """Return whether a finding is a root and more than lag: one of these makes the regions differ."""
    return finding.is_root and finding.severity is Severity.CORRUPTION


def summarise(
    plan: Plan, result: EngineResult, findings: Sequence[Finding], jobs: Sequence[str]
) -> Summary:
    """Return the summary of a run; `findings` are all of them, in order."""
    horizon = sum(part.horizon for part in result.partitions)
    uncovered = sum(part.uncovered for part in result.partitions)
    not_read = sorted(
        f"{part.topic}-{part.partition}: {text}"
        for part in result.partitions
        for text in part.unread
    ) + sorted(result.unreadable)
    lag_offsets = sum(part.lag_offsets for part in result.partitions)
    lag_ms = max((part.lag_ms for part in result.partitions), default=0)
    is_whole = bool(result.partitions) and not uncovered and not result.unreadable
    exit_code = _exit_code(plan, findings, is_whole=is_whole, lag=(lag_offsets, lag_ms))
    return Summary(
        run_id=plan.run_id,
        verdict=_VERDICTS[exit_code],
        exit_code=exit_code,
        sentence=_sentence(exit_code, findings, result),
        jobs=sorted(jobs),
        engine=result.engine,
        source=plan.source_name,
        mirror=plan.mirror_name,
        horizon=plan.cut_label or "the end of both logs when they were sampled",
        coverage=1.0 if is_whole else (horizon - uncovered) / horizon if horizon else 0.0,
        compared_offsets=horizon - uncovered,
        horizon_offsets=horizon,
        partitions=len(result.partitions),
        batches=sum(part.batches for part in result.partitions),
        records=sum(part.records for part in result.partitions),
        bytes_read=sum(part.bytes_read for part in result.partitions),
        decisions_checked=result.decisions_checked,
        faults=_fault_count(findings),
        roots=_by_kind(finding for finding in findings if finding.is_root),
        consequences=_by_kind(finding for finding in findings if not finding.is_root),
        findings_total=sum(finding.count for finding in findings),
        findings_listed=min(len(findings), plan.options.findings_max),
        lag_offsets=lag_offsets,
        lag_ms=lag_ms,
        not_read=_shown(not_read),
        topics=_topics(result.partitions, findings),
    )


def _exit_code(
    plan: Plan, findings: Sequence[Finding], *, is_whole: bool, lag: tuple[int, int]
) -> int:
    if any(map(is_fault, findings)):
        return EXIT_DIFFERENCES
    if not is_whole:
        return EXIT_INCOMPLETE
    budgets = (plan.options.rpo_records, plan.options.rpo_ms)
    exceeded = any(0 <= budget < behind for budget, behind in zip(budgets, lag, strict=True))
    forked = any(finding.kind is Kind.POST_PROMOTION_FORK for finding in findings)
    return EXIT_BEHIND if exceeded or forked else EXIT_CONSISTENT


def _sentence(exit_code: int, findings: Sequence[Finding], result: EngineResult) -> str:
    faults = _fault_count(findings)
    if exit_code == EXIT_DIFFERENCES:
        return f"The regions differ: {faults} fault{'s' if faults > 1 else ''}."
    if exit_code == EXIT_INCOMPLETE and not result.partitions:
        return (
            "Nothing was compared: no partition of the chosen topics has data within the horizon."
        )
    if exit_code == EXIT_INCOMPLETE:
        return "No fault was found, but not everything could be read."
    if exit_code == EXIT_BEHIND:
        return "No fault, but the mirror is further behind than allowed, or has not followed a failover."
    return "The regions hold the same, and no transaction is torn."


def _fault_count(findings: Iterable[Finding]) -> int:
    return sum(finding.count for finding in findings if is_fault(finding))


def _shown(texts: Sequence[str]) -> list[str]:
    rest = len(texts) - SHOWN_MAX
    return [*texts[:SHOWN_MAX], *([f"and {rest} more"] if rest > 0 else [])]


def _by_kind(findings: Iterable[Finding]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for finding in findings:
        counted[finding.kind.value] += finding.count
    return dict(sorted(counted.items()))


def _topics(parts: Sequence[PartitionResult], findings: Sequence[Finding]) -> list[TopicRow]:
    roots: Counter[str] = Counter()
    for finding in filter(is_fault, findings):
        roots[finding.topic] += finding.count
    rows = []
    for topic in sorted({part.topic for part in parts} | set(roots)):
        own = [part for part in parts if part.topic == topic]
        horizon = sum(part.horizon for part in own)
        rows.append(
            TopicRow(
                topic=topic,
                partitions=len(own),
                batches=sum(part.batches for part in own),
                records=sum(part.records for part in own),
                compared_offsets=horizon - sum(part.uncovered for part in own),
                horizon_offsets=horizon,
                lag_offsets=sum(part.lag_offsets for part in own),
                faults=roots[topic],
            )
        )
    return rows


def all_findings(plan: Plan, result: EngineResult) -> list[Finding]:
    """Return all findings of a run in their order."""
    of_partitions = [finding for part in result.partitions for finding in part.findings]
    return in_order([*plan.mismatches, *of_partitions, *result.transaction_findings])


_STYLE: Final = """
:root{--ink:#14202b;--soft:#5b6b7a;--paper:#fff;--line:#d9e1e8;--wash:#f4f7fa;--good:#0b7a4b;--bad:#b3261e;--warn:#8a5a00}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa9b8;--paper:#10171e;--line:#2a3743;--wash:#18222c;
--good:#4cc38a;--bad:#ff7b72;--warn:#e3b341}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:2rem 1rem 4rem}h1{font-size:1.5rem;margin:0 0 .25rem}
h2{font-size:1.05rem;margin:2.2rem 0 .6rem}p{margin:.3rem 0}.soft{color:var(--soft)}
.verdict{border-left:6px solid var(--c);background:var(--wash);padding:1rem 1.2rem;margin:1.2rem 0;border-radius:4px}
.verdict strong{color:var(--c);font-size:1.2rem}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:.8rem;margin:1rem 0}
dl div{background:var(--wash);border-radius:4px;padding:.6rem .8rem}dt{color:var(--soft);font-size:.8rem}
dd{margin:0;font-size:1.15rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
code{font:.85em ui-monospace,monospace;overflow-wrap:anywhere}.bar{background:var(--line);height:8px;border-radius:4px;overflow:hidden}
.bar i{display:block;height:100%;background:var(--c)}
"""
_COLOURS: Final = {
    EXIT_CONSISTENT: "var(--good)",
    EXIT_DIFFERENCES: "var(--bad)",
    EXIT_INCOMPLETE: "var(--warn)",
    EXIT_BEHIND: "var(--warn)",
}


def render_html(summary: Summary, findings: Sequence[Finding]) -> str:
    """Return the report as one self-contained page."""
    faults = [finding for finding in findings if is_fault(finding)]
    behind = [finding for finding in findings if finding.is_root and not is_fault(finding)]
    title = f"Reconciliation of {summary.mirror} with {summary.source}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>{escape(title)}: {summary.verdict}</title><style>{_STYLE}</style>",
        f"<body style='--c:{_COLOURS[summary.exit_code]}'><main><h1>{escape(title)}</h1>",
        (
            f"<p class=soft>Run {summary.run_id} · {', '.join(summary.jobs)} · engine"
            f" {escape(summary.engine)} · up to {escape(summary.horizon)}</p>"
        ),
        f"<div class=verdict><strong>{summary.verdict}</strong><p>{escape(summary.sentence)}</p></div>",
        _coverage_html(summary),
        _tiles(summary),
        _findings_html("Faults", faults),
        _findings_html("What they entail", [f for f in findings if not f.is_root]),
        _findings_html("Behind", behind),
        _topics_html(summary),
        _not_read_html(summary),
        _next_html(summary),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _coverage_html(summary: Summary) -> str:
    percent = f"{summary.coverage * 100:.2f}".rstrip("0").rstrip(".")
    return (
        f"<h2>Coverage {percent} %</h2><div class=bar><i style='width:{summary.coverage * 100:.1f}%'></i></div>"
        f"<p class=soft>{summary.compared_offsets:,} of {summary.horizon_offsets:,} offsets within the horizon"
        " were read on both sides, checksums recomputed.</p>"
    )


def _tiles(summary: Summary) -> str:
    tiles = [
        ("partitions", f"{summary.partitions:,}"),
        ("record batches", f"{summary.batches:,}"),
        ("records", f"{summary.records:,}"),
        ("bytes read", f"{summary.bytes_read:,}"),
        ("transactions checked", f"{summary.decisions_checked:,}"),
        ("faults", f"{summary.faults:,}"),
        ("not copied yet", f"{summary.lag_offsets:,} offsets, {summary.lag_ms:,} ms"),
    ]
    return "<dl>" + "".join(f"<div><dt>{a}</dt><dd>{b}</dd></div>" for a, b in tiles) + "</dl>"


def _findings_html(heading: str, findings: Sequence[Finding]) -> str:
    if not findings:
        return "<h2>Faults</h2><p>None.</p>" if heading == "Faults" else ""
    shown = findings[:SHOWN_MAX]
    rows = "".join(_finding_html(finding) for finding in shown)
    rest = sum(finding.count for finding in findings) - len(shown)
    more = (
        f"<p class=soft>{rest:,} more, see <code>findings/</code> of this run.</p>" if rest else ""
    )
    return (
        f"<h2>{heading} ({sum(finding.count for finding in findings):,})</h2><div class=scroll><table><thead><tr><th>kind<th>where"
        "<th class=n>offsets<th>side<th>digest primary<th>digest mirror<th>what</tr></thead><tbody>"
        f"{rows}</tbody></table></div>{more}"
    )


def _finding_html(finding: Finding) -> str:
    where = finding.topic if finding.partition < 0 else f"{finding.topic}-{finding.partition}"
    offsets = "" if finding.first_offset < 0 else f"{finding.first_offset}..{finding.last_offset}"
    cause = (
        f" <span class=soft>(because of {finding.caused_by})</span>" if finding.caused_by else ""
    )
    producer = f" · producer {finding.producer_id}" if finding.producer_id >= 0 else ""
    return (
        f"<tr><td title='{escape(MEANING[finding.kind])}'><code>{finding.kind.value}</code><br>"
        f"<span class=soft>{finding.finding_id}</span><td>{escape(where)}<td class=n>{offsets}"
        f"<td>{finding.side.shown}<td><code>{finding.digest_source}</code>"
        f"<td><code>{finding.digest_mirror}</code>"
        f"<td>{escape(MEANING[finding.kind])}.<br><span class=soft>{escape(finding.detail)}{producer}</span>{cause}</tr>"
    )


def _topics_html(summary: Summary) -> str:
    if not summary.topics:
        return ""
    rows = "".join(
        f"<tr><td>{escape(row.topic)}<td class=n>{row.partitions:,}<td class=n>{row.batches:,}"
        f"<td class=n>{row.records:,}<td class=n>{row.compared_offsets:,} of {row.horizon_offsets:,}"
        f"<td class=n>{row.lag_offsets:,}<td class=n>{row.faults:,}</tr>"
        for row in summary.topics
    )
    return (
        "<h2>Topics</h2><div class=scroll><table><thead><tr><th>topic<th class=n>partitions"
        "<th class=n>batches<th class=n>records<th class=n>offsets compared<th class=n>not copied yet"
        f"<th class=n>faults</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _not_read_html(summary: Summary) -> str:
    if not summary.not_read:
        return ""
    items = "".join(f"<li>{escape(text)}" for text in summary.not_read)
    return f"<h2>Not read</h2><ul>{items}</ul>"


_NEXT: Final = {
    EXIT_CONSISTENT: "Nothing to do.",
    EXIT_DIFFERENCES: "Keep both data folders as they are, do not fail over to the damaged side, and read the"
    " faults above from the top: what they entail goes away with them.",
    EXIT_INCOMPLETE: "Run again; if the same ranges stay unread, check the disk and the file permissions there.",
    EXIT_BEHIND: "Check the region link (`tidemark region status`) and run again.",
}


def _next_html(summary: Summary) -> str:
    return f"<h2>Next</h2><p>{escape(_NEXT[summary.exit_code])}</p>"
