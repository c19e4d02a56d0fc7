"""Compaction by Kafka's rules, on one simulated log. Sources: LogCleaner.scala, KIP-280, KIP-534, T13.

Each test says what is appended, cleans, and compares what is left with what the rules say: record by record.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType, iter_headers
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.cleaner import Cleaner, CleanerParts
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import NO_ORIGIN, Origin, Record, build_batch, iter_records
from region_broker.records.compression import Codec
from tests.fixtures.node_logs import Fixture, append_marker, fixture
from tests.simulation.disk import Crashed

COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
}


class Inline:
    """A `Worker` without threads."""

    async def _ran(self, work: Callable[[], None]) -> None:
        work()

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        return self._ran(work)


class NoPauses:
    """The fixture's clock, on which pauses take no time."""

    def __init__(self, some: Fixture) -> None:
        self._clock = some.clock

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        assert duration_ms >= 0


def cleaner(some: Fixture, *, bound: int | None = None, keys_max: int = 10_000) -> Cleaner:
    return Cleaner(
        CleanerParts(
            partitions=lambda: iter(some.partitions),
            bound_of=lambda p: p.high_watermark if bound is None else bound,
            disk=some.disk,
            clock=NoPauses(some),
            worker=Inline(),
            keys_max=keys_max,
        )
    )


def clean(some: Fixture, *, bound: int | None = None, keys_max: int = 10_000) -> bool:
    """Clean once; the coroutine never waits here."""
    coroutine = cleaner(some, bound=bound, keys_max=keys_max).clean_dirtiest()
    try:
        coroutine.send(None)
    except StopIteration as done:
        found: bool = done.value
        return found
    raise AssertionError("nothing waits here")


def put(
    some: Fixture,
    *items: tuple[str, str | None],
    origin: Origin = NO_ORIGIN,
    codec: Codec = Codec.NONE,
) -> int:
    records = [
        Record(
            key.encode(), None if value is None else value.encode(), timestamp_ms=some.clock.now_ms
        )
        for key, value in items
    ]
    outcome = some.partition.writer.append(build_batch(records, origin=origin, codec=codec))
    assert outcome.verdict is AppendVerdict.APPENDED, outcome
    return outcome.base_offset


def end_txn(some: Fixture, producer_id: int, kind: ControlType) -> None:
    append_marker(some.partition,
        producer_id=producer_id, producer_epoch=0, control_type=kind, coordinator_epoch=1,
        decision=None, timestamp_ms=some.clock.now_ms,
    )  # fmt: skip


def roll(some: Fixture) -> None:
    """Fill the active segment, so that what was put before lies in sealed ones."""
    put(some, ("~fill", "x" * 3900))
    put(some, ("~fill", "x" * 3900))
    some.sync()


def left(
    some: Fixture, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> list[tuple[int, str, str | None]]:
    """Return (offset, key, value) of what a reader gets, without what `roll` wrote, markers and aborted data."""
    found: list[tuple[int, str, str | None]] = []
    offset = some.partition.log_start_offset
    while True:
        got = some.partition.reader.fetch(offset, 1 << 20, isolation)
        if not got.data:
            return found
        gone = {(t.producer_id, t.first_offset): t.last_offset for t in got.aborted}
        for at, header in iter_headers(got.data):
            aborted = any(
                header.producer_id == pid and first <= header.base_offset < last
                for (pid, first), last in gone.items()
            )
            if header.is_control or (aborted and isolation is Isolation.READ_COMMITTED):
                continue
            for record in iter_records(got.data[at : at + header.size_bytes]):
                assert record.key is not None
                if record.key != b"~fill":
                    value = None if record.value is None else record.value.decode()
                    found.append((record.offset, record.key.decode(), value))
        offset = got.next_offset


def markers(some: Fixture) -> list[int]:
    data = b""
    offset = some.partition.log_start_offset
    while part := some.partition.reader.read_raw(offset, 1 << 20):
        data += part
        offset = list(iter_headers(part))[-1][1].next_offset
    return [header.base_offset for _, header in iter_headers(data) if header.is_control]


# Holds INV-CLW1.
def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    some = fixture(COMPACT)
    put(some, ("a", "1"), ("b", "1"), ("a", "2"))
    put(some, ("b", "2"), ("c", "1"))
    put(some, ("a", "3"))
    roll(some)
    end = some.partition.log_end_offset
    assert clean(some)
    assert left(some) == [(3, "b", "2"), (4, "c", "1"), (5, "a", "3")]
    assert (some.partition.log_start_offset, some.partition.log_end_offset) == (0, end)
    some.kill_and_reopen()
    assert left(some) == [(3, "b", "2"), (4, "c", "1"), (5, "a", "3")]
    some.close_and_reopen()
    assert left(some) == [(3, "b", "2"), (4, "c", "1"), (5, "a", "3")]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_inside_a_batch_go_in_every_codec(codec: Codec) -> None:
    some = fixture(COMPACT)
    put(some, *[(f"k{n}", "old") for n in range(10)], codec=codec)
    put(some, *[(f"k{n}", "new") for n in range(0, 10, 2)], codec=codec)
    roll(some)
    assert clean(some)
    odd = [(n, f"k{n}", "old") for n in range(1, 10, 2)]
    assert left(some) == odd + [(10 + n, f"k{2 * n}", "new") for n in range(5)]


# Holds INV-CLP1.
def test_the_active_segment_and_what_lies_above_the_bound_stay() -> None:
    some = fixture(COMPACT)
    put(some, ("a", "1"))
    assert not clean(some)
    put(some, ("a", "2"))
    roll(some)
    middle = some.partition.log_end_offset
    put(some, ("a", "3"))
    roll(some)
    assert not clean(some, bound=1)
    assert clean(some, bound=middle)
    assert [value for _, _, value in left(some)] == ["2", "3"]


# Holds INV-CLB3.
def test_KIP534_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    some = fixture(COMPACT)
    put(some, ("a", "1"))
    put(some, ("a", None))
    roll(some)
    assert clean(some)
    assert left(some) == [(1, "a", None)]
    some.clock.now_ms += 999
    put(some, ("b", "1"))
    roll(some)
    assert clean(some)
    assert (1, "a", None) in left(some)
    some.clock.now_ms += 1
    put(some, ("c", "1"))
    roll(some)
    assert clean(some)
    assert [key for _, key, _ in left(some)] == ["b", "c"]


# Holds INV-CLB3.
def test_KIP534_record_times_survive_the_delete_horizon() -> None:
    some = fixture(COMPACT)
    put(some, ("a", None), ("b", "1"))
    roll(some)
    assert clean(some)
    data = some.partition.reader.fetch(0, 1, Isolation.READ_UNCOMMITTED).data
    _, header = next(iter_headers(data))
    assert header.attributes & 0x40
    assert header.base_timestamp_ms == some.clock.now_ms + 1000
    assert [record.timestamp_ms for record in iter_records(data)] == [1_000_000, 1_000_000]


# Holds INV-CLX1.
def test_aborted_data_goes_and_committed_data_counts() -> None:
    some = fixture(COMPACT)
    put(some, ("a", "1"))
    put(
        some,
        ("a", "aborted"),
        ("b", "aborted"),
        origin=Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0), transactional=True),
    )
    end_txn(some, 1, ControlType.ABORT)
    put(some, ("c", "old"))
    put(
        some,
        ("c", "committed"),
        origin=Origin(ProducerId(2), ProducerEpoch(0), SequenceNumber(0), transactional=True),
    )
    end_txn(some, 2, ControlType.COMMIT)
    roll(some)
    for isolation in Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED:
        assert clean(some) is (isolation is Isolation.READ_UNCOMMITTED)
        assert left(some, isolation) == [(0, "a", "1"), (5, "c", "committed")]


# Holds INV-CLX1.
def test_nothing_above_the_last_stable_offset_is_cleaned() -> None:
    some = fixture(COMPACT)
    put(some, ("a", "1"))
    put(
        some,
        ("open", "1"),
        origin=Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0), transactional=True),
    )
    put(some, ("a", "2"))
    roll(some)
    assert not clean(some)
    end_txn(some, 1, ControlType.COMMIT)
    some.sync()
    assert clean(some)
    assert [value for _, _, value in left(some)] == ["1", "2"]


# Holds INV-CLX2, INV-CLX3.
def test_a_spent_marker_goes_after_its_time_and_no_later_data_is_hidden() -> None:
    """A reader told of an aborted transaction whose marker is gone would drop what the producer wrote later."""
    some = fixture(COMPACT)
    put(some, ("first", "1"))  # that of a leader epoch stays (INV-CLW3)
    put(
        some,
        ("a", "aborted"),
        origin=Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0), transactional=True),
    )
    end_txn(some, 1, ControlType.ABORT)
    put(
        some,
        ("b", "good"),
        origin=Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(1), transactional=True),
    )
    end_txn(some, 1, ControlType.COMMIT)
    found = []
    for _ in range(5):
        roll(some)
        assert clean(some)
        found.append(markers(some))
        assert left(some, Isolation.READ_COMMITTED) == [(0, "first", "1"), (3, "b", "good")]
        some.clock.now_ms += 1_001
    assert found[0] == [2, 4]  # its data was met
    assert found[1] == [2, 4]  # alone now: it gets its time
    assert found[-1] == [4]


# Holds INV-CLB1.
def test_C2_sequences_survive_an_emptied_batch() -> None:
    some = fixture(COMPACT)
    put(some, ("a", "1"), origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(0)))
    put(some, ("a", "2"), origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(1)))
    put(some, ("a", "3"))
    roll(some)
    assert clean(some)
    assert left(some) == [(2, "a", "3")]
    for name in some.disk.list_dir(some.folder):
        if name.endswith(".snapshot"):
            some.disk.remove(some.folder / name)
    some.kill_and_reopen()  # the replay of the cleaned log alone
    again = build_batch(
        [Record(b"a", b"2", timestamp_ms=1_000_000)],
        origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(1)),
    )
    outcome = some.partition.writer.append(again)
    assert (outcome.verdict, outcome.base_offset) == (AppendVerdict.DUPLICATE, 1)
    assert (
        put(some, ("a", "4"), origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(2))) > 0
    )
    gap = build_batch(
        [Record(b"a", b"x", timestamp_ms=1_000_000)],
        origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(5)),
    )
    assert some.partition.writer.append(gap).verdict is AppendVerdict.OUT_OF_ORDER_SEQUENCE


# Holds INV-CLP2.
def test_small_segments_become_one_and_offsets_stay() -> None:
    some = fixture(COMPACT)
    for number in range(40):
        put(some, (f"k{number % 4}", "v" * 1000))
    roll(some)
    before = len(some.partition.log.sealed_paths())
    assert clean(some)
    roll(some)
    assert clean(some)  # the segments are small now: this time they become one
    assert len(some.partition.log.sealed_paths()) < before / 2
    assert [(o, k) for o, k, _ in left(some)] == [(36, "k0"), (37, "k1"), (38, "k2"), (39, "k3")]


# Holds INV-CLK1.
def test_a_small_memory_takes_several_passes() -> None:
    some = fixture(COMPACT)
    for number in range(60):
        put(some, (f"k{number % 20}", "v" * 300))
    roll(some)
    passes = 0
    while clean(some, keys_max=5):
        passes += 1
        assert passes < 50
    assert passes > 3
    assert [key for _, key, _ in left(some)] == [f"k{n}" for n in range(20)]


def test_lag_and_ratio_say_when() -> None:
    young = fixture(COMPACT | {"min.compaction.lag.ms": "500"})
    put(young, ("a", "1"), ("a", "2"))
    roll(young)
    assert not clean(young)
    young.clock.now_ms += 500
    assert clean(young)
    lazy = fixture(COMPACT | {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "800"})
    put(lazy, ("a", "1"), ("a", "2"))
    roll(lazy)
    assert not clean(lazy)
    lazy.clock.now_ms += 801
    assert clean(lazy)


def test_compact_alone_keeps_old_records_and_compact_delete_does_not() -> None:
    for policy, kept in (("compact", True), ("compact,delete", False)):
        some = fixture(COMPACT | {"cleanup.policy": policy, "retention.ms": "10"})
        put(some, ("a", "1"))
        roll(some)
        some.clock.now_ms += 1_000
        some.maintain(lambda _: None)
        assert (some.partition.log_start_offset == 0) is kept


def test_records_without_a_key_are_refused() -> None:
    some = fixture(COMPACT)
    for codec in Codec:
        data = build_batch(
            [
                Record(b"k", b"v", timestamp_ms=1_000_000),
                Record(None, b"v", timestamp_ms=1_000_000),
            ],
            codec=codec,
        )
        assert some.partition.writer.append(data).verdict is AppendVerdict.INVALID_RECORD


# Holds INV-CLW4.
def test_a_damaged_log_is_not_rewritten() -> None:
    some = fixture(COMPACT)
    put(some, ("a", "1"))
    put(some, ("a", "2"))
    roll(some)
    some.disk.damage(some.folder / f"{0:020d}.log", 70)
    assert not clean(some)
    some.disk.damage(some.folder / f"{0:020d}.log", 70)
    assert clean(some)


# Holds INV-CLS1.
@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_crash_at_every_step_leaves_the_old_segments_or_the_new(power: bool) -> None:
    for at in range(400):
        some = fixture(COMPACT)
        for number in range(24):
            put(
                some,
                (f"k{number % 5}", f"{number}" + "v" * 600),
                origin=Origin(ProducerId(3), ProducerEpoch(0), SequenceNumber(number)),
            )
        roll(some)
        whole, end = left(some), some.partition.log_end_offset
        newest = [(o, k, v) for o, k, v in whole if o >= 19]
        some.disk.crash_after(at)
        try:
            clean(some)
            ended = True
        except Crashed:
            ended = False
        if power:
            some.disk.power_loss(random.Random(at))
        else:
            some.disk.process_killed()
        some.open()
        assert some.partition.failed is None, (at, some.partition.failed)
        assert some.partition.log_end_offset == end
        after = left(some)
        assert set(newest) <= set(after) <= set(whole), at
        names = some.disk.list_dir(some.folder)
        assert "swap" not in names
        assert not [name for name in names if name.endswith(".cleaned")]
        assert (
            put(
                some,
                ("k0", "next"),
                origin=Origin(ProducerId(3), ProducerEpoch(0), SequenceNumber(24)),
            )
            == end
        )
        roll(some)
        assert clean(some)
        assert [key for _, key, _ in left(some)] == ["k4", "k1", "k2", "k3", "k0"]
        if ended:
            return
    raise AssertionError("the cleaning never came to its end")


@pytest.mark.parametrize("stop_at", range(1, 12))
async def test_cutting_the_log_meanwhile_voids_the_run(stop_at: int) -> None:
    some = fixture(COMPACT)
    for number in range(12):
        put(some, (f"k{number % 3}", "v" * 900))
    roll(some)
    whole = left(some)
    gate, there = asyncio.Event(), asyncio.Event()
    steps = 0

    class Slow(Inline):
        async def _ran(self, work: Callable[[], None]) -> None:
            nonlocal steps
            steps += 1
            if steps == stop_at:
                there.set()
                await gate.wait()
            work()

    parts = cleaner(some)
    parts._parts.worker = Slow()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(parts.clean_dirtiest())
        await there.wait()
        end = some.partition.log_end_offset
        some.partition.truncate_to(end - 1)
        gate.set()
        assert await running is False
    found = left(some)
    assert (
        set(whole[-3:]) <= set(found) <= set(whole)
    )  # a group that was swapped before the cut stays so
    some.kill_and_reopen()
    assert left(some) == found
    roll(some)
    assert clean(some)
    assert left(some) == whole[-3:]
