"""Stored bytes that are wrong are never given out, and what is sound around them is (issue: CRC on every read)."""

import asyncio
import errno
from pathlib import Path

import pytest

from idempotency.record_batch import ControlType
from region_broker.log.failures import CorruptRange, PartitionFailed
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.node_logs import Fixture, append_marker, batch, fixture

SIZE_BYTES = len(batch())
COUNT = 12


def filled(**configs: str) -> Fixture:
    some = fixture({"segment.bytes": "4096"} | configs)
    for number in range(COUNT):
        some.partition.writer.append(batch(at_ms=1_000_000 + number))
    some.sync()
    return some


def flip(some: Fixture, batch_number: int, byte: int) -> None:
    some.disk.damage(some.folder / f"{0:020d}.log", batch_number * SIZE_BYTES + byte)


def offsets_read(partition: Partition, start: int, max_bytes: int) -> list[int]:
    """Return the next offsets of reads from `start` up to the first that is refused, then -1."""
    found: list[int] = []
    offset = start
    for _ in range(100):
        if offset >= partition.high_watermark:
            break
        try:
            offset = partition.reader.fetch(
                offset, max_bytes, Isolation.READ_UNCOMMITTED
            ).next_offset
        except CorruptRange:
            return [*found, -1]
        found.append(offset)
    return found


# Holds INV-PT6.
@pytest.mark.parametrize("byte", [8, 9, 17, 25, 60, 70, SIZE_BYTES - 1])
@pytest.mark.parametrize("max_bytes", [1, 3 * SIZE_BYTES, 1 << 20])
def test_a_flipped_bit_is_an_error_for_its_batch_alone(byte: int, max_bytes: int) -> None:
    some = filled()
    flip(some, 5, byte)
    partition = some.partition
    before = offsets_read(partition, 0, max_bytes)
    assert before[-1] == -1
    assert before[-2] == 5
    assert partition.failed is None
    assert partition.reader.corrupt_reads == 1
    assert partition.writer.append(batch()).base_offset == COUNT


# Holds INV-PT6.
def test_what_lies_behind_is_served() -> None:
    some = filled()
    flip(some, 5, 70)
    assert offsets_read(some.partition, 6, 1 << 20) == [COUNT]


def test_links_get_no_damaged_bytes() -> None:
    some = filled()
    flip(some, 5, 70)
    assert len(some.partition.reader.read_raw(0, 1 << 20)) == 5 * SIZE_BYTES
    with pytest.raises(CorruptRange):
        some.partition.reader.read_raw(5, 1 << 20)


def test_a_lookup_by_time_trusts_no_damaged_batch() -> None:
    some = filled()
    flip(some, 5, 70)
    assert (
        asyncio.run(some.partition.reader.lookup(Isolation.READ_UNCOMMITTED).first(1_000_004))
        is not None
    )
    with pytest.raises(CorruptRange):
        asyncio.run(some.partition.reader.lookup(Isolation.READ_UNCOMMITTED).first(1_000_005))


def test_each_place_is_named_once_and_each_read_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = filled()
    flip(some, 5, 70)
    for _ in range(3):
        with pytest.raises(CorruptRange):
            some.partition.reader.fetch(5, 1, Isolation.READ_UNCOMMITTED)
    assert some.partition.reader.corrupt_reads == 3
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


def of_two_segments() -> Fixture:
    some = fixture({"segment.bytes": "4096", "retention.ms": "1000"}, partition_count=2)
    for partition in some.partitions:
        for _ in range(30):
            partition.writer.append(batch(size_bytes=300))
    some.sync()
    some.close_and_reopen()
    return some


@pytest.mark.parametrize("how", ["cannot be read", "damaged, and the disk is full"])
def test_INV_X3_a_reader_of_committed_records_gets_them_without_the_aborted_index(how: str) -> None:
    some = of_two_segments()
    index = some.folder / f"{0:020d}.txnindex"
    if how != "cannot be read":
        some.disk.damage(index, 6)

    def fail(operation: str, path: Path) -> None:
        if operation == "read_file" and path == index and how == "cannot be read":
            raise OSError(errno.EIO, "a bad sector")
        if operation == "write_file_atomic":
            raise OSError(errno.ENOSPC, "full")

    some.disk.fault = fail
    assert some.partition.reader.fetch(0, 10_000, Isolation.READ_COMMITTED).data
    assert some.partition.failed is None


@pytest.mark.parametrize("suffix", [".index", ".txnindex"])
def test_a_reader_is_told_of_a_disk_that_fails_beside_the_log(suffix: str) -> None:
    some = of_two_segments()

    def fail(operation: str, path: Path) -> None:
        if path.name in (f"{0:020d}{suffix}", f"{0:020d}.log"):
            raise OSError(errno.EIO, "a bad sector")

    some.disk.fault = fail
    with pytest.raises(PartitionFailed):
        some.partition.reader.fetch(0, 10_000, Isolation.READ_COMMITTED)
    assert some.partition.failed is not None


def test_a_reader_that_waits_for_much_is_told_of_damage_at_once() -> None:
    some = of_two_segments()
    del some.disk.content(some.folder / f"{0:020d}.log")[-400:]  # more than a batch
    some.disk.remove(some.folder / f"{0:020d}.index")
    assert some.partition.reader.readable_bytes(1, Isolation.READ_UNCOMMITTED, 1 << 20) == 1 << 20


def test_a_disk_that_fails_as_bytes_are_counted_stops_the_partition_and_not_whoever_counts() -> (
    None
):
    """The lag of a mirror is counted so: `region status`, `/metrics` and `top` went down with one partition."""
    some = of_two_segments()

    def fail(operation: str, path: Path) -> None:
        if path.name == f"{0:020d}.log":
            raise OSError(errno.EIO, "a bad sector")

    some.disk.fault = fail
    assert some.partition.reader.readable_bytes(1, Isolation.READ_UNCOMMITTED, 1 << 20) == 1 << 20
    assert some.partition.failed is not None


def test_INV_T3_damage_that_retention_meets_stops_the_maintenance_of_no_other_partition() -> None:
    some = of_two_segments()
    some.disk.process_killed()
    del some.disk.content(some.folder / f"{0:020d}.log")[-10:]
    some.open()  # after a clean stop no sealed segment is looked at
    some.clock.pass_ms(10_000_000)
    assert some.maintain(lambda _: None) > 0
    assert [p.log_start_offset > 0 for p in some.partitions] == [False, True]
    assert [p.failed for p in some.partitions] == [None, None]  # its other segments are served


def test_INV_T3_a_damaged_marker_that_a_state_is_built_from_concerns_its_partition_alone() -> None:
    some = fixture({"segment.bytes": "4096", "retention.ms": "1000"}, partition_count=2)
    for partition in some.partitions:
        append_marker(
            partition, producer_id=7, producer_epoch=0, control_type=ControlType.ABORT,
            coordinator_epoch=1, decision=None, timestamp_ms=1,
        )  # fmt: skip
    for partition in some.partitions:
        for _ in range(30):
            partition.writer.append(batch(size_bytes=300))
    some.sync()
    some.close_and_reopen()
    damaged = some.partition.log.folder
    for byte in (61, 62, 63, 64, 65):  # the record of the marker, right behind the header
        some.disk.damage(damaged / f"{0:020d}.log", byte)
    for name in some.disk.list_dir(damaged):
        if name.endswith(".snapshot") and int(name[:20]) > 0:
            some.disk.remove(damaged / name)
    some.clock.pass_ms(10_000_000)
    assert some.maintain(lambda _: None) > 0
    assert [p.log_start_offset > 0 for p in some.partitions] == [False, True]


@pytest.mark.parametrize("byte", [0, 3, 5, 23, 26])  # base offset and last offset delta
def test_INV_T3_offsets_that_cannot_be_are_damage_and_no_fault_of_ours(byte: int) -> None:
    some = of_two_segments()
    size_bytes = len(batch(size_bytes=300))
    some.disk.damage(some.folder / f"{0:020d}.log", 3 * size_bytes + byte)
    some.disk.remove(some.folder / f"{0:020d}.index")
    with pytest.raises(CorruptRange):
        some.partition.reader.fetch(3, 1, Isolation.READ_UNCOMMITTED)
    assert some.partition.failed is None


def test_a_process_without_free_descriptors_stops_no_partition() -> None:
    some = of_two_segments()
    partition = some.partitions[0]

    def none_left(operation: str, path: Path) -> None:
        if operation == "open":
            raise OSError(errno.EMFILE, "too many open files", str(path))

    some.disk.fault = none_left
    for _ in range(30):  # more than a segment takes
        assert partition.writer.append(batch(size_bytes=300)).verdict is AppendVerdict.APPENDED
    some.sync()
    assert partition.high_watermark == 60
    with pytest.raises(PartitionFailed, match="when files can be opened"):
        partition.reader.fetch(0, 100, Isolation.READ_UNCOMMITTED)
    assert partition.failed is None
    some.disk.fault = None
    segments = len(partition.log.segments.segments)
    partition.writer.append(batch(size_bytes=300))
    some.sync()
    assert len(partition.log.segments.segments) == segments + 1
    assert partition.reader.fetch(0, 100, Isolation.READ_UNCOMMITTED).data
    some.kill_and_reopen()
    assert some.partition.log_end_offset == 61


def test_INV_TL2_the_largest_time_is_found_up_to_the_largest_there_is() -> None:
    some = filled(**{"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    for at_ms in ((1 << 62) - 1, 1 << 62, (1 << 63) - 1, 5):
        some.partition.writer.append(batch(at_ms=at_ms))
    some.sync()
    lookup = some.partition.reader.lookup(Isolation.READ_UNCOMMITTED)
    found = asyncio.run(lookup.latest())
    assert found is not None
    assert found[:2] == (COUNT + 2, (1 << 63) - 1)
