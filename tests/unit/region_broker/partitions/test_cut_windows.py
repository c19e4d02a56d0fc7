"""What else happens to a log between the steps of a cut whose syncs are in threads: it is cut all the same, durably, or left as it was."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from idempotency.pieces import drained
from region_broker.log.journal.cut_job import LoweringJob
from region_broker.log.leaving import Leaving
from region_broker.region.failover.log_surgery import truncate_aside
from tests.fixtures.node_logs import Fixture, all_bytes, batch, fixture
from tests.unit.region_broker.log.test_journal import lose_everything

INT32_MAX = (1 << 31) - 1


def of_batches(count: int, size_bytes: int = 20) -> Fixture:
    some = fixture({"segment.bytes": "4096", "retention.bytes": "1"})
    append(some, count, size_bytes)
    return some


def append(some: Fixture, count: int, size_bytes: int = 20) -> None:
    for _ in range(count):
        some.partition.writer.append(batch(size_bytes=size_bytes))
        some.sync()


def lowered(some: Fixture, offset: int, meanwhile: Callable[[], object]) -> None:
    """Prepare a cut, with something that happens before its thread has begun."""
    trimmer = some.partition.log.trimmer
    job: LoweringJob | None = trimmer.begin_lowering(offset)
    meanwhile()
    if job is not None:
        job.run()
        trimmer.finish_lowering(job)


def check_is_cut_for_good(some: Fixture, offset: int) -> None:
    some.partition.truncate_to(offset)
    held = all_bytes(some.partition)
    some.leads = False
    some.kill_and_reopen()
    assert (some.partition.failed, some.partition.log_end_offset) == (None, offset)
    assert all_bytes(some.partition) == held


def test_INV_CTJ1_what_goes_into_the_journal_while_a_cut_is_prepared_does_not_come_back() -> None:
    """The block comes behind the fence that was prepared."""
    some = of_batches(3)
    some.partition.writer.append(batch())  # on no disk yet
    lowered(some, 2, some.sync)
    check_is_cut_for_good(some, 2)


def test_INV_CTJ1_what_is_appended_and_synced_while_a_cut_is_prepared_does_not_come_back() -> None:
    some = of_batches(3)

    def grow() -> None:
        append(some, 1)
        some.sync_files()

    lowered(some, 2, grow)
    check_is_cut_for_good(some, 2)


def test_INV_CTJ3_no_checkpoint_is_lowered_into_a_segment_that_was_sealed_meanwhile() -> None:
    some = of_batches(2, 300)
    lowered(some, 1, lambda: append(some, 6, 3_000))
    assert some.partition.log.trimmer.apply_retention(now_ms=0, hold_offset=INT32_MAX) > 1
    some.leads = False
    some.kill_and_reopen()
    assert (some.partition.failed, some.partition.log_end_offset) == (None, 8)


def unsettled() -> Fixture:
    """Return a log of two segments that was cut within its first one; of that cut no sync is made."""
    some = of_batches(4, 1_500)
    some.sync_files()
    some.partition.truncate_to(1, settles=False)
    return some


@pytest.mark.parametrize("again", [False, True])
def test_INV_CTJ2_who_appends_makes_a_cut_durable_first(again: bool) -> None:
    some = unsettled()
    if again:
        some.partition.truncate_to(1)
    append(some, 1)
    held = all_bytes(some.partition)
    some.leads = False
    lose_everything(some)
    assert (some.partition.failed, all_bytes(some.partition)) == (None, held)


def test_INV_CTJ2_a_disk_that_refuses_that_stops_the_log_and_nothing_is_appended() -> None:
    some = unsettled()

    def fail(operation: str, _path: Path) -> None:
        if operation == "fsync_dir":
            raise OSError(5, "input/output error")

    some.disk.fault = fail
    append(some, 1)
    some.disk.fault = None
    assert "input/output error" in (some.partition.failed or "")
    append(some, 1)  # not, as after a failed sync the next one says nothing
    assert some.partition.log_end_offset == 1


def test_INV_CTJ2_a_thread_that_comes_late_takes_nothing_of_what_came_behind_the_cut() -> None:
    """Snapshots of sealed segments and the recovery checkpoint: the thread would remove what a cut leaves behind its end."""
    some = unsettled()
    log = some.partition.log
    settling = log.trimmer.begin_settling()
    assert settling is not None
    append(some, 6, 1_500)
    job = drained(log.durability.begin_recovery_checkpoint())
    assert job is not None
    log.durability.finish_recovery_checkpoint(job, job.run())
    names = some.disk.list_dir(some.folder)
    settling.run()
    log.trimmer.finish_settling(settling)
    assert some.disk.list_dir(some.folder) == names


@pytest.mark.parametrize("is_deleted", [False, True])
def test_INV_CTJ2_who_closes_a_log_makes_its_cut_durable_first(is_deleted: bool) -> None:
    some = unsettled()
    if is_deleted:
        trimmer = some.partition.log.trimmer
        settling = trimmer.begin_settling()
        assert settling is not None
        leaving = Leaving(some.partition.log, keep=True)
        settling.run()  # its thread comes too late
        trimmer.finish_settling(settling)
        leaving.sync()
        leaving.end()
    else:
        some.partition.log.settle()
        some.table.close()
    some.leads = False
    lose_everything(some)
    assert (some.partition.failed, some.partition.log_end_offset) == (None, 1)


class SlowCut(NamedTuple):
    """A cut whose last sync is under way; it ends somewhat after `let_end_soon`."""

    tasks: asyncio.TaskGroup
    task: asyncio.Task[None]
    let_end_soon: Callable[[], None]


@asynccontextmanager
async def cut_on_a_slow_disk(some: Fixture, offset: int) -> AsyncIterator[SlowCut]:
    """Cut, and be where its last sync is under way."""
    is_syncing, may_go_on = threading.Event(), threading.Event()

    def slow(operation: str, _path: Path) -> None:
        if operation == "fsync_dir" and some.partition.log_end_offset == offset:
            some.disk.fault = None
            is_syncing.set()
            assert may_go_on.wait(60)

    some.disk.fault = slow
    async with asyncio.TaskGroup() as tasks:
        cut = tasks.create_task(truncate_aside(some.partition, offset))
        assert await asyncio.to_thread(is_syncing.wait, 60)
        try:
            yield SlowCut(tasks, cut, threading.Timer(0.01, may_go_on.set).start)
        finally:
            may_go_on.set()


async def test_INV_CTJ2_who_cuts_the_same_meanwhile_waits_for_the_disk_too() -> None:
    some = of_batches(4)
    async with cut_on_a_slow_disk(some, 2) as cut:
        again = cut.tasks.create_task(truncate_aside(some.partition, 2))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not again.done()
    assert again.done()
    assert some.partition.log.content.unsettled is None


async def test_INV_CTJ2_who_appends_while_a_thread_settles_a_cut_waits_for_that() -> None:
    some = of_batches(4)
    async with cut_on_a_slow_disk(some, 2) as cut:
        cut.task.cancel()
        cut.let_end_soon()
        append(some, 1)
        assert (some.partition.failed, some.partition.log_end_offset) == (None, 3)
        assert not cut.task.done()
