"""Stored bytes that are wrong are never given out, and what is sound around them is (issue: CRC on every read)."""

import asyncio

import pytest

from region_broker.log.failures import CorruptRange
from region_broker.replication.partition import Isolation, Partition
from tests.log_world import World, batch, world

SIZE_BYTES = len(batch())
COUNT = 12


def filled(**configs: str) -> World:
    some = world({"segment.bytes": "4096"} | configs)
    for number in range(COUNT):
        some.partition.append(batch(at_ms=1_000_000 + number))
    some.sync()
    return some


def flip(some: World, batch_number: int, byte: int) -> None:
    some.disk.damage(some.folder / f"{0:020d}.log", batch_number * SIZE_BYTES + byte)


def offsets_read(partition: Partition, start: int, max_bytes: int) -> list[int]:
    """Return the next offsets of reads from `start` up to the first that is refused, then -1."""
    found: list[int] = []
    offset = start
    for _ in range(100):
        if offset >= partition.high_watermark:
            break
        try:
            offset = partition.fetch(offset, max_bytes, Isolation.READ_UNCOMMITTED).next_offset
        except CorruptRange:
            return [*found, -1]
        found.append(offset)
    return found


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
    assert partition.corrupt_reads == 1
    assert partition.append(batch()).base_offset == COUNT


def test_what_lies_behind_is_served() -> None:
    some = filled()
    flip(some, 5, 70)
    assert offsets_read(some.partition, 6, 1 << 20) == [COUNT]


def test_links_get_no_damaged_bytes() -> None:
    some = filled()
    flip(some, 5, 70)
    assert len(some.partition.read_raw(0, 1 << 20)) == 5 * SIZE_BYTES
    with pytest.raises(CorruptRange):
        some.partition.read_raw(5, 1 << 20)


def test_a_lookup_by_time_trusts_no_damaged_batch() -> None:
    some = filled()
    flip(some, 5, 70)
    assert (
        asyncio.run(some.partition.lookup(Isolation.READ_UNCOMMITTED).first(1_000_004)) is not None
    )
    with pytest.raises(CorruptRange):
        asyncio.run(some.partition.lookup(Isolation.READ_UNCOMMITTED).first(1_000_005))


def test_each_place_is_named_once_and_each_read_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = filled()
    flip(some, 5, 70)
    for _ in range(3):
        with pytest.raises(CorruptRange):
            some.partition.fetch(5, 1, Isolation.READ_UNCOMMITTED)
    assert some.partition.corrupt_reads == 3
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
