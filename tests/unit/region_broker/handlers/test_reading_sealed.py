"""A fetch of several sealed logs, of which not all are at hand at once (INV-OPS5)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from idempotency.identity import LeaderEpoch
from idempotency.pieces import drained
from region_broker.handlers.fetch.reading import Reading
from region_broker.log.failures import ColdRange, SealedRange
from region_broker.partitions import opening_sealed
from region_broker.partitions.fetch_sessions import Wanted
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Record, build_batch
from region_broker.security.identity import ANONYMOUS
from region_broker.security.sealing.sealed_batch import LogPlace
from tests.fixtures.node_logs import Fixture, Topic, fixture
from tests.fixtures.sealing_keys import keys_in_memory

RECORDS = [Record(b"key", b"value " * 10, timestamp_ms=1_000_000 + n) for n in range(5)]


class OfPartitions(Reading):
    """Reads what this node has, as anybody."""

    def _found(self, item: Wanted) -> Partition:
        return cast("Partition", cast("Any", self._services).logs[item.index])


def reading_of(some: Fixture) -> Reading:
    services = SimpleNamespace(
        partitions=some.table,
        logs=some.partitions,
        authorizer=SimpleNamespace(in_force=False),
        memory=SimpleNamespace(full=False, left_bytes=1 << 30),
        nearer_nodes=lambda *_: (),
    )
    wanted = [
        Wanted(cast("Any", "orders"), index, LeaderEpoch(-1), 0, 1 << 20) for index in range(2)
    ]
    return OfPartitions(
        cast("Any", services), wanted, Isolation.READ_UNCOMMITTED, bytes_min=1, bytes_max=1 << 20, wait_ms_max=0, identity=ANONYMOUS
    )  # fmt: skip


def opened_for(reading: Reading) -> int:
    """Do in turn what the reading lacks, as a thread does it; return how often it lacked something, of ten times at most."""
    for tries in range(10):
        found = drained(reading.read())
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


def test_INV_OPS5_logs_that_are_at_hand_in_turns_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them was opened before, for a reader that left: the fetch that takes it lacks the other one, and then has both."""
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    some = sealed_node()
    with pytest.raises(SealedRange) as left:
        some.partitions[1].reader.fetch(0, 1 << 20, Isolation.READ_UNCOMMITTED, wait=False)
    left.value.work()
    assert opened_for(reading_of(some)) == 1
    assert some.table.opened_aside.is_empty


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
