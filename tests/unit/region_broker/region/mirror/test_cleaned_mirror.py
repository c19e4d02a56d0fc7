"""Compacted logs over a link (T13): who may clean how far, and what a mirror that starts later copies and shows."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from geo_replicator.history import HistoryDifference, ShownLog
from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from geo_replicator.link.comparing import shared_ends
from geo_replicator.reconciliation.findings import Severity
from geo_replicator.reconciliation.job import LocalEngine, Region, Request, reconcile_all
from geo_replicator.whole_ends import WholeEnds
from idempotency.identity import (
    NO_LEADER_EPOCH,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    TopicName,
    TopicPartition,
)
from idempotency.record_batch import ControlType, iter_headers
from region_broker.controller.metadata_image import OFFSETS_LEDGER, TRANSACTION_LEDGER
from region_broker.groups.offsets import OffsetTable
from region_broker.groups.ports import TxnProducer
from region_broker.groups.records import (
    OffsetKey,
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.ledgers.offsets_log import PartitionOffsetsLog
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.log.failures import CutIntoCleaned, MirrorGap
from region_broker.partitions.cleaner import BoundOf, Cleaner, CleanerParts
from region_broker.partitions.partition import Partition
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Record, build_batch
from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.mirror.shown_history import ShownHistory
from region_broker.region.tidemarks.clean_bounds import CleanBoundParts, CleanBounds
from region_broker.region.tidemarks.cut_leader import CutLeader
from tests.fixtures.coordinator import Row
from tests.fixtures.linked_regions import Site, primary_and_mirror
from tests.fixtures.node_logs import Fixture, all_bytes, append_marker, fixture
from tests.fixtures.waiting import until
from tests.property.test_compacted_transactions import facts, replay
from tests.unit.region_broker.log.test_cleaning import COMPACT, Inline, clean, put, roll
from txn_coordinator.verdicts import TxnVerdict

CLEANED_SOON = {"segment.bytes": "4096", "min.cleanable.dirty.ratio": "0"}
POINTS = [TidemarkPoint(RegionEpoch(8), number) for number in range(5)]


class Mirrors:
    """What one partition's the primary knows of its mirrors."""

    def __init__(self, some: Fixture) -> None:
        self.partition = some.partition
        self.cut: Cut | None = None
        self.reached: dict[str, TidemarkPoint] = {}
        self.names = ["us"]
        self.copied: int | None = None
        self.bounds = CleanBounds(
            CleanBoundParts(
                partitions=lambda: [some.partition],
                published_cut=lambda: self.cut,
                mirrors=lambda: self.names,
                reached=lambda name: self.reached.get(name, None),
                copied_to=lambda _: self.copied,
            )
        )

    @staticmethod
    def of(primary: Site, leader: CutLeader, partitions: Sequence[Partition]) -> CleanBounds:
        """Return the bounds of a primary with one mirror, by what that one really reports."""
        reports = primary.source.reports
        return CleanBounds(
            CleanBoundParts(
                partitions=lambda: partitions,
                published_cut=leader.published_cut,
                mirrors=lambda: ["mirror"],
                reached=lambda name: reports[name].reached if name in reports else None,
                copied_to=primary.source.copied_to,
            )
        )

    @staticmethod
    def none(partition: Partition) -> CleanBounds:
        """Return the bounds of a region that mirrors."""
        return CleanBounds(
            CleanBoundParts(
                partitions=lambda: [partition],
                published_cut=lambda: None,
                mirrors=lambda: ["primary"],
                reached=lambda _: None,
                copied_to=lambda _: None,
            )
        )

    def publish(self, number: int, cut_offset: int) -> None:
        self.cut = Cut(POINTS[number], {key_of(self.partition): cut_offset})

    def bound(self) -> int:
        return self.bounds.bound_of(self.partition)


def filled() -> Fixture:
    some = fixture(COMPACT)
    for number in range(12):
        put(some, (f"k{number % 3}", f"{number}" + "v" * 900))
    roll(some)
    return some


# Holds INV-CBO1, INV-CLN3.
def test_T13_primary_cleans_below_what_every_mirror_has_reached() -> None:
    some = filled()
    mirrors = Mirrors(some)
    mirrors.names = ["us", "asia"]
    assert mirrors.bound() == 0  # nothing was published
    mirrors.publish(1, 5)
    assert mirrors.bound() == 0  # nobody has said a word
    mirrors.reached = {"us": POINTS[1]}
    assert mirrors.bound() == 0
    mirrors.publish(2, 9)
    mirrors.reached = {"us": POINTS[2], "asia": POINTS[1]}
    assert mirrors.bound() == 5  # the oldest last-reached one
    mirrors.reached = {"us": POINTS[2], "asia": POINTS[2]}
    assert mirrors.bound() == 9


# Holds INV-CBO4.
def test_T13_a_mirror_that_starts_anew_stops_all_cleaning() -> None:
    some = filled()
    mirrors = Mirrors(some)
    mirrors.publish(1, 9)
    assert mirrors.bound() == 0
    mirrors.reached = {"us": POINTS[1]}
    assert mirrors.bound() == 9
    mirrors.copied = 3  # it copies from the beginning again and has not reported yet
    assert mirrors.bound() == 3
    mirrors.reached = {"us": POINTS[0]}
    assert mirrors.bound() == 0


def test_a_region_without_mirrors_cleans_what_is_decided() -> None:
    some = filled()
    mirrors = Mirrors(some)
    mirrors.names = []
    assert mirrors.bound() == some.partition.sight.last_stable_offset


# Holds INV-CBO3.
def test_T13_a_mirror_cleans_no_further_than_the_primary() -> None:
    primary = filled()
    assert clean(primary)
    mirror = fixture(COMPACT, leads=False)
    mirror.partition.become_mirror()
    mirror.partition.writer.cleaned_at_primary = 6
    bounds = Mirrors(mirror)
    assert bounds.bound() == 0  # it shows nothing yet
    mirror.partition.writer.append_mirrored(all_bytes(filled().partition))
    mirror.sync()
    mirror.partition.show_up_to(9, 9)
    assert bounds.bound() == 6


def test_a_new_mirror_takes_the_holes_of_a_cleaning_and_no_others() -> None:
    primary = filled()
    assert clean(primary)
    cleaned_below = primary.partition.log.cleaning.holes_below
    data = all_bytes(primary.partition)
    headers = [header for _, header in iter_headers(data)]
    assert any(b.base_offset != a.next_offset for a, b in itertools.pairwise(headers))
    mirror = fixture(COMPACT, leads=False)
    mirror.partition.become_mirror()
    with pytest.raises(MirrorGap):
        mirror.partition.writer.append_mirrored(data)
    mirror.partition.writer.cleaned_at_primary = cleaned_below
    assert mirror.partition.writer.append_mirrored(data) == primary.partition.log_end_offset
    mirror.sync()
    for reopen in (mirror.kill_and_reopen, mirror.close_and_reopen):
        reopen()
        assert mirror.partition.failed is None
        assert all_bytes(mirror.partition) == data
        assert mirror.partition.log_end_offset == primary.partition.log_end_offset
    mirror.partition.become_mirror()
    above = mirror.partition.log_end_offset
    put(primary, ("a", "1"), ("b", "1"))
    put(primary, ("a", "2"))
    primary.sync()
    with pytest.raises(MirrorGap):  # a hole where nothing was cleaned
        mirror.partition.writer.append_mirrored(
            primary.partition.reader.read_raw(above + 2, 1 << 20)
        )


async def test_T13_a_mirror_seeded_from_a_cleaned_log_never_reaches_a_cut_inside_it(
    tmp_path: Path,
) -> None:
    """The primary has published cuts all along the log, then cleaned it before the mirror was there."""
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("orders", configs=COMPACT)
        ours = primary.partition("orders")
        for number in range(20):
            record = Record(b"k%d" % (number % 3), b"%d" % number + b"v" * 900, timestamp_ms=number)
            outcome = ours.writer.append(build_batch([record]))
            await ours.wait_committed(outcome.next_offset)
            await leader.final_round()
        parts = CleanerParts(
            partitions=lambda: iter([ours]), bound_of=lambda p: p.high_watermark,
            disk=RealDisk(), clock=primary.clock, worker=Inline(), bytes_per_s=1 << 40,
        )  # fmt: skip
        assert await Cleaner(parts).clean_dirtiest()
        cleaned_below = ours.log.cleaning.holes_below
        assert cleaned_below > 8
        _ = mirror.mirror(tasks, await primary.listen())
        link = mirror.link
        shown: list[int] = []
        save = link._ports.reached.save

        async def saving(point: TidemarkPoint, whole: WholeEnds) -> None:
            vector = link.reaching.book.vector(point)
            assert vector is not None
            shown.extend(p.cut_offset for key, p in vector.positions.items() if key == key_of(ours))
            await save(point, whole)

        link._ports.reached.save = saving  # type: ignore[method-assign]
        point = await leader.final_round()
        await until(lambda: link.reached >= point, what="the last tidemark is reached")
        theirs = mirror.partition("orders")
        assert all_bytes(theirs) == all_bytes(ours)
        assert theirs.sight.visible_end == ours.high_watermark == 20
        assert [cut for cut in shown if 0 < cut < cleaned_below] == []
        assert theirs.log.cleaning.holes_below == theirs.writer.cleaned_at_primary == cleaned_below


class GroupLedger:
    """One shard of a site's group ledger: what is committed, and what it says when it is replayed."""

    def __init__(self, site: Site) -> None:
        self.log = PartitionOffsetsLog(site.partitions, site.clock)
        self.partition = site.partition(OFFSETS_LEDGER)

    async def commit(self, group: str, offset: int, producer: TxnProducer | None = None) -> None:
        place = OffsetKey(group, TopicPartition(TopicName("orders"), 0))
        value = encode_offset_value(OffsetValue(offset, NO_LEADER_EPOCH, "m" * 400, 1))
        done = self.log.append(0, [(encode_offset_key(place), value)], producer=producer)
        await self.log.committed(0, done.next_offset)

    async def end(self, producer: TxnProducer, kind: ControlType) -> None:
        outcome = append_marker(self.partition,
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
            control_type=kind, coordinator_epoch=1, decision=None, timestamp_ms=1,
        )  # fmt: skip
        await self.partition.wait_committed(outcome.next_offset)

    def offsets(self) -> dict[str, int]:
        """Return the committed offset of each group, by a replay."""
        table = OffsetTable()
        for part in self.log.replay(0):
            for entry in part.entries:
                table.apply(entry)
        return {
            group: place.committed_offset
            for group, places in table.committed.items()
            for place in places.values()
        }


def cleaner_of(site: Site, partition: Partition, bound_of: BoundOf) -> Cleaner:
    return Cleaner(
        CleanerParts(
            partitions=lambda: iter([partition]),
            bound_of=bound_of,
            disk=RealDisk(),
            clock=site.clock,
            worker=Inline(),
            bytes_per_s=1 << 40,
        )
    )


async def expect_reconciled(primary: Site, mirror: Site, reached: TidemarkPoint) -> None:
    """Reconcile the two data folders: nothing differs, and nothing is left out."""
    for site in (primary, mirror):
        await site.group_commit.catch_up()  # reconciliation does not read the journal
    request = Request(
        source=Region(name="primary", data_dir=primary.folder / "log"),
        mirror=Region(name="mirror", data_dir=mirror.folder / "log", reached=reached),
    )
    outcome = reconcile_all(request, LocalEngine())
    wrong = [found for found in outcome.findings if found.severity is not Severity.LAG]
    assert (wrong, outcome.summary.not_read, outcome.exit_code) == ([], [], 0)


async def test_T13_a_group_ledger_is_compacted_in_both_regions_and_a_takeover_loses_no_offset(
    tmp_path: Path,
) -> None:
    producer = TxnProducer(ProducerId(3), ProducerEpoch(0))
    async with primary_and_mirror(tmp_path, ledger_configs=CLEANED_SOON) as (
        primary, mirror, leader, tasks,
    ):  # fmt: skip
        ours = GroupLedger(primary)
        bounds = Mirrors.of(primary, leader, [ours.partition])
        here = cleaner_of(primary, ours.partition, bounds.bound_of)
        for number in range(60):
            kind = ControlType.COMMIT if number % 3 else ControlType.ABORT
            await ours.commit(f"g{number % 4}", number)
            await ours.commit(f"t{number % 4}", number, producer)
            await ours.end(producer, kind)
        await ours.commit("open", 1, producer)
        said = ours.offsets()
        assert not await here.clean_dirtiest()  # the mirror has not said that it has anything
        _ = mirror.mirror(tasks, await primary.listen())
        link = mirror.link
        point = await leader.final_round()
        await until(lambda: link.reached >= point)
        await ours.commit("g0", 100)
        point = await leader.final_round()
        await until(lambda: bounds.bound_of(ours.partition) > 100)
        assert await here.clean_dirtiest()
        cleaned_below = ours.partition.log.cleaning.holes_below
        assert 100 < cleaned_below <= ours.partition.sight.last_stable_offset
        theirs = GroupLedger(mirror)
        await ours.commit("g1", 101)
        point = await leader.final_round()
        await until(lambda: theirs.partition.writer.cleaned_at_primary == cleaned_below)
        await until(lambda: link.reached >= point)
        there = cleaner_of(mirror, theirs.partition, Mirrors.none(theirs.partition).bound_of)
        assert await there.clean_dirtiest()
        assert theirs.partition.log.cleaning.holes_below <= cleaned_below
        assert theirs.offsets() == ours.offsets() == said | {"g0": 100, "g1": 101}
        await expect_reconciled(primary, mirror, link.reached)
        cut = leader.published_cut()
        await until(lambda: link.reached >= cut.point)
        cut_offset = cut.position_of(key_of(theirs.partition))
        assert cleaned_below < cut_offset
        theirs.partition.truncate_to(cut_offset)  # what a takeover does, at the last cut reached
        assert theirs.offsets() == said | {"g0": 100, "g1": 101}


async def transact(site: Site, count: int) -> None:
    """Let two applications commit and abort, each with one producer."""
    verdicts = set()
    for name in ("billing", "shipping"):
        init = await site.coordinator.clients.init_producer_id(name, 60_000)
        pair = (init.producer_id, init.producer_epoch)
        for number in range(count):
            parts = [TopicPartition(TopicName("orders"), 0)]
            verdicts.add(
                await site.coordinator.clients.add_partitions(name, *pair, parts, implicit=False)
            )
            end = await site.coordinator.clients.end_txn(name, *pair, bool(number % 3), 1)
            verdicts.add(end.verdict)
    assert verdicts == {TxnVerdict.OK}


def rows_of(site: Site, shard: int) -> list[Row]:
    log = PartitionTransactionLog(site.partitions, site.clock, 2)
    return list(log.replay(shard))


async def test_T13_a_transaction_ledger_is_compacted_in_both_regions_and_a_takeover_finds_every_decision(
    tmp_path: Path,
) -> None:
    async with primary_and_mirror(tmp_path, ledger_configs=CLEANED_SOON) as (
        primary, mirror, leader, tasks,
    ):  # fmt: skip
        await primary.create_topic("orders")
        shards = [primary.partition(TRANSACTION_LEDGER, number) for number in (0, 1)]
        bounds = Mirrors.of(primary, leader, shards)
        _ = mirror.mirror(tasks, await primary.listen())
        link = mirror.link
        await transact(primary, 30)
        await leader.final_round()
        whole = [rows_of(primary, shard) for shard in (0, 1)]
        dirty = [number for number in (0, 1) if shards[number].log_end_offset > 60]
        await until(lambda: all(bounds.bound_of(shards[number]) > 60 for number in dirty))
        for number in dirty:
            assert await cleaner_of(primary, shards[number], bounds.bound_of).clean_dirtiest()
        await transact(primary, 1)
        await leader.final_round()
        await expect_reconciled(primary, mirror, link.reached)
        cut = leader.published_cut()
        await until(lambda: link.reached >= cut.point)
        for number in dirty:
            theirs = mirror.partition(TRANSACTION_LEDGER, number)
            await until(lambda p=theirs: p.writer.cleaned_at_primary > 60)  # type: ignore[misc]
            there = cleaner_of(mirror, theirs, Mirrors.none(theirs).bound_of)
            assert await there.clean_dirtiest()
            below = cut.position_of(key_of(theirs))
            known = whole[number][-1][0].offset
            later = [row for row in rows_of(primary, number) if row[0].offset > known]
            expected = replay([*whole[number], *later], below)
            theirs.truncate_to(below)
            found = replay(rows_of(mirror, number), below, theirs.log.cleaning.holes_below)
            assert facts(found) == facts(expected)
        assert dirty


def test_a_log_is_not_cut_below_what_it_cleaned_itself() -> None:
    """T25, after force only: the old value is gone here, and the cut would take the new one."""
    some = filled()
    assert clean(some)
    cleaned_below = some.partition.log.cleaning.holes_below
    end = some.partition.log_end_offset
    with pytest.raises(CutIntoCleaned, match="copied again"):
        some.partition.truncate_to(cleaned_below - 1)
    some.close_and_reopen()
    with pytest.raises(CutIntoCleaned):
        some.partition.truncate_to(cleaned_below - 1)
    some.partition.truncate_to(end - 1)
    some.partition.truncate_to(cleaned_below)
    some.partition.truncate_to(0)  # nothing is left that could be missing
    assert some.partition.log.cleaning.holes_below == 0


class EndsInAHole:
    """A region that holds a log up to an offset, and of what it is shown only what ends below."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked = 0

    async def show_history(
        self, _point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> Sequence[HistoryDifference]:
        self.asked += 1
        assert self.asked < 50, "INV-CG1: the search does not end"
        return [
            HistoryDifference(log.key, self.end, log.cut_offset, self.end, f"it ends at {self.end}")
            for log in shown
            if log.cut_offset > self.end
        ]


async def test_INV_CG1_the_search_in_a_log_that_was_cleaned_ends_at_a_batch_of_it() -> None:
    """1. A log is cleaned, and has holes. 2. The other region's ends in one of them."""
    some = filled()
    assert clean(some)
    key, end = key_of(some.partition), some.partition.high_watermark
    batches = [
        (header.base_offset, header.next_offset)
        for _, header in iter_headers(all_bytes(some.partition))
    ]
    holes = [
        offset
        for (_, before), (base, _) in itertools.pairwise([(0, 0), *batches])
        for offset in range(before, base)
    ]
    assert holes, "cleaning leaves some"
    history = ShownHistory(some.table)
    for offset in holes:
        behind = next(batch for batch in batches if batch[0] > offset)
        assert await history.batch_at(key, offset) == behind
    for their_end in range(end):
        shared = await shared_ends(EndsInAHole(their_end), RealLogs(history), {key: end})
        assert shared == {key: max([0, *(last for _, last in batches if last <= their_end)])}


class RealLogs:
    """`comparing.OwnLogs` over the logs of one node."""

    def __init__(self, history: ShownHistory) -> None:
        self.evidence, self.batch_at = history.evidence, history.batch_at
        self._history = history

    async def first_offset(self, key: LogKey) -> int:
        return self._history.first_offset(key)
