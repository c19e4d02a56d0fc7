"""A fetch of much: read in steps, of one partition no more than a part, and never beyond what there is room for (INV-FRD5, INV-FRD6)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotency.identity import LeaderEpoch
from idempotency.pieces import drained
from region_broker.handlers.fetch import reading
from region_broker.handlers.fetch.reading import Read, Reading
from region_broker.limits import FETCH_BYTES_MAX, FREE_HELD_BYTES
from region_broker.log.failures import ColdRange
from region_broker.partitions.fetch_sessions import Wanted
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Record, build_batch
from region_broker.security.identity import ANONYMOUS
from region_broker.wire.memory_budget import MemoryBudget
from tests.fixtures.node_logs import Fixture, fixture

PARTITIONS = 6
BATCHES = 3
BATCH = build_batch([Record(None, bytes(range(256)) * 400, timestamp_ms=1_000_000)])
assert len(BATCH) > FREE_HELD_BYTES, "what is smaller does not count"


class OfPartitions(Reading):
    """Reads what this node has, as anybody."""

    def _found(self, item: Wanted) -> Partition:
        return cast("Partition", cast("Any", self._services).logs[item.index])


@pytest.fixture
def some() -> Fixture:
    made = fixture(partition_count=PARTITIONS)
    for partition in made.partitions:
        for _ in range(BATCHES):
            partition.writer.append(BATCH)
    made.sync()
    return made


def reading_of(some: Fixture, memory: MemoryBudget) -> Reading:
    services = SimpleNamespace(
        partitions=some.table,
        logs=some.partitions,
        authorizer=SimpleNamespace(in_force=False),
        memory=memory,
        nearer_nodes=lambda *_: (),
        deadlines=SimpleNamespace(turns=SimpleNamespace(spend=lambda _cost: None)),
    )
    wanted = [
        Wanted(cast("Any", "orders"), index, LeaderEpoch(-1), 0, FETCH_BYTES_MAX)
        for index in range(PARTITIONS)
    ]
    return OfPartitions(
        cast("Any", services), wanted, Isolation.READ_UNCOMMITTED, bytes_min=1, bytes_max=FETCH_BYTES_MAX, wait_ms_max=0,
        identity=ANONYMOUS,
    )  # fmt: skip


def sizes(found: list[Read] | ColdRange) -> list[int]:
    assert not isinstance(found, ColdRange)
    return [len(each.row.records) for each in found]


@pytest.mark.parametrize(("step_batches", "steps"), [(1, 5), (3, 5), (4, 2), (6, 2), (7, 1), (18, 0)])  # fmt: skip
def test_INV_FRD5_a_reading_gives_way_after_so_many_bytes(
    some: Fixture, monkeypatch: pytest.MonkeyPatch, step_batches: int, steps: int
) -> None:
    monkeypatch.setattr(reading, "FETCH_STEP_BYTES", step_batches * len(BATCH))
    pieces = reading_of(some, MemoryBudget()).read()
    assert sum(1 for _ in pieces) == steps
    assert sizes(drained(reading_of(some, MemoryBudget()).read())) == PARTITIONS * [BATCHES * len(BATCH)]  # fmt: skip


@pytest.mark.parametrize(("partition_batches", "taken"), [(2, 2), (3, 3), (4, 3)])
def test_INV_FRD5_of_one_partition_a_part_is_read(
    some: Fixture, monkeypatch: pytest.MonkeyPatch, partition_batches: int, taken: int
) -> None:
    bytes_max = partition_batches * len(BATCH)
    monkeypatch.setattr(reading, "FETCH_PARTITION_BYTES_MAX", bytes_max)
    found = sizes(drained(reading_of(some, MemoryBudget()).read()))
    assert found == PARTITIONS * [taken * len(BATCH)]


def test_INV_H9_but_the_first_batch_of_the_first_is_read_whatever_its_size(
    some: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FETCH_PARTITION_BYTES_MAX", len(BATCH) - 1)
    found = sizes(drained(reading_of(some, MemoryBudget()).read()))
    assert found == [len(BATCH), *(PARTITIONS - 1) * [0]]


def test_INV_FRD6_readings_beside_each_other_hold_no_more_than_the_budget_and_a_step(
    some: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone may take half of what is left, when it begins: eight that begin at once would take four times the budget."""
    monkeypatch.setattr(reading, "FETCH_STEP_BYTES", 1)
    in_all_bytes = PARTITIONS * BATCHES * len(BATCH)
    memory = MemoryBudget(2 * in_all_bytes)
    readings = [reading_of(some, memory) for _ in range(8)]
    waiting = {each: each.read() for each in readings}
    found: dict[Reading, list[int]] = {}
    most_bytes = 0
    while waiting:
        for each, pieces in tuple(waiting.items()):
            try:
                next(pieces)
            except StopIteration as done:
                found[each] = sizes(done.value)
                del waiting[each]
        most_bytes = max(most_bytes, memory.held_bytes)
    assert most_bytes <= 2 * in_all_bytes + BATCHES * len(BATCH)
    assert sum(map(sum, found.values())) <= 2 * in_all_bytes + len(readings) * BATCHES * len(BATCH)
    assert all(any(each) for each in found.values()), "each is given something"
    for each in readings:
        each.let_go()
    assert memory.held_bytes == 0
    assert sizes(drained(readings[0].read())) == PARTITIONS * [BATCHES * len(BATCH)]


def test_INV_FRD6_what_a_reading_alone_is_given_is_not_less_for_being_read_in_steps(
    some: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_all_bytes = PARTITIONS * BATCHES * len(BATCH)
    at_once = sizes(drained(reading_of(some, MemoryBudget(in_all_bytes)).read()))
    monkeypatch.setattr(reading, "FETCH_STEP_BYTES", 1)
    assert sizes(drained(reading_of(some, MemoryBudget(in_all_bytes)).read())) == at_once
