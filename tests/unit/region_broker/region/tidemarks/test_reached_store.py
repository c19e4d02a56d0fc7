"""The durable reached tidemark: it survives restarts, torn tails and cancellation (T16)."""

import asyncio
import errno
import struct
import threading
from pathlib import Path
from uuid import UUID

import pytest

from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.whole_ends import AS_FORGOTTEN, NOTHING_WHOLE, Unlisted, WholeEnds
from idempotency.identity import RegionEpoch
from region_broker.log.indexes.checked_file import pack_frame
from region_broker.ports.system.disk import RealDisk
from region_broker.region.tidemarks import reached_store
from region_broker.region.tidemarks.reached_store import FILE_NAME, ReachedFile
from tests.simulation.disk import SimulatedDisk
from tests.unit.region_broker.log.test_journal import KeepsNothing

AT_CUT = WholeEnds(Unlisted.AT_CUT, {LogKey(UUID(int=5), 3): 77, LogKey(UUID(int=6), 0): 1 << 40})


# Holds INV-RS1.
async def test_T16_the_last_saved_point_is_there_after_a_restart(tmp_path: Path) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    assert (store.point, store.whole) == (BEFORE_ALL, NOTHING_WHOLE)
    for number in range(1, 6):
        await store.save(TidemarkPoint(RegionEpoch(8), number), AT_CUT)
    store.close()
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(RegionEpoch(8), 5)


# Holds INV-RS1.
async def test_T16_a_torn_record_does_not_count(tmp_path: Path) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    await store.save(TidemarkPoint(RegionEpoch(8), 1), AT_CUT)
    await store.save(TidemarkPoint(RegionEpoch(8), 2), AT_CUT)
    store.close()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2, 5):
        path.write_bytes(whole[:-cut])
        assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(RegionEpoch(8), 1)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    torn = ReachedFile.open(RealDisk(), tmp_path)
    assert torn.point == TidemarkPoint(RegionEpoch(8), 1)
    await torn.save(TidemarkPoint(RegionEpoch(8), 3), AT_CUT)
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(RegionEpoch(8), 3)


async def test_T16_a_damaged_record_hides_none_that_was_saved_after_it(tmp_path: Path) -> None:
    """INV-RS1. Taken for a torn tail, it would take back all that was reached since."""
    store = ReachedFile.open(RealDisk(), tmp_path)
    for number in range(1, 5):
        await store.save(TidemarkPoint(RegionEpoch(8), number), AT_CUT)
    store.close()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for at in range(0, len(whole) * 3 // 4, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = ReachedFile.open(RealDisk(), tmp_path)
        assert (found.point, found.whole) == (TidemarkPoint(RegionEpoch(8), 4), AT_CUT)


async def test_the_file_is_replaced_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reached_store, "ROTATE_BYTES", 200)
    store = ReachedFile.open(RealDisk(), tmp_path)
    for number in range(1, 20):
        await store.save(TidemarkPoint(RegionEpoch(8), number), AT_CUT)
        assert (tmp_path / FILE_NAME).stat().st_size <= 200
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(RegionEpoch(8), 19)


# Holds INV-RS3.
async def test_a_cancelled_save_ends_with_the_write(tmp_path: Path) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    saving = asyncio.get_running_loop().create_task(
        store.save(TidemarkPoint(RegionEpoch(8), 1), AT_CUT)
    )
    await asyncio.sleep(0)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert (
        store.point
        == ReachedFile.open(RealDisk(), tmp_path).point
        == TidemarkPoint(RegionEpoch(8), 1)
    )


async def test_INV_RS3_ends_are_forgotten_while_a_tidemark_is_being_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    write, begun, may_end = store._write, threading.Event(), threading.Event()

    def slow(point: TidemarkPoint, whole: WholeEnds) -> None:
        if whole is AT_CUT:
            begun.set()
            may_end.wait()
        write(point, whole)

    monkeypatch.setattr(store, "_write", slow)
    point = TidemarkPoint(RegionEpoch(8), 1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(store.save(point, AT_CUT))
        await asyncio.to_thread(begun.wait)
        tasks.create_task(store.forget_whole())
        for _ in range(20):
            await asyncio.to_thread(int)
        may_end.set()
    for each in (store, ReachedFile.open(RealDisk(), tmp_path)):
        assert (each.point, each.whole) == (point, NOTHING_WHOLE)


async def test_a_lower_point_may_be_saved_when_a_lineage_takes_it_back(tmp_path: Path) -> None:
    """T25: only a void tidemark is taken back, and the caller knows that."""
    store = ReachedFile.open(RealDisk(), tmp_path)
    await store.save(TidemarkPoint(RegionEpoch(8), 9), AT_CUT)
    await store.save(TidemarkPoint(RegionEpoch(8), 7), AT_CUT)
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(RegionEpoch(8), 7)


def test_INV_RS2_a_save_behind_a_failed_sync_writes_a_new_file() -> None:
    disk, folder = SimulatedDisk(), Path("/region")
    disk.make_dirs(folder)
    store = ReachedFile.open(disk, folder)
    store._write(TidemarkPoint(RegionEpoch(8), 1), AT_CUT)

    def fail(operation: str, path: Path) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "the disk fails", str(path))

    disk.fault = fail
    with pytest.raises(OSError, match="the disk fails"):
        store._write(TidemarkPoint(RegionEpoch(8), 2), AT_CUT)
    disk.fault = None
    store._write(TidemarkPoint(RegionEpoch(8), 3), AT_CUT)
    disk.power_loss(KeepsNothing())
    assert ReachedFile.open(disk, folder).point == TidemarkPoint(RegionEpoch(8), 3)


@pytest.mark.parametrize("whole", [AT_CUT, WholeEnds(Unlisted.AT_CUT), NOTHING_WHOLE, AS_FORGOTTEN])
async def test_INV_RS1_the_ends_of_the_whole_cut_are_there_after_a_restart(
    tmp_path: Path, whole: WholeEnds
) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    await store.save(TidemarkPoint(RegionEpoch(8), 1), NOTHING_WHOLE)
    await store.save(TidemarkPoint(RegionEpoch(8), 2), whole)
    store.close()
    again = ReachedFile.open(RealDisk(), tmp_path)
    assert (
        (again.point, again.whole)
        == (TidemarkPoint(RegionEpoch(8), 2), whole)
        == (store.point, store.whole)
    )


async def test_T16_the_file_of_an_older_version_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """Version 1: frames of magic TMRC with the point alone."""
    frames = [pack_frame(b"TMRC", 1, struct.pack(">qq", 8, number)) for number in (1, 2)]
    (tmp_path / FILE_NAME).write_bytes(b"".join(frames))
    store = ReachedFile.open(RealDisk(), tmp_path)
    assert (store.point, store.whole) == (TidemarkPoint(RegionEpoch(8), 2), AS_FORGOTTEN)
    await store.save(TidemarkPoint(RegionEpoch(8), 3), AT_CUT)
    again = ReachedFile.open(RealDisk(), tmp_path)
    assert (again.point, again.whole) == (TidemarkPoint(RegionEpoch(8), 3), AT_CUT)
