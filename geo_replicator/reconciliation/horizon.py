"""Up to where two regions must agree: the last tidemark that the mirror has reached.

INV-RCHO1  a tidemark counts as reached only if it is recorded as reached, or every log of the mirror holds all
         of it now; so the cut never asks a mirror for what it was never said to have
INV-RCHO2  reading starts at the first full record and takes every record from there (INV-TR1)

Not here: the record (`geo_replicator.tidemark`), how positions are used (`plan`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from geo_replicator.lineage import TidemarkPoint
from geo_replicator.reconciliation.evidence.batch_table import BatchTable
from geo_replicator.reconciliation.evidence.ledger_facts import iter_records
from geo_replicator.reconciliation.plan import TIDEMARK_LEDGER, TRANSACTION_LEDGER, Cut, RegionInput
from geo_replicator.reconciliation.scanner import PartitionFiles, end_offset, scan_segment
from geo_replicator.tidemark import Tidemark, TidemarkError, decode
from idempotency.ledger_bytes import LedgerError
from idempotency.record_batch import CONTROL_BIT

_Place = tuple[str, int]


@dataclass(slots=True)
class _Vector:
    """Positions by (topic id, partition) as records add up, and which of them the mirror holds."""

    ledger_id: str
    tidemarks_id: str
    ends: dict[_Place, int]
    positions: dict[_Place, int] = field(default_factory=dict)
    started: bool = False

    def take(self, at: int, tidemark: Tidemark) -> bool:
        """Advance to `tidemark`; return whether the mirror holds all that it moved."""
        moved = {
            (key.topic_id.hex, key.partition): place.cut_offset
            for key, place in tidemark.moved.items()
        }
        moved |= {(self.ledger_id, shard): offset for shard, offset in tidemark.ledger.items()}
        moved[self.tidemarks_id, 0] = at + 1
        if tidemark.full:
            self.positions = {}
        self.positions |= moved
        for key in tidemark.removed:
            self.positions.pop((key.topic_id.hex, key.partition), None)
        return all(
            self.ends.get(place, 0) >= offset
            for place, offset in moved.items()
            if place in self.positions
        )


def find_cut(
    source: RegionInput, mirror: RegionInput, reached: TidemarkPoint | None = None
) -> Cut | None:
    """Return the last reached tidemark of `mirror` in topic names; None if it has none.

    `reached` is the region's own durable record of it: what the mirror has lost since is still asked of it.
    Topics are named as either region names them. OSError if `__tidemarks` cannot be read.
    """
    by_place = {(files.topic_id, files.partition): files for files in mirror.partitions}
    ids = {files.topic: files.topic_id for files in mirror.partitions}
    names = {files.topic_id: files.topic for files in (*mirror.partitions, *source.partitions)}
    if TIDEMARK_LEDGER not in ids or TRANSACTION_LEDGER not in ids:
        return None
    ends = {place: end_offset(files) for place, files in by_place.items()}
    vector = _Vector(ids[TRANSACTION_LEDGER], ids[TIDEMARK_LEDGER], ends)
    best: Cut | None = None
    for at, tidemark in _tidemarks(by_place[ids[TIDEMARK_LEDGER], 0]):
        if not vector.started and not tidemark.full:
            continue
        vector.started = True
        holds = vector.take(at, tidemark)
        if not holds and (reached is None or tidemark.point > reached):
            break
        best = _named(vector, tidemark, names)
    return best


def _named(vector: _Vector, tidemark: Tidemark, names: Mapping[str, str]) -> Cut:
    positions = {
        f"{names[topic_id]}/{partition}": offset
        for (topic_id, partition), offset in sorted(vector.positions.items())
        if topic_id in names
    }
    return Cut(label=str(tidemark.point), positions=positions, wall_ms=tidemark.wall_ms)


class _DataBatches:
    """A `BatchVisitor` that keeps the bytes of all sound data batches."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, bytes]] = []

    def __call__(
        self, rows: BatchTable, window: npt.NDArray[np.uint8], window_position: int
    ) -> None:
        """Take a window's batches."""
        for row in rows[(rows["crc_ok"] == 1) & ((rows["attributes"] & CONTROL_BIT) == 0)]:
            first = int(row["position"]) - window_position
            batch = window[first : first + int(row["size_bytes"])].tobytes()
            self.taken.append((int(row["base_offset"]), batch))


def _tidemarks(files: PartitionFiles) -> Iterator[tuple[int, Tidemark]]:
    for segment in files.segments:
        batches = _DataBatches()
        scan_segment(Path(segment.path), size_bytes=segment.size_bytes, visit=batches)
        try:
            yield from _decoded(batches.taken)
        except (TidemarkError, LedgerError):
            return  # a damaged record ends what is known; `verify` names the damage itself


def _decoded(batches: list[tuple[int, bytes]]) -> Iterator[tuple[int, Tidemark]]:
    for base_offset, batch in batches:
        for delta, key, value in iter_records(batch):
            if key is None or value is None:
                continue
            record = decode(key, value)
            if isinstance(record, Tidemark):
                yield base_offset + delta, record
