"""Memory behind the end of a log that is written in bulk: given back in steps, never of what is not synced; and what a read holds."""

import sys
from pathlib import Path

import pytest

from region_broker.log.journal.sync_job import BULK_BYTES_MIN, DROP_STEP_BYTES
from region_broker.partitions.parts.sight import Isolation
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.node_logs import Fixture, all_bytes, batch, fixture
from tests.fixtures.page_cache import TRIES_MAX, drop_pages, tells_cached

TAIL_BYTES = 4 << 20
BATCH_BYTES = 1_000_000


def written_in_bulk(some: Fixture, count: int) -> None:
    for _ in range(count):
        some.partition.writer.append(batch(size_bytes=BATCH_BYTES))
        some.sync()


def test_INV_LF4_what_lies_behind_the_tail_is_given_back_in_steps() -> None:
    some = fixture(cached_tail_bytes=TAIL_BYTES)
    file = some.folder / f"{0:020d}.log"
    end = 0
    for _ in range(40):
        written_in_bulk(some, 1)
        size_bytes = some.disk.file_size(file)
        assert sum(part[2] for part in some.disk.dropped) <= max(size_bytes - TAIL_BYTES, 0)
    for path, position, size_bytes in some.disk.dropped:
        assert (path, position) == (file, end), "each byte once, from the start"
        assert size_bytes >= DROP_STEP_BYTES
        end += size_bytes
    assert end > some.disk.file_size(file) - TAIL_BYTES - DROP_STEP_BYTES - 2 * BATCH_BYTES


@pytest.mark.parametrize("tail_bytes", [0, 1 << 30])
def test_nothing_is_given_back_of_a_tail_that_is_long_or_the_systems(tail_bytes: int) -> None:
    some = fixture(cached_tail_bytes=tail_bytes)
    written_in_bulk(some, 20)
    assert some.disk.dropped == []


def test_nothing_is_given_back_of_a_log_that_is_written_slowly() -> None:
    some = fixture(cached_tail_bytes=1)
    for _ in range(100):
        some.partition.writer.append(batch(size_bytes=BULK_BYTES_MIN // 2))
        some.sync()
    assert some.disk.dropped == []


def test_INV_LF4_nothing_is_given_back_before_it_is_synced() -> None:
    some = fixture(cached_tail_bytes=1)

    def broken(operation: str, _path: Path) -> None:
        if operation == "fdatasync":
            raise OSError(5, "for the test")

    for _ in range(20):
        some.partition.writer.append(batch(size_bytes=BATCH_BYTES))
    some.disk.fault = broken
    some.sync()
    assert some.partition.failed is not None
    assert some.disk.dropped == []


def test_each_segment_begins_anew_and_a_full_one_is_left() -> None:
    some = fixture({"segment.bytes": "12000000"}, cached_tail_bytes=1)
    written_in_bulk(some, 40)
    firsts = {path: position for path, position, _ in reversed(some.disk.dropped)}
    assert len(firsts) > 1
    assert set(firsts.values()) == {0}


def test_a_real_file_gives_its_memory_back(tmp_path: Path) -> None:
    can_tell = tells_cached(tmp_path)
    path, size_bytes = tmp_path / "file", 1 << 20
    path.write_bytes(b"x" * size_bytes)
    drop_pages(tmp_path)
    disk = RealDisk()
    file = disk.open(path)
    before = after = -1
    # A fast disk may have it again before who asks without waiting has looked.
    for _ in range(TRIES_MAX):
        disk.warm(path, 0, size_bytes)
        before = len(file.pread_cached(size_bytes, 0))
        file.drop_cached(0, size_bytes // 2)
        after = len(file.pread_cached(size_bytes, 0))
        if before == size_bytes and after == (0 if can_tell else size_bytes):
            break
    assert (before, after) == (size_bytes, 0 if can_tell else size_bytes)
    file.close()


@pytest.mark.parametrize("size_bytes", [20_000, 150_000, 600_000])
def test_INV_SG5_a_read_holds_little_more_than_it_returns(size_bytes: int) -> None:
    some = fixture()
    for _ in range(2_000_000 // size_bytes):
        some.partition.writer.append(batch(size_bytes=size_bytes))
    some.sync()
    found = some.partition.reader.fetch(0, 1 << 20, Isolation.READ_UNCOMMITTED, wait=False).data
    assert (1 << 20) - size_bytes - 100 < len(found) <= 1 << 20
    assert sys.getsizeof(found) <= len(found) * 4 / 3 + 100


@pytest.mark.parametrize("wait", [False, True])
def test_a_read_returns_whole_batches_and_as_many_as_its_bound_allows(wait: bool) -> None:
    some, ends = fixture(), [0]
    for number in range(12):
        some.partition.writer.append(batch(size_bytes=10 + 7 * number))
        some.sync()
        ends.append(len(all_bytes(some.partition)))
    whole = all_bytes(some.partition)
    for bytes_max in range(1, len(whole) + 20, 3):
        found = some.partition.reader.fetch(
            0, bytes_max, Isolation.READ_UNCOMMITTED, first_batch_always=True, wait=wait
        ).data
        end = max([ends[1], *(each for each in ends if each <= bytes_max)])
        assert bytes(found) == whole[:end], bytes_max
