"""Which tidemark the bytes of a region hold."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.reading import (
    LOGS_AT_ONCE,
    RECORD_COST,
    book_in_pieces,
    held_point,
    point_without_lack,
    read_book,
)
from geo_replicator.tidemark import LogPosition, Tidemark, encode
from geo_replicator.topology import LedgerTopics
from idempotency.identity import Round
from idempotency.pieces import Pieces
from tests.unit.geo_replicator.test_tidemark import TIDEMARK

LOG = LogKey(UUID(int=9), 0)


@dataclass
class Records:
    """`__tidemarks` with these tidemarks, from offset 0 on."""

    tidemarks: list[Tidemark]

    def tidemark_records(self, start_offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        for at, tidemark in list(enumerate(self.tidemarks))[start_offset:]:
            yield at, *encode(tidemark)

    def last_tidemark_record(self) -> tuple[int, bytes, bytes] | None:
        return list(self.tidemark_records(0))[-1]


@pytest.mark.parametrize(
    ("end_offset", "number"), [(9, 5), (8, 4), (7, 4), (6, 3), (5, 3), (4, None)]
)
def test_T36_the_greatest_tidemark_that_the_bytes_hold_is_looked_for_over_full_records(
    end_offset: int, number: int | None
) -> None:
    def full(number: int, end: int) -> Tidemark:
        moved = {LOG: LogPosition(end, 0)}
        return replace(TIDEMARK, number=number, round=Round(number), ledger={}, moved=moved)

    records = Records(
        [
            full(3, 5),
            replace(full(4, 7), full=False, previous_at=0, full_at=0),
            replace(full(5, 9), previous_at=1),
        ]
    )
    ledgers = LedgerTopics(UUID(int=1), UUID(int=2))
    last = records.tidemarks[-1].point
    found = held_point(records, ledgers, last, {LOG: end_offset}.get)
    assert found == (BEFORE_ALL if number is None else TidemarkPoint(TIDEMARK.region_epoch, number))


def test_T36_a_full_record_straight_behind_a_full_one_is_no_end_of_the_search() -> None:
    first = replace(TIDEMARK, ledger={}, moved={LOG: LogPosition(5, 0)})
    second = replace(first, number=4, round=Round(6), moved={LOG: LogPosition(9, 0)}, previous_at=0)
    ledgers = LedgerTopics(UUID(int=1), UUID(int=2))
    assert held_point(Records([first, second]), ledgers, second.point, {LOG: 5}.get) == first.point


def pieces_of(pieces: Pieces[object]) -> int:
    """Return into how many pieces some work is parted."""
    return 1 + sum(1 for _ in pieces)


def test_INV_TR3_reading_gives_way_after_so_many_positions_and_records_whoever_asks() -> None:
    logs = [LogKey(UUID(int=9), number) for number in range(LOGS_AT_ONCE // 2)]
    first = replace(TIDEMARK, ledger={}, moved={key: LogPosition(5, 0) for key in logs})
    tidemarks = [first]
    for number in range(4, 11):
        moved = {key: LogPosition(number + 5, 0) for key in logs}
        after = len(tidemarks) - 1
        tidemarks.append(
            replace(first, number=number, round=Round(number + 5), moved=moved, full=False, previous_at=after, full_at=0)
        )  # fmt: skip
    records, ledgers = Records(tidemarks), LedgerTopics(UUID(int=1), UUID(int=2))
    enough = len(tidemarks) * (len(logs) + RECORD_COST) // LOGS_AT_ONCE
    last = tidemarks[-1].point
    assert pieces_of(book_in_pieces(records, ledgers, None)) >= enough
    assert pieces_of(point_without_lack(records, ledgers, last, lambda _key, _at: False)) >= enough


def test_INV_TR4_what_is_asked_of_one_tidemark_is_read_up_to_that_one() -> None:
    ledgers = LedgerTopics(UUID(int=1), UUID(int=2))
    first = replace(TIDEMARK, number=3, round=Round(3), ledger={})
    records = Records([first])
    for number in range(4, 10):
        later = replace(first, number=number, round=Round(number), full=False, full_at=0)
        records.tidemarks.append(replace(later, previous_at=number - 4))
    read = read_book(records, ledgers, records.tidemarks[2].point)
    assert read.book.known() == (records.tidemarks[2].point,)
    assert read.next_offset == 3
    read = read_book(records, ledgers, BEFORE_ALL)
    assert (read.book.newest, read.next_offset) == (None, 0), "all are above"
    read = read_book(records, ledgers, None)
    assert read.book.known() == (records.tidemarks[-1].point,)
    assert read.next_offset == 7


def test_INV_TR3_many_small_tidemarks_are_parted_too() -> None:
    first = replace(TIDEMARK, ledger={}, moved={LOG: LogPosition(5, 0)})
    count = 3 * LOGS_AT_ONCE // RECORD_COST
    tidemarks = [
        first if number == 0 else
        replace(first, number=3 + number, round=Round(9 + number), moved={}, full=False, previous_at=number - 1, full_at=0)
        for number in range(count)
    ]  # fmt: skip
    ledgers = LedgerTopics(UUID(int=1), UUID(int=2))
    assert pieces_of(book_in_pieces(Records(tidemarks), ledgers, None)) > 2
