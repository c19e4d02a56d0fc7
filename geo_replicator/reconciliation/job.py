"""One run: sample both regions, plan, let an engine check, write what was found.

INV-RCJB2  a run directory is whole or absent: it is written beside and renamed, `_SUCCESS` last, `LATEST` after
INV-RCJB3  the same horizon and options give the same run id and the same bytes, apart from `metrics.json`
The mirror is sampled before the source, ledgers before data: what is copied or written meanwhile can make the source
longer, never the mirror, and a ledger never speaks of data that was not sampled. Reads only; nothing in a region's
folder is ever touched.

`LocalEngine` runs the checks in this process; `spark_job.SparkEngine` the same checks in Spark.
Not here: pyspark, the command line, what the metadata database says (handed in).
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from geo_replicator.lineage import TidemarkPoint
from geo_replicator.reconciliation.by_key import compare_compacted
from geo_replicator.reconciliation.diff import PartitionResult, check_partition, ranges_to_compare
from geo_replicator.reconciliation.evidence.ledger_facts import LedgerFact
from geo_replicator.reconciliation.evidence.rows import (
    EVENT_DTYPE,
    EVENTS,
    LEDGER,
    RANGE,
    SEGMENT,
    EvidenceRow,
    SegmentEvidence,
    evidence_of,
    read_headers,
)
from geo_replicator.reconciliation.findings import Finding, Side
from geo_replicator.reconciliation.horizon import find_cut
from geo_replicator.reconciliation.plan import (
    TIDEMARK_LEDGER,
    TRANSACTION_LEDGER,
    Cut,
    Fork,
    Options,
    Plan,
    RegionInput,
    SegmentSpec,
    TopicFacts,
    Until,
    make_plan,
)
from geo_replicator.reconciliation.report import (
    EngineResult,
    Summary,
    all_findings,
    render_html,
    summarise,
)
from geo_replicator.reconciliation.segments.batch_table import (
    DIGEST_VERSION,
    RANGE_DTYPE,
    RANGE_LEVEL,
    BatchTable,
    differing_ranges,
    empty_table,
    fold_ranges,
)
from geo_replicator.reconciliation.segments.scanner import list_region
from geo_replicator.reconciliation.transactions.attribution import attribute_transactions
from geo_replicator.reconciliation.transactions.instances import Extent, Extents
from geo_replicator.reconciliation.transactions.judging import TransactionResult, check_transactions

VERIFY: Final = "verify"
TRANSACTIONS: Final = "transactions"
ALL_JOBS: Final = (TRANSACTIONS, VERIFY)

_SERVER_TIMED: Final = frozenset({TRANSACTION_LEDGER, TIDEMARK_LEDGER})
"""Topics whose timestamps are those of the primary region's clock: in all others clients say what they like."""

Place: TypeAlias = tuple[str, int]
RangeRows: TypeAlias = Mapping[tuple[str, str, int], npt.NDArray[Any]]


class Engine(Protocol):
    """Runs the checks of a plan."""

    @property
    def name(self) -> str:
        """What the report calls it."""
        ...

    @property
    def parallelism(self) -> int:
        """How many tasks it runs at once."""
        ...

    def run(self, plan: Plan, jobs: Sequence[str]) -> EngineResult:
        """Check everything; findings about transactions are attributed to those of `verify`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region as the caller names it: its data folder, and what its metadata says, where known."""

    name: str
    data_dir: Path
    topics: dict[str, TopicFacts] | None = None
    reached: TidemarkPoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to reconcile. `cut` overrides the tidemark that would be found; `out` None writes nothing."""

    source: Region
    mirror: Region
    options: Options = field(default_factory=Options)
    jobs: Sequence[str] = ALL_JOBS
    cut: Cut | None = None
    fork: Fork | None = None
    out: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it; `run_dir` is where it was written, None if it was not."""

    summary: Summary
    findings: list[Finding]
    plan: Plan
    run_dir: Path | None

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return self.summary.exit_code


def reconcile_all(request: Request, engine: Engine) -> Outcome:
    """Run the jobs of `request` in one pass over both regions.

    Raises FileNotFoundError (no such region folder) and OSError (the output cannot be written).
    """
    plan = plan_of(request, engine.parallelism)
    plan, differing = compare_compacted(plan)
    result = with_findings(
        engine.run(plan, request.jobs), differing if VERIFY in request.jobs else {}
    )
    findings = all_findings(plan, result)
    summary = summarise(plan, result, findings, request.jobs)
    listed = findings[: request.options.findings_max]
    run_dir = None if request.out is None else write_run(request.out, plan, summary, listed, result)
    return Outcome(summary, findings, plan, run_dir)


def plan_of(request: Request, parallelism: int) -> Plan:
    """Sample both regions and return the plan."""
    ledgers = (TRANSACTION_LEDGER, TIDEMARK_LEDGER)
    mirror, source = (
        RegionInput(
            name=region.name,
            partitions=list_region(region.data_dir, first=ledgers),
            topics=region.topics,
        )
        for region in (request.mirror, request.source)
    )
    cut = request.cut
    if cut is None and request.options.until is Until.CUT:
        old_ms = request.options.hanging_ms
        cut = find_cut(source, mirror, request.mirror.reached, old_ms=old_ms)
        if cut is not None and request.fork is not None:
            cut = before_fork(cut, request.fork)
    return make_plan(
        source, mirror, request.options, cut=cut, fork=request.fork, parallelism=parallelism
    )


def before_fork(cut: Cut, fork: Fork) -> Cut:
    """Return the lower of the two: up to there a mirror that did not follow a failover must agree.

    It holds what both regions started from only as far as it had copied, and beyond it its tidemarks are void (T25).
    Positions of two cuts of one history never cross, so the lower one is one of them.
    """
    positions = {
        place: min(offset, fork.positions[place])
        for place, offset in cut.positions.items()
        if place in fork.positions
    }
    if positions == cut.positions:
        return cut
    label = f"the base of region epoch {fork.region_epoch}"
    return msgspec.structs.replace(cut, label=label, positions=positions)


def ranges_by_partition(
    plan: Plan, extents: Extents, differing: Mapping[Place, Sequence[int]]
) -> dict[Place, list[int]]:
    """Return which of the ranges that differ must be compared batch by batch (spark.md L1)."""
    chosen: dict[Place, list[int]] = {}
    for index, part in enumerate(plan.partitions.values()):
        source, mirror = extents.of(0, index), extents.of(1, index)
        ranges = ranges_to_compare(
            sorted(differing.get((part.topic, part.partition), ())),
            part,
            source_start=0 if source is None else source.start_offset,
            mirror_end=0 if mirror is None else mirror.end_offset,
        )
        if ranges:
            chosen[part.topic, part.partition] = ranges
    return chosen


def segments_holding(
    plan: Plan, differing: Mapping[Place, Sequence[int]], segments: Iterable[EvidenceRow]
) -> list[SegmentSpec]:
    """Return the segments with batches in the differing ranges; `segments` are rows of kind SEGMENT."""
    wanted = {
        (row.side, row.topic, row.partition, row.key)
        for row in segments
        for number in differing.get((row.topic, row.partition), ())
        if row.batches
        and row.first_offset >> RANGE_LEVEL <= number <= row.last_offset >> RANGE_LEVEL
    }
    return [
        spec
        for spec in plan.segments
        if (spec.side.value, spec.topic, spec.partition, spec.base_offset) in wanted
    ]


def headers_in(spec: SegmentSpec, ranges: Sequence[int]) -> BatchTable:
    """Return the headers of a segment that lie in `ranges`; empty if it cannot be read any more."""
    try:
        table = read_headers(spec)
    except OSError:
        return empty_table()  # what is unread of it is counted already, from its evidence
    return table[np.isin(table["base_offset"] >> RANGE_LEVEL, np.array(ranges, np.int64))]


def extents_of(plan: Plan, segments: Iterable[EvidenceRow]) -> Extents:
    """Return what both sides hold, from rows of kind SEGMENT (their payload is not needed)."""
    places = {name: index for index, name in enumerate(plan.partitions)}
    held: tuple[list[Extent | None], list[Extent | None]] = (
        [None] * len(places), [None] * len(places),
    )  # fmt: skip
    newest = [-1, -1]
    for row in segments:
        side = 0 if row.side == Side.SOURCE.value else 1
        place = places[f"{row.topic}/{row.partition}"]
        before = held[side][place] or Extent(row.key, row.key)
        held[side][place] = Extent(
            min(before.start_offset, row.key),
            max(before.end_offset, row.key, row.last_offset + 1),
            before.is_whole and not row.x2,
        )
        if row.batches and row.topic in _SERVER_TIMED:
            newest[side] = max(newest[side], row.x1)
    return Extents(held[0], held[1], (newest[0], newest[1]))


def empty_partitions(plan: Plan, segments: Iterable[EvidenceRow]) -> list[PartitionResult]:
    """Return the results of partitions of which neither side has a segment: no row speaks of them."""
    seen = {(row.topic, row.partition) for row in segments}
    return [
        check_partition(part, [], empty_table(), empty_table())
        for part in plan.partitions.values()
        if (part.topic, part.partition) not in seen
    ]


def combine(
    engine: str, parts: list[PartitionResult], checked: Sequence[TransactionResult]
) -> EngineResult:
    """Return the result of an engine; findings about transactions are attributed here."""
    verified = [finding for part in parts for finding in part.findings]
    found = [finding for result in checked for finding in result.findings]
    return EngineResult(
        engine=engine,
        partitions=sorted(parts, key=lambda part: (part.topic, part.partition)),
        transaction_findings=attribute_transactions(found, verified),
        decisions_checked=sum(result.decisions for result in checked),
        unreadable=sorted({text for result in checked for text in result.unreadable}),
    )


def with_findings(result: EngineResult, found: Mapping[str, list[Finding]]) -> EngineResult:
    """Return the result with what else was found, by ``topic/partition``."""
    parts = [
        msgspec.structs.replace(
            part, findings=[*part.findings, *found.get(f"{part.topic}/{part.partition}", ())]
        )
        for part in result.partitions
    ]
    return msgspec.structs.replace(result, partitions=parts)


def only_coverage(parts: Iterable[PartitionResult]) -> list[PartitionResult]:
    """Return results without findings: for a run that asks about transactions only."""
    return [msgspec.structs.replace(part, findings=[]) for part in parts]


@dataclass(slots=True)
class LocalEngine:
    """The checks in this process, one segment after the other."""

    name: str = "local"
    parallelism: int = 1

    def run(self, plan: Plan, jobs: Sequence[str]) -> EngineResult:
        """See `Engine`."""
        rows = [row for spec in plan.segments for row in evidence_of(spec, plan)]
        segments = [row for row in rows if row.kind == SEGMENT]
        extents = extents_of(plan, segments)
        differing = ranges_by_partition(plan, extents, _differing(plan, _range_rows(rows)))
        headers = _headers(plan, differing, segments)
        parts = [
            check_partition(
                part,
                [
                    msgspec.msgpack.decode(row.payload, type=SegmentEvidence)
                    for row in segments
                    if (row.topic, row.partition) == (part.topic, part.partition)
                ],
                *(headers.get((side, part.topic, part.partition), empty_table()) for side in Side),
            )
            for part in plan.partitions.values()
        ]
        checked = _local_transactions(plan, extents, rows) if TRANSACTIONS in jobs else []
        return combine(self.name, parts if VERIFY in jobs else only_coverage(parts), checked)


def _differing(plan: Plan, ranges: RangeRows) -> dict[Place, list[int]]:
    nothing = np.empty(0, RANGE_DTYPE)
    return {
        (part.topic, part.partition): differing_ranges(
            *(
                fold_ranges(ranges.get((side.value, part.topic, part.partition), nothing))
                for side in Side
            )
        )
        for part in plan.partitions.values()
    }


def _range_rows(rows: Iterable[EvidenceRow]) -> dict[tuple[str, str, int], npt.NDArray[Any]]:
    grouped: dict[tuple[str, str, int], list[tuple[int, ...]]] = {}
    for row in rows:
        if row.kind == RANGE:
            grouped.setdefault((row.side, row.topic, row.partition), []).append(row[4:13])
    return {key: np.array(found, RANGE_DTYPE) for key, found in grouped.items()}


def _headers(
    plan: Plan, differing: Mapping[Place, Sequence[int]], segments: list[EvidenceRow]
) -> dict[tuple[Side, str, int], BatchTable]:
    parts: dict[tuple[Side, str, int], list[BatchTable]] = {}
    # Of two batches with one offset the first segment's counts, so their order matters, as in Spark.
    chosen = segments_holding(plan, differing, segments)
    for spec in sorted(chosen, key=lambda spec: spec.base_offset):
        table = headers_in(spec, differing[spec.topic, spec.partition])
        parts.setdefault((spec.side, spec.topic, spec.partition), []).append(table)
    return {key: np.concatenate(tables) for key, tables in parts.items()}


def _local_transactions(
    plan: Plan, extents: Extents, rows: list[EvidenceRow]
) -> list[TransactionResult]:
    results = []
    for bucket in range(plan.bucket_count):
        chosen = [row for row in rows if row.key == bucket]
        events = [np.frombuffer(row.payload, EVENT_DTYPE) for row in chosen if row.kind == EVENTS]
        facts = [
            fact
            for row in chosen
            if row.kind == LEDGER
            for fact in msgspec.msgpack.decode(row.payload, type=list[LedgerFact])
        ]
        results.append(check_transactions(plan, extents, events, facts))
    return results


def write_run(
    out: Path, plan: Plan, summary: Summary, findings: Sequence[Finding], result: EngineResult
) -> Path:
    """Write a run directory (INV-RCJB2) and return it. Raises OSError."""
    link = out / f"{plan.source_name}-{plan.mirror_name}"
    name = f"run={plan.run_id}-{'-'.join(summary.jobs)}"
    target, work = link / name, link / f".{name}.tmp"
    if work.exists():
        shutil.rmtree(work)
    work.mkdir(parents=True)
    _write_tables(work, findings, result)
    pretty = msgspec.json.format
    (work / "manifest.json").write_bytes(pretty(msgspec.json.encode(_manifest(plan, summary))))
    (work / "summary.json").write_bytes(pretty(msgspec.json.encode(summary)))
    (work / "report.html").write_text(render_html(summary, findings), encoding="utf-8")
    (work / "_SUCCESS").touch()
    if target.exists():
        shutil.rmtree(target)
    work.rename(target)
    pointer = link / "LATEST.tmp"
    pointer.write_text(name + "\n", encoding="utf-8")
    pointer.replace(link / "LATEST")
    return target


def _manifest(plan: Plan, summary: Summary) -> dict[str, Any]:
    return {
        "run_id": plan.run_id,
        "digest_version": DIGEST_VERSION,
        "options": plan.options,
        "horizon": {"label": summary.horizon, "wall_ms": plan.cut_wall_ms},
        "partitions": list(plan.partitions.values()),
        "segments": sorted(
            plan.segments,
            key=lambda spec: (spec.side.value, spec.topic, spec.partition, spec.base_offset),
        ),
        "coverage": summary.coverage,
        "not_read": summary.not_read,
    }


def _write_tables(work: Path, findings: Sequence[Finding], result: EngineResult) -> None:
    rows = [
        {
            "finding_id": finding.finding_id,
            "is_root": finding.is_root,
            **msgspec.to_builtins(finding),
        }
        for finding in findings
    ]
    _write_parquet(work / "findings", rows, _FINDING_COLUMNS)
    parts = [
        {key: value for key, value in msgspec.to_builtins(part).items() if key in _PART_COLUMNS}
        for part in result.partitions
    ]
    _write_parquet(work / "partitions", parts, _PART_COLUMNS)


_FINDING_COLUMNS: Final = {
    "finding_id": "string", "kind": "string", "severity": "string", "is_root": "bool",
    "caused_by": "string", "side": "string", "topic": "string", "topic_id": "string",
    "partition": "int32", "first_offset": "int64", "last_offset": "int64", "batch_count": "int64",
    "record_count": "int64", "producer_id": "int64", "producer_epoch": "int32",
    "digest_source": "string", "digest_mirror": "string", "decision": "string", "detail": "string",
    "more": "int64",
}  # fmt: skip
_PART_COLUMNS: Final = {
    "topic": "string", "partition": "int32", "source_start": "int64", "source_end": "int64",
    "mirror_start": "int64", "mirror_end": "int64", "horizon_start": "int64",
    "horizon_end": "int64", "uncovered": "int64", "batches": "int64", "records": "int64",
    "bytes_read": "int64", "lag_offsets": "int64", "lag_ms": "int64",
}  # fmt: skip


def _write_parquet(folder: Path, rows: list[dict[str, Any]], columns: Mapping[str, str]) -> None:
    folder.mkdir()
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, folder / "part-00000.parquet", compression="zstd")
