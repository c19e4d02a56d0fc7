"""A former leader that returns cuts what it alone had written, log by log, and its event loop waits for no disk meanwhile (INV-ANC1, INV-ANC2)."""

import asyncio
import errno
from pathlib import Path

import pytest

from idempotency.record_batch import Buffer
from region_broker.log.parts.appender import LogAppender
from region_broker.partitions.partition import Partition
from region_broker.partitions.trimming import Trimming
from region_broker.region.cluster.answered_cuts import LOGS_AT_ONCE, cut_one_by_one
from tests.fixtures.kernel_batches import stamp
from tests.fixtures.node_logs import Fixture, batch, fixture
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion, bytes_of, live
from tests.simulation.simulated_loop import SimulatedLoop, run_simulated

COUNT = 2 * LOGS_AT_ONCE + 1
SYNCS = {"fdatasync", "fsync_dir", "write_file_atomic"}


class Turns:
    """How many logs are cut, and how many in one turn of the loop at the most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cut = self.most = self._in_turn = 0
        truncate_to = Partition.truncate_to

        def counted(partition: Partition, offset: int, *, settles: bool = True) -> None:
            assert not settles
            self._note()
            truncate_to(partition, offset, settles=settles)

        monkeypatch.setattr(Partition, "truncate_to", counted)

    def _note(self) -> None:
        self.cut += 1
        self._in_turn += 1
        self.most = max(self.most, self._in_turn)
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._in_turn = 0


async def with_a_tail(region: ReplicaRegion) -> tuple[ReplicaNode, ReplicaNode, ReplicaNode]:
    """Return three nodes, the first of which leads and has in each log what the others have not."""
    one, two, three = await region.start()
    for number in range(COUNT):
        await one.produce(batch(), number)
    for number in range(COUNT):
        one.append(batch(2), number)
    return one, two, three


def all_bytes_of(node: ReplicaNode) -> list[bytes]:
    return [bytes_of(node.partition(number)) for number in range(COUNT)]


def test_INV_ANC1_a_former_leader_cuts_a_few_logs_in_a_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = Turns(monkeypatch)

    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await with_a_tail(region)
        region.elect(2)
        await region.until(
            lambda: all_bytes_of(one) == all_bytes_of(two), "it has what its leader has"
        )
        assert turns.cut == COUNT
        assert turns.most <= LOGS_AT_ONCE
        await two.produce(batch())
        assert region.in_sync() == {1, 2, 3}

    live(life, partitions=COUNT)


@pytest.mark.parametrize("at", [1, LOGS_AT_ONCE, LOGS_AT_ONCE + 1])
def test_INV_ANC2_cuts_end_with_their_session_and_the_next_one_makes_the_others(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    lower, lowered = Trimming.lower, list[int]()

    async def life(region: ReplicaRegion) -> None:
        async def lowering(trimming: Trimming, offset: int) -> None:
            lowered.append(offset)
            if len(lowered) == at:
                region.elect(3)
            await lower(trimming, offset)

        one, two, three = await with_a_tail(region)
        monkeypatch.setattr(Trimming, "lower", lowering)
        region.elect(2)
        await region.until(
            lambda: all_bytes_of(one) == all_bytes_of(two) == all_bytes_of(three), "all are alike"
        )
        await three.produce(batch())
        assert len(lowered) > at
        assert all(one.partition(number).failed is None for number in range(COUNT))

    live(life, partitions=COUNT)


def test_INV_ANC1_nothing_is_appended_to_a_log_before_its_cut_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its disk takes longer than its leader's answer: the event loop would sync the cut."""
    settle, write = Trimming.settle, LogAppender._write
    early, appended = list[int](), list[int]()

    def writing(appender: LogAppender, size_bytes: int, last_offset: int, *buffers: Buffer) -> None:
        (appended if appender._content.unsettled is None else early).append(last_offset)
        write(appender, size_bytes, last_offset, *buffers)

    async def life(region: ReplicaRegion) -> None:
        async def slowly(trimming: Trimming) -> None:
            await region.clock.sleep_ms(50)
            await settle(trimming)

        one, two, _ = await with_a_tail(region)
        monkeypatch.setattr(Trimming, "settle", slowly)
        monkeypatch.setattr(LogAppender, "_write", writing)
        region.elect(2)
        for number in range(COUNT):
            two.append(batch(3), number)
        await region.until(
            lambda: all_bytes_of(one) == all_bytes_of(two), "it has what its leader has"
        )
        assert len(appended) >= COUNT
        assert early == []

    live(life, partitions=COUNT)


def grown() -> Fixture:
    """Return a node whose logs have each one more record than is to stay."""
    some = fixture(partition_count=COUNT, leads=False)
    for partition in some.partitions:
        for base_offset in range(2):
            data = bytearray(batch())
            stamp(data, 0, base_offset=base_offset, leader_epoch=8)
            partition.writer.append_mirrored(bytes(data))
    some.sync()
    return some


def cut(partition: Partition, offset: int) -> None:
    partition.truncate_to(offset, settles=False)


def test_INV_ANC1_the_event_loop_waits_for_no_disk_however_many_logs_are_cut() -> None:
    some, told, stopped = grown(), list[Partition](), list[Partition]()
    in_threads, on_the_loop = list[str](), list[str]()

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)

        def look(operation: str, path: Path) -> None:
            if operation in SYNCS:
                (in_threads if loop._in_job else on_the_loop).append(f"{operation} {path}")

        some.disk.fault = look
        cuts = [(each, 1) for each in some.partitions]
        await cut_one_by_one(cuts, cut, told.append, stopped.append)
        some.disk.fault = None

    run_simulated(scene(), "many logs")
    assert (on_the_loop, stopped) == ([], [])
    assert {each.key for each in told} == {each.key for each in some.partitions}
    assert len(in_threads) >= 2 * COUNT
    assert {each.log_end_offset for each in some.partitions} == {1}


def test_INV_ANC1_a_log_whose_disk_fails_behind_its_cut_is_told_and_the_others_go_on() -> None:
    some, told, stopped = grown(), list[Partition](), list[Partition]()
    broken = some.partitions[1]

    def fail(operation: str, path: Path) -> None:
        if operation in SYNCS and broken.log_end_offset == 1 and path.is_relative_to(folder):
            raise OSError(errno.EIO, "input/output error")

    async def scene() -> None:
        some.disk.fault = fail
        cuts = [(each, 1) for each in some.partitions]
        await cut_one_by_one(cuts, cut, told.append, stopped.append)

    folder = broken.log.content.folder
    run_simulated(scene(), "a broken disk")
    assert stopped == [broken]
    assert broken not in told
    assert len(told) == COUNT - 1
    assert [each for each in some.partitions if each.failed is not None] == [broken]
    assert {each.log_end_offset for each in some.partitions} == {1}
