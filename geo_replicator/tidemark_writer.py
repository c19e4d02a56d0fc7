"""What the next tidemark's record says: the cut leader's side of `__tidemarks`.

INV-TM3  a record names what moved since the last published one; a full one, every 1024 records or 1 MB and first in
         each term, names everything, so a reader goes back to the last full one and no further: not through all
         terms that ended before they had so many

Not here: the record and the rules it obeys (`tidemark`), rounds (`rounds`), appending.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.tidemark import (
    NOWHERE,
    LogPosition,
    TermRecord,
    Tidemark,
    TidemarkBook,
    Vector,
    broken_rules,
)
from idempotency.identity import RegionEpoch, Round

FULL_EVERY_RECORDS: Final = 1024
FULL_EVERY_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedCut:
    """What a closed and collected round found: everything a tidemark record is made of."""

    round: Round
    region_epoch: RegionEpoch
    metadata_version: int
    ledger: Mapping[int, int]
    moved: Mapping[LogKey, LogPosition]
    existing: frozenset[UUID]
    wall_ms: int


class TidemarkWriter:
    """Builds the records of one cut leader's term, in order (INV-TM1..3).

    `prepare` a record, append it, then tell `published` where it lies; a second `prepare` before that is a
    programmer error.
    """

    def __init__(self, domain: str, book: TidemarkBook) -> None:
        """Continue after the newest tidemark of `book`."""
        self.book = book
        self._domain = domain
        self._records_since_full = 0
        self._bytes_since_full = 0
        self._begins = True
        self._pending: Tidemark | None = None

    @property
    def last_point(self) -> TidemarkPoint:
        """Return the last tidemark that is in the log."""
        newest = self.book.newest
        return BEFORE_ALL if newest is None else newest.newest.point

    def term_record(self, region_epoch: RegionEpoch, term: int) -> TermRecord:
        """Return the record that opens `term` (T1)."""
        newest = self.book.newest
        return TermRecord(
            domain=self._domain,
            region_epoch=region_epoch,
            term=term,
            number=self.last_point.number,
            previous_at=NOWHERE if newest is None else newest.at,
            full_at=NOWHERE if newest is None else newest.full_at,
        )

    def prepare(self, cut: ClosedCut) -> Tidemark:
        """Return the next tidemark for `cut`; T10 and T11 are asserted."""
        assert self._pending is None, self._pending
        before = self.book.newest
        full = before is None or self._full_is_due()
        moved, removed = _difference(before, cut)
        if full and before is not None:
            kept = {key: place for key, place in before.positions.items() if key not in removed}
            moved = {**kept, **moved}
        tidemark = Tidemark(
            domain=self._domain,
            region_epoch=cut.region_epoch,
            number=self.last_point.number + 1,
            round=cut.round,
            metadata_version=cut.metadata_version,
            ledger=dict(cut.ledger),
            moved=moved,
            removed=removed,
            full=full,
            previous_at=NOWHERE if before is None else before.at,
            full_at=NOWHERE if full or before is None else before.full_at,
            wall_ms=cut.wall_ms,
        )
        if before is not None:
            broken = broken_rules(before, tidemark)
            assert not broken, broken
        self._pending = tidemark
        return tidemark

    def _full_is_due(self) -> bool:
        return (
            self._begins
            or self._records_since_full + 1 >= FULL_EVERY_RECORDS
            or self._bytes_since_full >= FULL_EVERY_BYTES
        )

    def published(self, at: int, record_bytes: int) -> Tidemark:
        """Note that the prepared record is below HW at offset `at`."""
        tidemark = self._pending
        assert tidemark is not None, at
        self._pending = None
        self._begins = False
        self.book.apply(at, tidemark)
        self.book.raise_floor(tidemark.point)
        self._records_since_full = 0 if tidemark.full else self._records_since_full + 1
        self._bytes_since_full = 0 if tidemark.full else self._bytes_since_full + record_bytes
        return tidemark


def _difference(
    before: Vector | None, cut: ClosedCut
) -> tuple[dict[LogKey, LogPosition], tuple[LogKey, ...]]:
    known = {} if before is None else before.positions
    moved = {key: place for key, place in cut.moved.items() if known.get(key) != place}
    if before is None or (before.newest.region_epoch, before.newest.metadata_version) == (
        cut.region_epoch,
        cut.metadata_version,
    ):
        return moved, ()
    return moved, tuple(sorted(key for key in known if key.topic_id not in cut.existing))
