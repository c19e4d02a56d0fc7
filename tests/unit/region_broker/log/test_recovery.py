"""What opening a log does after each kind of end; expected values are what was written before."""

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, SequenceNumber
from idempotency.partition_state import PartitionState
from idempotency.record_batch import ControlType
from region_broker.log.failures import NewerFormat, PartitionFailed
from region_broker.log.file_names import file_name
from region_broker.log.indexes.checked_file import CHECKPOINT_FILE_BYTES, Checkpoint
from region_broker.log.indexes.recovery_checkpoint import PROOF_BYTES_MAX
from region_broker.log.indexes.sparse_index import SUMMARY_BYTES
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import (
    DATA_DIR,
    LEADER_EPOCH,
    Fixture,
    all_bytes,
    append_marker,
    batch,
    fixture,
    with_markers,
)
from tests.simulation.disk import Crashed

SMALL_SEGMENTS = {"segment.bytes": "4096"}


def fill(some: Fixture, batch_count: int, *, size_bytes: int = 300) -> None:
    for _ in range(batch_count):
        assert (
            some.partition.writer.append(batch(size_bytes=size_bytes)).verdict
            is AppendVerdict.APPENDED
        )


def last_segment(some: Fixture) -> Path:
    names = [name for name in some.disk.list_dir(some.folder) if name.endswith(".log")]
    return some.folder / names[-1]


# Holds INV-K3.
def test_clean_start_reads_nothing_of_the_log_but_what_proves_the_recovery_checkpoint() -> None:
    some = fixture()
    fill(some, 40)
    some.sync()
    before = all_bytes(some.partition)
    some.table.close()
    some.disk.process_killed()
    some.disk.bytes_read = 0
    some.open()
    assert len(before) > 10_000
    # And the checkpoint, and the journal's heads.
    assert some.disk.bytes_read < PROOF_BYTES_MAX + CHECKPOINT_FILE_BYTES + 100
    assert some.partition.log.recovered_clean
    assert some.partition.log_end_offset == 40
    assert all_bytes(some.partition) == before


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("batch_count", [0, 40])
def test_what_did_not_change_since_a_clean_stop_is_not_touched_again(
    end: str, batch_count: int
) -> None:
    some = fixture(SMALL_SEGMENTS)
    fill(some, batch_count)
    some.sync()
    some.close_and_reopen()
    touched: list[tuple[str, Path]] = []

    def note(operation: str, path: Path) -> None:
        changes = ("pwrite", "write_file_atomic", "fdatasync", "fsync_dir", "remove", "truncate")
        if operation in changes and some.folder in (path, *path.parents):
            touched.append((operation, path))

    some.disk.fault = note
    if end == "stop":
        some.table.close()
    some.disk.process_killed()
    some.disk.fault = note
    some.open()
    assert some.partition.log.recovered_clean
    assert some.partition.log_end_offset == batch_count
    assert touched == []


def test_INV_R6_a_log_whose_checkpoint_says_it_all_needs_its_bytes_and_names_synced_and_no_more() -> (
    None
):
    some = fixture()
    fill(some, 3)
    some.sync_files()
    some.disk.process_killed()
    touched: list[str] = []

    def note(operation: str, path: Path) -> None:
        if operation in ("write_file_atomic", "fdatasync", "fsync_dir") and some.folder in (
            path,
            *path.parents,
        ):
            touched.append(operation)

    some.disk.fault = note
    some.open()
    assert some.partition.log_end_offset == 3
    assert touched == ["fdatasync", "fsync_dir"]


def test_a_segment_that_a_start_removed_does_not_come_back_with_the_power() -> None:
    for seed in range(10):
        some = fixture(SMALL_SEGMENTS)
        fill(some, 3)
        some.sync_files()
        stray = some.folder / file_name(5, ".log")
        file = some.disk.open(stray, create=True)
        file.pwrite(0, all_bytes(some.partition))
        file.fdatasync()
        some.disk.fsync_dir(some.folder)
        some.kill_and_reopen()
        assert some.partition.log_end_offset == 3
        some.disk.power_loss(random.Random(seed))
        assert not some.disk.exists(stray)


def test_killed_process_loses_nothing_that_was_written() -> None:
    some = fixture(SMALL_SEGMENTS)
    fill(some, 25)
    some.sync()
    fill(some, 5)
    some.kill_and_reopen()
    assert not some.partition.log.recovered_clean
    assert some.partition.log_end_offset == 30
    assert some.partition.high_watermark == 30


# Holds INV-R2.
def test_torn_tail_is_cut_and_the_rest_is_kept() -> None:
    some = fixture()
    fill(some, 10)
    some.sync()
    synced = all_bytes(some.partition)
    fill(some, 3)
    path = last_segment(some)
    content = some.disk.content(path)
    del content[-7:]
    some.kill_and_reopen()
    assert some.partition.log_end_offset == 12
    assert all_bytes(some.partition).startswith(synced)
    fill(some, 1)
    some.sync()
    some.kill_and_reopen()
    assert some.partition.log_end_offset == 13


def test_garbage_behind_the_synced_end_is_cut_also_over_a_segment_border() -> None:
    some = fixture(SMALL_SEGMENTS)
    fill(some, 5)
    some.sync()
    synced = all_bytes(some.partition)
    fill(some, 20)
    first = some.folder / file_name(0, ".log")
    some.disk.content(first)[len(synced) + 30] ^= 1
    some.kill_and_reopen()
    assert some.partition.failed is None
    assert some.partition.log_end_offset == 5
    assert all_bytes(some.partition) == synced
    assert [name for name in some.disk.list_dir(some.folder) if name.endswith(".log")] == [
        first.name
    ]


# Holds INV-R2.
def test_bit_flip_in_the_synced_part_fails_the_partition_and_changes_nothing() -> None:
    some = fixture(partition_count=2)
    fill(some, 10)
    some.sync_files()
    path = last_segment(some)
    some.disk.damage(path, 700)
    size_bytes = some.disk.file_size(path)
    some.kill_and_reopen()
    assert some.partition.failed is not None
    assert "wrong CRC" in some.partition.failed
    assert some.disk.file_size(path) == size_bytes
    assert some.partition.writer.append(batch()).verdict is AppendVerdict.STORAGE_FAILED
    with pytest.raises(PartitionFailed):
        some.partition.reader.fetch(0, 100, Isolation.READ_UNCOMMITTED)
    assert some.partitions[1].failed is None
    assert some.partitions[1].writer.append(batch()).verdict is AppendVerdict.APPENDED
    assert list(some.table.failures()) == ["orders-0"]


def test_INV_R8_a_flipped_leader_epoch_fails_the_partition() -> None:
    """Its mirrors would take the log for another history, and give up what they have of it (seed 92931)."""
    some = fixture()
    fill(some, 10)
    some.sync_files()
    data = some.disk.content(last_segment(some))
    batch_bytes = len(data) // 10
    leader_epoch_at = (
        3 * batch_bytes + 12
    )  # Kafka's record batch: base offset, length, leader epoch
    data[leader_epoch_at + 3] ^= 16
    some.kill_and_reopen()
    assert some.partition.failed is not None
    assert "offset 4 has leader epoch" in some.partition.failed
    assert "were durable" in some.partition.failed


def test_INV_R8_a_term_that_the_log_is_ahead_of_stops_it_and_nothing_else() -> None:
    """A flipped leader epoch of the last batch goes back nowhere; at each start the region ended."""
    some = fixture()
    fill(some, 1)
    some.sync()
    some.partition.become_mirror()
    some.partition.become_leader(LeaderEpoch(LEADER_EPOCH - 1))
    assert not some.partition.is_leader
    assert f"its last batch has leader epoch {LEADER_EPOCH}" in str(some.partition.failed)


def test_missing_synced_bytes_fail_the_partition() -> None:
    some = fixture()
    fill(some, 10)
    some.sync_files()
    del some.disk.content(last_segment(some))[-400:]
    some.kill_and_reopen()
    assert some.partition.failed is not None
    assert "were durable" in some.partition.failed


def test_shortened_sealed_segment_fails_the_partition() -> None:
    some = fixture(SMALL_SEGMENTS)
    fill(some, 40)
    some.sync()
    del some.disk.content(some.folder / file_name(0, ".log"))[-400:]
    some.kill_and_reopen()
    assert some.partition.failed is not None
    assert "was sealed" in some.partition.failed


def test_removed_sealed_segment_fails_the_partition() -> None:
    some = fixture(SMALL_SEGMENTS)
    fill(some, 40)
    some.sync()
    sealed = some.partition.log.sealed_paths()
    some.disk.remove(sealed[1])
    some.kill_and_reopen()
    assert some.partition.failed is not None


def shorten_first(some: Fixture) -> None:
    del some.disk.content(some.folder / file_name(0, ".log"))[-400:]


def lose(which: int) -> Callable[[Fixture], None]:
    def lose_one(some: Fixture) -> None:
        some.disk.remove(some.folder / segment_names(some)[which])

    return lose_one


def segment_names(some: Fixture) -> list[str]:
    return [name for name in some.disk.list_dir(some.folder) if name.endswith(".log")]


def closed(*, proves: bool) -> Fixture:
    """Return a node that was stopped cleanly, with four full segments and an open one."""
    some = fixture(SMALL_SEGMENTS)
    some.config = replace(some.config, proves_full_segments=proves)
    some.close_and_reopen()
    fill(some, 45)
    some.sync()
    some.table.close()
    some.disk.process_killed()
    assert len(segment_names(some)) == 5
    return some


@pytest.mark.parametrize(
    "fault",
    [shorten_first, lose(0), lose(1), lose(3), lose(4)],
    ids=["short", "first", "middle", "last", "open"],
)
def test_INV_R9_a_full_segment_that_is_short_or_gone_is_found_after_a_clean_stop(
    fault: Callable[[Fixture], None],
) -> None:
    some = closed(proves=True)
    fault(some)
    left = {name: some.disk.read_file(some.folder / name) for name in segment_names(some)}
    some.open()
    assert some.partition.failed is not None
    assert left == {name: some.disk.read_file(some.folder / name) for name in segment_names(some)}


def test_INV_R9_a_sound_log_is_read_no_further_than_the_heads_of_its_indexes() -> None:
    some = closed(proves=True)
    some.disk.bytes_read = 0
    some.open()
    assert some.partition.log.recovered_clean
    heads = SUMMARY_BYTES * 4
    assert some.disk.bytes_read < heads + PROOF_BYTES_MAX + CHECKPOINT_FILE_BYTES + 100


@pytest.mark.parametrize("how", ["flip", "remove"])
def test_INV_R9_an_offset_index_that_is_damaged_proves_nothing_against_its_segment(
    how: str,
) -> None:
    some = closed(proves=True)
    path = some.folder / file_name(0, ".index")
    if how == "flip":
        some.disk.damage(path, SUMMARY_BYTES - 26)
    else:
        some.disk.remove(path)
    some.open()
    assert some.partition.failed is None
    assert some.partition.log_end_offset == 45


def test_one_node_alone_serves_what_is_left_of_a_log_that_was_closed() -> None:
    some = closed(proves=False)
    shorten_first(some)
    some.open()
    assert some.partition.failed is None
    assert some.partition.reader.read_raw(20, 10)


def test_a_log_that_was_cut_keeps_its_full_segments_where_the_open_one_is_gone() -> None:
    """It was cut where a segment begins: that one is empty, and gone from the disk, as is all that says so."""
    some = fixture(SMALL_SEGMENTS)
    fill(some, 25)
    some.sync()
    some.partition.truncate_to(some.partition.log.segments.bases[1])
    some.table.close()
    some.disk.process_killed()
    names = segment_names(some)
    some.disk.remove(some.folder / names[-1])
    some.open()
    assert some.partition.failed is not None
    assert segment_names(some) == names[:-1]


# Holds INV-A2.
@pytest.mark.parametrize("suffix", [".index", ".txnindex", ".snapshot"])
@pytest.mark.parametrize("how", ["flip", "remove"])
def test_damaged_log_indexes_are_built_again(suffix: str, how: str) -> None:
    some = fixture(SMALL_SEGMENTS)
    fill(some, 40)
    some.sync()
    before = all_bytes(some.partition)
    state = some.partition.state.encode()
    some.table.close()
    for name in some.disk.list_dir(some.folder):
        if name.endswith(suffix) and how == "flip":
            some.disk.damage(some.folder / name, some.disk.file_size(some.folder / name) // 2)
        elif name.endswith(suffix):
            some.disk.remove(some.folder / name)
    some.disk.process_killed()
    some.open()
    assert some.partition.failed is None
    assert all_bytes(some.partition) == before
    assert some.partition.state.encode() == state
    assert some.partition.log.aborted_in(0, 40, 40) == []


@pytest.mark.parametrize(
    ("name", "places"), [("checkpoint", (10, 522)), ("checkpoint", (10,)), ("checkpoint", (522,)),
                         ("leader-epochs", (10,))]
)  # fmt: skip
def test_damaged_checkpoint_or_epochs_lose_nothing(name: str, places: tuple[int, ...]) -> None:
    some = fixture(SMALL_SEGMENTS)
    fill(some, 40)
    some.sync()
    before = all_bytes(some.partition)
    some.table.close()
    for place in places:
        some.disk.damage(some.folder / name, place)
    some.disk.process_killed()
    some.open()
    assert all_bytes(some.partition) == before
    assert some.partition.epoch_end_offset(LeaderEpoch(8 << 16 | 1)) == (8 << 16 | 1, 40)


def written_in_part(some: Fixture, bytes_written: int) -> None:
    """Let the next write of the checkpoint fail half-way."""
    path = some.folder / "checkpoint"

    def half(operation: str, what: Path) -> None:
        if operation == "pwrite" and what == path:
            some.disk.fault = None
            content = some.disk.content(path)
            at = 0 if Checkpoint.decode(bytes(content)).serial % 2 else 512
            content[at : at + bytes_written] = b"x" * bytes_written
            raise OSError(errno.ENOSPC, "full")

    some.disk.fault = half


# Holds INV-K5.
def test_a_checkpoint_that_was_written_in_part_leaves_the_one_before() -> None:
    some = fixture(journal_bytes=0)
    fill(some, 5)
    some.sync()
    fill(some, 5)
    written_in_part(some, 20)
    some.sync()
    assert some.partition.failed is not None
    some.kill_and_reopen()
    assert some.partition.log_end_offset == 10
    assert not some.partition.log.recovered_clean


# Holds INV-KF2.
def test_what_was_cut_does_not_come_back_with_a_checkpoint_that_was_written_in_part() -> None:
    some = fixture()
    fill(some, 5)
    some.sync()  # into the journal
    some.partition.truncate_to(2)
    fill(some, 1)
    written_in_part(some, 20)
    with pytest.raises(PartitionFailed):
        some.partition.log.durability.sync_now()
    some.kill_and_reopen()
    assert some.partition.failed is None
    assert some.partition.log_end_offset == 3


def test_what_survives_a_failed_sync_is_written_again_before_it_is_trusted() -> None:
    some = fixture()
    fill(some, 4)
    some.sync()
    fill(some, 4)

    def broken(operation: str, _: Path) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "broken")

    some.disk.fault = broken
    some.sync()
    assert some.partition.failed is not None
    some.kill_and_reopen()  # the page cache still has it, the platter has not
    assert some.partition.high_watermark == 8
    some.disk.power_loss(random.Random(1))
    some.open()
    assert some.partition.log_end_offset == 8


# Holds INV-T1.
def test_newer_format_is_refused_and_untouched() -> None:
    some = fixture()
    fill(some, 3)
    some.table.close()
    some.disk.process_killed()
    some.disk.write_file_atomic(DATA_DIR / "format", b"tidemark-log 3\n")
    with pytest.raises(NewerFormat, match="format 3, this version knows 2"):
        some.open()


def test_foreign_folder_is_refused() -> None:
    some = fixture()
    some.disk.remove(DATA_DIR / "format")
    with pytest.raises(NewerFormat, match="choose another data folder"):
        some.open()


def test_crash_at_every_step_of_a_cut_leaves_a_log_that_opens() -> None:
    for at in range(1, 200):
        some = fixture(SMALL_SEGMENTS)
        fill(some, 40)
        some.sync()
        before = all_bytes(some.partition)
        some.disk.crash_after(at)
        try:
            some.partition.truncate_to(17)
        except Crashed:
            some.disk.power_loss(random.Random(at))
            some.open()
        else:
            assert some.partition.log_end_offset == 17
            return
        assert some.partition.failed is None, some.partition.failed
        assert before.startswith(all_bytes(some.partition))
        assert some.partition.log_end_offset >= 17
        some.partition.truncate_to(17)
        assert some.partition.log_end_offset == some.partition.high_watermark == 17
    pytest.fail("a cut takes less than 200 operations")


def test_crash_at_every_step_of_retention_leaves_a_log_without_a_hole() -> None:
    for at in range(1, 200):
        some = fixture(SMALL_SEGMENTS | {"retention.bytes": "5000"})
        fill(some, 60)
        some.sync()
        before = all_bytes(some.partition)
        some.disk.crash_after(at)
        try:
            some.maintain(lambda _: None)
        except Crashed:
            some.disk.power_loss(random.Random(at))
            some.open()
            assert some.partition.failed is None, some.partition.failed
            assert before.endswith(all_bytes(some.partition))
            assert some.partition.log_end_offset == 60
        else:
            assert some.partition.log_start_offset > 0
            return
    pytest.fail("retention takes less than 200 operations")


# Holds INV-PL5.
def test_crash_at_every_step_of_a_sync_with_seals_keeps_what_was_acknowledged() -> None:
    for at in range(1, 300):
        some = fixture(SMALL_SEGMENTS)
        fill(some, 8)
        some.sync()
        acknowledged = all_bytes(some.partition)
        fill(some, 30)
        some.disk.crash_after(at)
        try:
            some.sync()
        except Crashed:
            some.disk.power_loss(random.Random(at))
            some.open()
            assert some.partition.failed is None, some.partition.failed
            assert all_bytes(some.partition).startswith(acknowledged)
        else:
            return
    pytest.fail("a sync takes less than 300 operations")


def test_crash_at_every_step_of_opening_can_be_repeated() -> None:
    for at in range(1, 300):
        some = fixture(SMALL_SEGMENTS)
        fill(some, 30)
        some.sync()
        fill(some, 10)
        some.disk.power_loss(random.Random(at))
        some.disk.crash_after(at)
        try:
            some.open()
        except Crashed:
            some.disk.power_loss(random.Random(at + 1))
            some.open()
            assert some.partition.failed is None, some.partition.failed
            assert some.partition.log_end_offset >= 30
        else:
            return
    pytest.fail("opening takes less than 300 operations")


# Holds INV-NP3.
def test_C9_no_snapshot_outlives_the_records_it_was_made_of() -> None:
    some = fixture()
    for sequence in range(4):
        some.partition.writer.append(
            batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(sequence)))
        )
    some.close_and_reopen()  # a snapshot at 4
    some.partition.truncate_to(1)
    for sequence in range(1, 6):
        some.partition.writer.append(
            batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(sequence)))
        )
    some.partition.writer.append(
        batch(origin=Origin(ProducerId(8), ProducerEpoch(0), SequenceNumber(0)))
    )
    some.sync()
    some.partition.truncate_to(6)
    replayed = PartitionState()
    for header, marker in with_markers(all_bytes(some.partition)):
        replayed.apply(header, marker)
    assert some.partition.state.encode() == replayed.encode()
    assert [name for name in some.disk.list_dir(some.folder) if name.endswith(".snapshot")] == []


# Holds INV-LF2.
def test_a_sync_that_failed_in_a_thread_is_not_healed_by_the_next_one() -> None:
    some = fixture()
    fill(some, 3)
    job = some.partition.log.durability.begin_sync()
    assert job is not None

    def broken(operation: str, _: Path) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "broken")

    some.disk.fault = broken
    error = job.run()  # its outcome has not reached the loop yet
    some.disk.fault = None
    with pytest.raises(PartitionFailed, match="broken"):
        some.partition.log.durability.sync_now()
    job.log.finish_sync(job, error)
    assert some.partition.high_watermark == 0


def of_aborts() -> Fixture:
    """Return a log of eight transactions, each aborted, in more than three sealed segments."""
    some = fixture(SMALL_SEGMENTS)
    for number in range(8):
        origin = Origin(ProducerId(number), ProducerEpoch(0), SequenceNumber(0), transactional=True)
        some.partition.writer.append(batch(size_bytes=1_500, origin=origin))
        append_marker(
            some.partition, producer_id=number, producer_epoch=0, control_type=ControlType.ABORT,
            coordinator_epoch=1, decision=None, timestamp_ms=1_000_000,
        )  # fmt: skip
    some.sync()
    some.close_and_reopen()
    assert len(some.partition.log.segments.segments) > 3
    return some


def test_C38_later_segments_without_an_abort_of_this_range_are_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader at the beginning of ten thousand segments asked all their files at each fetch."""
    some = of_aborts()
    log, end = some.partition.log, some.partition.log_end_offset
    first = log.aborted_in(0, 2, end)
    assert [(each.first_offset, each.last_offset) for each in first] == [(0, 1)]
    read: list[Path] = []
    really = some.disk.read_file

    def reading(path: Path) -> bytes:
        read.append(path)
        return really(path)

    monkeypatch.setattr(some.disk, "read_file", reading)
    log.content.cache.aborted.clear()
    assert log.aborted_in(0, 2, end) == first
    assert len(read) == 1
    assert [each.first_offset for each in log.aborted_in(0, end, end)] == list(range(0, 16, 2))


def test_C38_a_segment_that_was_cut_and_sealed_again_is_asked_anew() -> None:
    some = of_aborts()
    log, end = some.partition.log, some.partition.log_end_offset
    log.aborted_in(0, 2, end)
    base = log.segments.bases[1]
    some.partition.truncate_to(base + 1)
    some.partition.become_leader(LEADER_EPOCH)
    append_marker(
        some.partition, producer_id=base // 2, producer_epoch=0, control_type=ControlType.ABORT,
        coordinator_epoch=2, decision=None, timestamp_ms=1_000_000,
    )  # fmt: skip
    for _ in range(4):
        some.partition.writer.append(batch(size_bytes=3_000))
    some.sync()
    some.sync()
    assert log.segments.segments[1].file is None
    found = log.aborted_in(base, base + 1, some.partition.log_end_offset)
    assert [each.first_offset for each in found] == [base]
