"""Reading `__tidemarks` back: from the last full vector that is not above a given tidemark.

INV-TR1  reading starts at a full record and takes every record from there, so vectors are complete
INV-TR2  what is held is never above what was asked for; each step back goes to an older full record
INV-TR3  a tidemark names many logs: reading gives way after so many of them (`LOGS_AT_ONCE`), so a node that begins to lead answers
         others meanwhile
INV-TR4  what is asked of one tidemark is read up to that one: what a mirror has not reached behind it may be days of them
INV-TR5  the way back to a tidemark far below the last one does not grow with what lies between: a mirror that was away may have a day of it
A tidemark counts as held only if every log that it names ends at or beyond its position (T16). The walk back costs one
record per full vector, not one per tidemark.

Not here: the record (`tidemark`), what was reached (`frontier`).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey, TidemarkPoint
from geo_replicator.tidemark import (
    NOWHERE,
    TermRecord,
    Tidemark,
    TidemarkBook,
    TidemarkError,
    decode,
)
from geo_replicator.tidemark_writer import FULL_EVERY_RECORDS
from geo_replicator.topology import LedgerTopics
from idempotency.pieces import Pieces, drained

LOGS_AT_ONCE: Final = 2_000
"""How many positions are read in one piece, about 1 ms of CPU."""
RECORD_COST: Final = 30
"""What a record costs beside its positions, as positions."""


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
    """A book whose floor is the asked tidemark (or the first one read), and where reading goes on."""

    book: TidemarkBook
    next_offset: int = 0


def read_book(
    records: TidemarkRecords, ledgers: LedgerTopics, floor: TidemarkPoint | None
) -> ReadBook:
    """Return all of `book_in_pieces` at once."""
    return drained(book_in_pieces(records, ledgers, floor))


def book_in_pieces(
    records: TidemarkRecords, ledgers: LedgerTopics, floor: TidemarkPoint | None
) -> Pieces[ReadBook]:
    """Read from the last full record at or below `floor` (None: the newest full one) to the first above it, or to the end (INV-TR3, INV-TR4).

    The book is empty where all are above. Raises `TidemarkError` where the log is not readable.
    """
    read, left = ReadBook(TidemarkBook(ledgers)), LOGS_AT_ONCE
    start = full_at_or_below(records, floor)
    for at, key, value in records.tidemark_records(0 if start is None else start):
        record = decode(key, value)
        if isinstance(record, Tidemark) and floor is not None and record.point > floor:
            read.next_offset = at
            break
        tidemark = read.book.apply(at, record)
        read.next_offset = at + 1
        left -= cost_of(tidemark)
        if left <= 0:
            yield
            left = LOGS_AT_ONCE
    if read.book.newest is not None:
        read.book.raise_floor(read.book.newest.newest.point)
    return read


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A log that ends before the position of a tidemark: what it lacks is not here any more."""

    key: LogKey
    position: int
    end_offset: int


EndOf = Callable[[LogKey], int | None]
"""Where a log ends durably; None where that cannot be told, or does not matter: it has stopped, or was deleted."""


def shortfalls(cut: Cut, end_of: EndOf) -> list[Shortfall]:
    """Return the logs that end before their position in `cut`, by key."""
    found = []
    for key, position in sorted(cut.positions.items()):
        end = end_of(key)
        if end is not None and end < position:
            found.append(Shortfall(key, position, end))
    return found


Lacks = Callable[[LogKey, int], bool]
"""Whether a log does not hold all below a position."""


def held_point(
    records: TidemarkRecords, ledgers: LedgerTopics, floor: TidemarkPoint, end_of: EndOf
) -> TidemarkPoint:
    """Return the greatest tidemark at or below `floor` that the bytes hold, `BEFORE_ALL` for none.

    Raises `TidemarkError` where the log is not readable.
    """

    def lacks(key: LogKey, position: int) -> bool:
        end = end_of(key)
        return end is not None and end < position

    return drained(point_without_lack(records, ledgers, floor, lacks))


def point_without_lack(
    records: TidemarkRecords, ledgers: LedgerTopics, floor: TidemarkPoint, lacks: Lacks
) -> Pieces[TidemarkPoint]:
    """Return which one `tidemark_without_lack` is, `BEFORE_ALL` for none."""
    found = yield from tidemark_without_lack(records, ledgers, floor, lacks)
    return BEFORE_ALL if found is None else found.point


def tidemark_without_lack(
    records: TidemarkRecords, ledgers: LedgerTopics, floor: TidemarkPoint, lacks: Lacks
) -> Pieces[Tidemark | None]:
    """Return the greatest tidemark at or below `floor` of which no log lacks anything, None for none (INV-TR3).

    Nothing above `floor` is read: a mirror may have that much more. Raises `TidemarkError` where the log is not readable.
    """
    start = full_at_or_below(records, floor)
    while start is not None:
        held = yield from _held_from(records, ledgers, start, floor, lacks)
        if held is not None:
            assert held.point <= floor, f"INV-TR2: {held.point} above {floor}"
            return held
        full = _record_at(records, start)
        if not isinstance(full, Tidemark) or full.previous_at == NOWHERE:
            break
        floor = TidemarkPoint(full.region_epoch, full.number - 1)
        previous = _record_at(records, full.previous_at)
        is_full = isinstance(previous, Tidemark) and previous.full
        before, start = start, full.previous_at if is_full else previous.full_at
        assert start < before, f"INV-TR2: back from {before} to {start}"
        start = None if start == NOWHERE else start
    return None


def _held_from(
    records: TidemarkRecords,
    ledgers: LedgerTopics,
    start: int,
    floor: TidemarkPoint,
    lacks: Lacks,
) -> Pieces[Tidemark | None]:
    book, left = TidemarkBook(ledgers), LOGS_AT_ONCE
    held: Tidemark | None = None
    short: set[LogKey] = set()
    for at, key, value in records.tidemark_records(start):
        tidemark = book.apply(at, decode(key, value))
        left -= cost_of(tidemark)
        if left <= 0:
            yield
            left = LOGS_AT_ONCE
        if tidemark is None:
            continue
        if tidemark.point > floor:
            break
        if tidemark.full:
            short.clear()
        moved = {key: place.cut_offset for key, place in tidemark.moved.items()}
        moved |= {ledgers.shard_key(shard): end for shard, end in tidemark.ledger.items()}
        short.difference_update((*tidemark.removed, *moved))
        short.update(key for key, position in moved.items() if lacks(key, position))
        if not short:
            held = tidemark
    return held


def cost_of(tidemark: Tidemark | None) -> int:
    """Return what reading a record costs, in positions: see `LOGS_AT_ONCE`."""
    return RECORD_COST + (0 if tidemark is None else len(tidemark.moved))


def full_at_or_below(records: TidemarkRecords, floor: TidemarkPoint | None) -> int | None:
    """Return where the newest full record at or below `floor` is (None: the newest one), the oldest where all are above; None for none."""
    last = records.last_tidemark_record()
    if last is None:
        return None
    at, record = last[0], decode(last[1], last[2])
    if floor is not None and record.number - floor.number > FULL_EVERY_RECORDS:
        at = _near_above(records, floor, at)
        record = _record_at(records, at)
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


def _near_above(records: TidemarkRecords, floor: TidemarkPoint, at: int) -> int:
    """Return where a record at or above `floor` is with few others between, or `at` (INV-TR5).

    Each record has an offset of its own, and numbers go up by one at most from one to the next: so many offsets further down as the
    number is above that of `floor`, none is below it.
    """
    with suppress(TidemarkError):  # what is damaged above `floor` keeps nobody from what is at it
        record = _record_at(records, at)
        while FULL_EVERY_RECORDS < (beyond := record.number - floor.number) <= at:
            record = _record_at(records, at - beyond)
            at -= beyond
    return at


def _record_at(records: TidemarkRecords, at: int) -> Tidemark | TermRecord:
    found = next(iter(records.tidemark_records(at)), None)
    if found is None or found[0] != at:
        raise TidemarkError(f"__tidemarks has no record at offset {at}: was it cut or trimmed?")
    return decode(found[1], found[2])
