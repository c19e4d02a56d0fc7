"""Appending to, reading from and waiting on one partition."""

import asyncio
import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from idempotency.fencing import leader_epoch, region_epoch
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import BatchHeader, ControlType, read_header
from region_broker.log.failures import (
    MirrorGap,
    NotABatchBoundary,
    NotLeader,
    OffsetOutOfRange,
    PartitionFailed,
    UnsupportedConfig,
)
from region_broker.log.log_config import FlushPolicy
from region_broker.log.segment import Segment
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.purgatory import ReadableWait
from region_broker.partitions.trimming import Hold
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import (
    LEADER_EPOCH,
    Fixture,
    Topic,
    all_bytes,
    append_marker,
    batch,
    fixture,
    raise_start,
)

SMALL_SEGMENTS = {"segment.bytes": "4096"}


def commit(partition: Partition, producer_id: int, *, aborted: bool = False) -> AppendVerdict:
    return append_marker(
        partition,
        producer_id=producer_id,
        producer_epoch=0,
        control_type=ControlType.ABORT if aborted else ControlType.COMMIT,
        coordinator_epoch=1,
        decision=None,
        timestamp_ms=1_000_000,
    ).verdict


def in_transaction(producer_id: int, sequence: int = 0, count: int = 1) -> bytes:
    return batch(
        count,
        origin=Origin(
            ProducerId(producer_id), ProducerEpoch(0), SequenceNumber(sequence), transactional=True
        ),
    )


async def test_append_is_committed_by_the_sync_and_not_before() -> None:
    some = fixture()
    outcome = some.partition.writer.append(batch(3))
    assert (outcome.verdict, outcome.base_offset, outcome.next_offset) == (
        AppendVerdict.APPENDED,
        0,
        3,
    )
    assert some.partition.high_watermark == 0
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(some.partition.wait_committed(3))
        await asyncio.sleep(0)
        assert not waiting.done()
        some.sync()
    assert some.partition.high_watermark == 3


# Holds INV-PT4.
async def test_C2_duplicate_of_an_unsynced_batch_waits_for_the_original() -> None:
    some = fixture()
    data = batch(2, origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)))
    some.partition.writer.append(batch(1))
    first = some.partition.writer.append(data)
    again = some.partition.writer.append(data)
    assert again.verdict is AppendVerdict.DUPLICATE
    assert (
        (again.base_offset, again.next_offset) == (first.base_offset, first.next_offset) == (1, 3)
    )
    assert some.partition.log_end_offset == 3
    assert some.partition.high_watermark < again.next_offset


async def test_C2_duplicate_is_answered_with_the_original_timestamp() -> None:
    some = fixture()
    data = batch(2, origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)))
    some.partition.writer.append(data)
    again = some.partition.writer.append(data)
    assert again.log_append_time_ms == read_header(data).max_timestamp_ms


@pytest.mark.parametrize("policy", [FlushPolicy.INTERVAL, FlushPolicy.OS])
async def test_other_policies_acknowledge_at_once(policy: FlushPolicy) -> None:
    some = fixture(flush_policy=policy)
    outcome = some.partition.writer.append(batch(2))
    await some.partition.wait_committed(outcome.next_offset)
    assert some.partition.high_watermark == 2


# Holds INV-AD2.
def test_client_batches_that_are_refused() -> None:
    partition = fixture({"max.message.bytes": "500"}).partition
    sound = batch(2)
    wrong_crc = bytearray(sound)
    wrong_crc[-1] ^= 1
    old_magic = bytearray(sound)
    old_magic[16] = 1
    control = batch(
        1,
        origin=Origin(
            ProducerId(1), ProducerEpoch(0), SequenceNumber(0), transactional=True, control=True
        ),
    )
    no_producer = batch(1, origin=Origin(transactional=True))
    for data, verdict in [
        (sound[:30], AppendVerdict.CORRUPT),
        (sound[:-1], AppendVerdict.CORRUPT),
        (bytes(wrong_crc), AppendVerdict.CORRUPT),
        (bytes(old_magic), AppendVerdict.UNSUPPORTED_MAGIC),
        (sound + sound, AppendVerdict.INVALID_RECORD),
        (control, AppendVerdict.INVALID_RECORD),
        (no_producer, AppendVerdict.INVALID_RECORD),
        (batch(1, size_bytes=600), AppendVerdict.TOO_LARGE),
        (b"", AppendVerdict.CORRUPT),
    ]:
        outcome = partition.writer.append(data)
        assert (outcome.verdict, outcome.base_offset) == (verdict, -1), outcome
        assert outcome.detail
    assert partition.log_end_offset == 0


# Holds INV-PT5.
def test_mirror_takes_no_client_batch_and_leader_no_mirrored_one() -> None:
    mirror = fixture(leads=False).partition
    assert mirror.writer.append(batch()).verdict is AppendVerdict.NOT_LEADER
    with pytest.raises(NotLeader):
        fixture().partition.writer.append_mirrored(batch())


# Holds INV-PL4.
async def test_full_disk_stops_one_partition_loudly() -> None:
    some = fixture(partition_count=2)
    first = some.partition.writer.append(batch())
    some.sync()
    waiting = some.partition.writer.append(batch())

    def full(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.parent.name == "0":
            raise OSError(errno.ENOSPC, "No space left on device")

    wait = asyncio.gather(some.partition.wait_committed(waiting.next_offset))
    await asyncio.sleep(0)
    some.disk.fault = full
    assert some.partition.writer.append(batch()).verdict is AppendVerdict.STORAGE_FAILED
    with pytest.raises(PartitionFailed, match="No space left"):
        await wait
    assert "No space left" in str(some.partition.failed)
    with pytest.raises(PartitionFailed):
        await some.partition.wait_committed(waiting.next_offset)
    assert some.partitions[1].writer.append(batch()).verdict is AppendVerdict.APPENDED
    some.sync()
    assert some.partitions[1].high_watermark == 1
    some.kill_and_reopen()
    assert some.partition.failed is None
    assert some.partition.log_end_offset >= first.next_offset


# Holds INV-DK3.
async def test_failed_sync_is_never_repeated_and_acknowledges_nothing() -> None:
    some = fixture(partition_count=2, journal_bytes=0)
    outcome = some.partition.writer.append(batch())
    some.partitions[1].writer.append(batch())
    syncs: list[Path] = []

    def broken(operation: str, path: Path) -> None:
        if operation == "fdatasync" and path.parent.name == "0":
            syncs.append(path)
            raise OSError(errno.EIO, "Input/output error")

    wait = asyncio.gather(some.partition.wait_committed(outcome.next_offset))
    await asyncio.sleep(0)
    some.disk.fault = broken
    some.sync()
    with pytest.raises(PartitionFailed, match="Input/output error"):
        await wait
    some.sync()
    some.table.close()
    assert len(syncs) == 1
    assert some.partition.high_watermark == 0
    assert some.partitions[1].high_watermark == 1


def test_C36_C38_read_committed_stops_at_the_open_transaction_and_names_the_aborted() -> None:
    some = fixture(SMALL_SEGMENTS)
    partition = some.partition
    partition.writer.append(in_transaction(1))
    partition.writer.append(batch(1, size_bytes=3000))
    partition.writer.append(in_transaction(2))
    assert commit(partition, 1, aborted=True) is AppendVerdict.APPENDED
    for _ in range(5):
        partition.writer.append(batch(1, size_bytes=3000))
    some.sync()
    assert partition.sight.last_stable_offset == 2
    assert partition.sight.readable_end(Isolation.READ_COMMITTED) == 2
    assert partition.sight.readable_end(Isolation.READ_UNCOMMITTED) == 9
    commit(partition, 2)
    some.sync()
    assert partition.sight.last_stable_offset == 10
    for _ in range(2):
        slice_ = partition.reader.fetch(0, 100, Isolation.READ_COMMITTED)
        assert [tuple(txn) for txn in slice_.aborted] == [(1, 0, 3)]
        assert partition.reader.fetch(4, 100, Isolation.READ_COMMITTED).aborted == []
        some.close_and_reopen()
        partition = some.partition


# Holds INV-PT1.
def test_T17_mirror_shows_up_to_the_cut_only() -> None:
    primary = fixture()
    primary.partition.writer.append(in_transaction(1))
    primary.partition.writer.append(batch())
    commit(primary.partition, 1)
    primary.partition.writer.append(batch())
    primary.sync()
    mirror = fixture(leads=False)
    assert mirror.partition.writer.append_mirrored(all_bytes(primary.partition)) == 4
    mirror.sync()
    partition = mirror.partition
    assert partition.high_watermark == 4
    assert partition.sight.readable_end(Isolation.READ_UNCOMMITTED) == 0
    partition.show_up_to(2, 2)  # the marker at 2 is copied but lies behind the cut
    assert partition.sight.readable_end(Isolation.READ_UNCOMMITTED) == 2
    assert partition.sight.readable_end(Isolation.READ_COMMITTED) == 0
    assert partition.sight.readable_end(Isolation.DURABLE) == 4
    partition.show_up_to(3, 3)
    assert partition.sight.readable_end(Isolation.READ_COMMITTED) == 3
    partition.show_up_to(1, 1)
    assert partition.sight.readable_end(Isolation.READ_UNCOMMITTED) == 3
    assert all_bytes(partition) == all_bytes(primary.partition)


# Holds INV-MBT1.
def test_mirrored_batches_must_continue_the_log() -> None:
    primary = fixture()
    for _ in range(3):
        primary.partition.writer.append(batch())
    primary.sync()
    data = all_bytes(primary.partition)
    size_bytes = len(data) // 3
    partition = fixture(leads=False).partition
    for wrong in (data[size_bytes:], data[:-1], data[:-1] + b"\1"):
        with pytest.raises(MirrorGap):
            partition.writer.append_mirrored(wrong)
    assert partition.log_end_offset == 0
    assert partition.writer.append_mirrored(data) == 3
    with pytest.raises(MirrorGap):
        partition.writer.append_mirrored(data)


@pytest.mark.parametrize("how", ["become_mirror", "close_and_reopen", "kill_and_reopen"])
def test_INV_E3_a_term_without_records_ends_with_the_leadership(how: str) -> None:
    """An older copy of the primary acts for a moment, under a newer leader epoch, and then follows what its first term
    wrote."""
    primary = fixture()
    primary.partition.writer.append(batch())
    primary.partition.writer.append(batch())
    primary.sync()
    data = all_bytes(primary.partition)
    older = fixture(leads=False)
    older.partition.writer.append_mirrored(data[: len(data) // 2])
    older.sync()
    older.partition.become_leader(LeaderEpoch(LEADER_EPOCH + 1))
    if how == "become_mirror":
        older.partition.become_mirror()
    else:
        older.sync_files()
        getattr(older, how)()
    assert older.partition.writer.append_mirrored(data[len(data) // 2 :]) == 2
    older.sync()
    assert older.partition.log.epochs.entries() == [(LEADER_EPOCH, 0)]
    older.kill_and_reopen()
    assert all_bytes(older.partition) == data


async def test_cut_ends_waits_and_forgets_what_lay_above() -> None:
    some = fixture()
    some.partition.writer.append(batch(2))
    some.partition.writer.append(in_transaction(5, count=2))
    some.sync()
    with pytest.raises(NotABatchBoundary):
        some.partition.truncate_to(3)
    later = asyncio.gather(some.partition.wait_committed(9))
    await asyncio.sleep(0)
    some.partition.truncate_to(2)
    with pytest.raises(NotLeader):
        await later
    assert some.partition.log_end_offset == some.partition.high_watermark == 2
    assert some.partition.state.open_transactions() == []
    again = some.partition.writer.append(in_transaction(5, count=2))
    assert (again.verdict, again.base_offset) == (AppendVerdict.APPENDED, 2)


async def test_KIP107_segments_below_an_ordered_start_go_unless_a_mirror_needs_them() -> None:
    some = fixture(SMALL_SEGMENTS)
    for _ in range(30):
        some.partition.writer.append(batch(1, size_bytes=500))
    some.sync()
    assert await some.partition.retention.delete_records(20) == 20
    assert (some.partition.log_start_offset, some.partition.kept_from) == (20, 0)
    assert some.maintain(lambda _: Hold(3, 3)) == 0
    assert some.partition.reader.read_raw(0, 1), "a mirror that is behind may still copy"
    assert some.maintain(lambda _: None) > 0
    assert 0 < some.partition.kept_from <= 20 == some.partition.log_start_offset
    some.close_and_reopen()
    assert some.partition.log_start_offset == 20
    some.partition.truncate_to(19)
    assert some.partition.log_start_offset == some.partition.kept_from


# Holds INV-LOS2.
@pytest.mark.parametrize("damage", [False, True])
def test_KIP107_a_lost_end_and_a_damaged_start_file_hide_nothing_new(damage: bool) -> None:
    some = fixture(flush_policy=FlushPolicy.OS)
    some.partition.writer.append(batch(5))
    some.partition._start.raise_to(5, 0)
    if damage:
        some.disk.damage(some.folder / "log-start", 20)
    some.disk.power_loss(random.Random(1))
    some.open()
    assert some.partition.log_start_offset == some.partition.log_end_offset * (not damage)
    some.partition.writer.append(batch(1))
    assert some.partition.reader.fetch(
        some.partition.log_end_offset - 1, 100, Isolation.READ_UNCOMMITTED
    ).data


def test_offsets_out_of_range() -> None:
    some = fixture()
    some.partition.writer.append(batch(2))
    some.sync()
    assert some.partition.reader.fetch(2, 100, Isolation.READ_UNCOMMITTED).data == b""
    for offset in (-1, 3):
        with pytest.raises(OffsetOutOfRange):
            some.partition.reader.fetch(offset, 100, Isolation.READ_UNCOMMITTED)


def test_C39_first_batch_is_returned_even_if_it_is_too_large() -> None:
    some = fixture()
    some.partition.writer.append(batch(1, size_bytes=5000))
    some.sync()
    assert len(some.partition.reader.fetch(0, 10, Isolation.READ_UNCOMMITTED).data) > 5000
    slice_ = some.partition.reader.fetch(
        0, 10, Isolation.READ_UNCOMMITTED, first_batch_always=False
    )
    assert (slice_.data, slice_.next_offset) == (b"", 0)


def test_lookup_by_time_finds_the_record() -> None:
    some = fixture(SMALL_SEGMENTS)
    for at_ms in range(1000, 3000, 100):
        some.partition.writer.append(batch(3, size_bytes=200, at_ms=at_ms))
    some.sync()

    def lookup(timestamp_ms: int) -> tuple[int, int, int] | None:
        return asyncio.run(
            some.partition.reader.lookup(Isolation.READ_UNCOMMITTED).first(timestamp_ms)
        )

    assert lookup(0) == (0, 1000, LEADER_EPOCH)
    assert lookup(1501) == (16, 1501, LEADER_EPOCH)
    assert lookup(1503) == (18, 1600, LEADER_EPOCH)
    assert lookup(2903) is None


def test_retention_by_time_and_hold() -> None:
    some = fixture(SMALL_SEGMENTS | {"retention.ms": "5000"})
    for _ in range(30):
        some.partition.writer.append(batch(1, size_bytes=500))
    some.sync()
    assert some.maintain(lambda _: None) == 0
    some.clock.pass_ms(10_000)
    assert some.maintain(lambda _: Hold(0, 0)) == 0
    assert some.maintain(lambda _: Hold(10, 10)) > 0
    assert 0 < some.partition.log_start_offset <= 10
    some.maintain(lambda _: None)
    assert some.partition.log_end_offset == 30
    assert some.partition.log_start_offset < 30


def test_T14_what_an_order_deleted_goes_where_nobody_may_need_it() -> None:
    some = fixture(SMALL_SEGMENTS | {"retention.ms": "-1"})
    for _ in range(30):
        some.partition.writer.append(batch(1, size_bytes=500))
    some.sync()
    raise_start(some.partition, 20)
    assert some.maintain(lambda _: Hold(30, 0)) == 0
    assert some.maintain(lambda _: Hold(0, 30)) == 0
    assert some.maintain(lambda _: Hold(30, 10)) > 0
    assert 0 < some.partition.kept_from <= 10
    assert some.maintain(lambda _: Hold(30, 20)) > 0
    assert 10 < some.partition.kept_from <= 20


def test_C36_retention_keeps_what_is_undecided_though_no_mirror_needs_it() -> None:
    some = fixture(SMALL_SEGMENTS | {"retention.ms": "5000"})
    some.partition.writer.append(in_transaction(1))
    for _ in range(30):
        some.partition.writer.append(batch(1, size_bytes=500))
    some.sync()
    some.clock.pass_ms(10_000)
    assert some.maintain(lambda _: Hold(31, 31)) == 0
    commit(some.partition, 1)
    some.sync()
    assert some.maintain(lambda _: Hold(31, 31)) > 0


def test_T14_a_mirror_deletes_nothing_by_itself() -> None:
    some = fixture(SMALL_SEGMENTS | {"retention.ms": "5000"})
    for _ in range(30):
        some.partition.writer.append(batch(1, size_bytes=500))
    some.sync()
    some.partition.become_mirror()
    some.partition.show_up_to(30, 30)
    some.clock.pass_ms(10_000)
    assert some.maintain(lambda _: None) == 0
    assert some.partition.kept_from == 0


def test_T17_a_mirror_forgets_no_transaction_that_it_has_not_shown() -> None:
    some = fixture()
    some.partition.writer.append(in_transaction(1))
    commit(some.partition, 1)
    some.sync()
    some.partition.become_mirror()
    some.partition.show_up_to(2, 0)  # the whole cut waits for another log
    some.maintain(lambda _: None)
    assert some.partition.state.forgotten_below == 0
    some.partition.show_up_to(2, 2)
    some.maintain(lambda _: None)
    assert some.partition.state.forgotten_below == 2


def test_a_mirror_is_sent_only_what_is_durable() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    durable = all_bytes(some.partition)
    some.partition.writer.append(batch())
    assert some.partition.reader.read_raw(0, 1 << 20, 2) == durable
    assert some.partition.reader.read_raw(0, 1 << 20) == durable
    some.sync()
    assert some.partition.reader.read_raw(0, 1 << 20, 1) == durable


def test_a_stopped_mirror_says_so_whatever_it_is_sent() -> None:
    partition = fixture(leads=False).partition
    partition.stop("for the test")
    for data in (b"", batch(), batch()[:-1]):
        with pytest.raises(PartitionFailed):
            partition.writer.append_mirrored(data)


@pytest.mark.parametrize("offset", [-1, 2])
async def test_KIP107_an_order_to_delete_goes_no_further_than_what_is_durable(offset: int) -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    some.partition.writer.append(batch())
    with pytest.raises(OffsetOutOfRange):
        await some.partition.retention.delete_records(offset)
    assert some.partition.log_start_offset == 0


async def test_T14_a_mirror_takes_no_order_to_delete() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    some.partition.become_mirror()
    with pytest.raises(NotLeader):
        await some.partition.retention.delete_records(1)


def test_KIP_101_end_offset_of_an_epoch() -> None:
    some = fixture()
    partition = some.partition
    partition.writer.append(batch(3))
    partition.become_leader(LeaderEpoch(LEADER_EPOCH + 4))
    partition.writer.append(batch(2))
    assert partition.epoch_end_offset(LEADER_EPOCH) == (LEADER_EPOCH, 3)
    assert partition.epoch_end_offset(LeaderEpoch(LEADER_EPOCH + 2)) == (LEADER_EPOCH, 3)
    assert partition.epoch_end_offset(LeaderEpoch(LEADER_EPOCH + 4)) == (LEADER_EPOCH + 4, 5)
    assert partition.epoch_end_offset(LeaderEpoch(LEADER_EPOCH + 5)) == (-1, -1)


def test_seeded_mirror_starts_empty_at_an_offset() -> None:
    some = fixture(leads=False)
    some.partition.start_at(500)
    assert (some.partition.log_start_offset, some.partition.log_end_offset) == (500, 500)
    some.kill_and_reopen()
    assert (some.partition.log_start_offset, some.partition.log_end_offset) == (500, 500)


# Holds INV-T2.
async def test_deleted_topic_ends_waits_and_may_come_again() -> None:
    some = fixture()
    outcome = some.partition.writer.append(batch())
    wait = asyncio.gather(some.partition.wait_committed(outcome.next_offset + 1))
    await asyncio.sleep(0)
    some.drop_topic(some.topic.topic_id)
    with pytest.raises(PartitionFailed, match="was deleted"):
        await wait
    assert some.table.get("orders", 0) is None
    assert some.table.open_topic(some.topic)[0].log_end_offset == 0


@pytest.mark.parametrize(
    "configs",
    [
        {"message.timestamp.type": "EventTime"},
        {"cleanup.policy": "shrink"},
        {"segment.bytes": "many"},
        {"retention.ms": "-2"},
    ],
)
def test_configs_that_are_not_served_are_refused(configs: dict[str, str]) -> None:
    some = fixture()
    with pytest.raises(UnsupportedConfig):
        some.table.open_topic(Topic(configs=configs, name="other"))


def waiting(some: Fixture, enough_bytes: int) -> tuple[ReadableWait, list[str]]:
    """Return a wait for that many bytes, and what it told."""
    told: list[str] = []
    wait = ReadableWait(enough_bytes, lambda: told.append("enough"))
    wait.look_at(some.partition, 0, Isolation.READ_UNCOMMITTED)
    assert not wait.has_enough
    return wait, told


async def test_INV_PU1_a_wait_ends_when_enough_is_readable_and_tells_it_once() -> None:
    some = fixture()
    _, told = waiting(some, 2 * len(batch()))
    some.partition.writer.append(batch())
    some.sync()
    assert told == []
    for _ in range(2):
        some.partition.writer.append(batch())
        some.sync()
    assert told == ["enough"]


def waits_at(some: Fixture, offset: int, enough_bytes: int) -> list[str]:
    """Begin a wait there; return what it tells."""
    told: list[str] = []
    wait = ReadableWait(enough_bytes, lambda: told.append("enough"))
    wait.look_at(some.partition, offset, Isolation.READ_UNCOMMITTED)
    return told


@pytest.mark.parametrize("offset", [0, 3, 7])
@pytest.mark.parametrize("short_bytes", [0, 1])
def test_INV_PU3_a_wait_ends_with_the_batch_that_makes_it_enough(
    offset: int, short_bytes: int
) -> None:
    """Whatever was counted before it: over several segments, and whether it waits for the last byte of a batch or one more."""
    some = fixture({"segment.bytes": "4096"})
    sizes = [300 + 7 * number for number in range(60)]
    for number in range(10):
        some.partition.writer.append(batch(size_bytes=sizes[number]))
    some.sync()
    lengths = [len(batch(size_bytes=size)) for size in sizes]
    told = waits_at(some, offset, sum(lengths[offset:50]) + short_bytes)
    for number in range(10, 60):
        assert told == []
        some.partition.writer.append(batch(size_bytes=sizes[number]))
        some.sync()
        if number == 49 + short_bytes:
            break
    assert told == ["enough"]


def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what will say from where on segments are walked over."""
    walked: list[int] = []
    walk = Segment.walk

    def noted(
        segment: Segment, position: int, end: int | None = None, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        walked.append(position)
        return walk(segment, position, end, wait=wait)

    monkeypatch.setattr(Segment, "walk", noted)
    return walked


def test_INV_PU3_an_end_that_is_not_the_logs_is_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a mirror's tidemark, or the end of what is stable."""
    some = fixture()
    for _ in range(60):
        some.partition.writer.append(batch())
    some.sync()
    segments = some.partition.log.segments
    walked = walks(monkeypatch)
    for start, end in ((0, 20), (20, 40), (40, 50)):
        for _ in range(50):
            counted_bytes = segments.bytes_between(start, end, 1 << 20)
            assert counted_bytes == (end - start) * len(batch())
    assert len(walked) == 3


def test_INV_PU3_what_was_counted_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    some = fixture()
    for _ in range(60):
        some.partition.writer.append(batch())
    some.sync()
    told = [waits_at(some, offset, 1 << 20) for offset in range(1, 51)]
    walked = walks(monkeypatch)
    for _ in range(20):
        some.partition.writer.append(batch())
        some.sync()
    assert len(walked) <= 2, "once where all of them began to count"
    assert told == [[]] * 50


def test_INV_PU3_a_log_that_was_cut_is_counted_anew() -> None:
    some = fixture()
    for _ in range(8):
        some.partition.writer.append(batch())
    some.sync()
    told = waits_at(some, 1, 9 * len(batch()))
    some.partition.truncate_to(3)
    for _ in range(6):
        some.partition.writer.append(batch())
        some.sync()
    assert told == []  # 8 batches behind the reader
    some.partition.writer.append(batch())
    some.sync()
    assert told == ["enough"]


def test_INV_PU3_a_reader_whose_records_were_deleted_is_told() -> None:
    some = fixture()
    for _ in range(8):
        some.partition.writer.append(batch())
    some.sync()
    told = waits_at(some, 1, 1 << 20)
    raise_start(some.partition, 4)
    some.partition.writer.append(batch())
    some.sync()
    assert told == ["enough"]


async def test_INV_PU1_a_wait_ends_when_the_partition_stops() -> None:
    some = fixture()
    _, told = waiting(some, 1)
    some.partition.log.fail("for the test")
    assert told == ["enough"]


async def test_INV_PU1_a_wait_ends_when_the_role_changes() -> None:
    some = fixture()
    _, told = waiting(some, 1)
    some.partition.become_mirror()
    assert told == ["enough"]


async def test_INV_PU2_a_wait_that_was_ended_leaves_nothing_and_tells_nothing() -> None:
    some = fixture()
    wait, told = waiting(some, 1)
    assert len(some.partition.watchers) == 1
    wait.end()
    some.partition.writer.append(batch())
    some.sync()
    assert (len(some.partition.watchers), told) == (0, [])


def test_T16_what_a_mirror_shows_goes_up_only_but_where_its_log_was_cut() -> None:
    some = fixture(leads=False)
    some.partition.become_mirror()
    sight = some.partition.sight
    assert sight.show_up_to(9, 8)
    assert not sight.show_up_to(4, 4)
    assert (sight.shown_cut_offset, sight.whole_end) == (9, 8)
    for offset, shown in ((10, (9, 8)), (6, (6, 6)), (7, (6, 6))):
        sight.show_no_more_than(offset)
        assert (sight.shown_cut_offset, sight.whole_end) == shown


def test_T26_a_reader_ahead_of_a_mirror_waits_and_is_not_out_of_range() -> None:
    some = fixture(leads=False)
    some.partition.become_mirror()
    found = some.partition.reader.fetch(7, 1000, Isolation.READ_COMMITTED)
    assert (found.data, found.next_offset) == (b"", 7)
    assert some.partition.reader.readable_bytes(7, Isolation.READ_COMMITTED, 1) == 0
    some.partition.become_leader(LEADER_EPOCH)
    with pytest.raises(OffsetOutOfRange):
        some.partition.reader.fetch(7, 1000, Isolation.READ_COMMITTED)


@pytest.mark.parametrize("term", [0, 1])
def test_T26_a_reader_ahead_of_a_log_that_a_takeover_cut_hears_where_the_old_epoch_ended(
    term: int,
) -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    old_epoch, end_offset = some.partition.sight.leader_epoch, some.partition.log_end_offset
    some.partition.become_mirror()
    some.partition.become_leader(leader_epoch(region_epoch(2, 1), term))
    some.partition.writer.append(batch())
    some.sync()
    ahead = some.partition.log_end_offset + 3
    some.partition.readers_ahead = True
    found = some.partition.reader.fetch(ahead, 1000, Isolation.READ_COMMITTED)
    assert (found.data, found.next_offset) == (b"", ahead)
    assert found.diverging == (old_epoch, end_offset)
    assert some.partition.reader.readable_bytes(ahead, Isolation.READ_COMMITTED, 1) == 0
    some.partition.readers_ahead = False
    with pytest.raises(OffsetOutOfRange):
        some.partition.reader.fetch(ahead, 1000, Isolation.READ_COMMITTED)
