"""What a tail takes of memory, however long it is, and what of it counts as committed."""

import dataclasses
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from geo_replicator import tail as tail_module
from geo_replicator.tail import GroupCommit, Tail, TailDecision
from idempotency.identity import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    LogKey,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicName,
    TopicPartition,
)
from tests.fixtures.kernel_batches import data
from txn_coordinator import transitions as tr
from txn_coordinator.states import EPOCH_USABLE_MAX

LOG = LogKey(UUID(int=1), 0)
OFFSETS = LogKey(UUID(int=2), 0)
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


def take_another_transaction(tail: Tail, offset: int) -> None:
    take_transaction(tail, offset, producer_epoch=offset)


def test_INV_LO10_a_statement_takes_no_memory_by_transactions_that_are_not_lost() -> None:
    """Each of them has a producer epoch of its own (TV2), and there may be thousands a second behind a tidemark that stands."""
    short, long = (
        bytes_of(Tail(plain_only=True), take_another_transaction, count)
        for count in (1_000, 10_000)
    )
    assert long < short + 10_000, (short, long)


def test_INV_LO10_a_statement_knows_of_transactional_records_and_goes_through_none_of_them() -> (
    None
):
    tail = Tail(plain_only=True)
    take_another_transaction(tail, 41)
    assert tail.has_records
    assert tail.has_group_batches
    take_data(tail, 42)
    assert [(found.first_offset, found.transactional) for found in tail.ranges()] == [(42, False)]


def test_INV_LO10_no_sort_of_what_is_listed_is_of_very_many_rows_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sort runs no bytecode, so a thread that makes it holds the interpreter, and with that the loop, up to its end."""
    sizes: list[int] = []

    def noted(rows: Iterable[Any], *, key: Callable[[Any], Any] | None = None) -> list[Any]:
        made = sorted(rows, key=key)
        sizes.append(len(made))
        return made

    monkeypatch.setattr(tail_module, "sorted", noted, raising=False)
    count = 12_000
    places = [number * 7919 % count for number in range(count)]
    tail, decided = Tail(), committing(tv=2, producer_epoch=3)
    for place in places:
        tail.take_decision(dataclasses.replace(decided, offset=place))
    for place in places:
        header = data(place, producer_id=place)
        tail.take_data(LOG, "orders", header)
        tail.take_commits(OFFSETS, header, [GroupCommit(f"{place:05}", "in", 0, 1)])
    ends = list(range(count))
    assert [lost.decision.offset for lost in tail.transactions()] == ends
    assert [found.producer_id for found in tail.ranges()] == ends
    assert [int(lost.group_id) for lost in tail.offsets()] == ends
    assert max(sizes) <= 5_000


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


def committing(*, tv: int, producer_epoch: int) -> TailDecision:
    """Return what the coordinator notes of a client's commit, of generation `tv`, of what it wrote under `producer_epoch`."""
    stamp = tr.Stamp(wall_ms=5_000, region_epoch=RegionEpoch(8))
    ongoing = tr.join_partitions(
        structs.replace(
            tr.unborn("pay-1"),
            producer_id=ProducerId(7),
            producer_epoch=ProducerEpoch(producer_epoch),
        ),
        stamp,
        partitions=(TopicPartition(TopicName("orders"), 0),),
        tv=tv,
    )
    rotates = tv >= 2 and tr.is_exhausted(ongoing.producer_epoch)
    next_producer_id = ProducerId(8) if rotates else NO_PRODUCER_ID
    decided = tr.prepare_end(
        ongoing, stamp, tr.Decision(commit=True, tv=tv, round=Round(77), next_producer_id=next_producer_id)
    )  # fmt: skip
    return TailDecision(shard=1, leader_epoch=LeaderEpoch(8 << 16), offset=101, record=decided)


def take_transaction(tail: Tail, offset: int, *, producer_epoch: int) -> None:
    """Take a record of producer 7, and the offset of it that it staged for a group."""
    header = data(offset, producer_id=7, producer_epoch=producer_epoch, transactional=True)
    tail.take_data(LOG, "orders", header)
    tail.take_commits(OFFSETS, header, [GroupCommit("readers", "in", 0, offset)])


@pytest.mark.parametrize("tv", [1, 2])
@pytest.mark.parametrize("producer_epoch", [3, EPOCH_USABLE_MAX])
def test_INV_LO2_what_a_lost_transaction_wrote_and_staged_is_committed_in_both_generations(
    tv: int, producer_epoch: int
) -> None:
    """Under TV2 the PREPARE_COMMIT record has the next epoch already, and the data does not (KIP-890)."""
    tail = Tail()
    tail.take_decision(committing(tv=tv, producer_epoch=producer_epoch))
    take_transaction(tail, 42, producer_epoch=producer_epoch)
    assert [found.committed for found in tail.ranges()] == [True]
    assert [(lost.commit_count, lost.last_offset) for lost in tail.offsets()] == [(1, 42)]
    (lost,) = tail.transactions()
    (found,) = tail.ranges()
    assert (lost.producer_id, lost.producer_epoch) == (found.producer_id, found.producer_epoch)


def test_INV_LO2_the_next_transaction_of_a_TV2_producer_is_not_committed_by_the_one_before() -> (
    None
):
    tail = Tail()
    tail.take_decision(committing(tv=2, producer_epoch=3))
    take_transaction(tail, 42, producer_epoch=3)
    take_transaction(tail, 99, producer_epoch=4)  # open when the region was lost
    told = {found.producer_epoch: found.committed for found in tail.ranges()}
    assert told == {3: True, 4: False}
    assert [(lost.commit_count, lost.last_offset) for lost in tail.offsets()] == [(1, 42)]
