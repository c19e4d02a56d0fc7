"""What goes from a log's start: by order while the log is cut, and by age where records have no time."""

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, SequenceNumber
from idempotency.partition_state import PartitionState
from idempotency.pieces import drained
from idempotency.record_batch import iter_headers
from idempotency.snapshot_codec import ROWS_AT_ONCE
from region_broker.limits import YIELD_ROWS
from region_broker.log.failures import ColdRange, LogDamaged, MirrorGap, NotLeader, PartitionFailed
from region_broker.log.file_names import file_name
from region_broker.log.indexes.log_start import read_log_start
from region_broker.log.parts import appender, trimmer
from region_broker.log.parts.appender import BYTES_FOR_PRODUCER, OLD_MS
from region_broker.log.parts.durability import PENDING_SEALS_MAX
from region_broker.log.replay import BATCHES_AT_ONCE, rebuild_state
from region_broker.log.segment import DeletionBudget, Segment
from region_broker.partitions import upkeep
from region_broker.partitions.parts.retention import Due, Retention
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.trimming import Hold
from region_broker.records.batches import Origin
from region_broker.region.failover.log_surgery import truncate_aside
from tests.fixtures.kernel_batches import stamp
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, all_bytes, batch, fixture
from tests.simulation.disk import SimulatedFile

INT32_MAX = (1 << 31) - 1
WEEK_MS = 7 * 24 * 3600 * 1000
MAGIC_AT = 16
"""Within a batch: its format's version (Kafka's record batch format)."""


class SlowOrder:
    """DeleteRecords up to offset 8 of ten records, whose file is being written in its thread."""

    def __init__(self) -> None:
        self.fixture = fixture()
        for _ in range(10):
            self.fixture.partition.writer.append(batch())
        self.fixture.sync()
        self.fixture.sync_files()
        self._is_writing, self._may_go_on = threading.Event(), threading.Event()
        self.fixture.disk.fault = self._slow

    def _slow(self, operation: str, path: Path) -> None:
        if operation == "write_file_atomic" and path.name == "log-start":
            self.fixture.disk.fault = None
            self._is_writing.set()
            assert self._may_go_on.wait(60)

    async def begin(self, tasks: asyncio.TaskGroup) -> "asyncio.Task[int]":
        order = tasks.create_task(self.fixture.partition.retention.delete_records(8))
        assert await asyncio.to_thread(self._is_writing.wait, 60)
        return order

    def let_it_end_soon(self) -> None:
        """From another thread: the cut waits for what is being written."""
        threading.Timer(0.01, self._may_go_on.set).start()


@pytest.mark.parametrize("cut_at", [3, 9])
async def test_INV_LOS3_a_cut_takes_an_order_to_delete_back_that_is_being_written(
    cut_at: int,
) -> None:
    slow = SlowOrder()
    partition = slow.fixture.partition
    async with asyncio.TaskGroup() as tasks:
        order = await slow.begin(tasks)
        partition.become_mirror()
        slow.let_it_end_soon()
        partition.truncate_to(cut_at)
    assert order.result() == partition.log_start_offset == (8 if cut_at == 9 else 0)
    partition.become_leader(LeaderEpoch(LEADER_EPOCH + 1))
    partition.writer.append(batch())
    slow.fixture.sync()
    assert partition.reader.fetch(cut_at, 1000, Isolation.READ_UNCOMMITTED).data
    slow.fixture.leads = False
    slow.fixture.kill_and_reopen()
    assert slow.fixture.partition.log_start_offset == (8 if cut_at == 9 else 0)


@contextmanager
def nothing_is_replayed() -> Iterator[None]:
    """Let a cut fail that reads the log itself."""

    def refused(*_: object) -> NoReturn:
        raise AssertionError("the log is read on the event loop, at once")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trimmer, "rebuild_state", refused)
        yield


def in_order(some: Fixture, count: int) -> None:
    for number in range(count):
        some.partition.writer.append(
            batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(number)))
        )
    some.sync()


async def test_INV_TRM1_what_was_prepared_is_what_the_cut_takes_and_is_read_in_pieces() -> None:
    some = fixture()
    in_order(some, 3 * BATCHES_AT_ONCE)
    cut_at = 3 * BATCHES_AT_ONCE - 2
    pieces = some.partition.log.trimmer.prepare_cut(cut_at)
    assert sum(1 for _ in pieces) == 2
    in_order(some, 0)
    with nothing_is_replayed():
        some.partition.truncate_to(cut_at)
    taken = some.partition.state.encode()
    assert (
        taken == rebuild_state(some.folder, some.partition.log.segments.segments, cut_at).encode()
    )


async def test_INV_TRM1_a_snapshot_of_many_producers_is_read_in_pieces() -> None:
    some = fixture()
    for number in range(3 * ROWS_AT_ONCE):
        some.partition.writer.append(
            batch(origin=Origin(ProducerId(number), ProducerEpoch(0), SequenceNumber(0)))
        )
    some.sync()
    durability, cut_at = some.partition.log.durability, some.partition.log_end_offset
    job = drained(durability.begin_recovery_checkpoint())
    assert job is not None
    durability.finish_recovery_checkpoint(job, job.run())
    some.partition.writer.append(batch())
    some.sync()
    assert sum(1 for _ in some.partition.log.trimmer.prepare_cut(cut_at)) >= 3
    with nothing_is_replayed():
        some.partition.truncate_to(cut_at)
    assert len(some.partition.state.producer_table.ids()) == 3 * ROWS_AT_ONCE


async def test_INV_TRM1_a_log_that_grows_meanwhile_is_cut_as_it_was_prepared() -> None:
    some = fixture()
    in_order(some, 4)
    await some.partition.trimming.prepare_cut(2)
    some.partition.writer.append(batch())
    some.sync()
    with nothing_is_replayed():
        some.partition.truncate_to(2)
    assert some.partition.log_end_offset == 2


@pytest.mark.parametrize("prepared", [3, 5, 9])
async def test_INV_TRM1_what_was_prepared_before_another_cut_is_not_taken(
    prepared: int,
) -> None:
    some = fixture()
    in_order(some, 8)
    await some.partition.trimming.prepare_cut(prepared)
    some.partition.truncate_to(3)
    for _ in range(4):  # other bytes in the place of those
        some.partition.writer.append(batch())
    some.sync()
    some.partition.truncate_to(5)
    taken = some.partition.state.encode()
    assert taken == rebuild_state(some.folder, some.partition.log.segments.segments, 5).encode()


async def test_INV_TRM1_what_was_prepared_for_another_place_is_not_taken() -> None:
    some = fixture()
    in_order(some, 8)
    await some.partition.trimming.prepare_cut(3)
    some.partition.truncate_to(6)
    taken = some.partition.state.encode()
    assert taken == rebuild_state(some.folder, some.partition.log.segments.segments, 6).encode()


@pytest.mark.parametrize("error", [LogDamaged("no batch at byte 7"), OSError(5, "byte 7")])
async def test_INV_TRM1_what_cannot_be_read_beforehand_is_said_by_the_cut(error: Exception) -> None:
    some = fixture()
    in_order(some, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trimmer, "state_in_pieces", raising(error))
        await some.partition.trimming.prepare_cut(2)
        patch.setattr(trimmer, "rebuild_state", raising(error))
        with pytest.raises((LogDamaged, PartitionFailed), match="byte 7"):
            some.partition.truncate_to(2)


async def test_INV_TRM2_what_cannot_be_read_below_a_cut_leaves_the_log_as_it_is() -> None:
    some = fixture()
    in_order(some, 10)
    some.sync_files()
    whole = all_bytes(some.partition)
    third = [at for at, _ in iter_headers(whole)][3]
    some.disk.damage(some.folder / file_name(0, ".log"), third + MAGIC_AT)
    await some.partition.trimming.prepare_cut(8)
    with pytest.raises(LogDamaged, match=f"no batch at byte {third}"):
        some.partition.truncate_to(8)
    assert some.partition.log_end_offset == some.partition.state.end_offset == 10
    some.partition.writer.append(batch())
    assert some.partition.log_end_offset == some.partition.state.end_offset == 11


@pytest.mark.parametrize(("refused", "end"), [("checkpoint", 4), (".log", 2)])
async def test_INV_TRM3_a_disk_that_fails_beside_a_cut_stops_the_log_and_the_next_life_cuts_it(
    refused: str, end: int
) -> None:
    """It fails before the cut, or behind it: `end` is where the log ends by then."""
    some = fixture()
    in_order(some, 4)
    some.sync_files()

    def fail(operation: str, path: Path) -> None:
        if operation == "fdatasync" and path.name.endswith(refused):
            raise OSError(5, "input/output error")

    some.disk.fault = fail
    with pytest.raises(PartitionFailed, match="input/output error"):
        await truncate_aside(some.partition, 2)
    assert some.partition.failed is not None
    assert some.partition.log_end_offset == end
    some.leads = False
    some.kill_and_reopen()
    await truncate_aside(some.partition, 2)
    assert some.partition.log_end_offset == 2


async def test_INV_CTJ3_retention_goes_on_behind_a_cut_that_was_prepared_and_never_came() -> None:
    some = fixture({"segment.bytes": "4096", "retention.bytes": "1"})
    for _ in range(6):
        some.partition.writer.append(batch(size_bytes=3000))
        some.sync()
    some.sync_files()
    await some.partition.trimming.lower(1)
    assert some.partition.log.trimmer.apply_retention(now_ms=0, hold_offset=INT32_MAX) > 1
    some.leads = False
    some.kill_and_reopen()
    assert (some.partition.failed, some.partition.log_end_offset) == (None, 6)


async def test_a_cut_aside_where_the_log_ends_changes_nothing() -> None:
    some = fixture()
    in_order(some, 4)
    await truncate_aside(some.partition, 4)
    some.partition.writer.append(batch())
    assert some.partition.log_end_offset == 5


def raising(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


async def test_INV_LOS3_an_order_that_was_begun_before_a_cut_is_void_behind_it() -> None:
    some = fixture()
    for _ in range(10):
        some.partition.writer.append(batch())
    some.sync()
    start = some.partition._start
    cuts = start.cuts
    some.partition.truncate_to(3)  # before the order's thread has begun
    assert not start.raise_to(8, cuts)
    assert some.partition.log_start_offset == 0


async def test_INV_PT7_a_start_is_taken_back_durably_and_only_down() -> None:
    made = fixture()
    for _ in range(10):
        made.partition.writer.append(batch())
    made.sync()
    made.sync_files()
    assert await made.partition.retention.delete_records(8) == 8
    told: list[int] = []
    made.partition.watchers.add(lambda: told.append(made.partition.log_start_offset))
    made.partition.retention.take_back_start(9)
    assert made.partition.log_start_offset == 8
    made.partition.retention.take_back_start(5)
    assert told[-1] == made.partition.log_start_offset == 5
    assert read_log_start(made.disk, made.partition.log.content.folder) == 5


async def test_an_order_that_a_cut_made_void_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    some = fixture()
    for _ in range(10):
        some.partition.writer.append(batch())
    some.sync()
    to_thread = asyncio.to_thread

    async def cut_first(work: Callable[..., bool], *given: int) -> bool:
        some.partition.truncate_to(3)
        return await to_thread(work, *given)

    monkeypatch.setattr(asyncio, "to_thread", cut_first)
    with pytest.raises(NotLeader, match="was cut"):
        await some.partition.retention.delete_records(8)


def of_segments(at_ms: int, count: int = 30) -> Fixture:
    some = fixture({"segment.bytes": "4096", "retention.ms": str(WEEK_MS)})
    some.clock.now_ms = 1_700_000_000_000
    for _ in range(count):
        some.partition.writer.append(batch(size_bytes=300, at_ms=at_ms))
    some.sync()
    return some


def test_records_without_a_time_are_kept_as_long_as_others() -> None:
    """Kafka counts from the file's last change then (LogSegment.largestTimestamp)."""
    some = of_segments(-1)
    some.clock.pass_ms(WEEK_MS - 1)
    assert some.maintain(lambda _: None) == 0
    some.clock.pass_ms(2)
    assert some.maintain(lambda _: None) > 0


def mirror_of_compacted(*last_offsets: int) -> tuple[Fixture, bytes]:
    """Return a mirror, and what the primary has left of a compacted log: one batch at each of these offsets."""
    some = fixture({"cleanup.policy": "compact"}, leads=False)
    some.partition.become_mirror()
    some.partition.writer.cleaned_at_primary = last_offsets[-1]
    parts = []
    for offset in last_offsets:
        data = bytearray(batch())
        stamp(data, 0, base_offset=offset, leader_epoch=LEADER_EPOCH)
        parts.append(bytes(data))
    return some, b"".join(parts)


def test_INV_MBT3_one_answer_of_the_primary_may_span_more_offsets_than_a_segment_can() -> None:
    offsets = [n * INT32_MAX - 1 for n in range(1, 6)]
    some, data = mirror_of_compacted(*offsets)
    assert some.partition.writer.append_mirrored(data) == offsets[-1] + 1
    some.sync()
    for _ in range(2):
        found = b""
        for offset in offsets:
            found += some.partition.reader.read_raw(offset, 1)
        assert [header.base_offset for _, header in iter_headers(found)] == offsets
        assert some.partition.failed is None
        some.kill_and_reopen()


def test_INV_MBT3_a_hole_that_no_compaction_leaves_is_refused() -> None:
    some, data = mirror_of_compacted(INT32_MAX + 1)
    with pytest.raises(MirrorGap, match="further"):
        some.partition.writer.append_mirrored(data)
    assert (some.partition.log_end_offset, some.partition.failed) == (0, None)


def test_deleting_many_segments_lists_their_folder_as_often_as_deleting_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lists_of(count: int) -> int:
        some = of_segments(1_700_000_000_000, 80)
        bases = list(some.partition.log.content.segments.bases)
        assert len(bases) > 4
        with monkeypatch.context() as patched:
            listed: list[Path] = []
            really = some.disk.list_dir

            def counting(path: Path) -> list[str]:
                listed.append(path)
                return really(path)

            patched.setattr(some.disk, "list_dir", counting)
            assert some.partition.log.trimmer.delete_segments_below(bases[count]) == count
        names = some.disk.list_dir(some.folder)
        assert not [name for name in names for base in bases[:count] if name.startswith(file_name(base, "."))]  # fmt: skip
        return len(listed)

    assert lists_of(4) == lists_of(1) > 0


def two_old_logs() -> Fixture:
    some = fixture({"segment.bytes": "4096", "retention.ms": str(WEEK_MS)}, partition_count=2)
    some.clock.now_ms = 1_700_000_000_000
    for partition in some.partitions:
        for _ in range(60):
            partition.writer.append(batch(size_bytes=300, at_ms=1_700_000_000_000))
    some.sync()
    some.clock.pass_ms(WEEK_MS + 1)
    return some


def deleted_in_pieces(some: Fixture) -> list[list[int]]:
    """Run a round of retention; return how many segments of which log went in each of its steps."""

    def counts() -> list[int]:
        return [len(each.log.content.segments.segments) for each in some.partitions]

    found, left = list[list[int]](), counts()
    pieces, is_over = some.table.upkeep.maintain(lambda _: None), False
    while not is_over:
        is_over = next(pieces, "over") is not None
        found.append([before - after for before, after in zip(left, counts(), strict=True)])
        left = counts()
    return found


def test_one_step_of_retention_deletes_a_bounded_number_of_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that is due goes in steps, between which a node serves others (`Node.maintain`)."""
    monkeypatch.setattr(upkeep, "DeletionBudget", lambda: DeletionBudget(3))
    some = two_old_logs()
    due = sum(len(each.log.content.segments.segments) - 1 for each in some.partitions)
    assert due > 6
    steps = [sum(deleted) for deleted in deleted_in_pieces(some)]
    assert max(steps) == 3
    assert sum(steps) == due
    assert deleted_in_pieces(some) == [[0, 0]]


def many_old_logs(count: int) -> Fixture:
    """Of each one full segment is due."""
    some = fixture({"segment.bytes": "4096", "retention.ms": str(WEEK_MS)}, partition_count=count)
    some.clock.now_ms = 1_700_000_000_000
    for partition in some.partitions:
        for _ in range(12):
            partition.writer.append(batch(size_bytes=400, at_ms=1_700_000_000_000))
    some.sync()
    some.sync_files()
    some.clock.pass_ms(WEEK_MS + 1)
    return some


def test_INV_SG6_one_step_of_retention_makes_a_bounded_number_of_syncs() -> None:
    """A segment of each of two hundred logs goes: four syncs for each of them would be eight hundred."""
    steps = [sum(map(bool, deleted)) for deleted in deleted_in_pieces(many_old_logs(60))]
    assert sum(steps) == 60
    assert max(steps) <= 10


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Retention]:
    """What of all logs `maintain` was called."""
    found: list[Retention] = []
    really = Retention.maintain

    def noted(
        self: Retention, due: Due, *, hold: Hold | None, reached: int | None, keeps_rounds: bool
    ) -> int:
        found.append(self)
        return really(self, due, hold=hold, reached=reached, keeps_rounds=keeps_rounds)

    monkeypatch.setattr(Retention, "maintain", noted)
    return found


def test_INV_UPK1_one_round_asks_each_log_once_and_again_where_a_step_ended_within_it(
    asked: list[Retention],
) -> None:
    """Each step beginning at the first log anew, a thousand of ten thousand logs' steps would each walk all of them."""
    some = many_old_logs(60)
    steps = len(deleted_in_pieces(some))
    assert steps >= 6
    assert 60 <= len(asked) <= 60 + steps


def test_INV_UPK1_a_round_over_many_logs_gives_way_where_nothing_is_deleted_too(
    asked: list[Retention],
) -> None:
    some = fixture(partition_count=2 * YIELD_ROWS + 50)
    asked_by_then = [0, *(len(asked) for _ in some.table.upkeep.maintain(lambda _: None))]
    assert [after - before for before, after in pairwise(asked_by_then)] == [YIELD_ROWS] * 2
    assert len(asked) == len(some.partitions)


def test_INV_UPK2_a_log_that_is_dropped_in_the_middle_of_a_round_is_passed(
    monkeypatch: pytest.MonkeyPatch, asked: list[Retention]
) -> None:
    monkeypatch.setattr(upkeep, "DeletionBudget", lambda: DeletionBudget(3))
    some = two_old_logs()
    pieces = some.table.upkeep.maintain(lambda _: None)
    next(pieces)
    some.drop_topic(some.topic.topic_id)
    assert drained(pieces) == 3
    assert len(asked) == 1


def test_a_large_segment_counts_for_as_many_small_ones_as_its_removal_takes() -> None:
    some = two_old_logs()
    segments = some.partition.log.content.segments.segments[:3]
    for segment in segments:
        segment.size_bytes = 1 << 30
    assert [DeletionBudget(left).granted(segments) for left in (0, 1, 64, 66, 200)] == [0, 1, 1, 2, 3]  # fmt: skip


def test_retention_asks_for_the_newest_time_without_reading_whole_indexes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = two_old_logs()
    some.close_and_reopen()
    monkeypatch.setattr(Segment, "_load_index", None)
    oldest = some.partition.log.content.segments.segments[0]
    assert oldest.newest_ms() == 1_700_000_000_000
    oldest._max_timestamp_ms = None
    monkeypatch.setattr(SimulatedFile, "pread_cached", lambda *_: b"")
    with pytest.raises(ColdRange):
        oldest.latest_ms(wait=False)


def test_INV_X3_an_index_file_that_the_disk_cannot_read_is_built_again() -> None:
    some = two_old_logs()
    some.close_and_reopen()
    oldest = some.partition.log.content.segments.segments[0]

    def bad_sector(operation: str, path: Path) -> None:
        if path == oldest.index_path() and operation in {"pread", "read_file"}:
            raise OSError(errno.EIO, "a bad sector")

    some.disk.fault = bad_sector
    assert oldest.newest_ms() == 1_700_000_000_000
    assert some.partition.failed is None


def test_retention_goes_by_times_whose_checksum_is_right() -> None:
    """The head of an index alone is not checked: one flipped bit would delete what is young."""
    some = two_old_logs()
    some.clock.now_ms = 1_700_000_000_000 + 1_000
    some.close_and_reopen()
    oldest = some.partition.log.content.segments.segments[0]
    content = bytearray(some.disk.read_file(oldest.index_path()))
    at = content.index((1_700_000_000_000).to_bytes(8, "big"))
    content[at : at + 8] = (1).to_bytes(8, "big")
    some.disk.write_file_atomic(oldest.index_path(), bytes(content))
    assert oldest.newest_ms() == 1
    assert some.maintain(lambda _: None) == 0
    assert oldest.newest_ms() == 1_700_000_000_000


def test_retention_by_size_alone_reads_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    some = fixture({"segment.bytes": "4096", "retention.ms": "-1", "retention.bytes": "5000"})
    for _ in range(60):
        some.partition.writer.append(batch(size_bytes=300))
    some.sync()
    some.close_and_reopen()
    monkeypatch.setattr(Segment, "index", None)
    assert some.maintain(lambda _: None) > 1


def test_a_budget_of_deletions_is_given_back_where_nothing_could_be_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = two_old_logs()

    def fail(*_: object) -> NoReturn:
        raise LogDamaged("it cannot be told")

    with monkeypatch.context() as patched:
        patched.setattr(trimmer, "keep_state_at", fail)
        budget = DeletionBudget(3)
        with pytest.raises(LogDamaged):
            some.partition.log.trimmer.apply_retention(
                now_ms=some.clock.now_ms, hold_offset=INT32_MAX, budget=budget
            )
    assert budget.left == 3
    budget.left = -7
    trim = some.partition.log.trimmer.apply_retention
    assert trim(now_ms=some.clock.now_ms, hold_offset=INT32_MAX, budget=budget) == 0


@pytest.mark.parametrize("what", ["gone", "damaged", "another's"])
def test_INV_X3_where_an_index_file_does_not_say_the_times_the_segment_is_read(what: str) -> None:
    some = two_old_logs()
    some.close_and_reopen()
    oldest, other = some.partition.log.content.segments.segments[:2]
    path = oldest.index_path()
    if what == "gone":
        some.disk.remove(path)
    else:
        content = some.disk.read_file(other.index_path()) if what == "another's" else b"x" * 99
        some.disk.write_file_atomic(path, content)
    assert oldest.newest_ms() == 1_700_000_000_000


def test_the_state_at_the_new_start_is_not_unpacked_to_see_that_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = two_old_logs()
    monkeypatch.setattr(PartitionState, "decode_in_pieces", None)
    assert some.maintain(lambda _: None) > 0


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_the_state_at_the_new_start_is_made_where_it_is_not_sound(how: str) -> None:
    some = two_old_logs()
    segments = some.partition.log.content.segments
    origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0))
    some.partition.writer.append(batch(origin=origin))
    start = segments.bases[3]
    path = some.folder / file_name(start, ".snapshot")
    if how == "gone":
        some.disk.remove(path)
    else:
        some.disk.write_file_atomic(path, b"no snapshot")
    some.partition.log.trimmer.delete_segments_below(start)
    assert segments.bases[0] == start
    assert PartitionState.decode(some.disk.read_file(path)).end_offset == start
    some.sync()
    some.kill_and_reopen()
    assert set(some.partition.state.producer_table.ids()) == {7}


def test_INV_APP1_few_full_segments_wait_for_their_seals_however_small_they_are() -> None:
    some = fixture({"segment.bytes": "4096"})
    data = batch(size_bytes=4_000)
    for _ in range(PENDING_SEALS_MAX * 3):
        some.partition.writer.append(data)
    segments = some.partition.log.content.segments.segments
    assert sum(segment.file is not None for segment in segments) == PENDING_SEALS_MAX + 1
    some.sync()
    names = some.disk.list_dir(some.folder)
    sealed = [each for each in segments if each.file is None]
    assert len(sealed) == PENDING_SEALS_MAX
    for each in sealed:  # the state at its end, from which a start goes on
        assert file_name(each.next_offset, ".snapshot") in names
    assert sum(segment.file is not None for segment in segments) == 1
    some.partition.writer.append(data)
    assert segments[-1].size_bytes < 2 * len(data)  # it goes on as before
    assert len(all_bytes(some.partition)) == (PENDING_SEALS_MAX * 3) * len(data)


def test_INV_APP2_a_log_that_knows_many_producers_begins_no_tiny_segments() -> None:
    some = fixture({"segment.bytes": "4096"})
    for number in range(100):
        origin = Origin(ProducerId(number), ProducerEpoch(0), SequenceNumber(0))
        some.partition.writer.append(batch(size_bytes=100, origin=origin))
    content = some.partition.log.content
    full = [each for each in content.segments.segments if each is not content.active]
    assert len(full) < 3
    for _ in range(40):
        some.partition.writer.append(batch(size_bytes=4_000))
    *later, _ = content.segments.segments[len(full) :]
    assert later
    assert min(each.size_bytes for each in later[1:]) >= 100 * BYTES_FOR_PRODUCER
    count = len(content.segments.segments)
    some.clock.pass_ms(OLD_MS)
    some.partition.writer.append(batch(size_bytes=4_000))
    assert len(content.segments.segments) == count + 1, "by age it begins one all the same"


def test_INV_APP2_a_log_has_a_bounded_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "SEGMENTS_MAX", 5)
    some = fixture({"segment.bytes": "4096"})
    for _ in range(20):
        some.partition.writer.append(batch(size_bytes=4_000))
    segments = some.partition.log.content.segments
    assert len(segments.segments) == 5
    some.sync()
    some.partition.log.trimmer.delete_segments_below(segments.bases[2])
    some.partition.writer.append(batch(size_bytes=4_000))
    assert len(segments.segments) == 4
