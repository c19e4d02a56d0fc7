"""What a cleaning leaves to its thread, and how much one of its steps on the event loop does, whatever a tenant wrote."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from typing_extensions import override

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType
from idempotency.visibility import AbortedTxn
from region_broker.log.cleaning.planning import groups
from region_broker.log.cleaning.state import Swap
from region_broker.log.cleaning.transactions import CleanedTransactions
from region_broker.log.file_names import ABORTED_SUFFIX, INDEX_SUFFIX
from region_broker.partitions.cleaner import Cleaner, CleanerParts
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Origin, Record, build_batch
from tests.fixtures.node_logs import Fixture, fixture, raise_start
from tests.unit.region_broker.log.test_cleaning import (
    COMPACT,
    Inline,
    NoPauses,
    end_txn,
    left,
    put,
    roll,
)


class Watched(Inline):
    """A `Worker` without threads that knows whether it works."""

    is_at_work = False

    @override
    async def _ran(self, work: Callable[[], None]) -> None:
        self.is_at_work = True
        try:
            work()
        finally:
            self.is_at_work = False


def clean(some: Fixture, worker: Watched) -> bool:
    parts = CleanerParts(
        partitions=lambda: iter(some.partitions), bound_of=lambda p: p.high_watermark,
        disk=some.disk, clock=NoPauses(some), worker=worker,
    )  # fmt: skip
    return asyncio.run(Cleaner(parts).clean_dirtiest())


def of_aborts() -> Fixture:
    """A log whose sealed segments each hold an aborted transaction, opened again: none of them is in memory."""
    some = fixture(COMPACT)
    for producer in range(1, 4):
        origin = Origin(ProducerId(producer), ProducerEpoch(0), SequenceNumber(0), transactional=True)  # fmt: skip
        put(some, ("a", f"aborted {producer}"), origin=origin)
        end_txn(some, producer, ControlType.ABORT)
        put(some, ("a", f"good {producer}"))
        roll(some)
    some.close_and_reopen()
    return some


@pytest.mark.parametrize("is_there", [True, False])
def test_INV_CLN5_what_was_aborted_is_looked_up_by_the_thread(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    some, worker = of_aborts(), Watched()
    on_the_loop: list[Path] = []
    looked_up: set[Path] = set()
    if not is_there:
        some.disk.remove(some.folder / f"{0:020d}{ABORTED_SUFFIX}")

    def note(_operation: str, path: Path) -> None:
        if path.suffix == ABORTED_SUFFIX:
            (looked_up.add if worker.is_at_work else on_the_loop.append)(path)

    sort = CleanedTransactions.__init__

    def watched(self: CleanedTransactions, aborted: Iterable[AbortedTxn]) -> None:
        assert worker.is_at_work, "as many as they are, they are put in order"
        sort(self, aborted)

    monkeypatch.setattr(CleanedTransactions, "__init__", watched)
    some.disk.fault = note
    assert clean(some, worker)
    some.disk.fault = None
    assert on_the_loop == []
    assert len(looked_up) > 1
    assert [value for _, key, value in left(some, Isolation.READ_COMMITTED) if key == "a"] == ["good 3"]  # fmt: skip
    assert [value for _, key, value in left(some) if key == "a"] == ["good 3"]


def test_INV_CLP2_one_swap_is_of_so_many_segments_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("region_broker.log.cleaning.planning.GROUP_SEGMENTS_MAX", 3)
    some = fixture(COMPACT)
    for number in range(40):
        put(some, (f"k{number % 4}", "v" * 1000))
    roll(some)
    assert clean(some, Watched())
    sealed = [s for s in some.partition.log.segments.segments if s.file is None]
    found = groups(sealed, 1 << 30)
    assert max(stop - start for start, stop in found) == 3
    assert [start for start, _ in found] == list(range(0, len(sealed), 3))
    swaps: list[Swap] = []
    prepare = some.partition.log.cleaning.prepare

    def noted(swap: Swap, interruptions: int) -> bool:
        swaps.append(swap)
        return prepare(swap, interruptions)

    monkeypatch.setattr(some.partition.log.cleaning, "prepare", noted)
    before = left(some)
    roll(some)
    assert clean(some, Watched())
    assert left(some) == before
    assert max(len(swap.bases) for swap in swaps) == 3


@pytest.mark.parametrize("is_sound", [True, False])
def test_INV_CLN5_the_times_of_segments_are_looked_up_by_the_thread(is_sound: bool) -> None:
    some, worker = of_aborts(), Watched()
    if not is_sound:
        some.disk.damage(some.folder / f"{0:020d}{INDEX_SUFFIX}", 6)
    on_the_loop: list[Path] = []

    def note(operation: str, path: Path) -> None:
        if operation in {"open", "read_file"} and path.suffix == INDEX_SUFFIX and not worker.is_at_work:  # fmt: skip
            on_the_loop.append(path)

    some.disk.fault = note
    assert clean(some, worker)
    assert on_the_loop == []
    some.disk.fault = None
    assert [value for _, key, value in left(some) if key == "a"] == ["good 3"]


class Meanwhile(Watched):
    """Lets something happen while the times of the second log are looked up: the first one is judged by then."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._happens = happens
        self._works = 0

    @override
    async def _ran(self, work: Callable[[], None]) -> None:
        self._works += 1
        if self._works == 2:
            self._happens()
        await super()._ran(work)


def seal(some: Fixture) -> None:
    """Fill the active segment of the first log, so that the next one begins."""
    segments = some.partition.log.segments.segments
    count = len(segments)
    while len(segments) == count:
        put(some, ("~fill", "x" * 1000))
    some.sync()


def two_logs() -> Fixture:
    """Two logs, opened again. The first: two segments to be cleaned, and one, too young for that, with data of a transaction whose
    ABORT lies in the active one."""
    some = fixture(COMPACT | {"min.compaction.lag.ms": "1000"}, partition_count=2)
    other = some.partitions[1].writer
    for _ in range(3):
        other.append(build_batch([Record(b"k", b"v" * 3000, timestamp_ms=some.clock.now_ms)]))
    for value in ("first", "committed"):
        put(some, ("a", value))
        seal(some)
    some.clock.now_ms += 2000
    origin = Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0), transactional=True)
    put(some, ("a", "aborted"), origin=origin)
    seal(some)
    end_txn(some, 1, ControlType.ABORT)
    some.sync()
    some.close_and_reopen()
    assert len(some.partition.log.segments.segments) == 4
    return some


def delete_oldest(some: Fixture) -> None:
    raise_start(some.partition, some.partition.log.segments.bases[1])
    assert some.maintain(lambda _: None) == 1


def test_INV_CLN6_a_log_is_cleaned_as_far_as_is_judged_when_its_run_begins() -> None:
    some = two_logs()
    too_young = some.partition.log.segments.bases[2]
    assert clean(some, Meanwhile(lambda: delete_oldest(some)))
    values = [value for _, key, value in left(some, Isolation.READ_COMMITTED) if key == "a"]
    assert values == ["committed"]
    assert some.partition.log.cleaning.mark.cleaned_here_below == too_young


@pytest.mark.parametrize(
    "leave",
    [
        lambda partition: partition.start_at(partition.log_end_offset),
        lambda partition: partition.close("its topic was deleted"),
        lambda partition: partition.log.fail("the disk"),
        lambda partition: setattr(partition.log.cleaning, "given_up", True),
    ],
)
def test_INV_CLN6_a_log_of_which_nothing_is_to_be_cleaned_any_more_is_passed(
    leave: Callable[[Partition], object],
) -> None:
    some = two_logs()
    given_up: list[bool] = []

    def happens() -> None:
        leave(some.partition)
        given_up.append(some.partition.log.cleaning.given_up)

    assert clean(some, Meanwhile(happens)), "the other one is cleaned"
    assert some.partition.log.cleaning.given_up is given_up[0]
    assert some.partition.log.cleaning.mark.cleaned_here_below == 0
    assert some.partitions[1].log.cleaning.mark.cleaned_here_below > 0
