"""Which tail goes to quarantine, and what its provenance says."""

from uuid import UUID

import pytest

from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from geo_replicator.quarantine import (
    LogExtent,
    Provenance,
    ProvenanceUnreadable,
    QuarantineKey,
    decode_provenance,
    encode_provenance,
    plan_cut,
)
from idempotency.identity import RegionEpoch

A, B, YOUNG = LogKey(UUID(int=1), 0), LogKey(UUID(int=1), 1), LogKey(UUID(int=2), 0)
CUT = Cut(TidemarkPoint(RegionEpoch(8), 5), {A: 40, B: 40})
KEY = QuarantineKey("main", UUID(int=1), 0, RegionEpoch(17), 40, 59)
PROVENANCE = Provenance(
    domain="main", topic="orders", topic_id=UUID(int=1), partition=0, lineage_epoch=RegionEpoch(17),
    first_offset=40, last_offset=59, region="eu", region_epoch=RegionEpoch(8), acting_region="us",
    base_region_epoch=RegionEpoch(8), base_number=5, byte_count=1_000, batch_count=3, crc32c=7, moved_wall_ms=9,
)  # fmt: skip


# Holds INV-Q3.
def test_only_what_runs_past_its_position_moves() -> None:
    logs = [LogExtent(A, "orders", 0, 60), LogExtent(B, "orders", 0, 40)]
    assert [(step.position, step.moves_tail) for step in plan_cut(logs, CUT)] == [
        (40, True),
        (40, False),
    ]


def test_a_log_younger_than_the_cut_goes_as_a_whole() -> None:
    (step,) = plan_cut([LogExtent(YOUNG, "new", 0, 7)], CUT)
    assert (step.position, step.moves_tail) == (0, True)


def test_T14_a_log_trimmed_above_its_position_goes_as_a_whole_and_lacks_what_the_cut_holds() -> (
    None
):
    (step,) = plan_cut([LogExtent(A, "orders", 41, 60)], CUT)
    assert (step.position, step.moves_tail, step.lacks) == (41, True, True)
    (step,) = plan_cut([LogExtent(A, "orders", 40, 60)], CUT)
    assert (step.position, step.moves_tail, step.lacks) == (40, True, False)


@pytest.mark.parametrize(
    ("first", "last", "covered"), [(40, 59, True), (45, 50, True), (39, 59, False), (40, 60, False)]
)
def test_a_tail_covers_what_lies_within_it(first: int, last: int, covered: bool) -> None:
    assert KEY.covers(KEY._replace(first_offset=first, last_offset=last)) is covered
    assert not KEY.covers(KEY._replace(lineage_epoch=RegionEpoch(24)))
    assert not KEY.covers(KEY._replace(partition=1))


def test_provenance_comes_back_from_json() -> None:
    assert decode_provenance(encode_provenance(PROVENANCE)) == PROVENANCE
    assert PROVENANCE.key == KEY
    with pytest.raises(ProvenanceUnreadable):
        decode_provenance(b"{}")
