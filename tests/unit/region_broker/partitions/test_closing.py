"""Closing many logs beside the loop: what a thread does, and what the next start believes."""

from collections.abc import Callable
from pathlib import Path

from region_broker.partitions.closing import LOGS_AT_ONCE, THREADS, close_aside
from tests.fixtures.node_logs import Fixture, at_once, batch, fixture

COUNT = LOGS_AT_ONCE * THREADS + 3


def written(count: int = COUNT) -> Fixture:
    """Return logs with a record each that only the journal has, and one more that is not synced at all."""
    some = fixture(partition_count=count)
    for partition in some.partitions:
        partition.writer.append(batch())
    some.sync()
    for partition in some.partitions:
        partition.writer.append(batch())
    return some


class Threads:
    """Runs blocking work at once, and knows what the disk was asked for beside it."""

    def __init__(self, some: Fixture) -> None:
        self._within = False
        self.on_the_loop: list[str] = []
        self.after: Callable[[], None] = lambda: None
        some.disk.fault = self._note

    def _note(self, operation: str, path: Path) -> None:
        if not self._within:
            self.on_the_loop.append(f"{operation} {path.name}")

    async def run(self, work: Callable[[], None]) -> None:
        self._within = True
        try:
            work()
        finally:
            self._within = False
        self.after()


def reopened(some: Fixture) -> Fixture:
    some.disk.process_killed()
    some.open()
    return some


async def test_INV_CLG1_the_loop_waits_for_no_disk_and_the_next_start_believes_every_log() -> None:
    some = written()
    threads = Threads(some)
    await close_aside(some.partitions, threads.run)
    assert threads.on_the_loop == []
    assert all(each.log.content.closed for each in some.partitions)
    some.table.close()
    reopened(some)
    assert {each.log_end_offset for each in some.partitions} == {2}
    assert all(each.log.recovered_clean for each in some.partitions)


async def test_INV_CLG2_what_comes_after_the_sync_is_not_believed_unsynced() -> None:
    some = written(1)
    threads = Threads(some)

    def written_meanwhile() -> None:
        threads.after = lambda: None
        some.partition.writer.append(batch())

    threads.after = written_meanwhile
    await close_aside(some.partitions, threads.run)
    assert threads.on_the_loop, "it was synced as it was closed"
    reopened(some)
    assert some.partition.log_end_offset == 3
    assert some.partition.log.recovered_clean


async def test_INV_CLG2_a_log_is_settled_only_where_all_of_it_is_synced() -> None:
    some = written(1)
    some.partition.log.settle()
    assert some.partition.log.durability.begin_last_sync() is not None
    reopened(some)
    assert not some.partition.log.recovered_clean


async def test_a_log_that_cannot_be_settled_stops_and_the_others_are_closed_cleanly() -> None:
    some = written(3)
    bad = some.table.folder_of(some.topic.topic_id, 1)

    def failing(operation: str, path: Path) -> None:
        if bad in path.parents and operation in {"fdatasync", "fsync_dir"}:
            raise OSError(5, "for a test")

    some.disk.fault = failing
    await close_aside(some.partitions, at_once)
    assert [each.failed is not None for each in some.partitions] == [False, True, False]
    some.disk.fault = None
    reopened(some)
    assert [each.log.recovered_clean for each in some.partitions] == [True, False, True]
    assert [each.log_end_offset for each in some.partitions] == [2, 2, 2]


async def test_doing_it_twice_changes_nothing() -> None:
    some = written(2)
    await close_aside(some.partitions, at_once)
    threads = Threads(some)
    await close_aside(some.partitions, threads.run)
    assert threads.on_the_loop == []
