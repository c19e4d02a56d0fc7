"""The durable reached tidemark: it survives restarts, torn tails and cancellation (T16)."""

import asyncio
import errno
from pathlib import Path

import pytest

from geo_replicator.lineage import BEFORE_ALL, TidemarkPoint
from region_broker.ports.system.disk import RealDisk
from region_broker.region.tidemarks import reached_store
from region_broker.region.tidemarks.reached_store import FILE_NAME, ReachedFile
from tests.simulation.disk import SimulatedDisk
from tests.unit.region_broker.log.test_journal import KeepsNothing


# Holds INV-RS1.
async def test_T16_the_last_saved_point_is_there_after_a_restart(tmp_path: Path) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    assert store.point == BEFORE_ALL
    for number in range(1, 6):
        await store.save(TidemarkPoint(8, number))
    store.close()
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(8, 5)


# Holds INV-RS1.
async def test_T16_a_torn_record_does_not_count(tmp_path: Path) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    await store.save(TidemarkPoint(8, 1))
    await store.save(TidemarkPoint(8, 2))
    store.close()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for cut in range(1, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(8, 1)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    torn = ReachedFile.open(RealDisk(), tmp_path)
    assert torn.point == TidemarkPoint(8, 1)
    await torn.save(TidemarkPoint(8, 3))
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(8, 3)


async def test_the_file_is_replaced_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reached_store, "ROTATE_BYTES", 100)
    store = ReachedFile.open(RealDisk(), tmp_path)
    for number in range(1, 20):
        await store.save(TidemarkPoint(8, number))
        assert (tmp_path / FILE_NAME).stat().st_size <= 100
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(8, 19)


# Holds INV-RS3.
async def test_a_cancelled_save_ends_with_the_write(tmp_path: Path) -> None:
    store = ReachedFile.open(RealDisk(), tmp_path)
    saving = asyncio.get_running_loop().create_task(store.save(TidemarkPoint(8, 1)))
    await asyncio.sleep(0)
    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert store.point == ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(8, 1)


async def test_a_lower_point_may_be_saved_when_a_lineage_takes_it_back(tmp_path: Path) -> None:
    """T25: only a void tidemark is taken back, and the caller knows that."""
    store = ReachedFile.open(RealDisk(), tmp_path)
    await store.save(TidemarkPoint(8, 9))
    await store.save(TidemarkPoint(8, 7))
    assert ReachedFile.open(RealDisk(), tmp_path).point == TidemarkPoint(8, 7)


def test_INV_RS2_a_save_behind_a_failed_sync_writes_a_new_file() -> None:
    disk, folder = SimulatedDisk(), Path("/region")
    disk.make_dirs(folder)
    store = ReachedFile.open(disk, folder)
    store._write(TidemarkPoint(8, 1))

    def fail(operation: str, path: Path) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "the disk fails", str(path))

    disk.fault = fail
    with pytest.raises(OSError, match="the disk fails"):
        store._write(TidemarkPoint(8, 2))
    disk.fault = None
    store._write(TidemarkPoint(8, 3))
    disk.power_loss(KeepsNothing())
    assert ReachedFile.open(disk, folder).point == TidemarkPoint(8, 3)
