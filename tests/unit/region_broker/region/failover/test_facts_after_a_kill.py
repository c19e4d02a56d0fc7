"""Facts that a killed process left in the page cache are durable before the next start acts on them (INV-DK6)."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from geo_replicator.failover_events import Born
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.whole_ends import NOTHING_WHOLE
from idempotency.identity import RegionEpoch
from region_broker.region.failover.journal import FailoverJournal
from region_broker.region.tidemarks.reached_store import ReachedFile
from tests.fixtures.node_logs import batch, fixture, raise_start
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.unit.region_broker.log.test_journal import KeepsNothing, lose_everything

FOLDER = Path("/region")
STEPS = 8


def killed_at(disk: SimulatedDisk, step: int, act: Callable[[], object]) -> None:
    """Kill the process at the step-th disk operation of `act`, and start it again."""
    disk.crash_after(step)
    with suppress(Crashed):
        act()
    disk.process_killed()


async def now(work: Callable[[], None]) -> None:
    work()


def prepared() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs(FOLDER)
    disk.write_file_atomic(FOLDER / "something", b"")
    return disk


@pytest.mark.parametrize("step", range(STEPS))
async def test_INV_DK6_a_region_that_was_told_its_role_keeps_it(step: int) -> None:
    disk, path = prepared(), FOLDER / "journal"
    killed_at(disk, step, lambda: FailoverJournal(disk, path).recover())
    journal = FailoverJournal(disk, path, offload=now)
    journal.recover()
    await journal.append(Born("eu", acting=True, region_epoch=RegionEpoch(8)))
    disk.power_loss(KeepsNothing())
    assert FailoverJournal(disk, path).recover() == [
        Born("eu", acting=True, region_epoch=RegionEpoch(8))
    ]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("step", range(STEPS))
def test_T16_what_a_start_says_was_reached_stays_so(step: int, first: int) -> None:
    disk = prepared()
    store = ReachedFile.open(disk, FOLDER)
    for number in range(first):
        store._write(TidemarkPoint(RegionEpoch(8), number), NOTHING_WHOLE)
    killed_at(disk, step, lambda: store._write(TidemarkPoint(RegionEpoch(8), 5), NOTHING_WHOLE))
    said = ReachedFile.open(disk, FOLDER).point
    disk.power_loss(KeepsNothing())
    assert ReachedFile.open(disk, FOLDER).point == said


@pytest.mark.parametrize("step", range(STEPS))
def test_INV_PT7_a_log_start_that_a_start_has_shown_does_not_move_back(step: int) -> None:
    some = fixture()
    for _ in range(10):
        some.partition.writer.append(batch())
    some.sync()
    some.close_and_reopen()
    killed_at(some.disk, step, lambda: raise_start(some.partition, 8))
    some.open()
    shown = some.partition.log_start_offset
    lose_everything(some)
    assert some.partition.log_start_offset == shown
