"""What two sound regions may show that is no fault: lag, deletions, growth and failovers behind the cut, clocks of clients."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.reconciliation.findings import Kind, Severity
from geo_replicator.reconciliation.job import LocalEngine, Outcome, Request, reconcile_all
from geo_replicator.reconciliation.plan import Fork, TopicFacts
from geo_replicator.tidemark import LogPosition, Tidemark, encode
from idempotency.identity import CoordinatorEpoch, ProducerEpoch, ProducerId, RegionEpoch, Round
from idempotency.ledger_records import TxnStatus
from idempotency.record_batch import ControlType, MarkerFacts, build_marker, read_header
from region_broker.cli.reconcile import _fork
from region_broker.controller.metadata_image import (
    DomainImage,
    LineageEntry,
    MetadataImage,
    TopicImage,
)
from region_broker.log.indexes.checked_file import pack_frame
from region_broker.records.batches import Record, build_batch
from tests.reconciliation.two_regions import (
    A0,
    A1,
    OFFSETS,
    PLAIN,
    REGION_EPOCH,
    TIDEMARKS,
    TIMEOUT_MS,
    TXN_LEDGER,
    Pair,
    Place,
    Primary,
    Txn,
    end_of,
    flipped,
    restamped,
    segments,
    sound_primary,
    topic_id,
    with_crc,
)
from tests.unit.geo_replicator.reconciliation.test_compacted import (
    KEYED,
    primary_with,
    put,
    reconcile,
)

QUARTER_MS = 900_000
GROWN: Place = ("clicks", 1)


def reconciled(pair: Pair, folder: Path, fork: Fork | None = None) -> Outcome:
    source, mirror = pair.write(folder)
    return reconcile_all(Request(source=source, mirror=mirror, fork=fork), LocalEngine())


def faults(outcome: Outcome) -> list[tuple[Kind, str, int]]:
    return [
        (found.kind, found.topic, found.partition)
        for found in outcome.findings
        if found.is_root and found.severity is Severity.CORRUPTION
    ]


def tidemark(
    primary: Primary, number: int, places: tuple[Place, ...] = (), removed: tuple[Place, ...] = ()
) -> None:
    """Publish one that names these logs and the ledger."""
    record = Tidemark(
        domain="main", region_epoch=REGION_EPOCH, number=number, round=Round(number), metadata_version=number,
        ledger={shard: end_of(primary.logs[TXN_LEDGER, shard]) for shard in range(2)} if places else {},
        moved={LogKey(topic_id(t), p): LogPosition(end_of(primary.logs[t, p]), 0) for t, p in places},
        full=False, removed=tuple(LogKey(topic_id(t), p) for t, p in removed), wall_ms=primary.now_ms,
    )  # fmt: skip
    key, value = encode(record)
    primary.append((TIDEMARKS, 0), build_batch([Record(key, value, timestamp_ms=primary.now_ms)]))


def begun() -> Primary:
    primary = Primary()
    for producer in (1000, 1001):
        primary.play(Txn(producer, (A0, A1)))
        primary.plain(PLAIN)
    return primary


def commit(primary: Primary, producer: int, place: Place) -> None:
    """End the open transaction of a producer."""
    txn, epoch = Txn(producer, (place,)), primary.epochs.get(producer, 0) + 1
    decision = primary.ledger(txn, TxnStatus.PREPARE_COMMIT, epoch, None)
    marker = MarkerFacts(
        ProducerId(producer),
        ProducerEpoch(epoch),
        ControlType.COMMIT,
        CoordinatorEpoch(1),
        decision,
        primary.now_ms,
    )
    primary.append(place, build_marker(marker))
    primary.ledger(txn, TxnStatus.COMPLETE_COMMIT, epoch, decision)


@pytest.mark.parametrize("mirror_is_behind", [True, False])
def test_INV_RCTX4_a_transaction_that_was_open_at_the_cut_and_ended_behind_it_does_not_hang(
    tmp_path: Path, mirror_is_behind: bool
) -> None:
    primary = begun()
    primary.play(Txn(1004, (A1,), end=False))
    primary.tidemark(1)
    reached = Pair.of(primary)
    commit(primary, 1004, A1)
    primary.now_ms += QUARTER_MS
    primary.plain(PLAIN)
    primary.play(Txn(1000, (A0,)))
    pair = Pair.of(primary)
    if mirror_is_behind:
        pair.mirror = reached.mirror
    assert faults(reconciled(pair, tmp_path)) == []


def hung(primary: Primary, record_ms: int, *, in_ledger: bool) -> None:
    """Leave a transaction open whose record says `record_ms`."""
    if in_ledger:
        primary.ledger(Txn(1009, (A1,)), TxnStatus.ONGOING, 0, None)
    now_ms, primary.now_ms = primary.now_ms, record_ms
    primary.data(A1, 1009, 0, transactional=True)
    primary.now_ms = now_ms + 1


@pytest.mark.parametrize("in_ledger", [True, False], ids=["known to the ledger", "unknown to it"])
@pytest.mark.parametrize("record_ms", [1, 1 << 45], ids=["long ago", "in the future"])
@pytest.mark.parametrize("is_old", [False, True])
def test_INV_RCTX5_age_is_told_by_the_regions_clock_and_not_by_what_records_say(
    tmp_path: Path, record_ms: int, in_ledger: bool, is_old: bool
) -> None:
    primary = begun()
    hung(primary, record_ms, in_ledger=in_ledger)
    primary.tidemark(1)
    if is_old:
        primary.now_ms += QUARTER_MS
        primary.plain(PLAIN)
        tidemark(primary, 2, (PLAIN,))
    pair = Pair.of(primary)
    source, mirror = pair.write(tmp_path)
    mirror = replace(mirror, reached=TidemarkPoint(REGION_EPOCH, 1 + is_old))
    outcome = reconcile_all(Request(source=source, mirror=mirror), LocalEngine())
    assert faults(outcome) == ([(Kind.HANGING_TXN, *A1)] if is_old else [])


def test_INV_RCTX5_a_record_of_a_clock_that_is_ahead_lets_nothing_hang(tmp_path: Path) -> None:
    def ahead(primary: Primary) -> None:
        late = Record(None, b"x", timestamp_ms=primary.now_ms + 2 * TIMEOUT_MS)
        primary.append(PLAIN, build_batch([late]))

    primary = sound_primary(ahead)
    primary.play(Txn(1003, (A0,), end=False))
    primary.tidemark(2)
    assert faults(reconciled(Pair.of(primary), tmp_path)) == []


def test_T14_what_lies_below_the_log_start_need_not_be_there(tmp_path: Path) -> None:
    """DeleteRecords moved the start; only the mirror's first segment lay wholly below it."""
    pair = Pair.of(sound_primary())
    start = read_header(pair.source[PLAIN][8]).base_offset

    def retained(primary: Path, away: Path) -> None:
        segments(away, PLAIN)[0].unlink()
        first, second = segments(primary, PLAIN)[:2]
        first.write_bytes(first.read_bytes() + second.read_bytes())
        second.unlink()
        log_start = pack_frame(b"TMLS", 1, start.to_bytes(8, "big"))
        (first.parent / "log-start").write_bytes(log_start)

    pair.byte_faults.append(retained)
    assert faults(reconciled(pair, tmp_path)) == []


def test_T15_a_topic_deleted_behind_the_cut_is_lag(tmp_path: Path) -> None:
    primary = begun()
    primary.tidemark(1)
    reached = Pair.of(primary)
    tidemark(primary, 2, removed=(PLAIN,))
    del primary.logs[PLAIN]
    pair = Pair.of(primary)
    pair.mirror = reached.mirror
    outcome = reconciled(pair, tmp_path)
    assert (faults(outcome), outcome.exit_code) == ([], 0)
    assert (Kind.TAIL_UNREPLICATED, "clicks") in {(f.kind, f.topic) for f in outcome.findings}


def test_T15_a_topic_deleted_and_made_again_behind_the_cut_is_lag(tmp_path: Path) -> None:
    primary = begun()
    primary.tidemark(1)
    pair = Pair.of(primary)
    tidemark(primary, 2, removed=(PLAIN,))
    pair.source = Pair.of(primary).source
    pair.byte_faults.append(
        lambda primary, _: _renamed(primary / "logs", topic_id("clicks"), topic_id("clicks", 1))
    )
    assert faults(reconciled(pair, tmp_path)) == []


def _renamed(logs: Path, old: UUID, new: UUID) -> None:
    (logs / old.hex).rename(logs / new.hex)


def test_T15_a_topic_that_merely_lacks_at_the_primary_is_a_fault(tmp_path: Path) -> None:
    primary = begun()
    primary.tidemark(1)
    reached = Pair.of(primary)
    del primary.logs[PLAIN]
    pair = Pair.of(primary)
    pair.mirror = reached.mirror
    assert faults(reconciled(pair, tmp_path)) == [(Kind.TOPIC_MISMATCH, *PLAIN)]


@pytest.mark.parametrize("covered", [False, True])
def test_T15_a_topic_that_grew_behind_the_cut_is_lag(tmp_path: Path, covered: bool) -> None:
    primary = begun()
    primary.tidemark(1)
    reached = Pair.of(primary)
    primary.plain(GROWN)
    if covered:
        primary.tidemark(2)
    pair = Pair.of(primary)
    pair.mirror = {**reached.mirror, (TIDEMARKS, 0): pair.mirror[TIDEMARKS, 0]}
    source, mirror = pair.write(tmp_path)
    reached_point = TidemarkPoint(REGION_EPOCH, 1 + covered)
    regions = [
        replace(region, topics={"clicks": TopicFacts(partition_count=count)}, reached=reached_point)
        for region, count in ((source, 2), (mirror, 1))
    ]
    request = Request(source=regions[0], mirror=regions[1])
    found = faults(reconcile_all(request, LocalEngine()))
    assert found == ([(Kind.TOPIC_MISMATCH, "clicks", -1)] if covered else [])


def test_T23_what_was_not_copied_before_a_failover_that_is_not_followed_is_lag(
    tmp_path: Path,
) -> None:
    primary = sound_primary()
    reached = Pair.of(primary)
    primary.plain(PLAIN)
    base = {f"{topic}/{number}": end_of(log) for (topic, number), log in primary.logs.items()}
    pair = Pair.of(primary)
    pair.mirror = reached.mirror
    assert (
        faults(reconciled(pair, tmp_path, Fork(region_epoch=RegionEpoch(17), positions=base))) == []
    )


def image(pair: Pair, lineage: tuple[LineageEntry, ...]) -> MetadataImage:
    topics = {
        name: TopicImage(topic_id=topic_id(name), name=name, partition_count=2, internal=False)
        for name, _ in pair.source
    }
    epoch = lineage[-1].region_epoch if lineage else REGION_EPOCH
    domain = DomainImage(
        name="main",
        acting_region="us",
        region_epoch=RegionEpoch(epoch),
        shard_count=2,
        lineage=lineage,
    )
    return MetadataImage(version=1, cluster_id="c", topics=topics, domains={"main": domain})


def failover(pair: Pair, epoch: int, at: int) -> LineageEntry:
    """Let another region write `clicks` from batch `at` on; return its entry."""
    log = pair.source[PLAIN]
    ends = {
        f"{topic_id(topic).hex}/{number}": end_of(batches)
        for (topic, number), batches in pair.source.items()
    }
    ends[f"{topic_id('clicks').hex}/0"] = read_header(log[at]).base_offset
    log[at:] = [restamped(batch, leader_epoch=epoch << 16 | 1) for batch in log[at:]]
    return LineageEntry(
        region_epoch=RegionEpoch(epoch),
        acting_region="us",
        base_region_epoch=RegionEpoch(8),
        base_number=1,
        positions=ends,
    )


def test_T23_a_tail_that_parted_at_the_first_of_two_failovers_is_known(tmp_path: Path) -> None:
    pair = Pair.of(sound_primary())
    lineage = (failover(pair, 17, 8), failover(pair, 26, 10))
    parted = read_header(pair.mirror[PLAIN][8]).base_offset
    pair.mirror[PLAIN][8:] = [with_crc(flipped(batch, at=-2)) for batch in pair.mirror[PLAIN][8:]]
    fork = _fork(image(pair, lineage), image(pair, ()))
    assert fork is not None
    assert (fork.region_epoch, fork.positions["clicks/0"]) == (17, parted)
    assert faults(reconciled(pair, tmp_path, fork)) == []


def test_T23_who_followed_the_first_of_two_failovers_parted_at_the_second() -> None:
    pair = Pair.of(sound_primary())
    lineage = (failover(pair, 17, 8), failover(pair, 26, 10))
    fork = _fork(image(pair, lineage), image(pair, lineage[:1]))
    assert fork is not None
    assert fork.positions["clicks/0"] == read_header(pair.source[PLAIN][10]).base_offset
    assert _fork(image(pair, lineage), image(pair, lineage)) is None


@pytest.mark.parametrize("full_again", [False, True])
def test_INV_RCHO2_a_damaged_tidemark_ends_the_cut_before_it_until_the_next_full_one(
    tmp_path: Path, full_again: bool
) -> None:
    primary = sound_primary()
    for _ in range(3):
        primary.play(Txn(1000, (A0, A1, OFFSETS)))
    tidemark(primary, 2, (A0, A1, OFFSETS, PLAIN))
    primary.play(Txn(1004, (PLAIN,)))
    tidemark(primary, 3, (PLAIN,))
    if full_again:
        primary.tidemark(4)
    pair = Pair.of(primary)
    pair.mirror[TIDEMARKS, 0][1] = flipped(pair.mirror[TIDEMARKS, 0][1])
    source, mirror = pair.write(tmp_path)
    mirror = replace(mirror, reached=TidemarkPoint(REGION_EPOCH, 4 if full_again else 3))
    outcome = reconcile_all(Request(source=source, mirror=mirror), LocalEngine())
    assert faults(outcome) == [(Kind.CRC_BAD_LOCAL, TIDEMARKS, 0)]
    expected = TidemarkPoint(REGION_EPOCH, 4 if full_again else 1)
    assert outcome.summary.horizon == str(expected)


def test_a_partition_that_lost_its_segments_is_missing_and_the_others_are_compared(
    tmp_path: Path,
) -> None:
    pair = Pair.of(sound_primary())

    def lose(_: Path, away: Path) -> None:
        for path in segments(away, PLAIN):
            path.unlink()

    pair.byte_faults.append(lose)
    outcome = reconciled(pair, tmp_path)
    assert faults(outcome) == [(Kind.MISSING, *PLAIN)]
    assert outcome.summary.partitions > 1


def test_a_partition_that_lost_its_segments_on_both_sides_is_a_gap_below_the_cut(
    tmp_path: Path,
) -> None:
    pair = Pair.of(sound_primary())

    def lose(primary: Path, away: Path) -> None:
        for path in (*segments(primary, PLAIN), *segments(away, PLAIN)):
            path.unlink()

    pair.byte_faults.append(lose)
    assert faults(reconciled(pair, tmp_path)) == [(Kind.OFFSET_GAP, *PLAIN)]


def _gaps(pair: Pair) -> None:
    """Every second batch lacks on both sides."""
    for side in (pair.source, pair.mirror):
        side[PLAIN] = side[PLAIN][::2]


def _bad(pair: Pair) -> None:
    log = pair.mirror[PLAIN]
    log[:-1] = [flipped(batch) for batch in log[:-1]]


@pytest.mark.parametrize(("spoil", "kind"), [(_gaps, Kind.OFFSET_GAP), (_bad, Kind.CRC_BAD_LOCAL)])
def test_INV_RCR4_what_is_not_listed_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Pair], None], kind: Kind
) -> None:
    def outcome(folder: Path) -> Outcome:
        pair = Pair.of(sound_primary(), roll_batches=100)
        spoil(pair)
        return reconciled(pair, folder)

    def listed(outcome: Outcome) -> int:
        return sum(found.kind is kind for found in outcome.findings)

    whole = outcome(tmp_path / "whole")
    monkeypatch.setattr("geo_replicator.reconciliation.evidence.rows.LISTED_MAX", 3)
    short = outcome(tmp_path / "short")
    assert listed(short) < listed(whole)
    assert any("more like it" in found.detail for found in short.findings)
    assert short.summary.roots[kind.value] == whole.summary.roots[kind.value]


def test_INV_RCR4_keys_that_differ_are_all_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(primary: Primary) -> None:
        for number in range(60):
            put(primary, b"%05d" % number, b"value")

    def total(folder: Path) -> int:
        compacted = reconcile(folder, Pair.of(primary_with(write), 25), ("away", set(), KEYED))
        return compacted.summary.findings_total

    whole = total(tmp_path / "whole")
    # Of two segments with 25 keys each, the last one of each is left.
    assert whole == 48
    monkeypatch.setattr("geo_replicator.reconciliation.by_key._LISTED_MAX", 5)
    assert total(tmp_path / "short") == whole
