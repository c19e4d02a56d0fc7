"""What was compacted, compared by key: below the clean point two regions differ in bytes, and not in newest values.

INV-RCBK1  below the clean point of either side, both have the same newest record of each key (offset and value) that is
           not aborted; a tombstone is as good as nothing, since each side drops it by its own clock
INV-RCBK2  what cannot be compared so is not covered, and nothing is said of it: compressed batches, records without a
           key, damage (which is reported by itself), more than `KEYED_BYTES_MAX`, a log that was cleaned further meanwhile

Of each side is read what lies below the clean point, and behind it as far as the ends of transactions that began there.
Runs where the plan is made, in one process: what was compacted is small. Not here: how a log is compacted
(`region_broker.log.cleaning`), bytes from the clean point on (`diff`).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.evidence.ledger_facts import iter_records
from geo_replicator.reconciliation.findings import Finding, Kind, Side, with_rest
from geo_replicator.reconciliation.plan import NO_BOUND, PartitionPlan, Plan, SegmentSpec
from geo_replicator.reconciliation.segments.batch_table import BatchTable
from geo_replicator.reconciliation.segments.scanner import cleaned_below, scan_segment
from idempotency.identity import ProducerId
from idempotency.ledger_bytes import LedgerError
from idempotency.record_batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchError,
    ControlType,
    read_marker,
)

KEYED_BYTES_MAX: Final = 512 << 20
_LISTED_MAX: Final = 10_000

Newest = dict[bytes, tuple[int, bytes | None]]
"""Offset and digest of the value (None: a tombstone) of the newest record, by key."""


class NotComparable(Exception):
    """One side cannot be reduced to its newest values; the text says why."""


def compare_compacted(plan: Plan) -> tuple[Plan, dict[str, list[Finding]]]:
    """Return the plan that knows which partitions were compared by key, and what differs, by ``topic/partition``."""
    partitions = dict(plan.partitions)
    findings: dict[str, list[Finding]] = {}
    for name, part in plan.partitions.items():
        if not part.cleaned_below or NO_BOUND < part.bound < part.cleaned_below:
            continue
        specs = [spec for spec in plan.segments if (spec.topic, spec.partition) == _place(part)]
        by_side = [[spec for spec in specs if spec.side is side] for side in Side]
        start = max(min((spec.base_offset for spec in side), default=0) for side in by_side)
        try:
            sides = [_newest(part, side, start) for side in by_side]
        except (NotComparable, OSError):
            continue  # its compacted part counts as not covered
        partitions[name] = msgspec.structs.replace(part, is_compared_by_key=True)
        found, total = _listed(_differences(part, *sides))
        if found:
            findings[name] = with_rest(found, total)
    return msgspec.structs.replace(plan, partitions=partitions), findings


def _listed(found: Iterable[Finding]) -> tuple[list[Finding], int]:
    """Return the first of `found`, and how many there are."""
    listed, total = [], 0
    for finding in found:
        total += 1
        if total <= _LISTED_MAX:
            listed.append(finding)
    return listed, total


def _place(part: PartitionPlan) -> tuple[str, int]:
    return part.topic, part.partition


def _differences(part: PartitionPlan, source: Newest, mirror: Newest) -> Iterable[Finding]:
    for key in sorted({*source, *mirror}):
        ours, theirs = source.get(key), mirror.get(key)
        if ours == theirs:
            continue
        offset, digest = ours or theirs or (-1, b"")
        other = theirs or (-1, b"")
        kind = Kind.MISSING if theirs is None else Kind.EXTRA if ours is None else Kind.DIVERGENT
        yield Finding(
            kind=kind,
            side=Side.MIRROR,
            topic=part.topic,
            partition=part.partition,
            topic_id=part.topic_id,
            first_offset=offset,
            last_offset=offset,
            batch_count=1,
            record_count=1,
            digest_source="" if ours is None else (digest or b"").hex(),
            digest_mirror="" if theirs is None else (other[1] or b"").hex(),
            detail=f"newest record of key {key[:64]!r} below {part.cleaned_below}, where the log is compacted: "
            f"primary {_shown(ours)}, mirror {_shown(theirs)}",
        )


def _shown(newest: tuple[int, bytes | None] | None) -> str:
    return "has none" if newest is None else f"at offset {newest[0]}"


def _newest(part: PartitionPlan, specs: Sequence[SegmentSpec], start: int) -> Newest:
    """Return one side's newest values at or above offset `start`; raises `NotComparable`, OSError."""
    below = part.cleaned_below
    if sum(spec.size_bytes for spec in specs if spec.base_offset < below) > KEYED_BYTES_MAX:
        raise NotComparable("it is too large to be compared by key")
    reader = _Reader(below)
    for spec in sorted(specs, key=lambda spec: spec.base_offset):
        if spec.base_offset >= below and not reader.staged:
            break
        scan = scan_segment(Path(spec.path), size_bytes=spec.size_bytes, visit=reader)
        if scan.skipped_bytes and not spec.is_active:
            raise NotComparable(f"{spec.path} is torn")
    if reader.staged:
        raise NotComparable("a transaction has not ended")
    if reader.end_offset < below:
        raise NotComparable("it has not copied so far")
    for folder in {Path(spec.path).parent for spec in specs}:
        if cleaned_below(folder) > below:
            raise NotComparable("it was cleaned further while it was read")
    return {
        key: (offset, digest)
        for key, (offset, digest) in reader.newest.items()
        if digest is not None and offset >= start
    }


@dataclass(slots=True)
class _Reader:
    """A `BatchVisitor` that folds batches, in order, as a reader of committed records does."""

    below: int
    newest: Newest = field(default_factory=dict)
    staged: dict[int, list[tuple[bytes, int, bytes | None]]] = field(default_factory=dict)
    end_offset: int = 0

    def __call__(
        self, rows: BatchTable, window: npt.NDArray[np.uint8], window_position: int
    ) -> None:
        """Take the batches of a window; raises `NotComparable`."""
        for row in rows:
            if row["crc_ok"] != 1:
                raise NotComparable(f"the batch at offset {int(row['base_offset'])} is damaged")
            first = int(row["position"]) - window_position
            batch = window[first : first + int(row["size_bytes"])].tobytes()
            self._take(row, batch)
            self.end_offset = int(row["last_offset"]) + 1

    def _take(self, row: Mapping[str, int], batch: bytes) -> None:
        producer_id, attributes = ProducerId(int(row["producer_id"])), int(row["attributes"])
        try:
            if attributes & CONTROL_BIT:
                kind = read_marker(batch).control_type
                self._end(producer_id, commit=kind is ControlType.COMMIT)
            elif int(row["base_offset"]) < self.below:
                self._take_records(batch, int(row["base_offset"]), producer_id, attributes)
        except (LedgerError, BatchError) as error:
            raise NotComparable(str(error)) from error

    def _take_records(
        self, batch: bytes, base_offset: int, producer_id: ProducerId, attributes: int
    ) -> None:
        for delta, key, value in iter_records(batch):
            if key is None:
                raise NotComparable(f"the record at offset {base_offset + delta} has no key")
            digest = None if value is None else hashlib.blake2b(value, digest_size=8).digest()
            if attributes & TRANSACTIONAL_BIT:
                staged = self.staged.setdefault(producer_id, [])
                staged.append((key, base_offset + delta, digest))
            else:
                self._put(key, base_offset + delta, digest)

    def _end(self, producer_id: ProducerId, *, commit: bool) -> None:
        for key, offset, digest in self.staged.pop(producer_id, []):
            if commit:
                self._put(key, offset, digest)

    def _put(self, key: bytes, offset: int, digest: bytes | None) -> None:
        known = self.newest.get(key)
        if known is None or offset > known[0]:
            self.newest[key] = (offset, digest)
