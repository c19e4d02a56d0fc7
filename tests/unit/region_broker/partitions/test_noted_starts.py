"""Log starts that others have moved: noted in one step, durable by threads, and what lies below goes a little at a time."""

import asyncio
import errno
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from idempotency.identity import LeaderEpoch
from region_broker.log.indexes.log_start import LOG_START_NAME, read_log_start
from region_broker.log.segment import DeletionBudget
from region_broker.partitions import upkeep
from region_broker.partitions.partition import Partition
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, batch, fixture

LOGS, BATCHES = 6, 40
END = BATCHES - 2


def of_mirrors() -> Fixture:
    """Logs of several segments each, all of them mirrors."""
    some = fixture({"segment.bytes": "4096", "retention.ms": "-1"}, partition_count=LOGS)
    for partition in some.partitions:
        for _ in range(BATCHES):
            partition.writer.append(batch(size_bytes=400))
    some.sync()
    some.sync_files()
    some.leads = False
    for partition in some.partitions:
        partition.become_mirror()
    return some


class Watched:
    """Who uses the disk for what."""

    def __init__(self, some: Fixture) -> None:
        self.on_the_loop: list[str] = []
        self.written: list[Path] = []
        some.disk.fault = self.note

    def note(self, operation: str, path: Path) -> None:
        if threading.current_thread() is threading.main_thread():
            self.on_the_loop.append(f"{operation} {path}")
        elif operation == "write_file_atomic":
            self.written.append(path)


def kept_on_disk(some: Fixture) -> list[int]:
    return [read_log_start(some.disk, each.log.folder) for each in some.partitions]


def starts(some: Fixture) -> list[int]:
    return [each.log_start_offset for each in some.partitions]


async def test_INV_NST1_a_tidemark_over_many_logs_waits_for_no_disk() -> None:
    some, told = of_mirrors(), list[int]()
    watched = Watched(some)
    for number, partition in enumerate(some.partitions):
        partition.retention.forget_below(END, partial(told.append, number))
    assert starts(some) == [END] * LOGS, "their readers see it at once"
    assert (watched.on_the_loop, watched.written, told) == ([], [], [])
    await some.table.noted_starts.keep()
    assert watched.on_the_loop == []
    assert sorted(watched.written) == sorted(p.log.folder / LOG_START_NAME for p in some.partitions)
    assert told == list(range(LOGS))
    some.disk.fault = None
    assert kept_on_disk(some) == [END] * LOGS
    some.partition.retention.forget_below(3, partial(told.append, -1))
    assert told[-1] == -1, "it is durable"


async def test_INV_NST1_the_task_of_the_node_has_them_written() -> None:
    some = of_mirrors()
    running = asyncio.get_running_loop().create_task(some.table.noted_starts.run())
    kept = asyncio.Event()
    some.partition.retention.forget_below(END, kept.set)
    await kept.wait()
    assert kept_on_disk(some)[0] == END
    running.cancel()


def test_INV_NST2_what_is_not_on_disk_is_lost_by_a_crash_and_by_no_stop() -> None:
    some = of_mirrors()
    some.partition.retention.forget_below(END)
    some.kill_and_reopen()
    assert starts(some) == [0] * LOGS
    some.partition.retention.forget_below(END)
    some.close_and_reopen()
    assert starts(some) == [END] + [0] * (LOGS - 1)


async def test_INV_NST3_the_bytes_go_with_all_that_a_step_may_delete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "DeletionBudget", lambda: DeletionBudget(3))
    some = of_mirrors()
    for partition in some.partitions:
        partition.retention.forget_below(END)
    assert [each.kept_from for each in some.partitions] == [0] * LOGS
    assert some.maintain(lambda _: None) == 0, "nothing goes before the start is on disk"
    await some.table.noted_starts.keep()

    def left() -> int:
        return sum(len(each.log.sealed_paths()) for each in some.partitions)

    by_then = [left(), *(left() for _ in some.table.upkeep.maintain(lambda _: None)), left()]
    assert max(before - after for before, after in pairwise(by_then)) <= 3
    assert left() <= LOGS, "all that lies wholly below goes"
    assert all(0 < each.kept_from <= END for each in some.partitions)
    assert starts(some) == [END] * LOGS


class SlowStart:
    """A log whose start is noted, and is being written by its thread."""

    def __init__(self) -> None:
        self.some = of_mirrors()
        self._is_writing, self._may_go_on = threading.Event(), threading.Event()
        self.some.disk.fault = self._slow

    def _slow(self, operation: str, path: Path) -> None:
        if operation == "write_file_atomic" and path.name == LOG_START_NAME:
            self.some.disk.fault = None
            self._is_writing.set()
            assert self._may_go_on.wait(60)

    @property
    def partition(self) -> Partition:
        return self.some.partition

    async def begin(self, tasks: asyncio.TaskGroup, offset: int) -> None:
        self.partition.retention.forget_below(offset)
        tasks.create_task(self.some.table.noted_starts.keep())
        assert await asyncio.to_thread(self._is_writing.wait, 60)

    def let_it_end(self) -> None:
        self._may_go_on.set()

    def let_it_end_soon(self) -> None:
        """From another thread: what moves it back waits for what is being written."""
        threading.Timer(0.01, self._may_go_on.set).start()


async def test_INV_NST1_one_that_moves_on_while_it_is_written_is_told_when_it_is_there() -> None:
    slow, told = SlowStart(), list[int]()
    async with asyncio.TaskGroup() as tasks:
        await slow.begin(tasks, 8)
        slow.partition.retention.forget_below(END, lambda: told.extend(kept_on_disk(slow.some)[:1]))
        assert slow.partition.log_start_offset == END
        slow.let_it_end()
    assert told == [END]


@pytest.mark.parametrize("back", ["cut", "take back"])
async def test_INV_PT7_one_that_is_void_while_it_is_written_does_not_come_back(back: str) -> None:
    slow = SlowStart()
    async with asyncio.TaskGroup() as tasks:
        await slow.begin(tasks, 30)
        slow.partition.retention.forget_below(35)
        slow.let_it_end_soon()
        if back == "cut":
            slow.partition.truncate_to(20)
        else:
            slow.partition.retention.take_back_start(5)
    expected = 0 if back == "cut" else 5
    assert (slow.partition.log_start_offset, kept_on_disk(slow.some)[0]) == (expected, expected)
    slow.some.kill_and_reopen()
    assert slow.partition.log_start_offset == expected


@pytest.mark.parametrize("cut_at", [20, 35])
async def test_INV_LOS3_a_noted_start_that_is_not_on_disk_is_void_above_a_cut(cut_at: int) -> None:
    some = of_mirrors()
    some.partition.retention.forget_below(30)
    some.partition.truncate_to(cut_at)
    expected = 30 if cut_at == 35 else 0
    assert some.partition.log_start_offset == expected
    await some.table.noted_starts.keep()
    assert kept_on_disk(some)[0] == expected


async def test_INV_NST1_a_disk_that_refuses_one_stops_its_log_alone() -> None:
    some, told = of_mirrors(), list[int]()
    refused = some.partition.log.folder / LOG_START_NAME

    def refuse(operation: str, path: Path) -> None:
        if operation == "write_file_atomic" and path == refused:
            raise OSError(errno.EIO, "a bad sector", str(path))

    some.disk.fault = refuse
    for number, partition in enumerate(some.partitions):
        partition.retention.forget_below(END, partial(told.append, number))
    await some.table.noted_starts.keep()
    assert told == list(range(1, LOGS))
    assert [each.failed is not None for each in some.partitions] == [True] + [False] * (LOGS - 1)


async def test_a_log_that_is_dropped_with_its_start_noted_keeps_nobody() -> None:
    some, told = of_mirrors(), list[int]()
    some.partition.retention.forget_below(END, partial(told.append, 0))
    some.drop_topic(some.topic.topic_id)
    await some.table.noted_starts.keep()
    assert not some.table._shared.noted_starts._noted


async def test_INV_PTD2_an_order_to_delete_what_is_only_noted_is_acknowledged_when_it_is_on_disk() -> (
    None
):
    """1. A leader deletes, and its follower notes that. 2. The follower leads. 3. The same order comes again."""
    some = of_mirrors()
    some.partition.retention.forget_below(8)
    some.partition.become_leader(LeaderEpoch(LEADER_EPOCH + 1))
    assert await some.partition.retention.delete_records(8) == 8
    some.kill_and_reopen()
    assert some.partition.log_start_offset == 8
