"""Recovery checkpoints of open segments: what a start reads with one, when it is not believed, and which log gets one
when."""

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.partition_state import PartitionState
from idempotency.pieces import drained
from idempotency.record_batch import iter_headers
from region_broker.log import recovery_checkpoints, replay
from region_broker.log.failures import CorruptRange
from region_broker.log.file_names import file_name
from region_broker.log.indexes.producer_snapshots import snapshot_offsets
from region_broker.log.indexes.recovery_checkpoint import PROOF_BYTES_MAX
from region_broker.log.journal.blocks import ALIGN_BYTES
from region_broker.log.parts.durability import BATCH_COST_BYTES
from region_broker.log.recovery_checkpoints import (
    LOG_UNREAD_BYTES_MIN,
    UNREAD_BYTES_MAX,
    RecoveryCheckpoints,
)
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import Fixture, all_bytes, batch, fixture, with_markers
from tests.simulation.disk import Crashed


def fill(some: Fixture, batch_count: int, *, size_bytes: int = 300, producer_id: int = 7) -> None:
    """Append batches of one idempotent producer."""
    log = some.partition
    for _ in range(batch_count):
        known = log.state.producer(ProducerId(producer_id))
        sequence = 0 if known is None else known.last_sequence + 1
        outcome = log.writer.append(
            batch(
                size_bytes=size_bytes,
                origin=Origin(ProducerId(producer_id), ProducerEpoch(0), SequenceNumber(sequence)),
            )
        )
        assert outcome.base_offset >= 0, outcome


def put(some: Fixture, between: Callable[[], None] = lambda: None) -> None:
    """Put a recovery checkpoint at the end of partition 0; `between` is done while its thread has not begun."""
    job = drained(some.partition.log.durability.begin_recovery_checkpoint())
    assert job is not None
    between()
    some.partition.log.durability.finish_recovery_checkpoint(job, job.run())


def recovery_checkpoint_of(some: Fixture, base: int = 0) -> Path:
    return some.folder / file_name(base, ".bookmark")


def expect_replayed(some: Fixture, before: bytes) -> None:
    """The log holds `before`, and its state is the replay of it."""
    assert some.partition.failed is None, some.partition.failed
    assert all_bytes(some.partition) == before
    state = PartitionState()
    for header, marker in with_markers(before):
        state.apply(header, marker)
    assert some.partition.state.encode() == state.encode()


def test_a_start_after_a_kill_reads_only_what_lies_behind_the_recovery_checkpoint() -> None:
    some = fixture(journal_bytes=0)
    fill(some, 200)
    some.sync()
    put(some)
    fill(some, 5)
    some.sync()
    before = all_bytes(some.partition)
    some.disk.process_killed()
    some.disk.bytes_read = 0
    some.open()
    assert len(before) > 70_000
    # The journal's two halves, what lies behind the recovery checkpoint, and it again to be written again (INV-R4).
    assert some.disk.bytes_read < PROOF_BYTES_MAX + 3 * ALIGN_BYTES + 2 * 5 * 400
    expect_replayed(some, before)


def test_the_newest_recovery_checkpoint_is_the_one_that_a_start_finds() -> None:
    some = fixture()
    for _ in range(2):
        fill(some, 20)
        some.sync()
        put(some)
    before = all_bytes(some.partition)
    some.kill_and_reopen()
    expect_replayed(some, before)
    assert some.partition.log.durability.unread_bytes == 0


def test_what_was_only_in_the_journal_is_below_the_recovery_checkpoint_too() -> None:
    some = fixture()
    fill(some, 20)
    some.sync()
    put(some)
    assert some.partition.high_watermark == 20
    before = all_bytes(some.partition)
    some.disk.power_loss(random.Random(3))
    some.open()
    expect_replayed(some, before)


# Holds INV-BKM1.
def test_a_recovery_checkpoint_makes_durable_what_it_speaks_of() -> None:
    some = fixture()
    fill(some, 20)
    put(some)
    assert some.partition.high_watermark == 20
    some.disk.power_loss(random.Random(3))
    some.open()
    assert some.partition.log_end_offset == 20


def test_a_wrong_byte_below_the_recovery_checkpoint_stops_no_start_and_is_never_given_out() -> None:
    some = fixture()
    fill(some, 100)
    put(some)
    fill(some, 3)
    some.sync_files()
    good = all_bytes(some.partition)
    some.disk.damage(some.folder / file_name(0, ".log"), 1000)
    some.kill_and_reopen()
    assert some.partition.failed is None
    assert some.partition.log_end_offset == 103
    seen = b""
    offset = 0
    while offset < 103:
        try:
            found = some.partition.reader.fetch(offset, 1, Isolation.READ_UNCOMMITTED)
        except CorruptRange:
            assert offset == 2
            offset += 1
            continue
        seen += found.data
        offset = found.next_offset
    assert len(seen) == len(good) - len(good) // 103
    assert good.endswith(seen[-len(seen) + 2 * (len(good) // 103) :])


@pytest.mark.parametrize("at", range(0, 400, 13))
def test_a_flipped_bit_in_a_recovery_checkpoint_only_costs_time(at: int) -> None:
    some = fixture()
    fill(some, 40)
    put(some)
    fill(some, 2)
    some.sync_files()
    before = all_bytes(some.partition)
    path = recovery_checkpoint_of(some)
    some.disk.damage(path, at % some.disk.file_size(path))
    some.kill_and_reopen()
    expect_replayed(some, before)
    assert not some.disk.exists(path)


# Holds INV-BKM2.
@pytest.mark.parametrize("offset", [5, 20, 22])
def test_no_recovery_checkpoint_survives_a_cut(offset: int) -> None:
    some = fixture()
    fill(some, 20)
    put(some)
    fill(some, 5)
    some.partition.truncate_to(offset)
    assert not some.disk.exists(recovery_checkpoint_of(some))


# Holds INV-BKM2.
def test_a_recovery_checkpoint_from_before_a_cut_is_not_believed() -> None:
    some = fixture()
    fill(some, 20)
    put(some)
    stale = bytes(some.disk.content(recovery_checkpoint_of(some)))
    some.partition.truncate_to(5)
    some.disk.write_file_atomic(recovery_checkpoint_of(some), stale)
    some.kill_and_reopen()  # it speaks of more than is durable
    assert not some.disk.exists(recovery_checkpoint_of(some))
    fill(some, 30, producer_id=8)
    some.sync_files()
    before = all_bytes(some.partition)
    some.disk.write_file_atomic(recovery_checkpoint_of(some), stale)
    some.kill_and_reopen()  # the bytes in front of it are others
    expect_replayed(some, before)


def test_a_recovery_checkpoint_that_was_begun_before_a_cut_is_not_put() -> None:
    some = fixture()
    fill(some, 20)
    some.sync()
    put(some, lambda: some.partition.truncate_to(5))
    assert [name for name in some.disk.list_dir(some.folder) if ".bookmark" in name] == []
    fill(some, 30, producer_id=8)
    some.sync_files()
    before = all_bytes(some.partition)
    some.kill_and_reopen()
    expect_replayed(some, before)


def test_a_recovery_checkpoint_that_was_begun_before_a_seal_is_not_put() -> None:
    some = fixture({"segment.bytes": "4096"})
    fill(some, 8)
    some.sync()

    def roll() -> None:
        fill(some, 10)
        some.sync()

    put(some, roll)
    assert some.partition.log.sealed_paths() != []
    assert [name for name in some.disk.list_dir(some.folder) if ".bookmark" in name] == []


@pytest.mark.parametrize("what", ["cut", "seal"])
def test_a_recovery_checkpoint_that_is_overtaken_while_it_is_written_is_not_put(what: str) -> None:
    some = fixture({"segment.bytes": "4096"})
    fill(some, 8)
    some.sync()

    overtaken: list[str] = []

    def overtake(operation: str, path: Path) -> None:
        if operation != "pwrite" or ".bookmark" not in path.name:
            return
        some.disk.fault = None
        overtaken.append(what)
        if what == "cut":
            some.partition.truncate_to(5)
        else:
            fill(some, 10)
            some.sync()

    some.disk.fault = overtake
    put(some)
    assert overtaken == [what]
    assert [name for name in some.disk.list_dir(some.folder) if ".bookmark" in name] == []


def test_a_sealed_segment_keeps_no_recovery_checkpoint() -> None:
    some = fixture({"segment.bytes": "4096"})
    fill(some, 8)
    put(some)
    assert some.disk.exists(recovery_checkpoint_of(some))
    fill(some, 10)
    some.sync()
    assert not some.disk.exists(recovery_checkpoint_of(some))


# Holds INV-BKD2.
def test_a_recovery_checkpoint_that_cannot_be_written_stops_nothing() -> None:
    some = fixture()
    fill(some, 20)
    some.sync()

    def full(operation: str, path: Path) -> None:
        if operation == "pwrite" and ".bookmark" in path.name:
            raise OSError(errno.ENOSPC, "full")

    some.disk.fault = full
    put(some)
    some.disk.fault = None
    assert some.partition.failed is None
    assert not some.disk.exists(recovery_checkpoint_of(some))
    fill(some, 5)
    some.sync()
    assert some.partition.high_watermark == 25


def test_a_log_whose_sync_fails_for_its_recovery_checkpoint_stops() -> None:
    some = fixture()
    fill(some, 20)

    def broken(operation: str, path: Path) -> None:
        if operation == "fdatasync" and path.suffix == ".log":
            raise OSError(errno.EIO, "broken")

    some.disk.fault = broken
    put(some)
    assert some.partition.failed is not None
    assert some.partition.high_watermark == 0
    assert not some.disk.exists(recovery_checkpoint_of(some))


def test_power_lost_at_every_step_of_putting_a_recovery_checkpoint_loses_nothing() -> None:
    for at in range(1, 60):
        some = fixture()
        fill(some, 20)
        some.sync()
        put(some)
        fill(some, 10)
        some.sync()
        before = all_bytes(some.partition)
        some.disk.crash_after(at)
        try:
            put(some)
        except Crashed:
            some.disk.power_loss(random.Random(at))
            some.open()
            expect_replayed(some, before)
        else:
            assert at > 5
            return
    pytest.fail("a recovery checkpoint takes less than 60 operations")


def test_batches_larger_than_the_window_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SCAN_WINDOW_BYTES", 1000)
    some = fixture(journal_bytes=0)
    for size_bytes in (10, 2000, 10, 900, 939, 940, 941, 3000):
        fill(some, 1, size_bytes=size_bytes)
    some.sync()
    before = all_bytes(some.partition)
    some.kill_and_reopen()
    expect_replayed(some, before)


def test_INV_BKD1_a_recovery_checkpoint_that_found_no_room_does_not_count() -> None:
    some = fixture()
    fill(some, 20)
    some.sync()
    before = some.partition.log.durability.unread_bytes

    def full(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.name.endswith(".bookmark.tmp"):
            raise OSError(errno.ENOSPC, "full")

    some.disk.fault = full
    put(some)
    assert some.partition.failed is None
    assert some.partition.log.durability.unread_bytes == before
    some.disk.fault = None
    put(some)
    assert some.partition.log.durability.unread_bytes == 0


def test_recovery_checkpoints_go_where_most_is_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery_checkpoints, "UNREAD_BYTES_MAX", 64 * (BATCH_COST_BYTES + 400))
    monkeypatch.setattr(recovery_checkpoints, "LOG_UNREAD_BYTES_MIN", 10 * BATCH_COST_BYTES)
    some = fixture(partition_count=3)
    due = some.table.recovery_checkpoints
    for number, count in enumerate((60, 100, 3)):
        for _ in range(count):
            some.partitions[number].writer.append(batch(size_bytes=300))
    some.sync()
    assert due.due() == [some.partitions[1].log.durability]
    job = drained(some.partitions[1].log.durability.begin_recovery_checkpoint())
    assert job is not None
    some.partitions[1].log.durability.finish_recovery_checkpoint(job, job.run())
    assert some.partitions[1].log.durability.unread_bytes == 0
    assert due.due() == []
    some.kill_and_reopen()  # a start knows what is unread, as what was appended before it
    for _ in range(40):
        some.partitions[0].writer.append(batch(size_bytes=300))
    some.sync()
    assert some.table.recovery_checkpoints.due() == [some.partitions[0].log.durability]


class OfMuchState:
    """A log whose recovery checkpoint is large, as many producers write to it."""

    unread_bytes = UNREAD_BYTES_MAX + 1

    def begin_recovery_checkpoint(self) -> Any:
        """Return one at once."""
        yield from ()
        return SimpleNamespace(size_bytes=UNREAD_BYTES_MAX // 8, run=lambda: None)

    def finish_recovery_checkpoint(self, *_: object) -> None:
        """Nothing is left to read."""
        self.unread_bytes = 0


async def test_INV_BKD1_recovery_checkpoints_are_a_sixteenth_of_what_is_appended_at_most() -> None:
    log: Any = OfMuchState()

    async def at_once(run: Callable[[], Any]) -> Any:
        return run()

    running = RecoveryCheckpoints(at_once)
    running.note_grown(log, 1)
    assert running.due() == [log]
    await running.put(log)
    for unread_bytes in (2 * UNREAD_BYTES_MAX - 1, 2 * UNREAD_BYTES_MAX):
        log.unread_bytes = unread_bytes
        running.note_grown(log, 1)
        assert (running.due() == [log]) is (unread_bytes == 2 * UNREAD_BYTES_MAX)


def test_INV_BKD4_what_was_read_once_goes_by_what_is_appended_since() -> None:
    log: Any = OfMuchState()
    running = RecoveryCheckpoints()
    log.unread_bytes = LOG_UNREAD_BYTES_MIN
    running.note_read(log)
    assert running.due() == [log]
    running.note_grown(log, 1)
    assert running.due() == []


def test_INV_BKD1_a_little_of_many_logs_is_worth_no_recovery_checkpoint() -> None:
    running = RecoveryCheckpoints()
    for _ in range(2 * UNREAD_BYTES_MAX // LOG_UNREAD_BYTES_MIN):
        log: Any = OfMuchState()
        log.unread_bytes = LOG_UNREAD_BYTES_MIN - 1
        running.note_grown(log, log.unread_bytes)
    assert running.due() == []


def test_INV_BKD3_a_batch_counts_for_what_it_costs_to_replay() -> None:
    some = fixture(partition_count=2)
    for _ in range(40):
        some.partitions[0].writer.append(batch(size_bytes=10))
    some.partitions[1].writer.append(batch(size_bytes=40 * 60))
    some.sync()
    many, large = (some.partitions[number].log.durability.unread_bytes for number in (0, 1))
    assert many > 40 * BATCH_COST_BYTES
    assert large < 5_000


def snapshots_of(some: Fixture) -> list[int]:
    return snapshot_offsets(some.disk.list_dir(some.folder))


def counted_replay(some: Fixture, cut_at: int) -> int:
    """Cut the log, and return how many batches were applied anew."""
    count = 0
    apply = PartitionState.apply

    def counting(state: PartitionState, *facts: Any) -> Any:
        nonlocal count
        count += 1
        return apply(state, *facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionState, "apply", counting)
        some.partition.truncate_to(cut_at)
    return count


@pytest.mark.parametrize(("cut_at", "replayed"), [(115, 15), (100, 0), (99, 19), (15, 15)])
def test_INV_BKD3_a_cut_replays_what_came_since_the_snapshot_before_it(
    cut_at: int, replayed: int
) -> None:
    some = fixture()
    for _ in range(6):  # of which the first two snapshots go again: at 20 and 40
        fill(some, 20)
        some.sync()
        put(some)
    assert snapshots_of(some) == [120, 100, 80, 60]
    before = all_bytes(some.partition)
    assert counted_replay(some, cut_at) == replayed
    kept = b"".join(before[at : at + header.size_bytes] for at, header in iter_headers(before)
                    if header.base_offset < cut_at)  # fmt: skip
    expect_replayed(some, kept)
    assert all(offset <= cut_at for offset in snapshots_of(some)), "INV-NP3"


def test_INV_BKD3_snapshots_of_the_open_segment_outlive_a_clean_stop_and_not_its_seal() -> None:
    some = fixture({"segment.bytes": "16384"})
    for _ in range(2):
        fill(some, 8)
        some.sync()
        put(some)
    fill(some, 5)
    some.close_and_reopen()
    assert snapshots_of(some) == [16, 8]
    assert counted_replay(some, 18) == 2
    for _ in range(40):
        fill(some, 1)
    some.sync()
    _, sealed = some.partition.log.segments.bases
    assert snapshots_of(some) == [sealed]
    for _ in range(60):
        fill(some, 1)
    some.sync()
    bases = some.partition.log.segments.bases
    assert len(bases) > 2
    assert snapshots_of(some) == bases[:0:-1], "that of each seal stays"


def put_what_is_due(some: Fixture) -> list[object]:
    """Put the recovery checkpoints that are due at this node, and return the logs that got one."""
    due = some.table.recovery_checkpoints.due()
    for log in due:
        job = drained(log.begin_recovery_checkpoint())
        assert job is not None
        log.finish_recovery_checkpoint(job, job.run())
    return list(due)


def test_INV_BKD4_what_a_cut_had_to_read_the_next_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_checkpoints, "LOG_UNREAD_BYTES_MIN", 20 * BATCH_COST_BYTES)
    some = fixture()
    fill(some, 100)
    some.sync()
    assert put_what_is_due(some) == []
    assert counted_replay(some, 90) == 90
    assert put_what_is_due(some) == [some.partition.log.durability]
    assert put_what_is_due(some) == []
    fill(some, 10)
    some.sync()
    assert counted_replay(some, 95) == 5
    assert put_what_is_due(some) == [some.partition.log.durability], "its recovery checkpoint went"


def test_INV_BKD4_what_a_start_had_to_read_the_next_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_checkpoints, "LOG_UNREAD_BYTES_MIN", 20 * BATCH_COST_BYTES)
    some = fixture()
    fill(some, 100)
    some.sync_files()
    some.kill_and_reopen()
    assert put_what_is_due(some) == [some.partition.log.durability]
    before = all_bytes(some.partition)
    some.kill_and_reopen()
    expect_replayed(some, before)
    assert put_what_is_due(some) == []
    fill(some, 5)  # little is worth no recovery checkpoint
    some.sync_files()
    some.kill_and_reopen()
    assert put_what_is_due(some) == []


async def test_INV_BKD4_a_log_that_was_read_wakes_the_node_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_checkpoints, "LOG_UNREAD_BYTES_MIN", 20 * BATCH_COST_BYTES)
    some = fixture()
    fill(some, 100)
    some.sync()
    put_at: list[int] = []
    running = RecoveryCheckpoints()
    monkeypatch.setattr(some.partition.log.listener, "on_read", running.note_read)
    some.partition.truncate_to(90)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(running.run())
        for _ in range(1000):
            put_at = snapshots_of(some)
            if some.partition.log.durability.unread_bytes == 0:
                break
            await asyncio.sleep(0.001)
        task.cancel()
    assert put_at == [90]


def test_INV_NP3_a_snapshot_that_was_begun_before_a_cut_is_not_put() -> None:
    some = fixture()
    fill(some, 20)
    some.sync()
    put(some, between=lambda: some.partition.truncate_to(10))
    assert snapshots_of(some) == []
    assert not [name for name in some.disk.list_dir(some.folder) if name.endswith(".tmp")]


async def test_a_node_puts_recovery_checkpoints_as_its_logs_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_checkpoints, "STEP_BYTES", 20_000)
    monkeypatch.setattr(recovery_checkpoints, "UNREAD_BYTES_MAX", 10_000)
    monkeypatch.setattr(recovery_checkpoints, "LOG_UNREAD_BYTES_MIN", 1_000)
    monkeypatch.setattr(recovery_checkpoints, "WORTH", 1)
    some = fixture()
    running = RecoveryCheckpoints()
    some.partition.log.listener.on_grown = running.note_grown
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(running.run())
        for _ in range(3):
            fill(some, 80)
            await some.group_commit.sync_group()
            for _ in range(1000):
                if some.partition.log.durability.unread_bytes == 0:
                    break
                await asyncio.sleep(0.001)
            assert some.partition.log.durability.unread_bytes == 0
        task.cancel()
    assert some.disk.exists(recovery_checkpoint_of(some))
