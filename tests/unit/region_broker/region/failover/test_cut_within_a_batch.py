"""A cut that another history made may lie within a batch of this one, or beyond its end."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from geo_replicator.lineage import Cut, Lineage, LineageEntry, LogKey, TidemarkPoint
from geo_replicator.quarantine import Provenance
from idempotency.fencing import region_epoch_of
from idempotency.identity import RegionEpoch
from region_broker.region.failover.log_surgery import (
    CutReason,
    cut_logs,
    key_of,
    quarantined_tail,
    tail_beyond,
    there_again,
)
from region_broker.region.failover.quarantine_store import QuarantineStore, ReadBatches
from tests.fixtures.node_logs import LEADER_EPOCH, batch, fixture


async def test_T23_a_batch_that_the_cut_goes_through_is_cut_off_and_kept_as_a_whole() -> None:
    some = fixture()
    partition = some.partition
    for _ in range(2):
        partition.writer.append(batch(5))
    some.sync()
    tail = partition.reader.read_raw(5, 1 << 20, partition.log_end_offset)
    partition.become_mirror()
    store = QuarantineStore(some.disk, Path("/data/quarantine"))
    cut = Cut(TidemarkPoint(RegionEpoch(16), 3), {key_of(partition): 7})
    reason = CutReason("main", RegionEpoch(16), "us", RegionEpoch(16), "eu", 0)
    (kept,) = await cut_logs([partition], cut, reason, store)
    assert partition.log_end_offset == 5
    assert (kept.first_offset, kept.last_offset, kept.byte_count) == (5, 9, len(tail))


async def test_INV_LS1_a_tail_is_durable_before_it_is_kept_and_cut_off() -> None:
    some = fixture()
    partition = some.partition
    partition.writer.append(batch(5))
    some.sync()
    partition.writer.append(batch(5))
    partition.become_mirror()
    store = QuarantineStore(some.disk, Path("/data/quarantine"))
    cut = Cut(TidemarkPoint(RegionEpoch(16), 3), {key_of(partition): 0})
    reason = CutReason("main", RegionEpoch(16), "us", RegionEpoch(16), "eu", 0)
    async with asyncio.TaskGroup() as tasks:
        cutting = tasks.create_task(cut_logs([partition], cut, reason, store))
        ended, _ = await asyncio.wait({cutting}, timeout=0.05)
        assert not ended, "it waits for the sync"
        some.sync()
    (kept,) = cutting.result()
    assert (kept.first_offset, kept.last_offset) == (0, 9)
    assert (partition.log_end_offset, partition.failed) == (0, None)


async def test_what_is_cut_off_and_stated_is_what_is_durable_here_whoever_else_has_it() -> None:
    some = fixture()
    partition = some.partition
    partition.writer.append(batch(5))
    some.sync()
    partition.become_mirror()
    partition.commit_up_to(0)  # no other node of the region has it
    store = QuarantineStore(some.disk, Path("/data/quarantine"))
    cut = Cut(TidemarkPoint(RegionEpoch(16), 3), {key_of(partition): 0})
    reason = CutReason("main", RegionEpoch(16), "us", RegionEpoch(16), "eu", 0)
    async with asyncio.timeout(5):
        stated = await tail_beyond([partition], cut)
        (kept,) = await cut_logs([partition], cut, reason, store)
    assert [found.last_offset for found in stated.ranges()] == [4]
    assert (kept.first_offset, kept.last_offset, partition.log_end_offset) == (0, 4, 0)


async def test_INV_LS4_a_tail_that_cannot_be_kept_whole_stops_its_log_and_no_other_one() -> None:
    some = fixture(partition_count=2)
    for partition in some.partitions:
        partition.writer.append(batch(5))
    some.sync()
    for partition in some.partitions:
        partition.become_mirror()
    read, damaged = QuarantineStore.move_in, some.partitions[0]

    class OneIsNotWhole(QuarantineStore):
        """A store that finds no whole batch where the first log's tail should be."""

        async def move_in(self, provenance: Provenance, data: ReadBatches) -> Provenance:
            gone = provenance.partition == damaged.tp.partition
            return await read(self, provenance, (lambda _offset: b"") if gone else data)

    store = OneIsNotWhole(some.disk, Path("/data/quarantine"))
    cut = Cut(TidemarkPoint(RegionEpoch(16), 3), {key_of(log): 0 for log in some.partitions})
    reason = CutReason("main", RegionEpoch(16), "us", RegionEpoch(16), "eu", 0)
    (kept,) = await cut_logs(some.partitions, cut, reason, store)
    assert kept.partition == 1
    assert damaged.failed is not None
    assert "it is not cut to 0" in damaged.failed
    assert "no whole batch starts at or behind offset 0" in damaged.failed
    assert some.partitions[1].log_end_offset == 0


async def test_T17_what_is_copied_up_to_a_base_that_is_not_held_yet_is_not_shown_by_it() -> None:
    primary, mirror = fixture(), fixture()
    for each in (primary, primary, mirror):
        each.partition.writer.append(batch(5))
        each.sync()
    partition = mirror.partition
    partition.become_mirror()
    partition.show_up_to(5, 5)  # as a region does that stands still
    store = QuarantineStore(mirror.disk, Path("/data/quarantine"))
    cut = Cut(TidemarkPoint(RegionEpoch(16), 3), {key_of(partition): 10})
    assert (
        await cut_logs(
            [partition],
            cut,
            CutReason("main", RegionEpoch(16), "us", RegionEpoch(16), "eu", 0),
            store,
        )
        == []
    )
    partition.writer.append_mirrored(primary.partition.reader.read_raw(5, 1 << 20))
    mirror.sync()
    assert partition.high_watermark == 10
    assert partition.sight.visible_end == 5


async def test_INV_LO7_what_is_there_again_is_no_loss_and_what_was_written_since_is_one() -> None:
    some = fixture()
    partition = some.partition
    for _ in range(3):
        partition.writer.append(batch(5))
    some.sync()
    partition.become_mirror()
    key, store = key_of(partition), QuarantineStore(some.disk, Path("/data/quarantine"))
    reason = CutReason("main", RegionEpoch(16), "us", RegionEpoch(16), "eu", 0)
    cut = Cut(TidemarkPoint(RegionEpoch(8), 3), {key: 0})
    moved = await cut_logs([partition], cut, reason, store)
    written_under = region_epoch_of(LEADER_EPOCH)

    async def lost(held: Mapping[LogKey, int] | None, since: int = 1) -> list[tuple[int, int]]:
        base = TidemarkPoint(RegionEpoch(written_under + since - 1), 9)
        entry = LineageEntry(RegionEpoch(written_under + since), "ap", base, held or {})
        is_held = None if held is None else there_again(Lineage((entry,)), [partition])
        tail = await quarantined_tail(store, moved, is_held)
        return [(found.first_offset, found.record_count) for found in tail.ranges()]

    assert await lost(None) == [(0, 15)]
    assert await lost({key: 10}) == [(10, 5)], "as far as nobody can tell yet"
    assert await lost({}) == [(0, 15)]
    assert await lost({key: 10}, since=0) == [(0, 15)], "other records"
    primary = fixture()
    primary.partition.writer.append(batch(5))
    primary.partition.writer.append(batch(3))
    primary.sync()
    partition.writer.append_mirrored(primary.partition.reader.read_raw(0, 1 << 20))
    some.sync()
    assert await lost({key: 10}) == [(5, 10)], "this region's own log has another batch there"
