"""One partition beside a model of it: the list of batches as they were handed in.

What must hold, whatever the disk does (INV-PL3, INV-R1 to R5, C9): what was acknowledged is there, what was not is
there or not, nothing else is, in that order, and the state is the replay of it.

An operation that fails leaves the partition stopped; what it wrote may be found after the restart. Not here: which
operations come when (`tests.property`).
"""

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from idempotency.decision import DecisionId
from idempotency.partition_state import PartitionState
from idempotency.record_batch import (
    BatchHeader,
    ControlType,
    MarkerFacts,
    build_marker,
    read_header,
)
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import CorruptRange, PartitionFailed
from region_broker.log.journal.blocks import ALIGN_BYTES
from region_broker.log.segment import LOG_SUFFIX
from region_broker.partitions.admission import AppendOutcome, AppendVerdict
from region_broker.partitions.parts.sight import Isolation
from region_broker.wire.batches import Origin
from tests.kernel_batches import stamp
from tests.log_world import (
    LEADER_EPOCH,
    World,
    all_bytes,
    append_marker,
    at_once,
    batch,
    run_now,
    world,
)
from tests.simulation.disk import Crashed

SIDE_SUFFIXES = (".index", ".txnindex", ".snapshot", ".bookmark", "leader-epochs")


@dataclass(frozen=True)
class Written:
    """One batch as it stands in the log, if it stands there."""

    header: BatchHeader
    marker: MarkerFacts | None
    data: bytes


class LogModel:
    """One partition with segments of 4 KiB, and what it should hold."""

    def __init__(self, *, retention: bool = False) -> None:
        """Start on an empty disk; `retention` keeps 6000 bytes."""
        configs = {"segment.bytes": "4096"}
        if retention:
            configs["retention.bytes"] = "6000"
        self.retention = retention
        self.world: World = world(configs, journal_bytes=8 * ALIGN_BYTES)
        self.written: list[Written] = []
        self.acknowledged = 0
        self.sequences: dict[int, int] = {}
        self.decisions = 0
        self.damaged_a_bookmark = False

    # -- operations ------------------------------------------------------------------------------

    def append_plain(self, count: int, size_bytes: int) -> None:
        data = batch(count, size_bytes=size_bytes)
        self._note(data)
        self._took(self.world.partition.writer.append(data))

    def append_in_transaction(self, producer: int, count: int, size_bytes: int) -> None:
        before = self.world.partition.log_end_offset
        sequence = self.sequences.get(producer, 0)
        origin = Origin(producer, 0, sequence, transactional=True)
        data = batch(count, size_bytes=size_bytes, origin=origin)
        self._note(data)
        self.sequences[producer] = sequence + count
        if not self._took(self.world.partition.writer.append(data)):
            return
        again = self.world.partition.writer.append(data)
        assert (again.verdict, again.base_offset) == (AppendVerdict.DUPLICATE, before)
        assert again.next_offset == before + count

    def end_transaction(self, producer: int, *, commit: bool) -> None:
        self.decisions += 1
        marker = MarkerFacts(
            producer_id=producer,
            producer_epoch=0,
            control_type=ControlType.COMMIT if commit else ControlType.ABORT,
            coordinator_epoch=1,
            decision=DecisionId(0, 1, self.decisions, self.decisions // 4),
            timestamp_ms=1_000_000,
        )
        self._note(build_marker(marker), marker)
        self._took(
            append_marker(
                self.world.partition,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                control_type=marker.control_type,
                coordinator_epoch=marker.coordinator_epoch,
                decision=marker.decision,
                timestamp_ms=marker.timestamp_ms,
            )
        )

    def _note(self, data: bytes, marker: MarkerFacts | None = None) -> None:
        """Put down what is about to be written, before it may go wrong half-way."""
        stamped = bytearray(data)
        base_offset = self.world.partition.log_end_offset
        stamp(stamped, 0, base_offset=base_offset, leader_epoch=LEADER_EPOCH)
        self.written.append(Written(read_header(stamped), marker, bytes(stamped)))

    def _took(self, outcome: AppendOutcome) -> bool:
        if outcome.verdict is AppendVerdict.STORAGE_FAILED:
            assert self.world.partition.failed is not None
            return False
        assert outcome.verdict is AppendVerdict.APPENDED, outcome
        assert outcome.base_offset == self.written[-1].header.base_offset
        return True

    def sync(self) -> None:
        self.world.sync()
        partition = self.world.partition
        assert partition.failed is not None or (
            partition.high_watermark == partition.log_end_offset
        )
        self.acknowledged = max(self.acknowledged, partition.high_watermark)

    def catch_up(self) -> None:
        """What a full half of the journal asks for, here at any time."""
        self.world.catch_up()

    def sync_files(self) -> None:
        """Sync the log's own files."""
        try:
            self.world.sync_files()
        except PartitionFailed:
            return
        self.acknowledged = self.world.partition.high_watermark

    def bookmark(self, between: Callable[[], None]) -> None:
        """Put a bookmark at the log's end; `between` is done while its thread has not begun yet."""
        log = self.world.partition.log
        job = log.durability.begin_bookmark()
        if job is None:
            return
        between()
        log.durability.finish_bookmark(job, job.run())

    def damage_bookmark(self, rng: random.Random) -> None:
        """Flip a bit of a bookmark, for good: it is only a shortcut."""
        disk, folder = self.world.disk, self.world.folder
        for name in disk.list_dir(folder):
            if name.endswith(".bookmark"):
                self.damaged_a_bookmark = True
                disk.damage(folder / name, rng.randrange(disk.file_size(folder / name)))

    def cut(self, choice: float) -> None:
        partition = self.world.partition
        ends = [item.header.next_offset for item in self.written] or [0]
        offset = max(ends[int(choice * (len(ends) - 1))], partition.log_start_offset)
        self.acknowledged = min(self.acknowledged, offset)
        try:
            partition.truncate_to(offset)
        except PartitionFailed:
            return
        assert partition.log_end_offset == offset
        assert partition.high_watermark == offset
        self.forget_above(offset)
        self.acknowledged = offset

    def drop_and_make_again(self) -> None:
        """Drop the topic, and make it again under its id: from then on nothing of the old log is there."""
        world = self.world
        self.acknowledged = 0
        # A start has ended before anybody drops a topic: only a start misses what the manifest names (INV-T7).
        fault, world.disk.fault = world.disk.fault, None
        world.table.finish_drops()
        world.disk.fault = fault
        world.table.drop_topic(world.topic.topic_id)
        world.partitions = world.table.open_topic(world.topic)
        if (
            world.partition.failed is None
        ):  # else a disk that fails may have left the old one in its way
            self.forget_above(0)
            world.partition.become_leader(LEADER_EPOCH)

    def read_with_little_memory(self, rng: random.Random) -> None:
        """Read all without waiting while memory forgets: it ends, and what is read is right (INV-CO1, INV-CO2)."""
        disk, partition = self.world.disk, self.world.partition
        cold_reads = ColdReads(disk, at_once)
        disk.forget_by_chance(rng, rng.choice([0.1, 0.5, 1.0]))
        expected = {item.header.base_offset: item for item in self.written}
        offset = partition.log_start_offset
        try:
            while offset < partition.sight.last_stable_offset:
                found = run_now(
                    cold_reads.read(
                        partial(partition.reader.fetch, offset, 1, Isolation.READ_COMMITTED)
                    )
                )
                item = expected[offset]
                assert (found.data, found.next_offset) == (item.data, item.header.next_offset)
                offset = found.next_offset
        except PartitionFailed:
            assert partition.failed is not None
        finally:
            disk.cold = None

    def retain(self) -> None:
        self.world.table.maintain(lambda _: None)

    # -- the ends of a life ----------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process, start it again: what it wrote is in the page cache."""
        failed = self.world.partition.failed is not None
        self.world.kill_and_reopen()
        self.after_crash(keeps_all=not failed)

    def stop_cleanly(self) -> None:
        self.world.close_and_reopen()
        # A log that nothing came to since its last close keeps the bookmark of then, which may be damaged since.
        assert self.world.partition.log.recovered_clean or self.damaged_a_bookmark
        self.damaged_a_bookmark = False
        self.after_crash(keeps_all=True)

    def lose_power(self, rng: random.Random, *, operations: int | None = None) -> None:
        """Lose the power, and once more `operations` disk operations into the recovery."""
        self.world.disk.power_loss(rng)
        if operations is not None:
            self.world.disk.crash_after(operations)
        try:
            self.world.open()
        except Crashed:
            self.world.disk.power_loss(rng)
            self.world.open()
        self.world.disk.crash_at = None
        self.after_crash(keeps_all=False)

    def lose_side_files(self, rng: random.Random, *, clean: bool) -> None:
        """Damage or remove anything that is a function of the log."""
        if clean:
            self.world.table.close()
        disk, folder = self.world.disk, self.world.folder
        for name in disk.list_dir(folder):
            if name.endswith(SIDE_SUFFIXES) and rng.random() < 0.5:
                if rng.random() < 0.5:
                    disk.remove(folder / name)
                else:
                    size_bytes = disk.file_size(folder / name)
                    disk.damage(folder / name, rng.randrange(size_bytes))
        self.world.kill_and_reopen()
        self.after_crash(keeps_all=True)

    def open_while_the_disk_fails(self, rng: random.Random) -> None:
        """Start on a disk that gives errors, then on the same disk mended."""
        keeps_all = self.world.partition.failed is None
        self.world.disk.process_killed()
        self.world.disk.fail_by_chance(rng, 0.2)
        with suppress(OSError):  # of the node's own files: the process ends, and is started again
            self.world.open()
        self.world.kill_and_reopen()
        self.after_crash(keeps_all=keeps_all)

    def flip_a_bit(self, rng: random.Random) -> None:
        """Damage one byte of a segment: nothing wrong is given out, nor silently repaired; then mend it."""
        disk, folder = self.world.disk, self.world.folder
        names = [name for name in disk.list_dir(folder) if name.endswith(LOG_SUFFIX)]
        name = rng.choice(names)
        size_bytes = disk.file_size(folder / name)
        if size_bytes == 0:
            return
        position = rng.randrange(size_bytes)
        disk.damage(folder / name, position)
        self.check_reads_are_right_or_refused()
        disk.damage(folder / name, position)

    def after_crash(self, *, keeps_all: bool) -> None:
        partition = self.world.partition
        assert partition.failed is None, partition.failed
        end = partition.log_end_offset
        assert end >= self.acknowledged
        assert end == partition.high_watermark
        written_end = self.written[-1].header.next_offset if self.written else 0
        assert end <= written_end
        if keeps_all:
            assert end == written_end
        self.forget_above(end)
        self.acknowledged = end

    def forget_above(self, end: int) -> None:
        self.written = [item for item in self.written if item.header.next_offset <= end]
        self.sequences = {}
        for item in self.written:
            if item.header.producer_id >= 0 and not item.header.is_control:
                self.sequences[item.header.producer_id] = item.header.last_sequence + 1

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        """Hold the running partition against the model."""
        self.check_bytes()
        self.check_state()
        self.check_a_reader_gets_through()
        self.check_files()

    def check_reads_are_right_or_refused(self) -> None:
        partition = self.world.partition
        expected = {item.header.base_offset: item for item in self.written}
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            item = expected[offset]
            try:
                found = partition.reader.fetch(offset, 1, Isolation.READ_UNCOMMITTED)
            except CorruptRange:
                offset = item.header.next_offset
                continue
            assert (found.data, found.next_offset) == (item.data, item.header.next_offset)
            offset = found.next_offset

    def check_bytes(self) -> None:
        partition = self.world.partition
        start = partition.log_start_offset
        kept = [item for item in self.written if item.header.base_offset >= start]
        assert partition.log_end_offset == (kept[-1].header.next_offset if kept else start)
        durable = [i.data for i in kept if i.header.next_offset <= partition.high_watermark]
        assert all_bytes(partition) == b"".join(durable)
        for item in kept:
            for offset in (item.header.base_offset, item.header.last_offset):
                found = partition.log.segments.read(offset, 1, partition.log_end_offset)
                assert found is not None
                assert found[:2] == (item.data, item.header.next_offset)
        epochs = {item.header.leader_epoch for item in kept}
        assert epochs <= set(dict(partition.log.epochs.entries()))

    def check_state(self) -> None:
        partition = self.world.partition
        replayed = PartitionState()
        for item in self.written:
            replayed.apply(item.header, item.marker)
        end, start = partition.log_end_offset, partition.log_start_offset
        bound, live = partition.high_watermark, partition.state
        if live.forgotten_below <= bound:
            assert live.last_stable_offset(bound) == replayed.last_stable_offset(bound)
        for at in {start, (start + end) // 2, end}:
            for stop in {at + 1, end}:
                live_aborted = set(partition.log.aborted_in(at, stop, bound))
                assert live_aborted >= set(replayed.aborted_in(at, stop, bound))
        assert _comparable(live, end) == _comparable(replayed, end)

    def check_a_reader_gets_through(self) -> None:
        partition = self.world.partition
        offset = partition.log_start_offset
        while True:
            found = partition.reader.fetch(offset, 1, Isolation.READ_COMMITTED)
            if not found.data:
                break
            assert found.next_offset > offset
            offset = found.next_offset
        assert offset == partition.sight.last_stable_offset

    def check_files(self) -> None:
        names = self.world.disk.list_dir(self.world.folder)
        bases = [int(name[:20]) for name in names if name.endswith(LOG_SUFFIX)]
        assert min(bases) == self.world.partition.log_start_offset
        for name in names:
            if name.endswith((".index", ".txnindex", ".bookmark")):
                assert int(name[:20]) in bases


def _comparable(state: PartitionState, end: int) -> bytes:
    """Return a state's snapshot without what only says how much was forgotten."""
    copy = PartitionState.decode(state.encode())
    copy.forget_completed_below(end)
    copy.forget_aborted_below(end)
    return copy.encode()


DISK_ERRORS = (errno.EIO, errno.ENOSPC)
