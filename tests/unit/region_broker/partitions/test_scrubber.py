"""Damage at rest on one simulated log: found, mended from a twin, or told; and all that may happen meanwhile."""

import asyncio
import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType, iter_headers
from region_broker.log.cleaning.state import CleanMark
from region_broker.log.failures import CorruptRange
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.mending import MenderParts
from region_broker.partitions.pace import Pace
from region_broker.partitions.partition import Partition
from region_broker.partitions.scrubber import Scrubber
from region_broker.records.batches import Origin, Record, build_batch
from tests.fixtures.node_logs import Fixture, all_bytes, append_marker, run_now
from tests.fixtures.scrubbing import (
    Inline,
    NoPauses,
    Twin,
    examined,
    filled,
    places,
    scrub,
    scrubber_of,
    sealed,
    twin_of,
)
from tests.simulation.disk import Crashed
from tests.unit.region_broker.log.test_cleaning import clean, put, roll
from tests.unit.region_broker.log.test_examining import FIELDS
from tests.unit.region_broker.log.test_journal import lose_everything


def damaged(
    which: int = 4, field: str = "payload", segment: int = 0
) -> tuple[Fixture, Twin, Path, bytes]:
    """Return a log with one flipped bit, its twin, the file, and what it held before."""
    some = filled()
    twin = twin_of(some)
    path = sealed(some)[segment]
    before = some.disk.read_file(path)
    some.disk.damage(path, places(some, path)[which][0] + FIELDS[field])
    return some, twin, path, before


def expect_leftovers_gone(some: Fixture) -> None:
    names = some.disk.list_dir(some.folder)
    assert not [name for name in names if name.endswith(".cleaned") or name == "swap"]


# Holds INV-SCB5.
@pytest.mark.parametrize("which", [0, 4, -1])
@pytest.mark.parametrize("field", FIELDS)
def test_one_flipped_bit_is_mended_to_the_bytes_that_were_written(field: str, which: int) -> None:
    some, twin, path, before = damaged(which, field)
    whole = all_bytes(twin.partition)
    made = scrub(some, twin)
    assert (made.problem(), made.mended_ranges) == (None, 1)
    assert some.disk.read_file(path) == before
    assert all_bytes(some.partition) == whole
    assert some.sealed[-1] == path  # its digest is made again
    expect_leftovers_gone(some)
    for again in (lose_everything, Fixture.kill_and_reopen, Fixture.close_and_reopen):
        again(some)
        assert some.partition.failed is None
        assert all_bytes(some.partition) == whole
    assert examined(some, path).is_sound


def test_what_lies_in_pieces_of_several_ranges_is_mended_in_one_step() -> None:
    some, twin, path, before = damaged(1)
    for which in (2, 6, 8):
        some.disk.damage(path, places_before(before)[which] + FIELDS["crc"])
    made = scrub(some, twin)
    assert made.mended_ranges == 3
    assert some.disk.read_file(path) == before


def places_before(before: bytes) -> list[int]:
    return [at for at, _ in iter_headers(before)]


def test_a_segment_that_ends_early_or_is_gone_is_fetched_whole() -> None:
    some, twin, path, before = damaged()
    some.disk.open(path).truncate(500)
    assert scrub(some, twin).problem() is None
    assert some.disk.read_file(path) == before
    some.disk.remove(path)
    some.partition.log.segments.segments[0].cache.forget(path)
    assert scrub(some, twin).problem() is None
    assert some.disk.read_file(path) == before


@pytest.mark.parametrize("suffix", [".index", ".txnindex"])
def test_INV_X3_a_file_beside_a_segment_is_built_again_by_nobodys_help(suffix: str) -> None:
    some = filled()
    path = sealed(some)[0].with_suffix(suffix)
    before = some.disk.read_file(path)
    some.disk.damage(path, 5)
    twin = twin_of(some)
    twin.refusal = "it is away"
    made = scrub(some, twin)
    assert made.problem() is None
    assert not twin.asked
    assert some.disk.read_file(path) == before
    lose_everything(some)
    assert some.disk.read_file(path) == before


def test_an_aborted_index_with_entries_is_built_again_as_it_was() -> None:
    some = filled()
    origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0), transactional=True)
    record = Record(None, b"x" * 300, timestamp_ms=1)
    assert (
        some.partition.writer.append(build_batch([record], origin=origin)).verdict
        is AppendVerdict.APPENDED
    )
    append_marker(
        some.partition, producer_id=7, producer_epoch=0, control_type=ControlType.ABORT,
        coordinator_epoch=1, decision=None, timestamp_ms=1,
    )  # fmt: skip
    roll(some)
    some.sync_files()
    path = sealed(some)[-1].with_suffix(".txnindex")
    sizes = {each: len(some.disk.read_file(each.with_suffix(".txnindex"))) for each in sealed(some)}
    path = max(sizes, key=lambda each: sizes[each]).with_suffix(".txnindex")
    before = some.disk.read_file(path)
    some.disk.damage(path, len(before) - 1)
    assert scrub(some, twin_of(some)).problem() is None
    assert some.disk.read_file(path) == before


# Holds INV-MND1, INV-SCB6.
def test_a_crash_at_every_operation_of_a_mend_leaves_the_old_segment_or_the_mended_one() -> None:
    at, found = 0, set[bytes]()
    while True:
        some, twin, path, before = damaged()
        bad = some.disk.read_file(path)
        some.disk.crash_after(at)
        try:
            scrub(some, twin)
        except Crashed:
            some.disk.crash_at, some.disk.crashed = None, False
        else:
            break
        some.disk.power_loss(random.Random(at)) if at % 3 else some.disk.process_killed()
        some.open()
        assert some.partition.failed is None, (at, some.partition.failed)
        held = some.disk.read_file(path)
        assert held in (bad, before), at
        found.add(held)
        expect_leftovers_gone(some)
        assert scrub(some, twin).problem() is None
        assert some.disk.read_file(path) == before
        at += 1
    assert found == {bad, before}
    assert at > 20


def test_reads_of_the_range_answer_as_before_until_it_is_mended() -> None:
    some, twin, _, _ = damaged()
    reads: list[str] = []

    def read() -> None:
        with pytest.raises(CorruptRange):
            some.partition.reader.read_raw(4, 1)
        assert some.partition.reader.read_raw(5, 1)
        reads.append("refused")

    twin.on_asked = read
    scrub(some, twin)
    assert reads == ["refused"]
    assert some.partition.reader.read_raw(4, 1)


# -- what is not mended -------------------------------------------------------------------------


# Holds INV-SCB8.
def test_what_nobody_gives_stays_as_it_is_and_is_told_until_it_is_mended() -> None:
    some, twin, path, before = damaged()
    bad = some.disk.read_file(path)
    twin.refusal = "region us: it is damaged here, too: orders-0 at 4"
    made = scrubber_of(some, twin)
    run_now(made.run_pass())
    assert some.disk.read_file(path) == bad
    problem = made.problem()
    assert problem is not None
    assert "orders-0" in problem
    assert "[4, 5)" in problem
    assert "damaged here, too" in problem
    assert made.figures()["damaged_ranges"] == 1
    expect_leftovers_gone(some)
    twin.refusal = ""
    run_now(made._look_at_due())  # not before its time
    assert made.problem() is not None
    some.clock.pass_ms(60_001)
    run_now(made._look_at_due())
    assert made.problem() is None
    assert some.disk.read_file(path) == before
    assert made.figures()["damaged_ranges"] == 0
    assert made.figures()["mended_ranges"] == 1


def test_one_of_two_ranges_is_mended_where_the_other_one_cannot_be() -> None:
    some, twin, path, before = damaged(2)
    some.disk.damage(path, places_before(before)[7] + FIELDS["payload"])

    def refuse_the_second() -> None:
        twin.refusal = "no" if twin.asked[-1].from_offset == 7 else ""

    twin.on_asked = refuse_the_second
    made = scrub(some, twin)
    assert made.mended_ranges == 1
    held = some.disk.read_file(path)
    assert held != before
    some.disk.damage(path, places_before(before)[7] + FIELDS["payload"])
    assert some.disk.read_file(path) == before
    assert "[7, 8)" in (made.problem() or "")
    assert "[2, 3)" not in (made.problem() or "")


def test_bytes_that_do_not_fit_are_not_put_in() -> None:
    some, twin, path, _ = damaged()
    bad = some.disk.read_file(path)
    twin.spoil = lambda data: bytes([*data[:100], data[100] ^ 1, *data[101:]])
    made = scrub(some, twin)
    assert "does not fit" in (made.problem() or "")
    assert some.disk.read_file(path) == bad
    assert some.partition.failed is None


# Holds INV-SCB5.
def test_what_the_disk_has_written_wrongly_is_not_put_in_place() -> None:
    some, twin, path, before = damaged()
    bad = some.disk.read_file(path)
    hits: list[Path] = []

    def spoil(operation: str, where: Path) -> None:
        if operation == "fdatasync" and where.name == f"{path.name}.cleaned":
            hits.append(where)
            some.disk.damage(where, places_before(before)[7] + FIELDS["payload"])

    some.disk.fault = spoil
    made = scrub(some, twin)
    some.disk.fault = None
    assert hits
    assert "damaged elsewhere" in (made.problem() or "")
    assert some.disk.read_file(path) == bad
    expect_leftovers_gone(some)


# Holds INV-MND2, INV-DR2.
def test_T13_what_a_cleaning_may_have_thinned_out_is_not_fetched() -> None:
    some = filled({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for number in range(30):
        put(some, (f"k{number % 3}", "v" * 300))
    roll(some)
    twin = twin_of(some)
    assert clean(some)
    path = sealed(some)[0]
    assert some.partition.log.cleaning.holes_below > 0
    some.disk.damage(path, places(some, path)[0][0] + FIELDS["payload"])
    made = scrub(some, twin)
    assert not twin.asked
    assert "compaction" in (made.problem() or "")


def test_INV_SCB11_a_log_that_no_range_mends_is_given_up_where_others_have_all_of_it() -> None:
    some = filled()
    end = some.partition.log.segments.segments[0].next_offset
    assert some.partition.log.cleaning.note(CleanMark(holes_below=end))
    path, twin = sealed(some)[0], twin_of(some)
    some.disk.damage(path, places(some, path)[0][0] + FIELDS["payload"])
    made = scrubber_of(some, twin)
    asked: list[str] = []
    answers: list[str | None] = ["node 2 does not answer", None]

    async def give_up(partition: Partition, why: str) -> str | None:
        asked.append(why)
        if answers[0] is None:
            partition.stop(why)
        return answers.pop(0)

    made.give_up = give_up
    run_now(made.run_pass())
    assert "nor is the log copied again whole: node 2 does not answer" in str(made.problem())
    run_now(made.run_pass())
    assert (len(asked), made.problem()) == (2, None)
    assert "the CRC is wrong" in asked[0]


def test_INV_SCB11_what_others_could_mend_is_not_given_up() -> None:
    some, twin, _, _ = damaged()
    twin.refusal = "it is away"
    made = scrubber_of(some, twin)

    async def give_up(partition: Partition, _why: str) -> str | None:
        raise AssertionError(partition)

    made.give_up = give_up
    run_now(made.run_pass())
    assert "it is away" in str(made.problem())


def test_a_full_disk_holds_a_mend_back() -> None:
    some, twin, path, before = damaged()
    made = scrubber_of(some, twin, room="the disk is nearly full")
    run_now(made.run_pass())
    assert "nearly full" in (made.problem() or "")
    some.disk.room_bytes = 1000
    made = scrub(some, twin)
    assert "No space left" in (made.problem() or "")
    assert some.partition.failed is None
    expect_leftovers_gone(some)
    some.disk.room_bytes = None
    assert scrub(some, twin).problem() is None
    assert some.disk.read_file(path) == before


def test_EIO_what_the_disk_cannot_read_is_told_as_such_and_mended() -> None:
    some, twin, path, before = damaged()

    def fail(operation: str, where: Path) -> None:
        if where == path and operation in ("pread", "pread_cached"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    told: list[str | None] = []

    def readable_again() -> None:
        told.append(made.problem())
        some.disk.fault = None

    twin.on_asked = readable_again
    some.disk.fault = fail
    made = scrubber_of(some, twin)
    run_now(made.run_pass())
    assert "Input/output error" in str(told[0])
    assert some.disk.read_file(path) == before
    assert made.problem() is None
    assert some.partition.failed is None


def test_EMFILE_says_nothing_of_the_disk() -> None:
    some, twin, path, _ = damaged()
    some.close_and_reopen()

    def fail(operation: str, where: Path) -> None:
        if operation == "open" and where == path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    some.disk.fault = fail
    made = scrub(some, twin)
    assert made.problem() is None
    assert not twin.asked


# -- what happens meanwhile ---------------------------------------------------------------------


def cut(some: Fixture) -> None:
    some.partition.truncate_to(2)


def delete(some: Fixture) -> None:
    assert some.partition.log.trimmer.delete_segments_below(sealed_end(some)) >= 1


def sealed_end(some: Fixture) -> int:
    return some.partition.log.segments.segments[0].next_offset


def close(some: Fixture) -> None:
    some.table.close()


def seal_anew(some: Fixture) -> None:
    some.partition.truncate_to(2)
    for number in range(12):
        some.partition.writer.append(build_batch([Record(None, b"%d" % number * 400)]))
    some.sync()
    assert sealed(some)[0].stem == f"{0:020d}"


CHANGES = [cut, delete, close, seal_anew]


# Holds INV-SCB7.
@pytest.mark.parametrize("change", CHANGES)
def test_a_segment_that_goes_while_it_is_looked_at_is_not_blamed(
    change: Callable[[Fixture], None],
) -> None:
    some, twin, path, _ = damaged()
    hits: list[Path] = []

    def meanwhile(operation: str, where: Path) -> None:
        if operation == "pread_cached" and where == path and not hits:
            hits.append(where)
            some.disk.fault = None
            change(some)

    some.disk.fault = meanwhile
    made = scrub(some, twin)
    assert hits
    assert made.problem() is None
    assert not twin.asked


# Holds INV-SCB7.
def test_a_segment_that_is_cleaned_while_it_is_looked_at_is_looked_at_again() -> None:
    some = filled({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    path = sealed(some)[0]
    hits: list[bool] = []

    def meanwhile(operation: str, where: Path) -> None:
        if operation == "pread_cached" and where == path and not hits:
            some.disk.fault = None
            hits.append(clean(some))

    some.disk.fault = meanwhile
    made = scrub(some, twin_of(some))
    assert hits == [True]
    assert made.problem() is None


# Holds INV-SCB7.
def test_a_segment_that_goes_into_another_one_before_it_is_opened_is_not_blamed() -> None:
    some = filled({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for _ in range(60):
        put(some, ("a", "v" * 300))
    roll(some)
    assert clean(some)
    roll(some)
    twin = Twin(some.partition)
    small = [each for each in sealed(some) if len(some.disk.read_file(each)) < 1000]
    path = small[1]  # the next cleaning puts it into the one before it
    hits: list[bool] = []

    def meanwhile(operation: str, where: Path) -> None:
        if operation == "read_file" and where == path.with_suffix(".index") and not hits:
            some.disk.fault = None
            hits.append(clean(some))

    some.disk.fault = meanwhile
    made = scrub(some, twin)
    assert hits == [True]
    assert not some.disk.exists(path)
    assert made.problem() is None
    assert not twin.asked


# Holds INV-MND3.
@pytest.mark.parametrize("change", CHANGES)
def test_a_log_that_changes_while_its_range_is_fetched_is_left_alone(
    change: Callable[[Fixture], None],
) -> None:
    some, twin, _, _ = damaged()

    def meanwhile() -> None:
        twin.on_asked = lambda: None
        change(some)

    twin.on_asked = meanwhile
    scrub(some, twin)
    expect_leftovers_gone(some)
    if change in (cut, delete):
        held = all_bytes(some.partition)
        assert all_bytes(twin.partition).find(held) >= 0
        some.close_and_reopen()
        assert some.partition.failed is None
        assert all_bytes(some.partition) == held


# Holds INV-CLS4.
def test_a_log_is_not_cleaned_while_it_is_mended_and_not_mended_while_it_is_cleaned() -> None:
    some = filled({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    twin = twin_of(some)
    path = sealed(some)[0]
    before = some.disk.read_file(path)
    some.disk.damage(path, places(some, path)[4][0] + FIELDS["payload"])
    cleaned: list[bool] = []
    twin.on_asked = lambda: cleaned.append(clean(some))
    state = some.partition.log.cleaning
    assert state.take()
    made = scrubber_of(some, twin)
    run_now(made.run_pass())
    assert "being changed" in (made.problem() or "")
    assert not twin.asked
    state.release()
    other = filled({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    assert other.partition.log.cleaning.take()
    assert not clean(other)
    other.partition.log.cleaning.release()
    assert clean(other)
    assert scrub(some, twin).problem() is None
    assert cleaned == [False]
    assert some.disk.read_file(path) == before
    assert clean(some)


def test_the_log_stops_where_nobody_knows_whether_the_mend_counts() -> None:
    some, twin, _, _ = damaged()

    def fail(operation: str, where: Path) -> None:
        if operation == "write_file_atomic" and where.name == "swap":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    some.disk.fault = fail
    scrub(some, twin)
    assert some.partition.failed is not None
    assert "putting a mended segment" in some.partition.failed
    some.disk.fault = None
    some.kill_and_reopen()
    assert some.partition.failed is None


# -- its pace -----------------------------------------------------------------------------------


def test_no_more_is_read_in_a_second_than_is_configured() -> None:
    some = filled()
    clock = NoPauses(some)
    parts = MenderParts(
        source=twin_of(some), disk=some.disk, pace=Pace(clock, Inline(), 1000),
        on_sealed=some.sealed.append, room_refusal=lambda: None,
    )  # fmt: skip
    made = Scrubber(parts, some.table)
    run_now(made.run_pass())
    size = sum(len(some.disk.read_file(path)) for path in sealed(some))
    assert made.figures()["bytes"] == size
    assert sum(clock.paused_ms) >= size
    assert made.figures()["passes"] == 1


def test_INV_SCB9_what_is_sealed_during_a_pass_has_its_turn_in_the_next_one() -> None:
    some = filled()
    first = sealed(some)
    looked: list[Path] = []

    def note(operation: str, path: Path) -> None:
        if operation == "open" and path.suffix == ".log":
            looked.append(path)
            if len(sealed(some)) < 2 * len(first):
                some.disk.fault = None
                roll(some)
                some.disk.fault = note

    made = scrubber_of(some, twin_of(some))
    some.disk.fault = note
    run_now(made.run_pass())
    assert [path for path in looked if path in first] == first
    assert made.figures()["passes"] == 1
    later = [path for path in sealed(some) if path not in first]
    assert later
    looked.clear()
    run_now(made.run_pass())
    assert set(later) <= set(looked)


async def test_with_a_rate_of_zero_nothing_is_looked_at() -> None:
    some, twin, _, _ = damaged()
    parts = MenderParts(
        source=twin, disk=some.disk, pace=Pace(NoPauses(some), Inline(), 0),
        on_sealed=some.sealed.append, room_refusal=lambda: None,
    )  # fmt: skip
    made = Scrubber(parts, some.table)
    async with asyncio.timeout(5):
        await made.run()
    assert made.figures()["bytes"] == 0


def test_what_a_reader_has_met_is_looked_at_before_its_turn() -> None:
    some, twin, path, before = damaged()
    made = scrubber_of(some, twin)
    run_now(made._look_at_due())
    assert some.disk.read_file(path) != before
    with pytest.raises(CorruptRange):
        some.partition.reader.read_raw(4, 1)
    run_now(made._look_at_due())
    assert some.disk.read_file(path) == before


def test_who_waits_for_a_log_is_woken_by_its_mend() -> None:
    """A mirror that was behind could not be sent the range, and asks again when it hears of something new."""
    some, twin, _, _ = damaged()
    woken: list[bool] = []
    some.partition.watchers.add(lambda: woken.append(True))
    scrub(some, twin)
    assert woken


def test_INV_SCB10_another_node_is_let_lead_once_for_each_find_before_it_is_mended() -> None:
    some, twin, path, before = damaged()
    bad = some.disk.read_file(path)
    made = scrubber_of(some, twin)
    asked: list[bytes] = []

    async def make_way() -> None:
        asked.append(some.disk.read_file(path))

    made.make_way = make_way
    twin.refusal = "nobody has it"
    for _ in range(3):
        run_now(made.run_pass())
    assert asked == [bad]
    twin.refusal = ""
    run_now(made.run_pass())
    assert some.disk.read_file(path) == before
    assert asked == [bad]


def test_INV_SCB7_a_segment_that_is_gone_when_another_node_leads_is_not_mended() -> None:
    some, twin, _, _ = damaged()
    made = scrubber_of(some, twin)

    async def make_way() -> None:
        some.partition.stop("its disk has failed meanwhile")

    made.make_way = make_way
    run_now(made.run_pass())
    assert twin.asked == []
    assert made.problem() is None
