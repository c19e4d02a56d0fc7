"""The log against a model: whatever happens, what was acknowledged is there and nothing but what was written.

The model is the list of batches as written. Expected state is the replay of that list (INV-PL3, C9).
"""

import random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from idempotency.decision import DecisionId
from idempotency.partition_state import PartitionState
from idempotency.record_batch import BatchHeader, ControlType, MarkerFacts
from region_broker.log.segment import LOG_SUFFIX
from region_broker.replication.admission import AppendVerdict
from region_broker.replication.partition import Isolation
from region_broker.wire.batches import Origin
from tests.log_world import all_bytes, batch, with_markers, world
from tests.simulation.disk import Crashed

SIDE_SUFFIXES = (".index", ".txnindex", ".snapshot", "leader-epochs")
PRODUCERS = st.integers(1, 3)


class LogMachine(RuleBasedStateMachine):
    """One partition with segments of 4 KiB."""

    @initialize(retention=st.booleans())
    def start(self, retention: bool) -> None:
        configs = {"segment.bytes": "4096"}
        if retention:
            configs["retention.bytes"] = "6000"
        self.retention = retention
        self.world = world(configs)
        self.written: list[tuple[BatchHeader, MarkerFacts | None, bytes]] = []
        self.acknowledged = 0
        self.sequences: dict[int, int] = {}
        self.decisions = 0

    def _take(self, data: bytes, before: int) -> None:
        partition = self.world.partition
        assert partition.log_end_offset > before
        found = partition.log.read(before, 1, partition.log_end_offset)
        assert found is not None
        assert found.data[16:] == data[16:]  # base offset and leader epoch are the leader's
        header, marker = with_markers(found.data)[0]
        self.written.append((header, marker, found.data))

    @rule(count=st.integers(1, 4), size_bytes=st.sampled_from([0, 50, 700]))
    def append_plain_batch(self, count: int, size_bytes: int) -> None:
        self.append_plain(count, size_bytes)

    def append_plain(self, count: int, size_bytes: int) -> None:
        before = self.world.partition.log_end_offset
        data = batch(count, size_bytes=size_bytes)
        assert self.world.partition.append(data).base_offset == before
        self._take(data, before)

    @rule(size_bytes=st.sampled_from([3000, 4010]))
    def append_large(self, size_bytes: int) -> None:
        self.append_plain(1, size_bytes)

    @rule(producer=PRODUCERS, count=st.integers(1, 3), size_bytes=st.sampled_from([10, 900]))
    def append_in_transaction(self, producer: int, count: int, size_bytes: int) -> None:
        before = self.world.partition.log_end_offset
        sequence = self.sequences.get(producer, 0)
        origin = Origin(producer, 0, sequence, transactional=True)
        data = batch(count, size_bytes=size_bytes, origin=origin)
        outcome = self.world.partition.append(data)
        assert outcome.verdict is AppendVerdict.APPENDED, outcome
        self.sequences[producer] = sequence + count
        self._take(data, before)
        again = self.world.partition.append(data)
        assert (again.verdict, again.base_offset) == (AppendVerdict.DUPLICATE, before)
        assert again.next_offset == before + count

    @rule(producer=PRODUCERS, commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        before = self.world.partition.log_end_offset
        self.decisions += 1
        outcome = self.world.partition.append_marker(
            producer_id=producer,
            producer_epoch=0,
            control_type=ControlType.COMMIT if commit else ControlType.ABORT,
            coordinator_epoch=1,
            decision=DecisionId(0, 1, self.decisions, self.decisions // 4),
            timestamp_ms=1_000_000,
        )
        assert outcome.verdict is AppendVerdict.APPENDED
        found = self.world.partition.log.read(before, 1, before + 1)
        assert found is not None
        self._take(found.data, before)

    @rule()
    def sync(self) -> None:
        self.world.sync()
        assert self.world.partition.high_watermark == self.world.partition.log_end_offset
        self.acknowledged = self.world.partition.high_watermark

    @rule()
    def kill(self) -> None:
        self.world.kill_and_reopen()
        self._after_crash(keeps_all=True)

    @rule(seed=st.integers(0, 2**32))
    def lose_power(self, seed: int) -> None:
        self.world.disk.power_loss(random.Random(seed))
        self.world.open()
        self._after_crash(keeps_all=False)

    @rule(seed=st.integers(0, 2**32), operations=st.integers(0, 30))
    def lose_power_twice(self, seed: int, operations: int) -> None:
        """A second loss while the first one is recovered."""
        rng = random.Random(seed)
        self.world.disk.power_loss(rng)
        self.world.disk.crash_after(operations)
        try:
            self.world.open()
        except Crashed:
            self.world.disk.power_loss(rng)
            self.world.open()
        self.world.disk.crash_at = None
        self._after_crash(keeps_all=False)

    @rule()
    def stop_cleanly(self) -> None:
        self.world.close_and_reopen()
        assert self.world.partition.log.recovered_clean
        self._after_crash(keeps_all=True)

    @precondition(lambda self: not self.retention)
    @rule(seed=st.integers(0, 2**32), clean=st.booleans())
    def lose_side_files(self, seed: int, clean: bool) -> None:
        """Damage or remove anything that is a function of the log."""
        rng = random.Random(seed)
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
        self._after_crash(keeps_all=True)

    @rule(choice=st.floats(0, 1))
    def cut(self, choice: float) -> None:
        partition = self.world.partition
        ends = [header.next_offset for header, _, _ in self.written] or [0]
        offset = max(ends[int(choice * (len(ends) - 1))], partition.log_start_offset)
        partition.truncate_to(offset)
        assert partition.log_end_offset == offset
        assert partition.high_watermark == offset
        self._forget_above(offset)
        self.acknowledged = offset

    @rule()
    def retain(self) -> None:
        self.world.table.maintain(lambda _: None)

    def _after_crash(self, *, keeps_all: bool) -> None:
        partition = self.world.partition
        assert partition.failed is None, partition.failed
        end = partition.log_end_offset
        assert end >= self.acknowledged
        assert end == partition.high_watermark
        written_end = self.written[-1][0].next_offset if self.written else 0
        assert end <= written_end
        if keeps_all:
            assert end == written_end
        self._forget_above(end)
        self.acknowledged = end

    def _forget_above(self, end: int) -> None:
        self.written = [item for item in self.written if item[0].next_offset <= end]
        self.sequences = {}
        for header, _, _ in self.written:
            if header.producer_id >= 0 and not header.is_control:
                self.sequences[header.producer_id] = header.last_sequence + 1

    @invariant()
    def bytes_are_those_written(self) -> None:
        partition = self.world.partition
        start = partition.log_start_offset
        kept = [item for item in self.written if item[0].base_offset >= start]
        assert partition.log_end_offset == (kept[-1][0].next_offset if kept else start)
        durable = b"".join(d for h, _, d in kept if h.next_offset <= partition.high_watermark)
        assert all_bytes(partition) == durable
        for header, _, data in kept:
            for offset in (header.base_offset, header.last_offset):
                found = partition.log.read(offset, 1, partition.log_end_offset)
                assert found is not None
                assert found[:2] == (data, header.next_offset)

    @invariant()
    def state_is_the_replay(self) -> None:
        partition = self.world.partition
        replayed = PartitionState()
        for header, marker, _ in self.written:
            replayed.apply(header, marker)
        end = partition.log_end_offset
        start = partition.log_start_offset
        bound = partition.high_watermark
        live = partition.state
        if live.forgotten_below <= bound:
            assert live.last_stable_offset(bound) == replayed.last_stable_offset(bound)
        for at in {start, (start + end) // 2, end}:
            for stop in {at + 1, end}:
                live_aborted = set(partition.log.aborted_in(at, stop, bound))
                assert live_aborted >= set(replayed.aborted_in(at, stop, bound))
        assert _comparable(live, end) == _comparable(replayed, end)

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        start = self.world.partition.log_start_offset
        epochs = {h.leader_epoch for h, _, _ in self.written if h.base_offset >= start}
        found = dict(self.world.partition.log.epochs.entries())
        assert epochs <= set(found)

    @invariant()
    def a_reader_gets_through(self) -> None:
        partition = self.world.partition
        offset = partition.log_start_offset
        while True:
            slice_ = partition.fetch(offset, 1, Isolation.READ_COMMITTED)
            if not slice_.data:
                break
            assert slice_.next_offset > offset
            offset = slice_.next_offset
        assert offset == partition.last_stable_offset

    @invariant()
    def no_file_is_left_behind(self) -> None:
        names = self.world.disk.list_dir(self.world.folder)
        bases = [int(name[:20]) for name in names if name.endswith(LOG_SUFFIX)]
        assert min(bases) == self.world.partition.log_start_offset
        for name in names:
            if name.endswith((".index", ".txnindex")):
                assert int(name[:20]) in bases


def _comparable(state: PartitionState, end: int) -> bytes:
    """Return a state's snapshot without what only says how much was forgotten."""
    copy = PartitionState.decode(state.encode())
    copy.forget_completed_below(end)
    copy.forget_aborted_below(end)
    return copy.encode()


TestLogMachine: Any = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
