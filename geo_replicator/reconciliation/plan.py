"""What a run reads, how far it proves, and how the work is cut into tasks: decided once, before any byte is read.

INV-RCP2  a task is many segments of about the same total size; a segment is read by exactly one task
The plan is a pure function of the two listings, the topics, the cut and the options; so is the run id. A partition is
compared in [log start, horizon); with a cut the horizon is the cut, without one it is what both sides hold; what lies
behind is lag and never a fault. A topic whose two sides are not the same topic is reported and not compared at all.

Not here: listing folders (`scanner`), finding out the cut (`job`).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from geo_replicator.reconciliation.findings import Finding, Kind, Severity, Side
from geo_replicator.reconciliation.segments.scanner import PartitionFiles
from idempotency import identity
from idempotency.identity import LeaderEpoch, RegionEpoch

TASK_BYTES_MAX: Final = 1 << 30
NO_BOUND: Final = -1
TRANSACTION_LEDGER: Final = identity.TRANSACTION_LEDGER
TIDEMARK_LEDGER: Final = identity.TIDEMARK_LEDGER
_REGION_EPOCH_SHIFT: Final = 16


def region_epoch_of(leader_epoch: LeaderEpoch) -> int:
    """Return the region epoch a leader epoch was given out in (T19)."""
    return leader_epoch >> _REGION_EPOCH_SHIFT


class Until(Enum):
    """Where the comparison ends."""

    CUT = "cut"
    """At the last tidemark the mirror has reached: a point at which both sides must be whole."""
    END = "end"
    """At the end of both logs as they were sampled."""


class TopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a region's metadata says of one topic."""

    partition_count: int
    configs: dict[str, str] = {}


class RegionInput(msgspec.Struct, frozen=True, kw_only=True):
    """One region: its name, what its folder held when it was sampled, and its topics if they are known."""

    name: str
    partitions: list[PartitionFiles]
    topics: dict[str, TopicFacts] | None = None


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A tidemark in names: the first offset that it does not hold, by ``topic/partition``."""

    label: str
    positions: dict[str, int]
    wall_ms: int = 0
    old: dict[str, int] = {}
    """Positions of a tidemark that is `hanging_ms` older: what lies below was written before that time."""
    removed: frozenset[str] = frozenset()
    """Logs (``topic-id-hex/partition``) that the source removed behind the cut: at the mirror they go later (T15)."""

    def bound(self, topic: str, partition: int) -> int:
        """Return D or L; 0 for a log that is younger than the tidemark (T15)."""
        return self.positions.get(f"{topic}/{partition}", 0)


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """A known change of the primary region: who did not follow it yet diverges from these offsets on (T25)."""

    region_epoch: RegionEpoch
    positions: dict[str, int]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    topics: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    until: Until = Until.CUT
    findings_max: int = 10_000
    trust_sidecars: bool = False
    rpo_records: int = -1
    rpo_ms: int = -1
    hanging_ms: int = 900_000

    def takes(self, topic: str) -> bool:
        """Return whether the globs leave `topic` in."""
        included = not self.topics or any(fnmatchcase(topic, glob) for glob in self.topics)
        return included and not any(fnmatchcase(topic, glob) for glob in self.exclude)


class SegmentSpec(msgspec.Struct, frozen=True):
    """One segment to read."""

    side: Side
    topic: str
    partition: int
    base_offset: int
    path: str
    size_bytes: int
    is_active: bool
    next_base_offset: int
    """Base offset of the segment behind it; -1 of the active one."""
    bound: int
    """The cut; events of transactions from there on are not collected. -1: none."""


class PartitionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks of one partition must know. `bound` is the cut (-1: none)."""

    topic: str
    partition: int
    topic_id: str = ""
    bound: int = NO_BOUND
    is_compacted: bool = False
    cleaned_below: int = 0
    """Below it a side was compacted, each by its own clock: only damage is looked for there, and newest values."""
    is_compared_by_key: bool = False
    """Whether the newest values below the clean point were compared (`compacted.by_key`)."""
    log_start: int = 0
    """Where the source's log begins by DeleteRecords: what lies below is history, if it is there or not."""
    old_below: int = 0
    """What lies below was written `hanging_ms` before the cut, or earlier, by the clock of the region that acted."""
    fork_offset: int = -1
    fork_region_epoch: RegionEpoch = RegionEpoch(-1)
    until: Until = Until.END


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs. `partitions` is keyed ``topic/partition``."""

    run_id: str
    source_name: str
    mirror_name: str
    options: Options
    cut_label: str
    cut_wall_ms: int
    partitions: dict[str, PartitionPlan]
    tasks: list[list[SegmentSpec]]
    bucket_count: int
    mismatches: list[Finding]

    @property
    def segments(self) -> list[SegmentSpec]:
        """Return all segments, in task order."""
        return [segment for task in self.tasks for segment in task]

    def partition_of(self, segment: SegmentSpec) -> PartitionPlan:
        """Return the plan of a segment's partition."""
        return self.partitions[f"{segment.topic}/{segment.partition}"]


def make_plan(
    source: RegionInput,
    mirror: RegionInput,
    options: Options,
    *,
    cut: Cut | None,
    fork: Fork | None = None,
    parallelism: int = 2,
) -> Plan:
    """Return the plan of comparing `mirror` with `source`."""
    bounded = cut if options.until is Until.CUT else None
    mismatches = _mismatches(source, mirror, options, bounded)
    stopped = {finding.topic for finding in mismatches if finding.partition < 0}
    stopped_parts = {(finding.topic, finding.partition) for finding in mismatches}
    partitions: dict[str, PartitionPlan] = {}
    segments: list[SegmentSpec] = []
    starts = {(files.topic, files.partition): files.log_start for files in source.partitions}
    cleaned: dict[tuple[str, int], int] = {}
    for files in (*source.partitions, *mirror.partitions):
        place = (files.topic, files.partition)
        cleaned[place] = max(cleaned.get(place, 0), files.cleaned_below)
    for side, region in ((Side.SOURCE, source), (Side.MIRROR, mirror)):
        for files in region.partitions:
            place = (files.topic, files.partition)
            if not options.takes(files.topic) or files.topic in stopped or place in stopped_parts:
                continue
            cleaned_below = cleaned.get((files.topic, files.partition), 0)
            plan = _partition_plan(files, source, bounded, fork, cleaned_below)
            plan = msgspec.structs.replace(
                plan,
                log_start=starts.get(place, 0),
                old_below=0 if cut is None else cut.old.get(f"{files.topic}/{files.partition}", 0),
            )
            if bounded is not None and plan.bound == 0:
                continue  # younger than the tidemark: nothing of it has to be there (T15)
            partitions[f"{files.topic}/{files.partition}"] = plan
            segments += _specs(side, files, plan)
    return Plan(
        run_id=_run_id(source, mirror, options, bounded, segments),
        source_name=source.name,
        mirror_name=mirror.name,
        options=options,
        cut_label="" if bounded is None else bounded.label,
        cut_wall_ms=0 if bounded is None else bounded.wall_ms,
        partitions=dict(sorted(partitions.items())),
        tasks=pack(segments, parallelism=parallelism),
        bucket_count=max(1, parallelism),
        mismatches=mismatches,
    )


def _partition_plan(
    files: PartitionFiles,
    source: RegionInput,
    cut: Cut | None,
    fork: Fork | None,
    cleaned_below: int,
) -> PartitionPlan:
    facts = (source.topics or {}).get(files.topic)
    place = f"{files.topic}/{files.partition}"
    return PartitionPlan(
        topic=files.topic,
        partition=files.partition,
        topic_id=files.topic_id,
        bound=NO_BOUND if cut is None else cut.bound(files.topic, files.partition),
        is_compacted=facts is not None and "compact" in facts.configs.get("cleanup.policy", ""),
        cleaned_below=cleaned_below,
        fork_offset=-1 if fork is None else fork.positions.get(place, -1),
        fork_region_epoch=RegionEpoch(-1) if fork is None else fork.region_epoch,
        until=Until.END if cut is None else Until.CUT,
    )


def _specs(side: Side, files: PartitionFiles, plan: PartitionPlan) -> Iterable[SegmentSpec]:
    following = [*(segment.base_offset for segment in files.segments[1:]), -1]
    for segment, next_base in zip(files.segments, following, strict=False):
        yield SegmentSpec(
            side, files.topic, files.partition, segment.base_offset, str(segment.path),
            segment.size_bytes, next_base < 0, next_base, plan.bound,
        )  # fmt: skip


def pack(segments: Sequence[SegmentSpec], *, parallelism: int) -> list[list[SegmentSpec]]:
    """Return `segments` in tasks of even size, largest first; at most 1 GiB each if it can be helped.

    Few large tasks: each costs about 70 ms whatever it reads (spark.md 3b).
    """
    if not segments:
        return []
    total = sum(segment.size_bytes for segment in segments)
    task_count = min(len(segments), max(parallelism, -(-total // TASK_BYTES_MAX)))
    tasks: list[list[SegmentSpec]] = [[] for _ in range(task_count)]
    loads = [0] * task_count
    for segment in sorted(segments, key=lambda spec: (-spec.size_bytes, spec.path)):
        lightest = loads.index(min(loads))
        tasks[lightest].append(segment)
        loads[lightest] += segment.size_bytes + 65_536
    return tasks


def _mismatches(
    source: RegionInput, mirror: RegionInput, options: Options, cut: Cut | None
) -> list[Finding]:
    found: list[Finding] = []
    left, right = _by_topic(source), _by_topic(mirror)
    for topic in sorted({*left, *right}):
        if not options.takes(topic):
            continue
        if cut is not None and cut.removed and _was_removed(topic, source, mirror, cut):
            found.append(
                Finding(
                    kind=Kind.TAIL_UNREPLICATED, side=Side.MIRROR, topic=topic, partition=-1,
                    severity=Severity.LAG, detail="deleted at the primary behind the cut: here it goes when that is reached",
                )
            )  # fmt: skip
            continue
        reason = _different_topic(topic, source, mirror, cut)
        if reason:
            found.append(_mismatch(topic, -1, Side.MIRROR, reason))
            continue
        for partition in sorted(left.get(topic, set()) ^ right.get(topic, set())):
            if cut is not None and cut.bound(topic, partition) == 0:
                continue
            there = Side.MIRROR if partition in left.get(topic, set()) else Side.SOURCE
            found.append(_mismatch(topic, partition, there, f"{there.value} has no such partition"))
    return found


def _was_removed(topic: str, source: RegionInput, mirror: RegionInput, cut: Cut) -> bool:
    """Return whether what the mirror has under a name was removed at the primary behind the cut (T15).

    Only a removal that a tidemark of the source names counts: a log that merely lacks there is a fault (T34).
    """
    held = {
        f"{files.topic_id}/{files.partition}" for files in mirror.partitions if files.topic == topic
    }
    there = {
        f"{files.topic_id}/{files.partition}" for files in source.partitions if files.topic == topic
    }
    return bool(held) and not held & there and held <= cut.removed


def _mismatch(topic: str, partition: int, side: Side, detail: str) -> Finding:
    return Finding(
        kind=Kind.TOPIC_MISMATCH, side=side, topic=topic, partition=partition, detail=detail
    )


def _by_topic(region: RegionInput) -> dict[str, set[int]]:
    topics: dict[str, set[int]] = {}
    for files in region.partitions:
        topics.setdefault(files.topic, set()).add(files.partition)
    return topics


_COMPARED_CONFIGS: Final = (
    "cleanup.policy", "compression.type", "max.message.bytes", "message.timestamp.type",
)  # fmt: skip


def _different_topic(topic: str, source: RegionInput, mirror: RegionInput, cut: Cut | None) -> str:
    ids = [
        {files.topic_id for files in region.partitions if files.topic == topic}
        for region in (source, mirror)
    ]
    if all(ids) and ids[0] != ids[1]:
        names = " against ".join(", ".join(sorted(found)) for found in ids)
        return f"topic id {names}: deleted and created again?"
    left, right = ((region.topics or {}).get(topic) for region in (source, mirror))
    if left is None or right is None:
        return ""
    # Partitions that the primary added behind the cut are lag.
    grown = range(right.partition_count, left.partition_count)
    is_lag = cut is not None and bool(grown) and not any(cut.bound(topic, n) for n in grown)
    if left.partition_count != right.partition_count and not is_lag:
        return f"{left.partition_count} partitions against {right.partition_count}"
    for key in _COMPARED_CONFIGS:
        if left.configs.get(key) != right.configs.get(key):
            return f"{key}={left.configs.get(key)} against {right.configs.get(key)}"
    return ""


def _run_id(
    source: RegionInput,
    mirror: RegionInput,
    options: Options,
    cut: Cut | None,
    segments: Sequence[SegmentSpec],
) -> str:
    hasher = hashlib.sha256()
    horizon: Mapping[str, int] = {} if cut is None else cut.positions
    sizes = sorted(
        (s.side.value, s.topic, s.partition, s.base_offset, s.size_bytes) for s in segments
    )
    facts = (source.name, mirror.name, options, "" if cut is None else cut.label)
    hasher.update(msgspec.json.encode([facts, sorted(horizon.items()), sizes]))
    return hasher.hexdigest()[:12]
