"""Indexes that are missing or damaged: built again by a thread, while the event loop serves others.

Each reading here goes through `ColdReads`, whose thread is a coroutine that knows that it works: what is read outside of it, the loop reads.
"""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType
from region_broker.log.built_aside import BuiltAside
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import AsideRange, CorruptRange, LogDamaged, PartitionFailed
from region_broker.partitions.parts.reader import FetchSlice
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.time_lookup import Position
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import append_marker, batch, fixture

BATCHES = 60


class Watched:
    """A log of several segments, opened again, and who reads what of its oldest one."""

    def __init__(self, suffix: str, *, is_there: bool = False) -> None:
        self.some = some = fixture({"segment.bytes": "4096"})
        for number in range(BATCHES):
            origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(number), transactional=True)  # fmt: skip
            some.partition.writer.append(batch(origin=origin, size_bytes=300, at_ms=1_000_000 + number))  # fmt: skip
            if number % 5 == 4:
                append_marker(
                    some.partition, producer_id=7, producer_epoch=0, control_type=ControlType.ABORT,
                    coordinator_epoch=1, decision=None, timestamp_ms=1,
                )  # fmt: skip
        some.sync()
        some.close_and_reopen()
        self.base = some.partition.log.segments.bases[1]
        self.side = some.folder / f"{self.base:020d}{suffix}"
        self.expected = self.read_at_once()
        some.close_and_reopen()
        if is_there:
            some.disk.damage(self.side, 6)
        else:
            some.disk.remove(self.side)
        self.is_at_work = False
        self.works = 0
        self.opened: list[bool] = []
        some.disk.fault = self.note
        self.cold_reads = ColdReads(some.disk, self.run)

    def note(self, operation: str, path: Path) -> None:
        if operation == "open" and path == self.side.with_suffix(".log"):
            self.opened.append(self.is_at_work)

    async def run(self, work: Callable[[], None]) -> None:
        self.is_at_work = True
        self.works += 1
        try:
            work()
        finally:
            self.is_at_work = False

    def read_at_once(self, *, wait: bool = True) -> FetchSlice:
        return self.some.partition.reader.fetch(
            self.base + 1, 1 << 20, Isolation.READ_COMMITTED, wait=wait
        )

    def read(self) -> FetchSlice:
        return asyncio.run(self.cold_reads.read(self.read_at_once))


@pytest.mark.parametrize("suffix", [".index", ".txnindex"])
@pytest.mark.parametrize("is_there", [False, True])
def test_INV_SG4_an_index_that_is_missing_or_damaged_is_built_by_a_thread(
    suffix: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, walked = Watched(suffix, is_there=is_there), []
    walk = type(log.some.partition.log.segments.segments[1]).walk_markers
    rebuild = type(log.some.partition.log.segments.segments[1]).rebuild_index
    for name, method in (("walk_markers", walk), ("rebuild_index", rebuild)):

        def noted(*arguments: object, method: Callable[..., object] = method) -> object:
            walked.append(log.is_at_work)
            return method(*arguments)

        monkeypatch.setattr(f"region_broker.log.segment.Segment.{name}", noted)
    assert log.read() == log.expected
    assert set(walked) == {True}
    assert (log.works, log.cold_reads.waited_count) == (1, 0)
    assert log.read() == log.expected
    assert log.works == 1, "it is kept"


def test_INV_SG4_a_lookup_by_time_has_it_built_by_a_thread() -> None:
    log = Watched(".index")
    reader = log.some.partition.reader
    reader.cold_reads = log.cold_reads

    async def found() -> Position | None:
        return await reader.lookup(Isolation.READ_UNCOMMITTED).first(1_000_000 + 14)

    position = asyncio.run(found())
    assert position is not None
    assert position[1] == 1_000_014
    assert log.works == 1


@pytest.mark.parametrize("suffix", [".index", ".txnindex"])
def test_INV_SG4_where_no_file_can_be_opened_nothing_is_built_again(suffix: str) -> None:
    log = Watched(suffix)

    def none_left(operation: str, path: Path) -> None:
        if operation == "open" and path == log.side:
            raise OSError(errno.EMFILE, "too many open files", str(path))

    log.some.disk.fault = none_left
    with pytest.raises(PartitionFailed, match="when files can be opened"):
        log.read_at_once(wait=False)
    assert log.some.partition.failed is None
    log.some.disk.fault = None
    assert log.read() == log.expected


def test_INV_SG4_a_segment_that_is_damaged_itself_is_told_and_waited_for_by_nobody() -> None:
    log = Watched(".index")
    log.some.disk.damage(log.side.with_suffix(".log"), 3)
    for _ in range(2):
        with pytest.raises(CorruptRange):
            log.read()
        assert (log.works, log.cold_reads.waited_count) == (1, 0)
    assert log.some.partition.failed is None


def test_INV_BLA2_what_was_built_of_a_segment_that_was_cut_since_is_nobodys() -> None:
    log = Watched(".index")
    with pytest.raises(AsideRange) as cold:
        log.read_at_once(wait=False)
    some = log.some
    some.disk.fault = None
    cold.value.work()  # the thread has read it, and the reading is not repeated yet
    some.partition.truncate_to(log.base + 2)
    for number in range(BATCHES):
        origin = Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(number))
        some.partition.writer.append(batch(origin=origin, size_bytes=600))
    some.sync()
    found = some.partition.reader.fetch(log.base + 3, 1, Isolation.READ_UNCOMMITTED)
    some.disk.remove(log.side)
    some.table._cache.indexes.clear()
    again = asyncio.run(
        log.cold_reads.read(
            lambda *, wait: some.partition.reader.fetch(
                log.base + 3, 1, Isolation.READ_UNCOMMITTED, wait=wait
            )
        )
    )
    assert again == found


def test_INV_BLA1_whoever_waits_for_the_same_one_finds_it_done() -> None:
    log = Watched(".index")
    colds = []
    for _ in range(3):
        with pytest.raises(AsideRange) as cold:
            log.read_at_once(wait=False)
        colds.append(cold.value)
    for cold_range in colds:
        asyncio.run(log.run(cold_range.work))
    assert log.opened.count(True) == 1
    assert log.read_at_once(wait=False) == log.expected


def test_what_cannot_be_built_says_why() -> None:
    def build() -> int:
        raise LogDamaged("no batch there")

    aside = BuiltAside(build)
    with pytest.raises(AsideRange):
        aside.check_done(Path(), 1)
    aside.run()
    aside.check_done(Path(), 1)
    assert aside.value is None
    assert str(aside.error) == "no batch there"
