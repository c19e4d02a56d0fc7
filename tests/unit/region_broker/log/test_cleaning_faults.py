"""Cleaning that the disk, or a cut, interrupts: one log is left as it is, and the node cleans on."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from region_broker.log.cleaning.state import MARK_NAME, SWAP_NAME
from region_broker.log.indexes.producer_snapshots import snapshot_offsets
from region_broker.partitions.admission import AppendVerdict
from region_broker.records.batches import Origin, Record, build_batch
from tests.fixtures.node_logs import Fixture, fixture
from tests.unit.region_broker.log.test_cleaning import COMPACT, clean, left, put, roll
from tests.unit.region_broker.log.test_journal import lose_everything

VOID = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0))


def dirty(*values: str) -> Fixture:
    some = fixture(COMPACT)
    for value in values:
        put(some, ("a", value))
    roll(some)
    return some


@pytest.mark.parametrize("which", range(3))  # the sync of names, the removal of `swap`, its sync
def test_INV_CLS2_an_end_of_a_swap_that_failed_is_done_again_before_the_next_cleaning(
    which: int,
) -> None:
    some = dirty("1", "2", "3")
    ends: list[str] = []

    def fail_once(operation: str, path: Path) -> None:
        is_applied = not some.disk.exists(some.folder / f"{0:020d}.log.cleaned")
        is_end = operation == "fsync_dir" or path.name == SWAP_NAME
        if operation in ("fsync_dir", "remove") and is_end and is_applied and swap_was_written:
            ends.append(operation)
            if len(ends) == which + 1:
                raise OSError(errno.EIO, "once")
        if operation == "write_file_atomic" and path.name == SWAP_NAME:
            swap_was_written.append(True)

    swap_was_written: list[bool] = []
    some.disk.fault = fail_once
    assert not clean(some)
    some.disk.fault = None
    assert some.partition.failed is None
    put(some, ("a", "4"))
    roll(some)
    assert clean(some)
    assert not some.disk.exists(some.folder / SWAP_NAME)
    assert [value for _, key, value in left(some) if key == "a"] == ["4"]
    lose_everything(some)
    assert [value for _, key, value in left(some) if key == "a"] == ["4"]


def cut_while_the_state_is_kept(cut: Callable[[Fixture], None]) -> Fixture:
    """Return a log that was cut on the loop while the cleaner's thread wrote the state at offset 2."""
    some = fixture(COMPACT)
    put(some, ("a", "1"))
    put(some, ("b", "2"), origin=VOID)
    put(some, ("c", "3"))  # the cleaner's memory is full here: it keeps the state at 2
    roll(some)

    def cut_meanwhile(operation: str, path: Path) -> None:
        if operation == "write_file_atomic" and ".snapshot" in path.name:
            assert path.name.startswith(f"{2:020d}")
            some.disk.fault = None
            met.append(path)
            cut(some)

    met: list[Path] = []
    some.disk.fault = cut_meanwhile
    assert not clean(some, keys_max=2)
    assert len(met) == 1
    return some


def test_INV_CLN2_the_state_of_a_history_that_was_cut_off_is_not_kept() -> None:
    some = cut_while_the_state_is_kept(lambda some: some.partition.truncate_to(1))
    assert max(snapshot_offsets(some.disk.list_dir(some.folder)), default=0) <= 1
    for key in "xyz":
        put(some, (key, "new"))
    some.sync()
    some.partition.truncate_to(3)
    batch = build_batch([Record(b"b", b"2", timestamp_ms=some.clock.now_ms)], origin=VOID)
    assert (
        some.partition.writer.append(batch).verdict is AppendVerdict.APPENDED
    )  # it stands nowhere


def test_INV_CLN2_a_closed_log_is_left_alone() -> None:
    some = cut_while_the_state_is_kept(lambda some: some.table.close())
    assert [n for n in some.disk.list_dir(some.folder) if n.endswith(".cleaned")] == []


def test_INV_X3_an_aborted_index_that_cannot_be_read_is_built_again() -> None:
    some = dirty("1", "2")
    some.close_and_reopen()
    index = some.folder / f"{0:020d}.txnindex"

    def fail(operation: str, path: Path) -> None:
        if operation == "read_file" and path == index:
            raise OSError(errno.EIO, "a bad sector")

    some.disk.fault = fail
    assert clean(some)
    assert some.partition.failed is None


def test_INV_T3_a_log_that_cannot_be_read_for_cleaning_stops_no_other() -> None:
    some = fixture(COMPACT, partition_count=2)
    broken = some.partition.log.folder
    for _ in range(2):
        put(some, ("a", "1"), ("a", "2"))
        roll(some)
        some.partitions = some.partitions[::-1]
    some.close_and_reopen()
    some.disk.damage(broken / f"{0:020d}.txnindex", 6)

    def fail(operation: str, path: Path) -> None:
        if path == broken / f"{0:020d}.log":
            raise OSError(errno.EIO, "a bad sector")

    some.disk.fault = fail
    assert clean(some)
    assert some.partitions[1].log.cleaning.mark.first_dirty_offset > 0
    assert some.partitions[0].log.cleaning.mark.first_dirty_offset == 0


def test_INV_CLN4_what_nobody_thought_of_in_one_log_is_told_once_and_ends_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = fixture(COMPACT, partition_count=2)
    odd = some.partition.log.folder
    for _ in range(2):
        put(some, ("a", "1"), ("a", "2"))
        roll(some)
        some.partitions = some.partitions[::-1]
    some.close_and_reopen()
    met: list[str] = []

    def fail(operation: str, path: Path) -> None:
        if path.parent == odd and path.name.endswith(".cleaned"):
            met.append(operation)
            raise ArithmeticError("a number that fits nowhere")

    some.disk.fault = fail
    for _ in range(3):
        clean(some)
    assert len(met) == 1
    assert len([r for r in caplog.records if "is not cleaned any more" in r.getMessage()]) == 1
    assert some.partitions[1].log.cleaning.mark.first_dirty_offset > 0
    assert [partition.failed for partition in some.partitions] == [None, None]
    some.disk.fault = None
    some.close_and_reopen()
    assert clean(some), "a start tries it again"


def test_INV_CLS3_a_log_that_was_emptied_by_a_cut_forgets_for_good_how_far_it_was_cleaned() -> None:
    some = dirty("1", "2")
    assert clean(some)
    some.partition.truncate_to(0)
    assert some.partition.log.cleaning.mark.cleaned_here_below == 0
    lose_everything(some)
    assert not some.disk.exists(some.folder / MARK_NAME)
    put(some, ("a", "1"))
    put(some, ("a", "2"))
    some.sync()
    some.partition.truncate_to(1)
