"""Reading `__tidemarks` back: from the last full vector that is not above a given tidemark.

INV-TR1  reading starts at a full record and takes every record from there, so vectors are complete
INV-TR2  the walk back costs one record per full vector, not one per tidemark

Not here: the record (`tidemark`), what was reached (`frontier`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from geo_replicator.lineage import TidemarkPoint
from geo_replicator.tidemark import (
    NOWHERE,
    TermRecord,
    Tidemark,
    TidemarkBook,
    TidemarkError,
    decode,
)
from geo_replicator.topology import LedgerTopics


class TidemarkRecords(Protocol):
    """The records of `__tidemarks` below its HW."""

    def tidemark_records(self, start_offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (offset, key, value) from `start_offset` on."""
        ...

    def last_tidemark_record(self) -> tuple[int, bytes, bytes] | None:
        """Return the last one."""
        ...


@dataclass(slots=True)
class ReadBook:
    """A book whose floor is the asked tidemark (or the first one read), and what lies above it."""

    book: TidemarkBook
    next_offset: int = 0
    above: list[Tidemark] = field(default_factory=list)


def read_book(
    records: TidemarkRecords, ledgers: LedgerTopics, floor: TidemarkPoint | None
) -> ReadBook:
    """Read from the last full record at or below `floor` (None: the newest full one) to the end.

    Raises `TidemarkError` where the log is not readable.
    """
    read = ReadBook(TidemarkBook(ledgers))
    start = _start_of(records, floor)
    for at, key, value in records.tidemark_records(0 if start is None else start):
        tidemark = read.book.apply(at, decode(key, value))
        read.next_offset = at + 1
        if tidemark is not None and (floor is None or tidemark.point > floor):
            read.above.append(tidemark)
    newest = read.book.newest
    if newest is None:
        return read
    target = newest.newest.point if floor is None else min(floor, newest.newest.point)
    read.book.raise_floor(target)
    return read


def _start_of(records: TidemarkRecords, floor: TidemarkPoint | None) -> int | None:
    last = records.last_tidemark_record()
    if last is None:
        return None
    at, record = last[0], decode(last[1], last[2])
    while True:
        full_at = at if isinstance(record, Tidemark) and record.full else record.full_at
        if full_at == NOWHERE:
            return None
        full = _record_at(records, full_at)
        if not isinstance(full, Tidemark) or not full.full:
            raise TidemarkError(f"__tidemarks has no full vector at offset {full_at}")
        if floor is None or full.point <= floor or full.previous_at == NOWHERE:
            return full_at
        at, record = full.previous_at, _record_at(records, full.previous_at)


def _record_at(records: TidemarkRecords, at: int) -> Tidemark | TermRecord:
    found = next(iter(records.tidemark_records(at)), None)
    if found is None or found[0] != at:
        raise TidemarkError(f"__tidemarks has no record at offset {at}: was it cut or trimmed?")
    return decode(found[1], found[2])
