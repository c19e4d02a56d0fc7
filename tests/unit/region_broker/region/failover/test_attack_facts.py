"""What seed 94037 broke: a fact whose sync failed was read back from the page cache, acted on, and lost by a power cut."""

import errno
import os
import random
from pathlib import Path

import pytest

from geo_replicator.failover_events import Born, DrainBegun, DrainRolledBack
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.whole_ends import NOTHING_WHOLE
from idempotency.identity import RegionEpoch
from region_broker.region.failover.journal import FailoverJournal
from region_broker.region.tidemarks.reached_store import ReachedFile
from tests.simulation.disk import SimulatedDisk
from tests.simulation.simulated_loop import run_simulated
from tests.unit.region_broker.log.test_journal import KeepsNothing

PATH = Path("/data/failover.journal")
BORN = Born("eu", acting=True, region_epoch=RegionEpoch(8))
BEGUN = DrainBegun("op-1", "us")
BACK = DrainRolledBack("late")


def failing(operation: str, path: Path) -> None:
    if operation == "fdatasync":
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_an_event_whose_sync_failed_is_durable_once_a_start_has_read_it() -> None:
    """INV-DK6. 1. The sync of an event fails, and the node ends. 2. The next start finds it in the page cache, and acts. 3. Power goes."""

    async def played() -> None:
        for seed in range(20):
            disk = SimulatedDisk()
            disk.make_dirs(PATH.parent)
            journal = FailoverJournal(disk, PATH)
            assert journal.recover() == []
            await journal.append(BORN)
            disk.fault = failing
            with pytest.raises(OSError, match="Input/output"):
                await journal.append(BEGUN)
            disk.process_killed()
            again = FailoverJournal(disk, PATH)
            assert again.recover() == [BORN, BEGUN]
            if seed % 2:
                await again.append(BACK)
            disk.power_loss(random.Random(seed))
            assert FailoverJournal(disk, PATH).recover() == [BORN, BEGUN, *[BACK] * (seed % 2)]

    run_simulated(played(), 1)


def test_a_tidemark_whose_sync_failed_is_reached_for_good_once_a_start_has_read_it() -> None:
    """INV-DK6."""
    disk = SimulatedDisk()
    disk.make_dirs(PATH.parent)
    first, second = (TidemarkPoint(RegionEpoch(8), number) for number in (1, 2))
    store = ReachedFile.open(disk, PATH.parent)
    store._write(first, NOTHING_WHOLE)
    disk.fault = failing
    with pytest.raises(OSError, match="Input/output"):
        store._write(second, NOTHING_WHOLE)
    disk.process_killed()
    assert ReachedFile.open(disk, PATH.parent).point == second
    disk.power_loss(KeepsNothing())
    assert ReachedFile.open(disk, PATH.parent).point == second
