"""Lookups by time that would hold the event loop give way to others, and find what they would have found (hostile-input: lookups)."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from region_broker.log import segment
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.time_lookup import TimeLookup
from region_broker.wire import cooperative_yield
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, batch, fixture, raise_start

T = TypeVar("T")
LOW_MS, LATE_MS, HIGH_MS = 1_000_000, 1_000_500, 1_001_000
COUNT = 40
STEP = 5


def turns_of(work: Coroutine[Any, Any, T]) -> tuple[int, T]:
    """Return how often `work` gave way, and what it returned."""
    turns = 0
    while True:
        try:
            assert work.send(None) is None, "it waits for nothing"
        except StopIteration as done:
            result: T = done.value
            return turns, result
        turns += 1


def shortened() -> Fixture:
    """Return a log whose first record, with the highest time of all, was deleted: for its segment the index says nothing any more."""
    some = fixture()
    some.partition.writer.append(batch(at_ms=HIGH_MS))
    for number in range(1, COUNT):
        some.partition.writer.append(batch(at_ms=LATE_MS if number == COUNT - 2 else LOW_MS))
    some.sync()
    raise_start(some.partition, 1)
    assert some.partition.log_start_offset == 1
    return some


def lookup(some: Fixture) -> TimeLookup:
    return some.partition.reader.lookup(Isolation.READ_UNCOMMITTED)


def test_INV_TL3_a_lookup_gives_way_as_it_walks_over_a_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segment, "LOOKUP_BATCHES_MAX", STEP)
    some = shortened()
    turns, found = turns_of(lookup(some).first(LATE_MS))
    assert found == (COUNT - 2, LATE_MS, LEADER_EPOCH)
    assert turns == (COUNT - 3) // STEP
    turns, none = turns_of(lookup(some).first(HIGH_MS))
    assert none is None
    assert turns == (COUNT - 2) // STEP
    assert turns_of(lookup(some).first(LOW_MS)) == (0, (1, LOW_MS, LEADER_EPOCH))


def test_INV_TL3_so_does_one_for_the_largest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turns_of(lookup(shortened()).latest()) == (16, (COUNT - 2, LATE_MS, LEADER_EPOCH))
    monkeypatch.setattr(segment, "LOOKUP_BATCHES_MAX", STEP)
    turns, found = turns_of(lookup(shortened()).latest())
    assert found == (COUNT - 2, LATE_MS, LEADER_EPOCH)
    assert turns > 16


def test_INV_TL3_what_is_written_later_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup looks at what could be read as it began, however long it walks."""
    monkeypatch.setattr(segment, "LOOKUP_BATCHES_MAX", STEP)
    some = shortened()
    begun = lookup(some)
    some.partition.writer.append(batch(at_ms=HIGH_MS))
    some.sync()
    assert turns_of(begun.first(HIGH_MS))[1] is None
    assert turns_of(lookup(some).first(HIGH_MS))[1] == (COUNT, HIGH_MS, LEADER_EPOCH)


@pytest.mark.parametrize(("at", "most_rows"), [(LOW_MS, 2), (-3, 2), (-1, 200), (-2, 200)])
async def test_INV_LIO1_rows_that_look_into_a_log_cost_more_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, most_rows: int
) -> None:
    gave_way: list[int] = []
    give_way = cooperative_yield.give_way

    async def noted() -> None:
        gave_way.append(at)
        await give_way()

    async with wire_fixture(tmp_path) as some:
        await some.topic("t", 20)
        for index in range(20):
            some.partition("t", index).writer.append(batch(at_ms=LOW_MS))
            await some.partition("t", index).wait_committed(1)
        items = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": at}
                 for index in range(20)]  # fmt: skip
        topics = [{"name": "t", "partitions": items}]
        client = await some.connect()
        monkeypatch.setattr(cooperative_yield, "give_way", noted)
        answer = await client.call(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": topics})
        assert [row.error_code for row in answer.topics[0].partitions] == [0] * 20
    assert len(gave_way) == 20 // most_rows
