"""Two regions of which one, or each by its own clock, compacted a log: what differs by right and what does not.

What compaction leaves is written down here by the rules (ADR 22), not made by the cleaner.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from geo_replicator.reconciliation.by_key import NotComparable, _newest
from geo_replicator.reconciliation.findings import Kind
from geo_replicator.reconciliation.job import LocalEngine, Outcome, Request, reconcile_all
from geo_replicator.reconciliation.plan import Options, PartitionPlan
from idempotency.record_batch import read_header
from region_broker.log.cleaning.state import NEVER_CLEANED, CleaningState, CleanMark
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Record, build_batch
from region_broker.records.compression import Codec
from tests.reconciliation.two_regions import (
    A0,
    A1,
    OFFSETS,
    START_MS,
    TXN_LEDGER,
    Pair,
    Primary,
    Txn,
    restamped,
    segments,
    sound_primary,
)

KEYED = ("keyed", 0)


def put(primary: Primary, key: bytes, value: bytes | None, codec: Codec = Codec.NONE) -> None:
    primary.append(KEYED, build_batch([Record(key, value, timestamp_ms=START_MS)], codec=codec))


def primary_with(write: Callable[[Primary], None]) -> Primary:
    return sound_primary(write)


def updates(primary: Primary, codec: Codec = Codec.NONE) -> None:
    """Write 14 updates, which are compacted (`a` ends at 13, `b` at 10, `c` by a tombstone at 12), and 7 more."""
    for number in range(12):
        put(primary, b"abc"[number % 3 : number % 3 + 1], b"%d" % number, codec)
    put(primary, b"c", None, codec)
    for number in range(8):
        put(primary, b"a", b"late %d" % number, codec)


def compact(pair: Pair, folder: Path, region: str, keep: set[int], place: tuple[str, int]) -> None:
    """Rewrite the first two segments of one side with the batches of these offsets, and the last of each."""
    for path in segments(folder / region, place)[:2]:
        data = path.read_bytes()
        batches = []
        while data:
            size = read_header(data).size_bytes
            batches.append(data[:size])
            data = data[size:]
        left = [b for b in batches if read_header(b).base_offset in keep or b is batches[-1]]
        path.write_bytes(b"".join(left))
    first_dirty = read_header(segments(folder / region, place)[2].read_bytes()).base_offset
    state = CleaningState(RealDisk(), segments(folder / region, place)[0].parent, NEVER_CLEANED)
    assert state.note(CleanMark(first_dirty, first_dirty, first_dirty))


def reconcile(
    folder: Path, pair: Pair, *compactions: tuple[str, set[int], tuple[str, int]]
) -> Outcome:
    source, mirror = pair.write(folder)
    for region, keep, place in compactions:
        compact(pair, folder, region, keep, place)
    return reconcile_all(Request(source=source, mirror=mirror, options=Options()), LocalEngine())


# Holds INV-RCDI5.
@pytest.mark.parametrize("keep", [{10}, {10, 12}], ids=["tombstone gone", "tombstone there"])
def test_what_one_side_compacted_is_compared_by_key_and_covered(
    tmp_path: Path, keep: set[int]
) -> None:
    outcome = reconcile(tmp_path, Pair.of(primary_with(updates)), ("away", keep, KEYED))
    assert outcome.findings == []
    assert (outcome.exit_code, outcome.summary.coverage) == (0, 1.0)


# Holds INV-RCBK1.
def test_both_sides_compacted_each_by_its_own_clock(tmp_path: Path) -> None:
    both = (("primary", {10, 12, 8}, KEYED), ("away", {10}, KEYED))
    outcome = reconcile(tmp_path, Pair.of(primary_with(updates)), *both)
    assert (outcome.findings, outcome.exit_code) == ([], 0)


# Holds INV-RCBK1.
@pytest.mark.parametrize(
    ("keep", "kind", "offset"),
    [
        (set[int](), Kind.MISSING, 10),  # the newest of `b` is gone
        ({7}, Kind.DIVERGENT, 10),  # an older one of `b` stayed in its place
        ({10, 11}, Kind.EXTRA, 11),  # the tombstone of `c` is gone, and its value is not
    ],
)
def test_a_newest_value_that_is_another_is_found(
    tmp_path: Path, keep: set[int], kind: Kind, offset: int
) -> None:
    outcome = reconcile(tmp_path, Pair.of(primary_with(updates)), ("away", keep, KEYED))
    (finding,) = outcome.findings
    assert (finding.kind, finding.first_offset, finding.topic) == (kind, offset, "keyed")
    assert outcome.exit_code == 1


def test_a_value_that_was_changed_below_the_clean_point_is_found(tmp_path: Path) -> None:
    pair = Pair.of(primary_with(updates))
    forged = build_batch([Record(b"b", b"forged", timestamp_ms=START_MS)])
    header = read_header(pair.mirror[KEYED][10])
    pair.mirror[KEYED][10] = restamped(
        forged, base_offset=header.base_offset, leader_epoch=header.leader_epoch
    )
    outcome = reconcile(tmp_path, pair, ("away", {10}, KEYED))
    (finding,) = outcome.findings
    assert (finding.kind, finding.first_offset) == (Kind.DIVERGENT, 10)


# Holds INV-RCBK2.
def test_what_is_compressed_is_not_covered_and_nothing_is_said_of_it(tmp_path: Path) -> None:
    pair = Pair.of(primary_with(lambda primary: updates(primary, Codec.GZIP)))
    outcome = reconcile(tmp_path, pair, ("away", {10}, KEYED))
    assert outcome.findings == []
    assert outcome.exit_code == 3
    assert any("keyed" in text for text in outcome.summary.not_read)


def test_transactions_of_which_compaction_left_a_part_are_whole(tmp_path: Path) -> None:
    """Data and markers of transactions go with what supersedes them, in each region by its own clock."""

    def more(primary: Primary) -> None:
        for _ in range(6):
            primary.play(Txn(1000, (A0, A1, OFFSETS)))

    pair = Pair.of(primary_with(more))
    for each in (("away",), ("primary",), ("primary", "away")):
        keep = {"away": set[int](), "primary": {0, 2, 3}}
        folder = tmp_path / "-".join(each)
        outcome = reconcile(folder, pair, *((region, keep[region], OFFSETS) for region in each))
        torn = [finding for finding in outcome.findings if finding.kind.value.endswith("txn")]
        assert torn == []
        assert Kind.COMMITTED_INCOMPLETE not in {finding.kind for finding in outcome.findings}


# Holds INV-RCTX7.
@pytest.mark.parametrize("regions", [("away",), ("primary",), ("primary", "away")])
def test_decisions_that_were_compacted_away_are_not_missed(
    tmp_path: Path, regions: tuple[str, ...]
) -> None:
    """Of each transactional id the newest record stays; the markers of older decisions are still in the logs."""

    def more(primary: Primary) -> None:
        for _ in range(6):
            primary.play(Txn(1000, (A0, A1, OFFSETS)))
            primary.play(Txn(1001, (A1, A0)))

    for shard in (0, 1):
        keep = (shard_of_newest(shard, primary_with(more)),)
        outcome = reconcile(
            tmp_path / str(shard),
            Pair.of(primary_with(more)),
            *((region, set(keep), (TXN_LEDGER, shard)) for region in regions),
        )
        assert outcome.findings == []
        assert outcome.exit_code == 0


def shard_of_newest(shard: int, primary: Primary) -> int:
    """Return the newest record of the only id of a shard in its first two segments."""
    return read_header(primary.logs[TXN_LEDGER, shard][2 * 7 - 1]).base_offset


def test_a_marker_that_lacks_above_the_clean_point_is_still_found(tmp_path: Path) -> None:
    def more(primary: Primary) -> None:
        for _ in range(6):
            primary.play(Txn(1000, (A0, A1, OFFSETS)))
        primary.play(Txn(1003, (A0, OFFSETS), lose_marker_in=(1,)))

    outcome = reconcile(tmp_path, Pair.of(primary_with(more)), ("away", {0}, OFFSETS))
    assert any(finding.producer_id == 1003 for finding in outcome.findings)


def test_a_side_that_ends_below_the_clean_point_is_not_compared_by_key() -> None:
    plan = cast("PartitionPlan", SimpleNamespace(cleaned_below=5))
    assert _newest(cast("PartitionPlan", SimpleNamespace(cleaned_below=0)), [], 0) == {}
    with pytest.raises(NotComparable, match="not copied so far"):
        _newest(plan, [], 0)
