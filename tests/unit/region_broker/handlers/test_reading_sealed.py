"""A fetch of several sealed logs, of which not all are at hand at once (INV-OPS5)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotency.identity import LeaderEpoch
from idempotency.pieces import drained
from region_broker.handlers.fetch import reading
from region_broker.handlers.fetch.reading import Reading
from region_broker.log.cold_reads import WARM_TRIES_MAX
from region_broker.log.failures import ColdRange, SealedRange
from region_broker.partitions import opening_sealed
from region_broker.partitions.fetch_sessions import Wanted
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Record, build_batch
from region_broker.security.identity import ANONYMOUS
from region_broker.security.sealing.sealed_batch import LogPlace
from region_broker.wire.memory_budget import MemoryBudget
from tests.fixtures.node_logs import Fixture, Topic, fixture
from tests.fixtures.sealing_keys import keys_in_memory

RECORDS = [Record(b"key", b"value " * 10, timestamp_ms=1_000_000 + n) for n in range(5)]


class OfPartitions(Reading):
    """Reads what this node has, as anybody."""

    def _found(self, item: Wanted) -> Partition:
        return cast("Partition", cast("Any", self._services).logs[item.index])


def reading_of(some: Fixture, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> Reading:
    services = SimpleNamespace(
        partitions=some.table,
        logs=some.partitions,
        authorizer=SimpleNamespace(in_force=False),
        memory=MemoryBudget(),
        nearer_nodes=lambda *_: (),
        deadlines=SimpleNamespace(turns=SimpleNamespace(spend=lambda _cost: None)),
    )
    wanted = [
        Wanted(cast("Any", "orders"), index, LeaderEpoch(-1), 0, 1 << 20) for index in range(2)
    ]
    return OfPartitions(
        cast("Any", services), wanted, isolation, bytes_min=1, bytes_max=1 << 20, wait_ms_max=0, identity=ANONYMOUS
    )  # fmt: skip


def opened_for(fetch: Reading) -> int:
    """Do in turn what the reading lacks, as a thread does it; return how often it lacked something, of ten times at most."""
    for tries in range(10):
        found = drained(fetch.read())
        if not isinstance(found, ColdRange):
            assert [len(each.row.records) > 0 for each in found] == [True, True]
            return tries
        for each in (found, *found.others):
            assert isinstance(each, SealedRange)
            each.work()
    raise AssertionError("what was opened for it is lost again and again")


def sealed_node() -> Fixture:
    some = fixture({"tidemark.encryption": "secret"}, partition_count=2, sealing=keys_in_memory())
    for partition in some.partitions:
        for _ in range(4):
            partition.writer.append(build_batch(RECORDS))
    some.sync()
    return some


@pytest.mark.parametrize("rows_at_once", [1, 500])
def test_INV_OPS5_logs_that_are_at_hand_in_turns_are_read_together(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """One of them was opened before, for a reader that left: the fetch that takes it lacks the other one, and then has both."""
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    monkeypatch.setattr(reading, "YIELD_ROWS", rows_at_once)
    some = sealed_node()
    with pytest.raises(SealedRange) as left:
        some.partitions[1].reader.fetch(0, 1 << 20, Isolation.READ_UNCOMMITTED, wait=False)
    left.value.work()
    assert opened_for(reading_of(some)) == 1
    assert some.table.opened_aside.is_empty


@pytest.mark.parametrize(("looks_max", "partitions"), [(1000, 2), (5, 1)])
def test_INV_SGL1_a_fetch_has_read_in_together_what_first_looks_lack(
    monkeypatch: pytest.MonkeyPatch, looks_max: int, partitions: int
) -> None:
    monkeypatch.setattr(reading, "LOOKS_MAX", looks_max)
    some = fixture({"segment.bytes": "4096"}, partition_count=2)
    for partition in some.partitions:
        for _ in range(8):
            partition.writer.append(
                build_batch([Record(None, b"v" * 4000, timestamp_ms=1_000_000)])
            )
            some.sync()
    some.close_and_reopen()
    lacking = {
        sealed.with_suffix(".txnindex")
        for each in some.partitions
        for sealed in each.log.sealed_paths()
    }
    assert len(lacking) == 14
    some.disk.cold = lambda path, size_bytes: 0 if path in lacking else size_bytes
    found = drained(reading_of(some, Isolation.READ_COMMITTED).read())
    assert isinstance(found, ColdRange)
    assert {each.path for each in (found, *found.others)} <= lacking
    assert len((found, *found.others)) == 7 * partitions


def test_INV_SGL1_a_fetch_of_more_logs_than_one_try_reads_in_has_more_tries_before_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "LOGS_A_TRY", 1)
    some = fixture(partition_count=2)
    waited = []
    for tries in (WARM_TRIES_MAX, 3 * WARM_TRIES_MAX - 1, 3 * WARM_TRIES_MAX):
        fetch = reading_of(some)
        fetch._tries = tries
        drained(fetch.read())
        waited.append(some.table.cold_reads.waited_count)
    assert waited == [0, 0, 1], "two logs, and the try that any reading has"


def test_INV_OPS5_nothing_is_given_back_that_other_keys_have_opened() -> None:
    aside, place, keys = opening_sealed.OpenedAside(), LogPlace.of(Topic().topic_id, 0), object()
    aside.claim((place, 0), keys)
    aside.put((place, 0), b"stored", bytearray(b"opened"), keys)
    taken: list[opening_sealed.Taken] = []
    aside.begin_step(taken)
    assert aside.take((place, 0), keys) is not None
    aside.note_taken((place, 0), b"stored", bytearray(b"opened"), keys)
    aside.end_step()
    assert aside.take((place, 0), object()) is None
    aside.give_back(taken)
    assert aside.is_empty


def opened_aside(bytes_max: int) -> tuple[opening_sealed.OpenedAside, list[tuple[LogPlace, int]]]:
    """Return what holds so many bytes, and keys of it."""
    place = LogPlace.of(Topic().topic_id, 0)
    return opening_sealed.OpenedAside(bytes_max), [(place, offset) for offset in range(3)]


def test_INV_OPS3_what_one_reader_gives_back_another_still_gets() -> None:
    """Both asked for it; one lacks another log, and comes again. What it takes counts once by then."""
    aside, (key, *others) = opened_aside(bytes_max=100)
    keys, stored, opened = object(), b"s" * 40, bytearray(b"opened")
    for _ in range(2):
        aside.claim(key, keys)
    aside.put(key, stored, opened, keys)
    assert aside.take(key, keys) == (stored, opened)
    aside.give_back([(key, stored, opened, keys)])
    assert [aside.take(key, keys) for _ in range(3)] == [(stored, opened)] * 2 + [None]
    for other in others:
        aside.put(other, b"o" * 50, opened, keys)
    assert [aside.take(other, keys) for other in others] == [(b"o" * 50, opened)] * 2


def test_INV_OPS3_what_is_opened_twice_counts_once() -> None:
    aside, (first, second, _) = opened_aside(bytes_max=100)
    for key in (first, first, second):
        aside.put(key, b"s" * 40, bytearray(b"opened"))
    assert [aside.take(key) is not None for key in (first, second)] == [True, True]


def test_INV_OPS3_neither_bytes_nor_readers_of_other_keys_count() -> None:
    aside, (first, second, third) = opened_aside(bytes_max=100)
    before, keys, opened = object(), object(), bytearray(b"opened")
    for _ in range(2):
        aside.claim(second, before)
    aside.put(first, b"s" * 50, opened, before)
    for key in (second, third):
        aside.claim(key, keys)
        aside.put(key, b"s" * 50, opened, keys)
    assert aside.take(second, keys) == aside.take(third, keys) == (b"s" * 50, opened)
    assert aside.is_empty, "who asked by the keys of before asks anew"


def test_INV_OPS5_what_is_taken_between_two_steps_is_somebody_elses() -> None:
    aside, (key, *_) = opened_aside(bytes_max=100)
    taken: list[opening_sealed.Taken] = []
    aside.begin_step(taken)
    aside.end_step()
    aside.note_taken(key, b"stored", bytearray(b"opened"), None)
    assert taken == []
