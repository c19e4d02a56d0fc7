"""Lineage: order, void tidemarks, bases."""

from uuid import UUID

import pytest

from geo_replicator.lineage import (
    BEFORE_ALL,
    Lineage,
    LineageEntry,
    LogKey,
    TidemarkPoint,
    begun_twice,
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


# Holds INV-LN3.
def test_the_lowest_base_takes_the_minimum_of_each_log() -> None:
    cut = lowest_base((US, EU))
    assert cut.point == TidemarkPoint(RegionEpoch(8), 5)
    assert (cut.position_of(A), cut.position_of(B)) == (50, 55)


def test_a_log_that_one_entry_does_not_name_is_younger_than_it() -> None:
    young = LogKey(UUID(int=2), 0)
    entry = LineageEntry(
        RegionEpoch(24), "eu", TidemarkPoint(RegionEpoch(17), 9), {A: 90, B: 55, young: 7}
    )
    for entries in ((US, entry), (entry, US)):
        assert lowest_base(entries).position_of(young) == 0


def test_T35_an_epoch_that_one_side_alone_knows_was_not_begun_twice() -> None:
    otherwise = LineageEntry(US.region_epoch, "us", US.base, {A: 50, B: 59}, 1_000)
    assert begun_twice((US, EU), (otherwise,), US.region_epoch)
    assert not begun_twice((US, EU), (US,), US.region_epoch)
    assert not begun_twice((US,), (EU,), US.region_epoch)
    assert not begun_twice((), (EU,), EU.region_epoch)
