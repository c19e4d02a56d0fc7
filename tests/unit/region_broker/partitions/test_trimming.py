"""What goes from a log's start: by order while the log is cut, and by age where records have no time."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from idempotency.identity import LeaderEpoch
from idempotency.record_batch import iter_headers
from region_broker.log.failures import MirrorGap, NotLeader
from region_broker.log.indexes.log_start import read_log_start
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.kernel_batches import stamp
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, batch, fixture

INT32_MAX = (1 << 31) - 1
WEEK_MS = 7 * 24 * 3600 * 1000


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


def of_segments(at_ms: int) -> Fixture:
    some = fixture({"segment.bytes": "4096", "retention.ms": str(WEEK_MS)})
    some.clock.now_ms = 1_700_000_000_000
    for _ in range(30):
        some.partition.writer.append(batch(size_bytes=300, at_ms=at_ms))
    some.sync()
    return some


def test_records_without_a_time_are_kept_as_long_as_others() -> None:
    """Kafka counts from the file's last change then (LogSegment.largestTimestamp)."""
    some = of_segments(-1)
    some.clock.pass_ms(WEEK_MS - 1)
    assert some.table.maintain(lambda _: None) == 0
    some.clock.pass_ms(2)
    assert some.table.maintain(lambda _: None) > 0


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
