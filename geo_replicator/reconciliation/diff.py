"""Two sides of one partition compared: what the mirror lacks, has too much, or has otherwise.

INV-RCDI4  what one fault makes visible in several ways is one root; the others name it (`attribute`)
INV-RCDI5  what was compacted on a side is not compared here: it counts as not covered unless it was compared by
           key (`compacted.by_key`)
Ranges whose digests and counts agree hold the same headers; only the others are compared batch by batch. Source only:
behind the end of the mirror and behind the cut it is lag, everywhere else it is missing. A difference that begins where
the regions' epochs part is one fork, not thousands of divergences.

Pure. Not here: judging one side alone (`replica`), transactions (`transactions`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from geo_replicator.reconciliation.evidence.rows import SegmentEvidence
from geo_replicator.reconciliation.findings import Finding, Kind, Severity, Side, explained
from geo_replicator.reconciliation.plan import PartitionPlan, Until, region_epoch_of
from geo_replicator.reconciliation.replica import Replica, judge_alone, read_replica
from geo_replicator.reconciliation.segments.batch_table import (
    RANGE_LEVEL,
    BatchTable,
    identity_digests,
)
from idempotency.identity import LeaderEpoch

_PRECEDENCE: Final = {
    kind: rank
    for rank, kind in enumerate(
        (
            Kind.TOPIC_MISMATCH, Kind.CRC_BAD_LOCAL, Kind.TORN_BATCH, Kind.POST_PROMOTION_FORK,
            Kind.OVERLAP, Kind.REORDERED, Kind.DIVERGENT, Kind.MISSING, Kind.EXTRA,
            Kind.EXTRA_PAST_SOURCE, Kind.DUPLICATE, Kind.OFFSET_GAP, Kind.SEQ_GAP,
            Kind.TAIL_UNREPLICATED, Kind.TORN_TXN, Kind.ABORTED_VISIBLE, Kind.COMMITTED_INCOMPLETE,
            Kind.HANGING_TXN,
        )
    )
}  # fmt: skip
_LOCAL_DAMAGE: Final = frozenset(
    {Kind.CRC_BAD_LOCAL, Kind.TORN_BATCH, Kind.OVERLAP, Kind.REORDERED}
)
_COMPARED_FIELDS: Final = (
    "last_offset", "size_bytes", "magic", "attributes", "crc", "base_timestamp_ms",
    "max_timestamp_ms", "producer_id", "producer_epoch", "base_sequence", "record_count",
    "control_type",
)  # fmt: skip


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared of one partition. Offsets; `covered` of `horizon_end - horizon_start` were."""

    topic: str
    partition: int
    source_start: int
    source_end: int
    mirror_start: int
    mirror_end: int
    horizon_start: int
    horizon_end: int
    uncovered: int
    batches: int
    records: int
    bytes_read: int
    lag_offsets: int
    lag_ms: int
    unread: list[str] = []
    findings: list[Finding] = []

    @property
    def horizon(self) -> int:
        """Offsets that had to be compared."""
        return max(0, self.horizon_end - self.horizon_start)


def check_partition(
    plan: PartitionPlan,
    evidence: Sequence[SegmentEvidence],
    source_headers: BatchTable,
    mirror_headers: BatchTable,
) -> PartitionResult:
    """Judge one partition. The headers are those of every range whose digests differ, of both sides."""
    source, mirror = (
        read_replica(side, plan, [row for row in evidence if row.spec.side is side])
        for side in (Side.SOURCE, Side.MIRROR)
    )
    judge_alone(source, mirror.end_offset)
    judge_alone(mirror, source.end_offset)
    findings = [*source.findings, *mirror.findings]
    findings += _compare(source, mirror, source_headers, mirror_headers)
    start, end = source.start_offset, _horizon_end(source, mirror)
    if plan.cleaned_below > start:
        findings = [finding for finding in findings if _still_counts(finding, plan.cleaned_below)]
        if not plan.is_compared_by_key:
            source.unread.append((start, plan.cleaned_below - 1))
    return PartitionResult(
        topic=plan.topic,
        partition=plan.partition,
        source_start=source.start_offset,
        source_end=source.end_offset,
        mirror_start=mirror.start_offset,
        mirror_end=mirror.end_offset,
        horizon_start=min(start, end),
        horizon_end=end,
        uncovered=_uncovered(source, mirror, start, end),
        batches=source.batches,
        records=source.records,
        bytes_read=source.walked_bytes + mirror.walked_bytes,
        lag_offsets=max(0, source.end_offset - mirror.end_offset),
        lag_ms=_lag_ms(source, mirror),
        unread=_unread_texts(source, mirror),
        findings=attribute(findings),
    )


def _still_counts(finding: Finding, cleaned_below: int) -> bool:
    """Whether a finding says something although records below an offset were compacted away.

    A producer's sequence may have its gap there, and be noticed behind it.
    """
    if finding.kind in _LOCAL_DAMAGE:
        return True
    return finding.last_offset >= cleaned_below and finding.kind is not Kind.SEQ_GAP


def _lag_ms(source: Replica, mirror: Replica) -> int:
    if source.end_offset <= mirror.end_offset or mirror.max_timestamp_ms < 0:
        return 0
    return max(0, source.max_timestamp_ms - mirror.max_timestamp_ms)


def _horizon_end(source: Replica, mirror: Replica) -> int:
    if source.plan.until is Until.CUT:
        return source.plan.bound
    return min(source.end_offset, mirror.end_offset)


def _uncovered(source: Replica, mirror: Replica, start: int, end: int) -> int:
    intervals = sorted(
        (max(first, start), min(last + 1, end)) for first, last in (*source.unread, *mirror.unread)
    )
    total, reached = 0, start
    for first, after in intervals:
        total += max(0, after - max(first, reached))
        reached = max(reached, after)
    return total


def _unread_texts(source: Replica, mirror: Replica) -> list[str]:
    return [
        f"{replica.side.shown} offsets {first}..{last}"
        for replica in (source, mirror)
        for first, last in replica.unread
    ]


def ranges_to_compare(
    differing: Iterable[int], plan: PartitionPlan, *, source_start: int, mirror_end: int
) -> list[int]:
    """Return which differing ranges need a comparison batch by batch.

    Ranges that lie wholly behind the horizon are lag, those below the source's log start are history.
    """
    end = plan.bound if plan.until is Until.CUT else mirror_end
    return [
        number
        for number in differing
        if number << RANGE_LEVEL < end and (number + 1) << RANGE_LEVEL > source_start
    ]


def _compare(
    source: Replica, mirror: Replica, source_headers: BatchTable, mirror_headers: BatchTable
) -> list[Finding]:
    left, right = (
        _in_horizon(source, source, source_headers),
        _in_horizon(source, mirror, mirror_headers),
    )
    left_ids, right_ids = identity_digests(left)[0], identity_digests(right)[0]
    _, at_left, at_right = np.intersect1d(
        left["base_offset"], right["base_offset"], assume_unique=True, return_indices=True
    )
    differs = left_ids[at_left] != right_ids[at_right]
    only_left = np.setdiff1d(np.arange(len(left)), at_left, assume_unique=True)
    only_right = np.setdiff1d(np.arange(len(right)), at_right, assume_unique=True)
    pairs = (left[at_left[differs]], right[at_right[differs]])
    fork = _fork_offset(source, mirror, pairs, right[only_right])
    found: list[Finding] = []
    if fork >= 0:
        found.append(_fork(source, mirror, fork, left, right))
        only_left = only_left[left["base_offset"][only_left] < fork]
        only_right = only_right[right["base_offset"][only_right] < fork]
        below = pairs[0]["base_offset"] < fork
        pairs = (pairs[0][below], pairs[1][below])
    found += [_divergent(source.plan, ours, theirs) for ours, theirs in zip(*pairs, strict=True)]
    found += _missing(source, mirror, left[only_left])
    found += _extra(source, right[only_right])
    held = max(source.end_offset, mirror.end_offset)
    unseen = source.may_hold(held, source.plan.bound) or mirror.may_hold(held, source.plan.bound)
    if held < source.plan.bound and not unseen:
        found.append(
            _finding(
                source.plan, Kind.OFFSET_GAP, held, source.plan.bound - 1, side=Side.SOURCE,
                detail="the cut holds these offsets, neither log does",
            )
        )  # fmt: skip
    if fork < 0:
        found += _lag(source, mirror, source_headers)
    return found


def _in_horizon(source: Replica, replica: Replica, headers: BatchTable) -> BatchTable:
    """Return the rows that are compared, by offset; of two with one offset the first (an overlap)."""
    end = replica.end_offset
    if replica.plan.until is Until.CUT:
        end = min(end, replica.plan.bound)
    bases = headers["base_offset"]
    rows = headers[(bases >= source.start_offset) & (bases < end)]
    _, first = np.unique(rows["base_offset"], return_index=True)
    return rows[first]


def _fork_offset(
    source: Replica, mirror: Replica, pairs: tuple[BatchTable, BatchTable], extra: BatchTable
) -> int:
    parted = (pairs[0]["leader_epoch"] >> 16) != (pairs[1]["leader_epoch"] >> 16)
    candidates = pairs[0]["base_offset"][parted].tolist()
    behind = extra[extra["base_offset"] >= source.end_offset]
    stale = (behind["leader_epoch"] >> 16) < source.region_epoch_last
    candidates += behind["base_offset"][stale].tolist()
    plan = source.plan
    if plan.fork_offset >= 0 and mirror.end_offset > plan.fork_offset:
        old = (behind["leader_epoch"] >> 16) < plan.fork_region_epoch
        candidates += [
            offset for offset in behind["base_offset"][old].tolist() if offset >= plan.fork_offset
        ]
    return min(candidates, default=-1)


def _fork(
    source: Replica, mirror: Replica, fork: int, left: BatchTable, right: BatchTable
) -> Finding:
    ours, theirs = left[left["base_offset"] >= fork], right[right["base_offset"] >= fork]
    epochs = (_region_epoch(ours), _region_epoch(theirs))
    known = 0 <= source.plan.fork_offset <= fork
    return _finding(
        source.plan,
        Kind.POST_PROMOTION_FORK,
        fork,
        max(source.end_offset, mirror.end_offset) - 1,
        batch_count=len(theirs),
        record_count=int(theirs["record_count"].sum()),
        digest_source=_digest(ours),
        digest_mirror=_digest(theirs),
        severity=Severity.LAG if known else Severity.CORRUPTION,
        detail=f"primary under region epoch {epochs[0]}, mirror under {epochs[1]};"
        + (
            " a known failover: the mirror's tail goes to quarantine when it returns"
            if known
            else " no failover on record explains it"
        ),
    )


def _region_epoch(rows: BatchTable) -> str:
    return str(region_epoch_of(LeaderEpoch(int(rows["leader_epoch"][0])))) if len(rows) else "-"


def _finding(
    plan: PartitionPlan,
    kind: Kind,
    first: int,
    last: int,
    *,
    side: Side = Side.MIRROR,
    **facts: Any,
) -> Finding:
    return Finding(
        kind=kind, side=side, topic=plan.topic, partition=plan.partition, topic_id=plan.topic_id,
        first_offset=first, last_offset=last, **facts,
    )  # fmt: skip


def _digest(rows: BatchTable) -> str:
    if not len(rows):
        return ""
    return f"{int(np.bitwise_xor.reduce(identity_digests(rows)[0])):016x}"


def _divergent(plan: PartitionPlan, ours: Any, theirs: Any) -> Finding:
    fields = [
        f"{name} {int(ours[name])} / {int(theirs[name])}"
        for name in _COMPARED_FIELDS
        if ours[name] != theirs[name]
    ]
    left, right = (np.array([row], ours.dtype) for row in (ours, theirs))
    return _finding(
        plan,
        Kind.DIVERGENT,
        int(ours["base_offset"]),
        max(int(ours["last_offset"]), int(theirs["last_offset"])),
        batch_count=1,
        record_count=int(ours["record_count"]),
        producer_id=int(ours["producer_id"]),
        producer_epoch=int(ours["producer_epoch"]),
        digest_source=_digest(left),
        digest_mirror=_digest(right),
        detail="primary / mirror: " + ", ".join(fields),
    )


def _missing(source: Replica, mirror: Replica, rows: BatchTable) -> list[Finding]:
    reached = max(mirror.end_offset, source.plan.bound)
    gone = _seen_by(mirror, rows[rows["base_offset"] < reached])
    return [
        _finding(
            source.plan, Kind.MISSING, *_span(group), **_counts(group), digest_source=_digest(group)
        )
        for group in _stretches(gone)
    ]


def _seen_by(replica: Replica, rows: BatchTable) -> BatchTable:
    """Return `rows` without those that `replica` may hold where it could not be read."""
    for first, last in replica.unseen:
        rows = rows[(rows["last_offset"] < first) | (rows["base_offset"] > last)]
    return rows


def _extra(source: Replica, rows: BatchTable) -> list[Finding]:
    rows = _seen_by(source, rows)
    past = rows["base_offset"] >= source.end_offset
    return [
        _finding(source.plan, kind, *_span(group), **_counts(group), digest_mirror=_digest(group))
        for kind, chosen in ((Kind.EXTRA, rows[~past]), (Kind.EXTRA_PAST_SOURCE, rows[past]))
        for group in _stretches(chosen)
    ]


def _lag(source: Replica, mirror: Replica, headers: BatchTable) -> list[Finding]:
    first = max(mirror.end_offset, source.plan.bound, source.start_offset)
    if source.end_offset <= first:
        return []
    seen = headers[(headers["base_offset"] >= first) & (headers["base_offset"] < source.end_offset)]
    return [
        _finding(
            source.plan,
            Kind.TAIL_UNREPLICATED,
            first,
            source.end_offset - 1,
            batch_count=len(seen),
            severity=Severity.LAG,
            detail=f"{source.end_offset - first} offsets, {_lag_ms(source, mirror)} ms behind",
        )
    ]


def _stretches(rows: BatchTable) -> list[BatchTable]:
    """Return `rows` cut where their offsets do not touch."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(rows["base_offset"][1:] != rows["last_offset"][:-1] + 1) + 1
    return np.split(rows, cuts)


def _span(rows: BatchTable) -> tuple[int, int]:
    return int(rows["base_offset"][0]), int(rows["last_offset"].max())


def _counts(rows: BatchTable) -> dict[str, Any]:
    producers = np.unique(rows["producer_id"])
    return {
        "batch_count": len(rows),
        "record_count": int(rows["record_count"].sum()),
        "producer_id": int(producers[0]) if len(producers) == 1 else -1,
    }


def attribute(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of one partition with `caused_by` set where another one explains them (INV-RCDI4).

    A finding explains those of lower precedence that share an offset with it; of two equal ones on both
    sides the source's explains the mirror's, which copied it.
    """
    ordered = sorted(
        findings, key=lambda finding: (_PRECEDENCE[finding.kind], finding.side is Side.MIRROR)
    )
    done: list[Finding] = []
    for finding in ordered:
        root = next((other for other in done if _explains(other, finding)), None)
        done.append(finding if root is None else explained(finding, root))
    return done


def _explains(root: Finding, finding: Finding) -> bool:
    if not root.touches(finding.first_offset, finding.last_offset):
        return False
    if root.kind is not finding.kind:
        return True
    return root.side is Side.SOURCE and finding.side is Side.MIRROR
