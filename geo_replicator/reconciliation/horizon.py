"""Up to where two regions must agree: the last tidemark that the mirror has reached.

INV-RCHO2  reading starts at the first full record and takes every record from there (INV-TR1); where one may be
           lost it starts again, at the next full one
A tidemark counts as reached only if it is recorded as reached, or every log of the mirror holds all of it now; so the
cut never asks a mirror for what it was never said to have.

Not here: the record (`geo_replicator.tidemark`), how positions are used (`plan`).
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from geo_replicator.lineage import TidemarkPoint
from geo_replicator.reconciliation.evidence.ledger_facts import iter_records
from geo_replicator.reconciliation.plan import TIDEMARK_LEDGER, TRANSACTION_LEDGER, Cut, RegionInput
from geo_replicator.reconciliation.segments.batch_table import BatchTable
from geo_replicator.reconciliation.segments.scanner import PartitionFiles, end_offset, scan_segment
from geo_replicator.tidemark import Tidemark, TidemarkError, decode
from idempotency.ledger_bytes import LedgerError
from idempotency.record_batch import CONTROL_BIT

_Place = tuple[str, int]


Ends = dict[_Place, int]


@dataclass(slots=True)
class _Vector:
    """Positions by (topic id, partition) as records add up."""

    ledger_id: str
    tidemarks_id: str
    positions: Ends = field(default_factory=dict)

    def moved_by(self, at: int, tidemark: Tidemark) -> Ends:
        """Return the positions that the record at offset `at` names, without those of logs that it removed."""
        moved = {
            (key.topic_id.hex, key.partition): place.cut_offset
            for key, place in tidemark.moved.items()
        }
        moved |= {(self.ledger_id, shard): offset for shard, offset in tidemark.ledger.items()}
        moved[self.tidemarks_id, 0] = at + 1
        for key in tidemark.removed:
            moved.pop((key.topic_id.hex, key.partition), None)
        return moved

    def take(self, at: int, tidemark: Tidemark) -> None:
        """Advance to `tidemark`."""
        if tidemark.full:
            self.positions = {}
        for key in tidemark.removed:
            self.positions.pop((key.topic_id.hex, key.partition), None)
        self.positions |= self.moved_by(at, tidemark)


@dataclass(slots=True)
class _Older:
    """The vector as it was `age_ms` before the newest tidemark, by the primary's wall clock."""

    vector: _Vector
    age_ms: int
    waiting: deque[tuple[int, Tidemark]] = field(default_factory=deque)

    def take(self, at: int, tidemark: Tidemark) -> None:
        """Note a tidemark, and advance to those that are old enough now."""
        self.waiting.append((at, tidemark))
        while self.waiting and self.waiting[0][1].wall_ms <= tidemark.wall_ms - self.age_ms:
            self.vector.take(*self.waiting.popleft())


def find_cut(
    source: RegionInput,
    mirror: RegionInput,
    reached: TidemarkPoint | None = None,
    *,
    old_ms: int = 0,
) -> Cut | None:
    """Return the last reached tidemark of `mirror` in topic names; None if it has none.

    `reached` is the region's own durable record of it: what the mirror has lost since is still asked of it. The cut
    also says which positions are `old_ms` older, and what the source removed behind it.
    Topics are named as either region names them. OSError if `__tidemarks` cannot be read.
    """
    by_place = {(files.topic_id, files.partition): files for files in mirror.partitions}
    ids = {files.topic: files.topic_id for files in mirror.partitions}
    names = {files.topic_id: files.topic for files in (*mirror.partitions, *source.partitions)}
    if TRANSACTION_LEDGER not in ids or (ids.get(TIDEMARK_LEDGER, ""), 0) not in by_place:
        return None
    ends = {place: end_offset(files) for place, files in by_place.items()}
    tidemarks = (ids[TIDEMARK_LEDGER], 0)
    vector = _Vector(ids[TRANSACTION_LEDGER], ids[TIDEMARK_LEDGER])
    older = _Older(_Vector(ids[TRANSACTION_LEDGER], ids[TIDEMARK_LEDGER]), old_ms)
    newest: Tidemark | None = None
    started = False
    for at, tidemark in _tidemarks(by_place[tidemarks]):
        started = tidemark is not None and (started or tidemark.full)
        if tidemark is None or not started:
            continue
        moved = vector.moved_by(at, tidemark)
        holds = all(ends.get(place, 0) >= offset for place, offset in moved.items())
        if not holds and (reached is None or tidemark.point > reached):
            break
        vector.take(at, tidemark)
        older.take(at, tidemark)
        newest = tidemark
    if newest is None:
        return None
    return Cut(
        label=str(newest.point),
        positions=_by_name(vector.positions, names),
        wall_ms=newest.wall_ms,
        old=_by_name(older.vector.positions, names),
        removed=frozenset(_removed_behind(source, vector.positions[tidemarks])),
    )


def _removed_behind(source: RegionInput, offset: int) -> Iterator[str]:
    """Yield the logs that the source's tidemarks from `offset` on removed."""
    for files in source.partitions:
        if (files.topic, files.partition) != (TIDEMARK_LEDGER, 0):
            continue
        for at, tidemark in _tidemarks(files):
            if tidemark is not None and at >= offset:
                yield from (key.encode() for key in tidemark.removed)


def _by_name(positions: Ends, names: Mapping[str, str]) -> dict[str, int]:
    return {
        f"{names[topic_id]}/{partition}": offset
        for (topic_id, partition), offset in sorted(positions.items())
        if topic_id in names
    }


class _DataBatches:
    """A `BatchVisitor` that keeps (first offset, next offset, bytes) of all batches; no bytes of control batches,
    and None of damaged ones.
    """

    def __init__(self) -> None:
        self.taken: list[tuple[int, int, bytes | None]] = []

    def __call__(
        self, rows: BatchTable, window: npt.NDArray[np.uint8], window_position: int
    ) -> None:
        """Take a window's batches."""
        for row in rows:
            first = int(row["position"]) - window_position
            batch: bytes | None = b""
            if row["crc_ok"] != 1:
                batch = None
            elif not row["attributes"] & CONTROL_BIT:
                batch = window[first : first + int(row["size_bytes"])].tobytes()
            self.taken.append((int(row["base_offset"]), int(row["last_offset"]) + 1, batch))


def _tidemarks(files: PartitionFiles) -> Iterator[tuple[int, Tidemark | None]]:
    """Yield each tidemark with its offset, and None where one may be lost: a damaged batch, or offsets that lack.

    What adds up stands on every record before it (INV-TR1), so it begins anew behind such a place, at a full record.
    """
    expected = -1
    for segment in files.segments:
        batches = _DataBatches()
        scan_segment(Path(segment.path), size_bytes=segment.size_bytes, visit=batches)
        for base_offset, next_offset, batch in batches.taken:
            if batch is None or expected not in {-1, base_offset}:
                yield base_offset, None
            expected = next_offset
            try:
                yield from _decoded(base_offset, batch or b"")
            except (TidemarkError, LedgerError):
                return  # a record of another format ends what is known; `verify` names the damage itself


def _decoded(base_offset: int, batch: bytes) -> Iterator[tuple[int, Tidemark]]:
    if not batch:
        return
    for delta, key, value in iter_records(batch):
        if key is None or value is None:
            continue
        record = decode(key, value)
        if isinstance(record, Tidemark):
            yield base_offset + delta, record
