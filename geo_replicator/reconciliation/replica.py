"""One side of one partition, judged alone: checksums, order, gaps and sequences.

Physical order is judged in the file's own order, never from the join of two sides. A log may end inside a batch, or
with a last batch that fails its CRC, without fault: a crash tears the tail of the active segment. It is a fault below
the cut, and where the other side has more. A compacted topic may have offset gaps; no other may. After a failover a
producer may have a gap in its sequences: what was acknowledged and not mirrored is lost and stated as loss, and the
first gap under a newer region epoch is accepted once (T22).

Not here: comparing two sides (`diff`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.evidence.rows import RUN_DTYPE, Hole, SegmentEvidence, continues
from geo_replicator.reconciliation.findings import Finding, Kind, Side, with_rest
from geo_replicator.reconciliation.plan import PartitionPlan, region_epoch_of
from geo_replicator.reconciliation.segments.scanner import Stop
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId

_SEQUENCE_MASK: Final = 2**31 - 1
_SEQUENCE_HALF: Final = 1 << 30


@dataclass(slots=True)
class Replica:
    """What one side holds of a partition. `end_offset` leaves out a torn tail that is no fault."""

    side: Side
    plan: PartitionPlan
    evidence: list[SegmentEvidence]
    start_offset: int = 0
    end_offset: int = 0
    unread: list[tuple[int, int]] = field(default_factory=list)
    """Offsets [first, last] of this side that nobody could read."""
    unseen: list[tuple[int, int]] = field(default_factory=list)
    """Those of them that may be sound: an error of the disk, or a race with the live region."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def batches(self) -> int:
        """Batches read."""
        return sum(segment.batches for segment in self.evidence)

    @property
    def records(self) -> int:
        """Records in them."""
        return sum(segment.records for segment in self.evidence)

    @property
    def walked_bytes(self) -> int:
        """Bytes in them."""
        return sum(segment.walked_bytes for segment in self.evidence)

    @property
    def max_timestamp_ms(self) -> int:
        """Newest record timestamp, -1 without records."""
        return max((segment.max_timestamp_ms for segment in self.evidence), default=-1)

    @property
    def region_epoch_last(self) -> int:
        """Region epoch of the last batch, -1 without batches."""
        epochs = [segment.leader_epoch_last for segment in self.evidence if segment.batches]
        return region_epoch_of(epochs[-1]) if epochs else -1

    def may_hold(self, first_offset: int, last_offset: int) -> bool:
        """Return whether some of these offsets may lie in what could not be read."""
        return any(first <= last_offset and first_offset <= last for first, last in self.unseen)

    def finding(self, kind: Kind, first_offset: int, last_offset: int, **facts: Any) -> None:
        """Add a finding about this side."""
        self.findings.append(
            Finding(
                kind=kind,
                side=self.side,
                topic=self.plan.topic,
                partition=self.plan.partition,
                topic_id=self.plan.topic_id,
                first_offset=first_offset,
                last_offset=max(first_offset, last_offset),
                **facts,
            )
        )

    def count_rest(self, listed_from: int, rest: int) -> None:
        """Note that `rest` more of what was found from `listed_from` on are not listed by themselves (INV-RCR4)."""
        listed = self.findings[listed_from:]
        self.findings[listed_from:] = with_rest(listed, len(listed) + rest)


def read_replica(side: Side, plan: PartitionPlan, segments: list[SegmentEvidence]) -> Replica:
    """Return one side with its offsets; nothing is judged yet."""
    ordered = sorted(segments, key=lambda segment: segment.spec.base_offset)
    while len(ordered) > 1 and _expired(ordered[0]):
        ordered.pop(0)  # retention moved the log start while we were looking
    replica = Replica(side, plan, ordered)
    if ordered:
        replica.start_offset = max(ordered[0].spec.base_offset, plan.log_start)
        replica.end_offset = max(
            segment.next_offset if segment.batches else segment.spec.base_offset
            for segment in ordered
        )
    return replica


def _expired(segment: SegmentEvidence) -> bool:
    return segment.failure.startswith("FileNotFoundError")


def judge_alone(replica: Replica, other_end_offset: int) -> None:
    """Add all findings that `replica` shows by itself; may lower `end_offset`."""
    for segment in replica.evidence:
        _judge_segment(replica, segment, other_end_offset)
    _judge_edges(replica)
    for finding in sequence_findings(replica):
        replica.findings.append(finding)


def _judge_segment(replica: Replica, segment: SegmentEvidence, other_end_offset: int) -> None:
    _judge_crcs(replica, segment, other_end_offset)
    before = len(replica.findings)
    for disorder in segment.disorders:
        replica.finding(
            Kind.REORDERED,
            disorder.first_offset,
            disorder.last_offset,
            batch_count=disorder.batches,
            detail=f"{disorder.batches} batches from byte {disorder.position} of segment"
            f" {segment.spec.base_offset} lie out of order",
        )
    replica.count_rest(before, segment.disorders_total - len(segment.disorders))
    before = len(replica.findings)
    for hole in segment.holes:
        _judge_hole(replica, hole)
    replica.count_rest(before, segment.holes_total - len(segment.holes))
    _judge_stop(replica, segment, other_end_offset)


def _judge_crcs(replica: Replica, segment: SegmentEvidence, other_end_offset: int) -> None:
    before = len(replica.findings)
    for bad in segment.bad:
        may_be_torn = bad.is_last and segment.spec.is_active
        if may_be_torn and not _must_hold(replica, bad.base_offset, other_end_offset):
            replica.end_offset = min(replica.end_offset, bad.base_offset)
            continue
        ours = {f"digest_{replica.side.value}": bad.digest}
        replica.finding(
            Kind.CRC_BAD_LOCAL,
            bad.base_offset,
            bad.last_offset,
            batch_count=1,
            detail=f"byte {bad.position} of segment {segment.spec.base_offset}",
            **ours,
        )
    replica.count_rest(before, segment.bad_total - len(segment.bad))


def _must_hold(replica: Replica, offset: int, other_end_offset: int) -> bool:
    """Return whether this side must have `offset` whole: below the cut, or copied from it already."""
    return offset < replica.plan.bound or (
        replica.side is Side.SOURCE and offset < other_end_offset
    )


def _judge_stop(replica: Replica, segment: SegmentEvidence, other_end_offset: int) -> None:
    first = segment.next_offset if segment.batches else segment.spec.base_offset
    last = segment.spec.next_base_offset - 1
    if segment.spec.is_active:
        last = max(other_end_offset, replica.plan.bound, first + 1) - 1
    if segment.failure or segment.stop is Stop.SHRUNK:
        interval = (segment.spec.base_offset if segment.failure else first, last)
        replica.unread.append(interval)
        replica.unseen.append(interval)
        return
    if segment.stop is Stop.END:
        return
    torn = segment.stop is Stop.TORN_TAIL and segment.spec.is_active
    if torn and not _must_hold(replica, first, other_end_offset):
        return
    skipped = segment.spec.size_bytes - segment.walked_bytes
    replica.finding(
        Kind.TORN_BATCH,
        first,
        last,
        detail=f"{skipped} bytes from byte {segment.walked_bytes} of segment"
        f" {segment.spec.base_offset} are no batch ({segment.stop.value})",
    )
    replica.unread.append((first, last))


def _judge_edges(replica: Replica) -> None:
    readable = [segment for segment in replica.evidence if not segment.failure]
    for segment in readable:
        if segment.batches and segment.first_offset > segment.spec.base_offset:
            _judge_hole(
                replica, Hole(segment.spec.base_offset, segment.first_offset, segment.next_offset)
            )
    for before, after in pairwise(readable):
        if before.stop is not Stop.END or before.spec.next_base_offset != after.spec.base_offset:
            continue  # already reported as torn, or unread in between
        end = before.next_offset if before.batches else before.spec.base_offset
        if end != after.spec.base_offset:
            _judge_hole(replica, Hole(end, after.spec.base_offset, after.next_offset))


def _judge_hole(replica: Replica, hole: Hole) -> None:
    if hole.found < hole.expected:
        last = min(hole.found_last, hole.expected - 1)
        replica.finding(
            Kind.OVERLAP,
            hole.found,
            last,
            detail=f"offset {hole.expected} was next, {hole.found} came",
        )
    elif not replica.plan.is_compacted:
        replica.finding(
            Kind.OFFSET_GAP,
            hole.expected,
            hole.found - 1,
            detail=f"no batch has offsets {hole.expected}..{hole.found - 1}",
        )


def sequence_findings(replica: Replica) -> Iterator[Finding]:
    """Yield DUPLICATE and SEQ_GAP of every producer of one side."""
    parts = [np.frombuffer(segment.runs, RUN_DTYPE) for segment in replica.evidence]
    runs = np.concatenate(parts) if parts else np.empty(0, RUN_DTYPE)
    if len(runs) < 2:
        return
    runs = runs[np.lexsort((runs["first_offset"], runs["producer_id"]))]
    same = runs["producer_id"][1:] == runs["producer_id"][:-1]
    follows = continues(
        runs["last_epoch"][:-1], runs["next_sequence"][:-1],
        runs["first_epoch"][1:], runs["first_sequence"][1:],
    )  # fmt: skip
    broken = np.unique(runs["producer_id"][1:][same & ~follows])
    for producer_id in broken:
        yield from _judge_producer(replica, runs[runs["producer_id"] == producer_id])


def _judge_producer(replica: Replica, runs: npt.NDArray[Any]) -> Iterator[Finding]:
    """Walk one producer's runs with the highest sequence seen, so that a duplicate is told once."""
    epoch, following = int(runs[0]["last_epoch"]), int(runs[0]["next_sequence"])
    last_offset, leader_epoch = (
        int(runs[0]["last_offset"]),
        LeaderEpoch(int(runs[0]["leader_epoch_last"])),
    )
    for run in runs[1:]:
        first_epoch, sequence = int(run["first_epoch"]), int(run["first_sequence"])
        behind = first_epoch < epoch
        ahead = (sequence - following) & _SEQUENCE_MASK if first_epoch == epoch else sequence
        is_repeat = not behind and first_epoch == epoch and ahead >= _SEQUENCE_HALF
        promoted = region_epoch_of(LeaderEpoch(int(run["leader_epoch_first"]))) > region_epoch_of(
            leader_epoch
        )
        if behind or is_repeat:
            yield _sequence_finding(
                replica, Kind.DUPLICATE, run, _repeat_text(run, epoch, following)
            )
        elif ahead and not promoted and not replica.may_hold(last_offset, int(run["first_offset"])):
            yield _sequence_finding(
                replica, Kind.SEQ_GAP, run, f"{ahead} sequences before {sequence} are not there",
                after_offset=last_offset,
            )  # fmt: skip
        last_offset = max(last_offset, int(run["last_offset"]))
        leader_epoch = LeaderEpoch(int(run["leader_epoch_last"]))
        newest = (int(run["last_epoch"]), int(run["next_sequence"]))
        if not behind and not (
            is_repeat and newest[0] == epoch and _not_above(newest[1], following)
        ):
            epoch, following = newest


def _not_above(number: int, other: int) -> bool:
    return (number - other) & _SEQUENCE_MASK >= _SEQUENCE_HALF or number == other


def _repeat_text(run: Any, epoch: int, following: int) -> str:
    if int(run["first_epoch"]) < epoch:
        return f"producer epoch went back from {epoch} to {int(run['first_epoch'])}"
    return f"sequence {int(run['first_sequence'])} again, {following} was next"


def _sequence_finding(
    replica: Replica, kind: Kind, run: Any, detail: str, *, after_offset: int | None = None
) -> Finding:
    first, last = int(run["first_offset"]), int(run["first_batch_last_offset"])
    if after_offset is not None and after_offset + 1 < first:
        first, last = after_offset + 1, first - 1
    made = Finding(
        kind=kind,
        side=replica.side,
        topic=replica.plan.topic,
        partition=replica.plan.partition,
        topic_id=replica.plan.topic_id,
        first_offset=first,
        last_offset=last,
        producer_id=ProducerId(int(run["producer_id"])),
        producer_epoch=ProducerEpoch(int(run["first_epoch"])),
        detail=detail,
    )
    return msgspec.structs.replace(made, batch_count=1)
