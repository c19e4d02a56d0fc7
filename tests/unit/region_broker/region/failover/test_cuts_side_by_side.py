"""The logs that a takeover cuts, several at once: killed, cut off from power, or cancelled at any step, and begun again (T18, T20).

What is to come out is known from what was written: each log ends at its position, and its tail is in quarantine once, byte for byte.
"""

import asyncio
import errno
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from geo_replicator.lineage import Cut, TidemarkPoint
from geo_replicator.quarantine import Provenance
from idempotency.identity import RegionEpoch
from region_broker.partitions.partition import Partition
from region_broker.region.failover.log_surgery import CutReason, cut_logs, key_of
from region_broker.region.failover.quarantine_store import CHUNK_BYTES, QuarantineStore
from region_broker.region.failover.side_by_side import LOGS_AT_ONCE
from tests.fixtures.kernel_batches import stamp
from tests.fixtures.node_logs import Fixture, all_bytes, batch, fixture
from tests.simulation.disk import Crashed
from tests.simulation.region_pair import LifeDisk
from tests.simulation.simulated_loop import SimulatedLoop, run_simulated
from tests.unit.region_broker.log.test_journal import KeepsNothing
from tests.unit.region_broker.partitions.test_trimming import nothing_is_replayed

COUNT = LOGS_AT_ONCE + 1
KEPT, END = 2, 5
ROOT = Path("/data/quarantine")
REASON = CutReason("main", RegionEpoch(17), "us", RegionEpoch(8), "us", 0)
SYNCS = {"fdatasync", "fsync_dir", "write_file_atomic"}


class Node:
    """Logs of `END` records, all durable, some of them in the journal only; a takeover cuts each at `KEPT`, but the last one: that
    has nothing beyond."""

    def __init__(self, count: int = COUNT, large_bytes: int = 0) -> None:
        self.some: Fixture = fixture(partition_count=count, leads=False)
        self.disk = self.some.disk
        for partition in self.some.partitions:
            for number in range(END):
                value = f"{partition.tp.partition}-{number} " * 9 + "." * large_bytes
                partition.writer.append_mirrored(_at(partition, number, value))
        self.some.sync()
        self.before = [all_bytes(each) for each in self.some.partitions]
        self.keys = [key_of(each) for each in self.some.partitions]
        positions = dict.fromkeys(self.keys, KEPT) | {self.keys[-1]: END}
        self.cut = Cut(TidemarkPoint(RegionEpoch(8), 1), positions)

    def store(self) -> QuarantineStore:
        """Return the quarantine as this life of the process sees it."""
        return QuarantineStore(LifeDisk(self.disk), ROOT)

    async def take_over(self, store: QuarantineStore | None = None) -> list[Provenance]:
        return await cut_logs(self.some.partitions, self.cut, REASON, store or self.store())

    def tails(self) -> dict[int, list[tuple[int, int, bytes]]]:
        """Return (first offset, last offset, bytes) of what is in quarantine, by partition."""
        store, found = self.store(), dict[int, list[tuple[int, int, bytes]]]()
        for tail in store.tails():
            kept = tail.first_offset, tail.last_offset, b"".join(store.chunks(tail))
            found.setdefault(tail.partition, []).append(kept)
        return found

    def check_nothing_is_lost(self) -> None:
        """Each log is whole, or cut with its tail in quarantine; nowhere is anything that was not written."""
        tails = self.tails()
        for partition, before in zip(self.some.partitions, self.before, strict=True):
            assert partition.failed is None
            held = all_bytes(partition)
            assert before.startswith(held), partition.tp
            assert partition.log_end_offset >= KEPT
            for _, _, kept in tails.get(partition.tp.partition, []):
                assert before.endswith(kept)
            if held != before:
                (tail,) = tails[partition.tp.partition]
                assert len(held) + len(tail[2]) >= len(before), partition.tp

    def check_cut(self) -> None:
        """Each log ends at its position, and what lay beyond is in quarantine, once."""
        tails = self.tails()
        assert sorted(tails) == list(range(len(self.keys) - 1))
        for partition, before in zip(self.some.partitions[:-1], self.before, strict=False):
            held = all_bytes(partition)
            assert partition.log_end_offset == KEPT
            assert tails[partition.tp.partition] == [(KEPT, END - 1, before[len(held) :])]
            assert before.startswith(held)
        assert self.some.partitions[-1].log_end_offset == END

    def begin_anew(self, power: random.Random | None) -> None:
        """Start again after a kill, or a power cut."""
        if power is None:
            self.disk.process_killed()
        else:
            self.disk.power_loss(power)
        self.some.open()


def _at(partition: Partition, number: int, value: str) -> bytes:
    data = bytearray(batch(size_bytes=len(value)))
    stamp(data, 0, base_offset=number, leader_epoch=8)
    assert partition.log_end_offset == number
    return bytes(data)


async def _dies_and_begins_again(node: Node, at: int, power: random.Random | None) -> bool:
    """Return whether it died before it was done."""
    node.disk.crash_after(at)
    with suppress(Crashed, BaseExceptionGroup):
        await node.take_over()
    has_died = node.disk.crashed
    node.begin_anew(power)
    node.check_nothing_is_lost()
    await node.take_over()
    node.check_cut()
    node.begin_anew(KeepsNothing())  # what a takeover has done is durable
    node.check_cut()
    return has_died


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "all unsynced is lost", "some of it is"])
def test_T18_INV_CTJ1_a_takeover_that_dies_at_any_step_of_several_logs_loses_nothing_and_doubles_nothing(
    how: str,
) -> None:
    async def scene() -> None:
        at = 0
        power = {"killed": None, "all unsynced is lost": KeepsNothing()}.get(how, random.Random(3))
        while await _dies_and_begins_again(Node(), at, power):
            at += 1
        assert at > 20 * (COUNT - 1)

    run_simulated(scene(), how)


def let_no_thread_be_called_back() -> None:
    """Let jobs of the simulated loop run that were begun, as threads do, also where nobody waits for them any more."""
    loop = asyncio.get_running_loop()
    begin = loop.run_in_executor

    def begun(*args: Any) -> asyncio.Future[Any]:
        return asyncio.shield(begin(*args))

    loop.run_in_executor = begun  # type: ignore[method-assign, assignment]


async def _is_cancelled_and_begins_again(node: Node, turns: int, cancels: int) -> bool:
    """Return whether it was cancelled before it was done."""
    store = node.store()
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(node.take_over(store))
        for _ in range(turns):
            await asyncio.sleep(0)
        is_in_time = not first.done()
        for _ in range(cancels):
            first.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([first])
        ended_at = node.disk.operations
        await asyncio.sleep(1)
        assert node.disk.operations == ended_at, "a thread has outlived the takeover"
        node.check_nothing_is_lost()
        await node.take_over(store)
    node.check_cut()
    return is_in_time


@pytest.mark.slow
@pytest.mark.parametrize("cancels", [1, 3])
def test_INV_SBS3_INV_QS6_a_takeover_that_is_cancelled_anywhere_leaves_no_thread_and_goes_on(
    cancels: int,
) -> None:
    async def scene() -> None:
        let_no_thread_be_called_back()
        turns = 1
        while await _is_cancelled_and_begins_again(Node(), turns, cancels):
            turns += 1
        assert turns > 50

    run_simulated(scene(), cancels)


def test_INV_TRM3_INV_QS6_the_event_loop_waits_for_no_disk_however_many_logs_are_cut() -> None:
    node = Node(8 * LOGS_AT_ONCE)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        on_the_loop: list[tuple[str, Path]] = []
        syncs = 0

        def look(operation: str, path: Path) -> None:
            nonlocal syncs
            if operation in SYNCS:
                syncs += 1
                if not loop._in_job:
                    on_the_loop.append((operation, path))

        node.disk.fault = look
        await node.take_over()
        node.disk.fault = None
        assert on_the_loop == []
        assert syncs > 8 * (8 * LOGS_AT_ONCE - 1)
        node.check_cut()

    run_simulated(scene(), "many logs")


def with_room_for(node: Node, more_bytes: int) -> None:
    """Let the node's disk take so much more than it holds, whatever it holds by then."""
    disk = node.disk

    def held_bytes() -> int:
        return sum(len(inode.cached) for inode in disk._root.inodes())

    most_bytes = held_bytes() + more_bytes

    def take_room(path: Path, size_bytes: int) -> None:
        if size_bytes > 0 and held_bytes() + size_bytes > most_bytes:
            raise OSError(errno.ENOSPC, "no space left on device", str(path))

    disk.take_room = take_room  # type: ignore[method-assign]


def test_INV_QS7_a_disk_with_room_for_one_tail_takes_those_of_all_logs_one_after_the_other() -> (
    None
):
    """A log that is cut gives back what its tail takes in quarantine."""

    async def scene() -> None:
        node = Node(large_bytes=CHUNK_BYTES // 2)
        with_room_for(node, 3 * CHUNK_BYTES)
        store = node.store()
        for _ in range(COUNT):
            with suppress(OSError):
                await node.take_over(store)
                break
        node.check_cut()

    run_simulated(scene(), "one tail")


def test_INV_TRM1_no_log_is_read_in_the_step_that_cuts_it() -> None:
    node = Node()
    with nothing_is_replayed():
        run_simulated(node.take_over(), "read before")
    node.check_cut()
