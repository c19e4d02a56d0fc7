"""What one segment proves: the few facts that the checks need, reduced where the bytes are.

A segment becomes rows: range digests, one row of order and chain facts, and the events of transactions in
buckets of producer ids. Both engines make the same rows with `evidence_of`; Spark only moves them.

The rows of a partition's segments, in order, are enough to check order, sequences and digests: a fault at a segment's
edge shows where two rows meet (`diff`). A row with a wrong CRC is counted in its range and listed as bad, and is used
for nothing else. Data of transactions from the cut on is left out: what the cut does not hold was not promised. Markers
and ledger records behind it are kept: they say that what was open at the cut has ended since.

Not here: judging (`diff`, `transactions`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.evidence.ledger_facts import LedgerFact, LedgerReader
from geo_replicator.reconciliation.plan import TRANSACTION_LEDGER, Plan, SegmentSpec
from geo_replicator.reconciliation.segments.batch_table import (
    NOT_CONTROL,
    BatchTable,
    identity_digests,
    range_digests,
)
from geo_replicator.reconciliation.segments.scanner import (
    BatchVisitor,
    SegmentScan,
    Stop,
    scan_segment,
)
from geo_replicator.reconciliation.segments.sidecar import SidecarError, read_sidecar
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from idempotency.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT

RANGE: Final = "range"
SEGMENT: Final = "segment"
EVENTS: Final = "events"
LEDGER: Final = "ledger"

_SEQUENCE_MASK: Final = 2**31 - 1
LISTED_MAX: Final = 1000
"""Bad batches, breaks of order and the like that one segment lists one by one; the others are counted."""

RUN_DTYPE: Final = np.dtype(
    [
        ("producer_id", "i8"),
        ("first_epoch", "i2"),
        ("last_epoch", "i2"),
        ("first_sequence", "i4"),
        ("next_sequence", "i4"),
        ("last_sequence_first", "i4"),
        ("leader_epoch_first", "i4"),
        ("leader_epoch_last", "i4"),
        ("first_offset", "i8"),
        ("first_batch_last_offset", "i8"),
        ("last_offset", "i8"),
        ("batches", "i4"),
    ]
)
"""Batches of one producer whose sequences follow each other, over epochs as long as each starts at 0."""

EVENT_DTYPE: Final = np.dtype(
    [
        ("side", "i1"),
        ("place", "i4"),
        ("producer_id", "i8"),
        ("producer_epoch", "i2"),
        ("control_type", "i2"),
        ("first_offset", "i8"),
        ("last_offset", "i8"),
        ("records", "i8"),
        ("batches", "i4"),
        ("max_timestamp_ms", "i8"),
        ("coordinator_epoch", "i4"),
        ("decision_shard", "i4"),
        ("decision_epoch", "i4"),
        ("decision_offset", "i8"),
        ("decision_stamp", "i8"),
    ]
)
"""Data batches of one producer with no marker between them (control_type -1), or one marker. `place` is the
partition's index in the plan, `side` 0 source and 1 mirror."""


class BadBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch that fails its CRC."""

    position: int
    base_offset: int
    last_offset: int
    digest: str
    is_last: bool


class Disorder(msgspec.Struct, frozen=True, array_like=True):
    """Batches that do not lie in offset order."""

    position: int
    first_offset: int
    last_offset: int
    batches: int


class Hole(msgspec.Struct, frozen=True, array_like=True):
    """Offsets between two neighbours that no batch has (`expected`..`found`-1), or that both have (overlap)."""

    expected: int
    found: int
    found_last: int


class SegmentEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Order and chain facts of one segment. `failure` is set where it could not be read at all."""

    spec: SegmentSpec
    walked_bytes: int = 0
    stop: Stop = Stop.END
    failure: str = ""
    from_sidecar: bool = False
    batches: int = 0
    records: int = 0
    first_offset: int = -1
    next_offset: int = -1
    max_timestamp_ms: int = -1
    leader_epoch_last: LeaderEpoch = NO_LEADER_EPOCH
    bad: list[BadBatch] = []
    bad_total: int = 0
    disorders: list[Disorder] = []
    disorders_total: int = 0
    holes: list[Hole] = []
    holes_total: int = 0
    runs: bytes = b""


class EvidenceRow(NamedTuple):
    """One row on its way to the checks; columns without meaning for the kind are 0."""

    kind: str
    side: str
    topic: str
    partition: int
    key: int
    """Range of a `range` row, base offset of a `segment` row, else the bucket. In a `segment` row x1 is the
    newest timestamp, and x2 is 1 if not all of it could be read."""
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    first_offset: int = 0
    last_offset: int = 0
    x1: int = 0
    x2: int = 0
    crc_bad: int = 0
    payload: bytes = b""


def evidence_of(spec: SegmentSpec, plan: Plan) -> Iterator[EvidenceRow]:
    """Read one segment and yield its rows. A segment that cannot be read gives one row that says so."""
    ledger = LedgerReader(spec) if spec.topic == TRANSACTION_LEDGER else None
    try:
        scan, from_sidecar = _scan(spec, plan, ledger)
    except OSError as error:
        reason = f"{type(error).__name__}: {error.strerror or error}"
        failed = SegmentEvidence(spec=spec, failure=reason)
        place = (SEGMENT, *_where(spec), spec.base_offset)
        last = spec.base_offset - 1
        yield EvidenceRow(*place, last_offset=last, x2=1, payload=msgspec.msgpack.encode(failed))
        return
    sound = scan.table[scan.table["crc_ok"] == 1]
    for entry in range_digests(scan.table):
        yield EvidenceRow._make((RANGE, *_where(spec), *entry.tolist(), b""))
    may_have_gaps = plan.partition_of(spec).is_compacted
    summary = _summary(spec, scan, sound, from_sidecar=from_sidecar, may_have_gaps=may_have_gaps)
    yield EvidenceRow(
        SEGMENT, spec.side.value, spec.topic, spec.partition, spec.base_offset,
        batches=summary.batches, first_offset=summary.first_offset,
        last_offset=max(summary.next_offset, spec.base_offset) - 1, x1=summary.max_timestamp_ms,
        payload=msgspec.msgpack.encode(summary),
    )  # fmt: skip
    yield from _event_rows(spec, plan, sound)
    if ledger is not None:
        yield from _ledger_rows(spec, plan, ledger.facts)


def read_headers(spec: SegmentSpec) -> BatchTable:
    """Return the batch headers of a segment for a comparison batch by batch; OSError as `scan_segment`."""
    return scan_segment(Path(spec.path), size_bytes=spec.size_bytes).table


def _row(spec: SegmentSpec, kind: str, key: int, *, payload: bytes) -> EvidenceRow:
    return EvidenceRow(kind, spec.side.value, spec.topic, spec.partition, key, payload=payload)


def _where(spec: SegmentSpec) -> tuple[str, str, int]:
    return spec.side.value, spec.topic, spec.partition


def _scan(spec: SegmentSpec, plan: Plan, visit: BatchVisitor | None) -> tuple[SegmentScan, bool]:
    path = Path(spec.path)
    if plan.options.trust_sidecars and visit is None and not spec.is_active:
        try:
            sidecar = read_sidecar(path, segment_bytes=spec.size_bytes)
        except (SidecarError, FileNotFoundError):
            pass  # not usable: the segment itself is read instead, which proves more
        else:
            return SegmentScan(sidecar.table, spec.size_bytes, spec.size_bytes, Stop.END), True
    return scan_segment(path, size_bytes=spec.size_bytes, visit=visit), False


def _summary(
    spec: SegmentSpec,
    scan: SegmentScan,
    sound: BatchTable,
    *,
    from_sidecar: bool,
    may_have_gaps: bool,
) -> SegmentEvidence:
    table = scan.table
    if not len(table):
        return SegmentEvidence(
            spec=spec, walked_bytes=scan.walked_bytes, stop=scan.stop, from_sidecar=from_sidecar
        )
    disorders, disorders_total = _disorders(table)
    holes, holes_total = _holes(table, may_have_gaps=may_have_gaps)
    return SegmentEvidence(
        spec=spec,
        walked_bytes=scan.walked_bytes,
        stop=scan.stop,
        from_sidecar=from_sidecar,
        batches=len(table),
        records=int(table["record_count"].sum()),
        first_offset=int(table["base_offset"].min()),
        next_offset=int(table["last_offset"].max()) + 1,
        max_timestamp_ms=int(table["max_timestamp_ms"].max()),
        leader_epoch_last=LeaderEpoch(int(table["leader_epoch"][-1])),
        bad=_bad(table),
        bad_total=len(table) - len(sound),
        disorders=disorders,
        disorders_total=disorders_total,
        holes=holes,
        holes_total=holes_total,
        runs=sequence_runs(sound).tobytes(),
    )


def _bad(table: BatchTable) -> list[BadBatch]:
    at = np.flatnonzero(table["crc_ok"] == 0)[:LISTED_MAX]
    digests, _ = identity_digests(table[at])
    last = len(table) - 1
    return [
        BadBatch(
            int(row["position"]), int(row["base_offset"]), int(row["last_offset"]),
            f"{int(digest):016x}", bool(index == last),
        )
        for index, row, digest in zip(at, table[at], digests, strict=True)
    ]  # fmt: skip


def _disorders(table: BatchTable) -> tuple[list[Disorder], int]:
    """Return the first stretches of the file in which batches lie in another order than their offsets, and their number."""
    bases = table["base_offset"]
    if not len(bases) or bool((bases[1:] >= bases[:-1]).all()):
        return [], 0
    order = np.argsort(bases, kind="stable")
    moved = np.flatnonzero(order != np.arange(len(order)))
    # A stretch ends where everything before it is below everything behind it.
    ceiling = np.maximum.accumulate(bases)
    floor = np.minimum.accumulate(bases[::-1])[::-1]
    closed = np.append(ceiling[:-1] < floor[1:], True)
    stretches = np.cumsum(closed) - closed
    found = []
    disordered = np.unique(stretches[moved])
    for stretch in disordered[:LISTED_MAX]:
        rows = table[stretches == stretch]
        found.append(
            Disorder(
                int(rows["position"].min()), int(rows["base_offset"].min()),
                int(rows["last_offset"].max()), len(rows),
            )
        )  # fmt: skip
    return found, len(disordered)


def _holes(table: BatchTable, *, may_have_gaps: bool) -> tuple[list[Hole], int]:
    """Return the first places where neighbours do not touch, and their number.

    Of a compacted log, which has gaps, only those where neighbours overlap.
    """
    ordered = table[np.argsort(table["base_offset"], kind="stable")]
    expected = np.maximum.accumulate(ordered["last_offset"])[:-1] + 1
    found = ordered["base_offset"][1:]
    at = np.flatnonzero(found < expected if may_have_gaps else found != expected)
    listed = [
        Hole(int(expected[i]), int(found[i]), int(ordered["last_offset"][i + 1]))
        for i in at[:LISTED_MAX]
    ]
    return listed, len(at)


def sequence_runs(sound: BatchTable) -> npt.NDArray[Any]:
    """Return the runs of all idempotent producers in a segment, by producer and offset (`RUN_DTYPE`)."""
    rows = sound[(sound["producer_id"] >= 0) & (sound["base_sequence"] >= 0)]
    rows = rows[(rows["attributes"] & CONTROL_BIT) == 0]
    if not len(rows):
        return np.empty(0, RUN_DTYPE)
    rows = rows[np.lexsort((rows["base_offset"], rows["producer_id"]))]
    spans = rows["last_offset"] - rows["base_offset"] + 1
    following = ((rows["base_sequence"].astype(np.int64) + spans) & _SEQUENCE_MASK).astype(np.int64)
    same = rows["producer_id"][1:] == rows["producer_id"][:-1]
    follows = continues(
        rows["producer_epoch"][:-1],
        following[:-1],
        rows["producer_epoch"][1:],
        rows["base_sequence"][1:],
    )
    starts = np.flatnonzero(np.append(True, ~(same & follows)))
    ends = np.append(starts[1:], len(rows)) - 1
    runs = np.empty(len(starts), RUN_DTYPE)
    runs["producer_id"] = rows["producer_id"][starts]
    runs["first_epoch"], runs["last_epoch"] = (
        rows["producer_epoch"][starts],
        rows["producer_epoch"][ends],
    )
    runs["first_sequence"] = rows["base_sequence"][starts]
    runs["next_sequence"] = following[ends]
    runs["last_sequence_first"] = _first_of_last_epoch(rows, starts, ends)
    runs["leader_epoch_first"] = rows["leader_epoch"][starts]
    runs["leader_epoch_last"] = rows["leader_epoch"][ends]
    runs["first_offset"], runs["last_offset"] = (
        rows["base_offset"][starts],
        rows["last_offset"][ends],
    )
    runs["first_batch_last_offset"] = rows["last_offset"][starts]
    runs["batches"] = ends - starts + 1
    return runs


def continues(
    epochs_before: Any, next_sequences: Any, epochs: Any, sequences: Any
) -> npt.NDArray[np.bool_]:
    """Return where a batch follows the one before: the next sequence, or 0 in a newer epoch (C3, C4)."""
    result: npt.NDArray[np.bool_] = ((epochs == epochs_before) & (sequences == next_sequences)) | (
        (epochs > epochs_before) & (sequences == 0)
    )
    return result


def _first_of_last_epoch(
    rows: BatchTable, starts: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
) -> npt.NDArray[np.int64]:
    """Return the first sequence that the run holds of its last epoch: 0 if an epoch began inside it."""
    same = rows["producer_epoch"][starts] == rows["producer_epoch"][ends]
    result: npt.NDArray[np.int64] = np.where(same, rows["base_sequence"][starts], 0)
    return result


def _event_rows(spec: SegmentSpec, plan: Plan, sound: BatchTable) -> Iterator[EvidenceRow]:
    rows = sound[(sound["attributes"] & TRANSACTIONAL_BIT) != 0]
    data, marker = (rows["attributes"] & CONTROL_BIT) == 0, np.isin(rows["control_type"], (0, 1))
    if spec.bound >= 0:
        data &= rows["base_offset"] < spec.bound
    rows = rows[data | marker]
    if not len(rows):
        return
    place = list(plan.partitions).index(f"{spec.topic}/{spec.partition}")
    events = _events(rows)
    events["side"] = 0 if spec.side.value == "source" else 1
    events["place"] = place
    buckets = events["producer_id"] % plan.bucket_count
    for bucket in range(plan.bucket_count):
        chosen = events[buckets == bucket]
        if len(chosen):
            yield _row(spec, EVENTS, bucket, payload=chosen.tobytes())


def _events(rows: BatchTable) -> npt.NDArray[Any]:
    """Return `EVENT_DTYPE` rows: markers as they are, data merged up to the next marker."""
    rows = rows[np.lexsort((rows["base_offset"], rows["producer_id"]))]
    data = rows["control_type"] == NOT_CONTROL
    same = (rows["producer_id"][1:] == rows["producer_id"][:-1]) & (
        rows["producer_epoch"][1:] == rows["producer_epoch"][:-1]
    )
    starts = np.flatnonzero(np.append(True, ~(same & data[1:] & data[:-1])))
    events = np.zeros(len(starts), EVENT_DTYPE)
    for name in (
        "producer_id", "producer_epoch", "control_type", "coordinator_epoch", "decision_shard",
        "decision_epoch", "decision_offset", "decision_stamp",
    ):  # fmt: skip
        events[name] = rows[name][starts]
    events["first_offset"] = rows["base_offset"][starts]
    events["last_offset"] = np.maximum.reduceat(rows["last_offset"], starts)
    events["records"] = np.add.reduceat(rows["record_count"].astype(np.int64), starts)
    events["batches"] = np.diff(np.append(starts, len(rows)))
    events["max_timestamp_ms"] = np.maximum.reduceat(rows["max_timestamp_ms"], starts)
    return events


def _ledger_rows(spec: SegmentSpec, plan: Plan, facts: list[LedgerFact]) -> Iterator[EvidenceRow]:
    buckets: dict[int, list[LedgerFact]] = {}
    for fact in facts:
        for bucket in {producer_id % plan.bucket_count for producer_id in fact.producer_ids}:
            buckets.setdefault(bucket, []).append(fact)
    for bucket, chosen in sorted(buckets.items()):
        yield _row(spec, LEDGER, bucket, payload=msgspec.msgpack.encode(chosen))
