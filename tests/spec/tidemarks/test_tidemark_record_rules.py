"""Rules T10, T11 and T16: what a tidemark's record says, and when a mirror has reached it.

On the pure cores. Expected values are the rules' own words (docs/INVARIANTS.md, section T).
"""

from dataclasses import replace
from uuid import UUID

import pytest

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, Lineage, LineageEntry, LogKey, TidemarkPoint
from geo_replicator.tidemark import (
    LogPosition,
    Tidemark,
    TidemarkBook,
    TidemarkError,
    broken_rules,
    decode,
    encode,
    first_vector,
)
from geo_replicator.tidemark_writer import ClosedCut, TidemarkWriter
from geo_replicator.topology import LedgerTopics
from idempotency.decision import round_of
from idempotency.identity import RegionEpoch

TERM = 8 << 16 | 1
LEDGERS = LedgerTopics(UUID(int=1), UUID(int=2))
P0, P1 = LogKey(UUID(int=10), 0), LogKey(UUID(int=10), 1)


# T10, T11: the record.


def cut(number: int, **positions: int) -> ClosedCut:
    """Round `number` with L = 10 * number and D of p0, p1 as given."""
    keys = {"p0": P0, "p1": P1}
    return ClosedCut(
        round=round_of(TERM, number),
        region_epoch=RegionEpoch(8),
        metadata_version=1,
        ledger={0: 10 * number, 1: 10 * number + 1},
        moved={keys[name]: LogPosition(offset, 0) for name, offset in positions.items()},
        existing=frozenset({P0.topic_id}),
        wall_ms=1_000 + number,
    )


def written(*cuts: ClosedCut) -> tuple[TidemarkWriter, list[Tidemark]]:
    """Return a writer that published `cuts`, one record per offset from 0 on."""
    writer = TidemarkWriter("main", TidemarkBook(LEDGERS))
    tidemarks = []
    for at, closed in enumerate(cuts):
        tidemarks.append(writer.prepare(closed))
        writer.published(at, 100)
    return writer, tidemarks


# Holds INV-TM1.
def test_T10_numbers_are_dense_and_a_record_names_what_moved_since_the_last() -> None:
    _, tidemarks = written(cut(1, p0=3, p1=4), cut(3, p1=6), cut(4, p0=3, p1=9))
    assert [tidemark.number for tidemark in tidemarks] == [1, 2, 3]
    assert [tidemark.full for tidemark in tidemarks] == [True, False, False]
    assert tidemarks[1].moved == {P1: LogPosition(6, 0)}
    assert tidemarks[2].moved == {P1: LogPosition(9, 0)}
    assert [tidemark.previous_at for tidemark in tidemarks] == [-1, 0, 1]


# Holds INV-TM3.
def test_T10_full_vector_every_1024_records() -> None:
    cuts = [cut(number, p0=number) for number in range(1, 1027)]
    cuts[0] = cut(1, p0=1, p1=5)
    _, tidemarks = written(*cuts)
    assert [tidemark.number for tidemark in tidemarks if tidemark.full] == [1, 1025]
    assert tidemarks[1024].moved == {P0: LogPosition(1025, 0), P1: LogPosition(5, 0)}


def test_INV_TM3_each_term_begins_with_a_full_vector() -> None:
    writer, _ = written(cut(1, p0=1, p1=5), cut(2, p0=2))
    later = TidemarkWriter("main", writer.book)
    tidemarks = []
    for number in (3, 4):
        tidemarks.append(later.prepare(cut(number, p0=number)))
        later.published(number - 1, 100)
    assert [tidemark.full for tidemark in tidemarks] == [True, False]
    assert tidemarks[0].moved == {P0: LogPosition(3, 0), P1: LogPosition(5, 0)}
    assert tidemarks[0].previous_at == 1
    assert tidemarks[1].full_at == 2


def test_T10_append_is_refused_unless_k_is_the_next_number() -> None:
    book = TidemarkBook(LEDGERS)
    _, tidemarks = written(cut(1, p0=1), cut(2, p0=2), cut(3, p0=3))
    book.apply(0, tidemarks[0])
    with pytest.raises(TidemarkError, match="T10"):
        book.apply(1, tidemarks[2])


def test_T10_records_survive_the_codec_and_name_all_positions_of_the_cut() -> None:
    writer, tidemarks = written(cut(1, p0=3, p1=4), cut(2, p1=6))
    assert [decode(*encode(tidemark)) for tidemark in tidemarks] == tidemarks
    resolved = writer.book.positions(TidemarkPoint(RegionEpoch(8), 2))
    assert resolved is not None
    assert dict(resolved.positions) == {
        P0: 3,
        P1: 6,
        LEDGERS.shard_key(0): 20,
        LEDGERS.shard_key(1): 21,
        LEDGERS.tidemark_key: 2,
    }


# Holds INV-TM5.
def test_T17_a_raised_floor_names_all_that_moved_ledgers_and_tidemarks_too() -> None:
    _, tidemarks = written(cut(1, p0=3, p1=4), cut(2, p1=6), cut(3, p1=6))
    book = TidemarkBook(LEDGERS)
    for at, tidemark in enumerate(tidemarks):
        book.apply(at, tidemark)
    ledgers = {LEDGERS.shard_key(0): 20, LEDGERS.shard_key(1): 21, LEDGERS.tidemark_key: 2}
    assert book.raise_floor(TidemarkPoint(RegionEpoch(8), 2)) == {P1: 6} | ledgers
    assert book.raise_floor(TidemarkPoint(RegionEpoch(8), 2)) == {}
    ledgers = {LEDGERS.shard_key(0): 30, LEDGERS.shard_key(1): 31, LEDGERS.tidemark_key: 3}
    assert book.raise_floor(TidemarkPoint(RegionEpoch(8), 3)) == ledgers


# Holds INV-TM2.
@pytest.mark.parametrize(
    ("later", "broken"),
    [
        (cut(2, p0=2), "D of"),
        (cut(1, p0=9), "round"),
        (ClosedCut(round=round_of(TERM, 2), region_epoch=RegionEpoch(8), metadata_version=1,
                   ledger={0: 9, 1: 11}, moved={}, existing=frozenset(), wall_ms=0), "L of shard 0"),
        (ClosedCut(round=round_of(TERM, 2), region_epoch=RegionEpoch(7), metadata_version=1,
                   ledger={0: 20, 1: 21}, moved={}, existing=frozenset(), wall_ms=0), "region epoch"),
    ],
)  # fmt: skip
def test_T11_positions_rounds_and_epochs_never_go_down(later: ClosedCut, broken: str) -> None:
    writer, tidemarks = written(cut(1, p0=3))
    with pytest.raises(AssertionError, match=broken):
        writer.prepare(later)
    after = Tidemark(
        domain="main",
        region_epoch=later.region_epoch,
        number=2,
        round=later.round,
        metadata_version=1,
        ledger=later.ledger,
        moved=later.moved,
    )
    assert any(broken in text for text in broken_rules(first_vector(tidemarks[0], 0), after))


def test_T11_a_higher_region_epoch_goes_on_from_the_cut() -> None:
    writer, _ = written(cut(1, p0=3))
    taken_over = ClosedCut(
        round=round_of(17 << 16 | 1, 1),
        region_epoch=RegionEpoch(17),
        metadata_version=1,
        ledger={0: 12, 1: 13},
        moved={P0: LogPosition(4, 0)},
        existing=frozenset({P0.topic_id}),
        wall_ms=0,
    )
    assert writer.prepare(taken_over).point == TidemarkPoint(RegionEpoch(17), 2)


# T16: reached.


def frontier_of(*tidemarks: Tidemark, lineage: Lineage | None = None) -> Frontier:
    """A frontier that knows `tidemarks`, all logs reconciled under region epoch 8 and empty."""
    made = Frontier(LEDGERS, lineage or Lineage())
    keys = (P0, P1, LEDGERS.shard_key(0), LEDGERS.shard_key(1))
    made.reconciled(keys, RegionEpoch(8))
    for tidemark in tidemarks:
        made.observe(tidemark)
    return made


def copy_ledgers(made: Frontier, end: int) -> None:
    for shard in (0, 1):
        made.advanced(LEDGERS.shard_key(shard), end)


# Holds INV-FR1.
def test_T16_reached_when_all_positions_are_below_the_mirrors_hw() -> None:
    _, tidemarks = written(cut(1, p0=3, p1=4), cut(2, p1=6))
    made = frontier_of(*tidemarks)
    made.advanced(P0, 3)
    copy_ledgers(made, 11)
    made.advanced(P1, 3)
    assert made.complete == TidemarkPoint(RegionEpoch(0), 0)
    made.advanced(P1, 4)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 1)
    made.advanced(P1, 6)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 1)
    copy_ledgers(made, 21)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 2)


# Holds INV-FR2.
def test_T16_complete_is_not_reached_before_the_fact_is_durable() -> None:
    _, tidemarks = written(cut(1, p0=3))
    made = frontier_of(*tidemarks)
    made.advanced(P0, 3)
    copy_ledgers(made, 11)
    assert (made.complete, made.reached) == (
        TidemarkPoint(RegionEpoch(8), 1),
        TidemarkPoint(RegionEpoch(0), 0),
    )
    made.persisted(TidemarkPoint(RegionEpoch(8), 1))
    assert made.reached == TidemarkPoint(RegionEpoch(8), 1)


# Holds INV-FR1.
def test_T16_a_tidemark_is_not_reached_before_those_below_it() -> None:
    _, tidemarks = written(cut(1, p0=3, p1=4), cut(2, p0=5))
    made = frontier_of(*tidemarks)
    made.advanced(P0, 5)
    copy_ledgers(made, 100)
    assert made.complete == TidemarkPoint(RegionEpoch(0), 0)
    made.advanced(P1, 4)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 2)


def test_T16_what_is_reached_already_is_not_waited_for_again() -> None:
    _, tidemarks = written(cut(1, p0=3), cut(2, p0=5))
    made = Frontier(LEDGERS, Lineage(), TidemarkPoint(RegionEpoch(8), 1))
    made.observe(tidemarks[0])
    assert (len(made._pending), made.complete) == (0, TidemarkPoint(RegionEpoch(8), 1))
    made.observe(tidemarks[1])
    assert len(made._pending) == 1


def test_T16_a_log_that_the_reached_tidemark_names_and_that_is_not_here_is_needed_by_the_next() -> (
    None
):
    """INV-FR8: no later tidemark names it again while nobody writes to it."""
    _, tidemarks = written(cut(1, p0=3, p1=4), cut(2, p0=5))
    made = Frontier(LEDGERS, Lineage(), TidemarkPoint(RegionEpoch(8), 1))
    made.absent({P1: 4})
    made.reconciled((P0, P1, LEDGERS.shard_key(0), LEDGERS.shard_key(1)), RegionEpoch(8))
    made.observe(tidemarks[1])
    made.advanced(P0, 5)
    copy_ledgers(made, 100)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 1)
    made.advanced(P1, 4)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 2)


def test_T16_of_a_log_that_is_not_here_the_next_tidemark_needs_what_it_names_itself() -> None:
    _, tidemarks = written(cut(1, p0=3, p1=4), cut(2, p1=6))
    made = Frontier(LEDGERS, Lineage(), TidemarkPoint(RegionEpoch(8), 1))
    made.absent({P1: 4})
    made.reconciled((P0, P1, LEDGERS.shard_key(0), LEDGERS.shard_key(1)), RegionEpoch(8))
    made.observe(tidemarks[1])
    copy_ledgers(made, 100)
    made.advanced(P1, 4)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 1)
    made.advanced(P1, 6)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 2)


# Holds INV-TM4.
def test_T16_a_log_that_is_not_here_and_whose_removal_the_next_tidemark_names_is_not_waited_for() -> (
    None
):
    _, tidemarks = written(
        cut(1, p0=3, p1=4), replace(cut(2), metadata_version=2, existing=frozenset())
    )
    made = Frontier(LEDGERS, Lineage(), TidemarkPoint(RegionEpoch(8), 1))
    made.absent({P1: 4})
    made.reconciled((LEDGERS.shard_key(0), LEDGERS.shard_key(1)), RegionEpoch(8))
    made.observe(tidemarks[1])
    copy_ledgers(made, 100)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 2)


# Holds INV-FR6.
def test_T16_logs_count_only_when_they_were_reconciled_under_the_tidemarks_epoch() -> None:
    """H16: lengths are not histories (T23)."""
    _, tidemarks = written(cut(1, p0=3))
    made = Frontier(LEDGERS)
    made.observe(tidemarks[0])
    made.advanced(P0, 3)
    copy_ledgers(made, 100)
    assert made.complete == TidemarkPoint(RegionEpoch(0), 0)
    made.reconciled((LEDGERS.shard_key(0), LEDGERS.shard_key(1)), RegionEpoch(8))
    made.reconciled((P0,), RegionEpoch(7))
    assert made.complete == TidemarkPoint(RegionEpoch(0), 0)
    made.reconciled((P0,), RegionEpoch(8))
    assert made.complete == TidemarkPoint(RegionEpoch(8), 1)


# Holds INV-FR4.
def test_T16_a_void_tidemark_is_never_reached() -> None:
    """T25: beyond the base of a later region epoch."""
    _, tidemarks = written(cut(1, p0=3), cut(2, p0=5))
    lineage = Lineage((LineageEntry(RegionEpoch(17), "mirror", TidemarkPoint(RegionEpoch(8), 1)),))
    made = frontier_of(*tidemarks, lineage=lineage)
    made.advanced(P0, 5)
    copy_ledgers(made, 100)
    assert (made.complete, made.void_count) == (TidemarkPoint(RegionEpoch(8), 1), 1)


# Holds INV-FR5.
def test_T16_tidemarks_that_need_a_deleted_log_are_skipped() -> None:
    writer, tidemarks = written(cut(1, p0=3, p1=4), cut(2, p1=6))
    gone = writer.prepare(
        ClosedCut(
            round=round_of(TERM, 3),
            region_epoch=RegionEpoch(8),
            metadata_version=2,
            ledger={0: 30, 1: 31},
            moved={},
            existing=frozenset(),
            wall_ms=0,
        )
    )
    assert gone.removed == (P0, P1)
    made = frontier_of(*tidemarks)
    made.advanced(P0, 3)
    copy_ledgers(made, 29)
    made.observe(gone)
    assert made.complete == TidemarkPoint(RegionEpoch(0), 0)
    copy_ledgers(made, 31)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 3)


# T13: what a cleaning left out.


# Holds INV-FR7.
@pytest.mark.parametrize("told_first", [True, False])
def test_T13_a_log_copied_with_holes_counts_for_no_tidemark_inside_them(told_first: bool) -> None:
    """x@0 was cleaned by x@9: a mirror that copies only x@9 has no x at D = 5, and must never show that cut."""
    _, tidemarks = written(cut(1, p1=1), cut(2, p0=5), cut(3, p1=2), cut(4, p0=10))
    made = frontier_of()
    if told_first:
        made.seeded(P0, 10)
    for tidemark in tidemarks:
        made.observe(tidemark)
    made.seeded(P0, 10)
    made.advanced(P1, 2)
    made.advanced(P0, 7)
    copy_ledgers(made, 31)
    assert made.complete == TidemarkPoint(
        RegionEpoch(8), 1
    )  # D of p0 is 0 there: nothing is missing from nothing
    made.advanced(P0, 10)
    assert made.complete == TidemarkPoint(
        RegionEpoch(8), 1
    )  # 2 and 3 lie inside, and 4 waits for the ledgers
    copy_ledgers(made, 41)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 4)


@pytest.mark.parametrize("told_first", [True, False])
def test_T13_a_ledger_copied_with_holes_counts_for_no_tidemark_inside_them(
    told_first: bool,
) -> None:
    """L of tidemarks 1 to 4 in shard 0 is 10, 20, 30, 40; the primary has compacted it up to 30."""
    _, tidemarks = written(*(cut(number) for number in range(1, 5)))
    made = frontier_of()
    shard = LEDGERS.shard_key(0)
    if told_first:
        made.seeded(shard, 30)
    for tidemark in tidemarks:
        made.observe(tidemark)
    made.seeded(shard, 30)
    copy_ledgers(made, 29)
    assert made.complete == BEFORE_ALL
    copy_ledgers(made, 31)
    assert made.complete == TidemarkPoint(RegionEpoch(8), 3)
