"""Reads of what is not in memory: said by the disk, read in by a thread, read again on the loop."""

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from typing_extensions import override

from region_broker.log.cold_reads import WARM_THREADS, WARM_TRIES_MAX, ColdReads, Reading
from region_broker.log.failures import ColdRange, PartitionFailed
from region_broker.log.group_commit import GroupCommit
from region_broker.log.log_config import NodeLogConfig
from region_broker.log.partition_log import PartitionLog
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.table import PartitionTable
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.node_logs import (
    LEADER_EPOCH,
    Fixture,
    InlineRunner,
    ManualClock,
    Topic,
    at_once,
    batch,
    fixture,
    run_now,
)
from tests.fixtures.page_cache import TRIES_MAX, answered_from_disk, drop_pages, tells_cached

SEGMENTS = {"segment.bytes": "4096"}
ALL = 1 << 20
BATCHES = 40


class WatchedDisk(RealDisk):
    """A real disk that notes which thread reads what in."""

    def __init__(self) -> None:
        """Nothing was read in yet."""
        self.warmed_in: list[str] = []

    @override
    def warm(self, path: Path, position: int, size_bytes: int) -> None:
        """See `Disk`."""
        self.warmed_in.append(threading.current_thread().name)
        super().warm(path, position, size_bytes)


def filled() -> Fixture:
    """A log of several segments that was opened again: no index is in memory."""
    some = fixture(SEGMENTS)
    for number in range(BATCHES):
        some.partition.writer.append(batch(3, size_bytes=100, at_ms=1_000_000 + 10 * number))
    some.sync()
    some.close_and_reopen()
    return some


def patient(some: Fixture) -> ColdReads:
    return ColdReads(some.disk, at_once)


def test_who_counts_bytes_over_whole_segments_reads_none_of_them() -> None:
    """A mirror's lag is counted with each answer: with a cold read in each segment it would not come to an end."""
    some = filled()
    some.disk.forget_by_chance(random.Random(1), 1.0)
    segments = some.partition.log.segments
    assert len(segments.segments) > 2
    count = segments.bytes_between(0, segments.segments[-1].next_offset, 1 << 30, wait=False)
    assert count == sum(each.size_bytes for each in segments.segments)


def first_looks(some: Fixture, suffix: str) -> Reading[object]:
    """Return what looks into files of all full segments with this suffix."""

    def read(*, wait: bool) -> object:
        if suffix == ".txnindex":
            return some.partition.reader.fetch(0, 1, Isolation.READ_COMMITTED, wait=wait)
        return some.partition.log.segments.first_reaching(1 << 60, 1 << 60, wait=wait)

    return read


def of_many_segments() -> Fixture:
    """More full segments than a reading may have ranges read in, one at a time; nothing of them is known."""
    some = fixture(SEGMENTS)
    for _ in range(WARM_TRIES_MAX + 10):
        some.partition.writer.append(batch(size_bytes=4000))
        some.sync()
    some.close_and_reopen()
    assert len(some.partition.log.sealed_paths()) > WARM_TRIES_MAX
    return some


@pytest.mark.parametrize("suffix", [".txnindex", ".index"])
def test_INV_SGL1_what_a_first_look_lacks_is_read_in_together(suffix: str) -> None:
    """One at a time, all that the last try lacks would be waited for on the loop: 9,900 files of a log on a disk that was just mounted."""
    some = of_many_segments()
    read = first_looks(some, suffix)
    some.disk.forget_by_chance(random.Random(1), 1.0)
    cold_reads = patient(some)
    found = run_now(cold_reads.read(read))
    assert cold_reads.waited_count == 0
    assert cold_reads.warmed_count > WARM_TRIES_MAX / 2
    assert found == read(wait=True)


@pytest.mark.parametrize(
    ("suffix", "look"),
    [
        (".txnindex", lambda log: log.aborted_in(0, 1, 1 << 60, wait=False)),
        (".index", lambda log: log.segments.first_reaching(1 << 60, 1 << 60, wait=False)),
    ],
)
def test_INV_SGL1_so_many_are_read_in_together_and_no_more(
    suffix: str, look: Callable[[PartitionLog], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region_broker.log.segment_list.FIRST_LOOKS_MAX", 20)
    some = of_many_segments()
    some.disk.cold = lambda _path, _size_bytes: 0
    with pytest.raises(ColdRange) as lacking:
        look(some.partition.log)
    paths = [each.path for each in (lacking.value, *lacking.value.others)]
    assert len(set(paths)) == 20
    assert {path.suffix for path in paths} == {suffix}


@pytest.mark.parametrize("suffix", [".txnindex", ".index"])
def test_INV_CO2_to_give_way_is_no_try(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region_broker.log.segment_list.FIRST_LOOKS_MAX", 1)
    some = of_many_segments()
    cold_reads = patient(some)
    run_now(cold_reads.read(first_looks(some, suffix)))
    assert cold_reads.warmed_count > WARM_TRIES_MAX
    assert cold_reads.waited_count == 0


@pytest.mark.parametrize("suffix", [".txnindex", ".index"])
def test_INV_SGL1_a_first_look_at_many_segments_gives_way_now_and_then(
    suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region_broker.log.segment_list.FIRST_LOOKS_MAX", 1)
    some = filled()
    segments = len(some.partition.log.sealed_paths())
    assert segments > 2
    looks: list[int] = []

    def note(operation: str, path: Path) -> None:
        if operation == "open" and path.suffix == suffix:
            looks[-1] += 1

    def read(*, wait: bool) -> object:
        looks.append(0)
        return first_looks(some, suffix)(wait=wait)

    async def through(cold_reads: ColdReads) -> object:
        return await cold_reads.read(read)

    some.disk.fault = note
    cold_reads = patient(some)
    found = asyncio.run(through(cold_reads))
    assert max(looks) == 1
    assert sum(looks) >= segments, "each was looked into"
    assert cold_reads.waited_count == 0
    assert found == read(wait=True)


# -- the disk --------------------------------------------------------------------------------------


def test_INV_DK4_what_is_not_in_memory_is_not_waited_for(tmp_path: Path) -> None:
    path, size_bytes = tmp_path / "file", 1 << 20
    content = os.urandom(size_bytes)
    path.write_bytes(content)
    can_tell = tells_cached(tmp_path)
    disk = RealDisk()
    file = disk.open(path)
    assert file.pread_cached(size_bytes, 0) == content
    cold = bytearray()
    # Asking lets the kernel read ahead, and a fast disk may have answered by then.
    for _ in range(TRIES_MAX):
        drop_pages(tmp_path)
        cold = file.pread_cached(size_bytes, 0)
        assert content.startswith(cold)
        if not cold or not can_tell:
            break
    assert cold == (b"" if can_tell else content)
    disk.warm(path, 4096, size_bytes)
    assert file.pread_cached(size_bytes, 4096) == content[4096:]
    file.close()


def test_a_file_system_that_cannot_tell_is_read_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(*arguments: object) -> int:
        asked.append(len(arguments))
        raise OSError(errno.EOPNOTSUPP, "this file system does not know RWF_NOWAIT")

    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    file = RealDisk().open(path)
    monkeypatch.setattr(os, "preadv", refuse)
    assert [file.pread_cached(4, 2), file.pread_cached(20, 6)] == [b"2345", b"6789"]
    assert len(asked) == 1, "it is asked once"
    file.close()


async def test_INV_CO1_a_cold_log_on_a_real_disk_is_read_in_by_a_thread(tmp_path: Path) -> None:
    clock, disk = ManualClock(), WatchedDisk()
    config = NodeLogConfig(index_interval_bytes=256)
    commit = GroupCommit(config, clock, runner=InlineRunner())
    table = PartitionTable(disk, tmp_path, clock, config, commit)
    (partition,) = table.open_topic(Topic(configs={"segment.bytes": "65536"}))
    partition.become_leader(LEADER_EPOCH)
    for _ in range(40):
        partition.writer.append(batch(size_bytes=8000))
    await commit.sync_group()
    expected = partition.reader.read_raw(0, ALL)
    cold_reads = partition.reader.cold_reads
    fetch = partial(cold_reads.read, partial(partition.reader.read_raw, 0, ALL))
    assert await answered_from_disk(tmp_path, cold_reads, fetch) == expected
    assert all(name.startswith("cold-read") for name in disk.warmed_in)
    assert partition.reader.cold_reads.waited_count == 0
    table.close()


# -- the log ---------------------------------------------------------------------------------------


def read_through(some: Fixture, cold_reads: ColdReads) -> list[bytes]:
    """Read the log as fetches do, a few batches at a time."""
    partition, found, offset = some.partition, [], 0
    while offset < partition.sight.last_stable_offset:
        part = run_now(
            cold_reads.read(partial(partition.reader.fetch, offset, 1500, Isolation.READ_COMMITTED))
        )
        found.append(bytes(part.data))
        offset = part.next_offset
    return found


def lacks_all(some: Fixture) -> None:
    """Let nothing be in memory but the files that were read in, and fail the test where a read waits."""

    def cold(path: Path, size_bytes: int) -> int:
        return size_bytes if path in {warmed for warmed, _, _ in some.disk.warmed} else 0

    def forbid(operation: str, path: Path) -> None:
        assert operation not in ("pread", "read_file"), (operation, path)

    some.disk.cold, some.disk.fault = cold, forbid


def test_INV_SG4_a_fetch_waits_for_no_file_of_the_log() -> None:
    expected = read_through(filled(), patient(filled()))
    some = filled()
    lacks_all(some)
    assert read_through(some, patient(some)) == expected
    read_in = {path.suffix for path, _, _ in some.disk.warmed}
    assert read_in == {".log", ".index", ".txnindex"}


def test_INV_SG4_a_lookup_by_time_waits_for_no_file_of_the_log() -> None:
    some = filled()
    lacks_all(some)
    some.partition.reader.cold_reads = patient(some)
    lookup = some.partition.reader.lookup(Isolation.READ_UNCOMMITTED)
    at_ms = 1_000_000 + 10 * (BATCHES - 20)
    assert run_now(lookup.first(at_ms)) == (3 * (BATCHES - 20), at_ms, LEADER_EPOCH)
    assert some.disk.warmed


# -- it ends ---------------------------------------------------------------------------------------


def test_INV_CO2_a_memory_that_keeps_nothing_ends_in_one_read_that_waits() -> None:
    some = filled()
    some.disk.cold = lambda _path, _size_bytes: 0
    cold_reads = patient(some)
    found = run_now(cold_reads.read(partial(some.partition.reader.read_raw, 0, 1)))
    assert found == some.partition.reader.read_raw(0, 1)
    assert (cold_reads.warmed_count, cold_reads.waited_count) == (WARM_TRIES_MAX, 1)


def test_a_file_that_cannot_be_read_in_is_an_error_of_the_read() -> None:
    """An error of the thread says nothing by itself: the read that follows meets it, or does well without."""
    some = filled()

    def broken(operation: str, path: Path) -> None:
        if operation in ("warm", "pread") and path.suffix == ".log":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    some.disk.cold, some.disk.fault = (lambda _path, _size_bytes: 0), broken
    with pytest.raises(PartitionFailed):
        run_now(patient(some).read(partial(some.partition.reader.read_raw, 0, 1)))
    assert some.partition.failed is not None


def test_INV_CO1_what_was_cut_meanwhile_is_not_read() -> None:
    """1. A read finds its bytes not in memory. 2. While they are read in, the log is cut. 3. It is read again."""
    some = filled()
    some.disk.cold = lambda _path, _size_bytes: 0

    async def cut(work: Callable[[], None]) -> None:
        work()
        if some.disk.cold is not None:
            some.disk.cold = None
            some.partition.truncate_to(3)

    cold_reads = ColdReads(some.disk, cut)
    found = run_now(cold_reads.read(partial(some.partition.reader.read_raw, 0, ALL)))
    assert len(found) == len(batch(3, size_bytes=100))


async def test_INV_CO3_a_bounded_number_is_read_in_at_a_time() -> None:
    some = filled()
    first_looks = [0] * (2 * WARM_THREADS)
    some.disk.cold = lambda _path, size_bytes: first_looks.pop() if first_looks else size_bytes
    go_on, begun = threading.Event(), threading.Semaphore(0)
    running: list[str] = []

    def warm(operation: str, _path: Path) -> None:
        if operation == "warm":
            running.append(threading.current_thread().name)
            begun.release()
            assert go_on.wait(timeout=30)

    some.disk.fault = warm
    cold_reads = ColdReads(some.disk)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(2 * WARM_THREADS):
            tasks.create_task(cold_reads.read(partial(some.partition.reader.read_raw, 0, 1)))
        for _ in range(WARM_THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=30)
        for _ in range(100):  # one more would show up by now
            await asyncio.to_thread(threading.active_count)
        assert len(running) == WARM_THREADS
        go_on.set()
    assert (cold_reads.warmed_count, cold_reads.waited_count) == (2 * WARM_THREADS, 0)
    cold_reads.close()
