"""Lineage: order, void tidemarks, bases."""

from itertools import product
from uuid import UUID

import pytest

from geo_replicator.lineage import (
    BEFORE_ALL,
    Lineage,
    LineageEntry,
    LogKey,
    TidemarkPoint,
    begun_twice,
    in_force,
    lowest_base,
)
from idempotency.identity import RegionEpoch

A, B = LogKey(UUID(int=1), 0), LogKey(UUID(int=1), 1)
US = LineageEntry(RegionEpoch(17), "us", TidemarkPoint(RegionEpoch(8), 5), {A: 50, B: 60}, 1_000)
EU = LineageEntry(RegionEpoch(24), "eu", TidemarkPoint(RegionEpoch(17), 9), {A: 90, B: 55}, 2_000)


def test_log_keys_come_back_from_text() -> None:
    assert LogKey.decode(A.encode()) == A
    for bad in ("", "zz/0", f"{A.topic_id.hex}/x"):
        with pytest.raises(ValueError, match=r"."):
            LogKey.decode(bad)


# Holds INV-LN2.
def test_points_beyond_a_later_base_are_void() -> None:
    lineage = Lineage((US, EU))
    assert lineage.is_void(TidemarkPoint(RegionEpoch(8), 6))
    assert not lineage.is_void(TidemarkPoint(RegionEpoch(8), 5))
    assert lineage.is_void(TidemarkPoint(RegionEpoch(17), 10))
    assert not lineage.is_void(TidemarkPoint(RegionEpoch(24), 10))


def test_the_greatest_valid_claim_is_by_epoch_then_number() -> None:
    lineage = Lineage((US,))
    claims = [
        TidemarkPoint(RegionEpoch(8), 99),
        TidemarkPoint(RegionEpoch(8), 4),
        TidemarkPoint(RegionEpoch(17), 1),
    ]
    assert lineage.greatest_valid(claims) == TidemarkPoint(RegionEpoch(17), 1)
    assert lineage.greatest_valid(claims[:2]) == TidemarkPoint(RegionEpoch(8), 4)
    assert lineage.greatest_valid(claims[:1]) == BEFORE_ALL


def entry(epoch: int, base: tuple[int, int], end: int) -> LineageEntry:
    point = TidemarkPoint(RegionEpoch(base[0]), base[1])
    return LineageEntry(RegionEpoch(epoch), f"of {epoch}", point, {A: end})


DEAD, AP = entry(17, (8, 3), 30), entry(18, (8, 4), 40)


def test_INV_LN4_a_takeover_that_was_passed_over_makes_nothing_void() -> None:
    lineage = Lineage((DEAD, AP))
    assert in_force(lineage.entries) == (AP,)
    assert lineage.since(RegionEpoch(8)) == (DEAD, AP)
    assert lineage.is_void(TidemarkPoint(RegionEpoch(8), 5))
    assert not lineage.is_void(TidemarkPoint(RegionEpoch(8), 4))
    assert lineage.is_void(TidemarkPoint(RegionEpoch(17), 4))
    assert lineage.fallback_of(TidemarkPoint(RegionEpoch(8), 5)).position_of(A) == 40


def test_INV_LN4_an_entry_counts_where_nobody_acted_from_beyond_its_base() -> None:
    lower, same, within = entry(26, (8, 2), 20), entry(26, (8, 3), 30), entry(26, (17, 5), 50)
    for later in (lower, same, within):
        assert in_force((DEAD, later)) == (DEAD, later)
    behind_a_gap = entry(33, (24, 9), 90)
    assert in_force((DEAD, behind_a_gap)) == (DEAD, behind_a_gap)


def test_INV_LN4_one_that_was_passed_over_passes_nobody_over() -> None:
    goes_on = entry(26, (17, 5), 50)
    assert in_force((DEAD, AP, goes_on)) == (DEAD, goes_on)
    assert Lineage((DEAD, AP, goes_on)).is_void(TidemarkPoint(RegionEpoch(8), 4))


def test_INV_LN4_what_a_takeover_that_was_passed_over_cut_off_is_there_again() -> None:
    known = Lineage((DEAD, AP, entry(25, (18, 6), 70)))
    lower = Lineage((DEAD, AP, entry(25, (8, 2), 20)))
    back_in_force = Lineage((DEAD, AP, entry(26, (17, 5), 50)))
    for lineage, over, end in ((known, 17, 40), (lower, 17, 20), (back_in_force, 18, 30)):
        assert lineage.was_passed_over(RegionEpoch(over))
        held = lineage.held_of(RegionEpoch(8))
        assert held is not None
        assert held.position_of(A) == end
    for stands in (18, 25, 8, 33):
        assert not known.was_passed_over(RegionEpoch(stands))
    assert not back_in_force.was_passed_over(RegionEpoch(17))
    assert not Lineage((US, EU)).was_passed_over(RegionEpoch(17))
    assert known.held_of(RegionEpoch(25)) is None


def test_T25_what_a_region_that_was_passed_over_published_falls_back_to_its_own_base() -> None:
    own = TidemarkPoint(RegionEpoch(17), 9)
    cut = Lineage((DEAD, AP)).fallback_of(own)
    assert (cut.point, cut.position_of(A)) == (DEAD.base, 30)
    lowest = entry(17, (8, 2), 20)
    passed_over, goes_on = entry(18, (8, 3), 30), entry(26, (17, 5), 50)
    lineage = Lineage((lowest, passed_over, goes_on))
    assert lineage.fallback_of(TidemarkPoint(RegionEpoch(18), 4)).point == lowest.base


# Holds INV-LN4.
def test_a_fallback_is_below_what_is_void_and_stands_itself() -> None:
    bases = [(8, 2), (8, 3), (8, 4), (17, 3), (17, 4), (18, 3), (18, 5), (26, 4)]
    epochs = (17, 18, 26, 33)
    for drawn in product(*([base for base in bases if base[0] < epoch] for epoch in epochs)):
        entries = (entry(e, base, 10 * base[1]) for e, base in zip(epochs, drawn, strict=True))
        lineage = Lineage(tuple(entries))
        for point in (TidemarkPoint(RegionEpoch(e), 5) for e in (8, 17, 18, 26)):
            if lineage.is_void(point):
                fallback = lineage.fallback_of(point)
                assert fallback.point < point
                assert not lineage.is_void(fallback.point)


# Holds INV-LN3.
def test_the_lowest_base_takes_the_minimum_of_each_log() -> None:
    cut = lowest_base((US, EU))
    assert cut.point == TidemarkPoint(RegionEpoch(8), 5)
    assert (cut.position_of(A), cut.position_of(B)) == (50, 55)


def test_a_log_that_one_entry_does_not_name_is_younger_than_it() -> None:
    young = LogKey(UUID(int=2), 0)
    later = LineageEntry(
        RegionEpoch(24), "eu", TidemarkPoint(RegionEpoch(17), 9), {A: 90, B: 55, young: 7}
    )
    for entries in ((US, later), (later, US)):
        assert lowest_base(entries).position_of(young) == 0


def test_T35_an_epoch_that_one_side_alone_knows_was_not_begun_twice() -> None:
    otherwise = LineageEntry(US.region_epoch, "us", US.base, {A: 50, B: 59}, 1_000)
    assert begun_twice((US, EU), (otherwise,), US.region_epoch)
    assert not begun_twice((US, EU), (US,), US.region_epoch)
    assert not begun_twice((US,), (EU,), US.region_epoch)
    assert not begun_twice((), (EU,), EU.region_epoch)
