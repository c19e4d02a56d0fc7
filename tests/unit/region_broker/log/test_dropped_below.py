"""A log knows below what tombstones and markers have gone, and keeps them where it is told to (INV-CLS5, INV-CLW7, INV-CLN7)."""

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType
from region_broker.log.cleaning.state import DROPPED_NAME, MARK_NAME, CleanMark, read_mark
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import Fixture, all_bytes, fixture
from tests.unit.region_broker.log.test_cleaning import (
    COMPACT,
    clean,
    end_txn,
    left,
    markers,
    put,
    roll,
)

LATER_MS = 2_000


def ended() -> tuple[Fixture, int]:
    """Return a log with a tombstone and a marker whose times are over, and the offset behind both. Nothing is dropped yet."""
    some = fixture(COMPACT)
    put(some, ("K", "v1"))
    origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0), transactional=True)
    put(some, ("doubt", "x"), origin=origin)
    put(some, ("K", None))
    end_txn(some, 7, ControlType.ABORT)
    end = some.partition.log_end_offset
    again = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(1), transactional=True)
    put(some, ("decided", "x"), origin=again)
    end_txn(some, 7, ControlType.COMMIT)
    for _ in range(2):
        roll(some)
        assert clean(some)
    some.clock.now_ms += LATER_MS
    roll(some)
    assert some.partition.log.cleaning.dropped_below == 0
    assert (2, "K", None) in left(some)
    return some, end


def has_ends(some: Fixture, end: int) -> tuple[bool, bool]:
    """Return whether tombstone and marker are there."""
    return any(key == "K" for _, key, _ in left(some)), end - 1 in markers(some)


def test_INV_CLS5_what_was_dropped_is_known_over_a_start() -> None:
    some, end = ended()
    assert clean(some)
    cleaning = some.partition.log.cleaning
    assert has_ends(some, end) == (False, False)
    assert (cleaning.dropped_below, cleaning.drops) == (end, 1)
    assert cleaning.holes_below > end
    some.kill_and_reopen()
    assert some.partition.log.cleaning.dropped_below == end
    some.partition.become_mirror()
    some.partition.start_at(0)
    assert some.partition.log.cleaning.mark == CleanMark()
    assert not some.disk.exists(some.folder / DROPPED_NAME)


@pytest.mark.parametrize("copied_to", [3, 0])
def test_INV_CLN7_INV_CLW7_nothing_goes_in_front_of_who_copies(copied_to: int) -> None:
    some, end = ended()
    some.partition.copies.copied_to = lambda: copied_to
    assert clean(some)
    assert has_ends(some, end) == (copied_to < 3, True)
    assert some.partition.log.cleaning.dropped_below == copied_to
    roll(some)
    some.partition.copies.copied_to = lambda: end
    assert clean(some)
    assert has_ends(some, end) == (False, False)


def test_INV_CLN7_nothing_goes_while_one_copies_below_what_has_gone() -> None:
    some, end = ended()
    state = some.partition.log.cleaning
    state.note(CleanMark(dropped_below=end + 1))
    some.partition.copies.copied_to = lambda: end
    assert clean(some)
    assert has_ends(some, end) == (True, True)
    assert state.drops == 0


def test_INV_CLN7_who_begins_to_copy_meanwhile_ends_a_run_that_would_drop() -> None:
    some, end = ended()
    asked: list[int | None] = [None]
    some.partition.copies.copied_to = lambda: asked.pop() if asked else 0
    clean(some)
    assert has_ends(some, end) == (True, True)
    assert some.partition.log.cleaning.drops == 0


@pytest.mark.parametrize("found", ["none", "damaged", "of another mark"])
def test_INV_CLS5_what_an_older_version_has_cleaned_may_lack_anything(found: str) -> None:
    some, end = ended()
    assert clean(some)
    holes_below = some.partition.log.cleaning.holes_below
    path, marked = some.folder / DROPPED_NAME, some.folder / MARK_NAME
    if found == "none":
        some.disk.remove(path)
    elif found == "damaged":
        some.disk.write_file_atomic(path, b"no frame")
    else:
        older = some.disk.read_file(path)
        holes_below += 5
        some.partition.log.cleaning.note(CleanMark(holes_below=holes_below))
        some.disk.write_file_atomic(path, older)
    assert some.disk.exists(marked)
    assert read_mark(some.disk, some.folder).dropped_below == holes_below > end


def test_INV_CLS5_marks_that_are_noted_beside_each_other_are_both_kept() -> None:
    """A run ends while what is copied has holes further up."""
    state = fixture(COMPACT).partition.log.cleaning
    state.note(CleanMark(cleaned_here_below=10, holes_below=10))
    state.note(CleanMark(holes_below=50, dropped_below=40))
    state.note(CleanMark(first_dirty_offset=10))
    assert state.mark == CleanMark(10, 10, 50, 40)


@pytest.mark.parametrize(("dropped_at_primary", "noted"), [(4, 4), (0, 0)])
def test_INV_CLS5_a_copy_knows_what_was_dropped_where_it_comes_from(
    dropped_at_primary: int, noted: int
) -> None:
    some, _ = ended()
    copy = fixture(COMPACT, leads=False)
    copy.partition.become_mirror()
    writer = copy.partition.writer
    writer.cleaned_at_primary = some.partition.log.cleaning.holes_below
    writer.dropped_at_primary = dropped_at_primary
    writer.append_mirrored(all_bytes(some.partition))
    assert copy.partition.log.cleaning.dropped_below == noted
    writer.dropped_at_primary = some.partition.log_end_offset
    put(some, ("later", "v"))
    some.sync()
    writer.append_mirrored(some.partition.reader.read_raw(copy.partition.log_end_offset, 1 << 20))
    assert copy.partition.log.cleaning.dropped_below == noted, "it had all that was dropped since"


@pytest.mark.parametrize(("cleaned_at_primary", "noted"), [(0, 0), (1, 1), (3, 3)])
def test_INV_CLS3_a_copy_knows_of_holes_though_no_offset_is_missing(
    cleaned_at_primary: int, noted: int
) -> None:
    """1. Of a batch records were filtered out, and its offsets stay. 2. A copy takes it: what it lacks may not be handed on as whole."""
    some = fixture(COMPACT)
    for number in range(3):
        put(some, (f"k{number}", "v"))
    some.sync()
    copy = fixture(COMPACT, leads=False)
    copy.partition.writer.cleaned_at_primary = cleaned_at_primary
    copy.partition.writer.append_mirrored(all_bytes(some.partition))
    assert copy.partition.log.cleaning.holes_below == noted
    copy.partition.writer.cleaned_at_primary = 3
    put(some, ("k3", "v"))
    some.sync()
    copy.partition.writer.append_mirrored(some.partition.reader.read_raw(3, 1 << 20))
    assert copy.partition.log.cleaning.holes_below == noted, "it has its own of all below"
