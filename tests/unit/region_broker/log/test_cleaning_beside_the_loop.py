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
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import Fixture, fixture
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
