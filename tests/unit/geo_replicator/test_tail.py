"""What a tail takes of memory, however long it is."""

import tracemalloc
from collections.abc import Callable
from uuid import UUID

import pytest

from geo_replicator.tail import GroupCommit, Tail
from idempotency.identity import LogKey
from tests.fixtures.kernel_batches import data

LOG = LogKey(UUID(int=1), 0)
PRODUCERS = 5


def take_data(tail: Tail, offset: int) -> None:
    header = data(offset, sequence=offset, producer_id=offset % PRODUCERS)
    tail.take_data(LOG, "orders", header)


def take_commits(tail: Tail, offset: int) -> None:
    header = data(offset, producer_id=offset % PRODUCERS, transactional=bool(offset % 2))
    tail.take_commits(LOG, header, [GroupCommit("readers", "orders", 0, offset)])


def bytes_of(tail: Tail, take: Callable[[Tail, int], None], count: int) -> int:
    """Return how many bytes more are held once so many batches were taken."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for offset in range(count):
            take(tail, offset)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return held - before


@pytest.mark.parametrize("take", [take_data, take_commits])
def test_INV_LO10_a_tail_takes_memory_by_producers_and_groups_and_not_by_batches(
    take: Callable[[Tail, int], None],
) -> None:
    """A mirror whose tidemark stands for an hour copies millions of batches behind it, and is to state them."""
    short, long = (bytes_of(Tail(), take, count) for count in (1_000, 10_000))
    assert long < short + 10_000, (short, long)


def test_INV_LO10_of_a_log_that_was_cut_off_twice_it_keeps_some_bytes_of_each_batch() -> None:
    tail = Tail({LOG})
    assert bytes_of(tail, take_data, 10_000) < 300_000
    assert bytes_of(tail, take_data, 10_000) < 10_000, "they are known"
    assert sum(found.record_count for found in tail.ranges()) == 10_000
    assert len(list(tail.ranges())) == PRODUCERS


def test_INV_LO4_what_differs_at_known_offsets_is_counted_beside_it() -> None:
    tail = Tail({LOG})
    for offset in range(10):
        take_data(tail, offset)
    for offset in (3, 7, 8):
        tail.take_data(LOG, "orders", data(offset, producer_id=99, leader_epoch=7))
        take_data(tail, offset)
    assert tail.plain_record_count() == 13
    assert [found.record_count for found in tail.ranges()] == [2] * PRODUCERS + [3]


def test_an_offset_is_the_one_that_was_committed_last_by_whomever() -> None:
    tail = Tail()
    for offset, committed in enumerate((40, 70, 5)):
        header = data(offset, producer_id=9)
        tail.take_commits(LOG, header, [GroupCommit("readers", "orders", 0, committed)])
    header = data(3, producer_id=9, transactional=True)
    tail.take_commits(LOG, header, [GroupCommit("readers", "orders", 0, 99)])
    (lost,) = tail.offsets()
    assert (lost.commit_count, lost.last_offset) == (3, 5), (
        "that of no transaction that was decided"
    )
