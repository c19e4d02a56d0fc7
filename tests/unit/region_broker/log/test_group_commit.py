"""Group commit with real threads on a real folder, and the seal callback."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from idempotency.identity import LeaderEpoch
from region_broker.log.group_commit import LOGS_AT_ONCE, GroupCommit, SyncWork
from region_broker.log.indexes.checked_file import Checkpoint
from region_broker.log.journal.replay import MANY_LOGS
from region_broker.log.journal.sync_job import SyncJob
from region_broker.log.log_config import FlushPolicy, NodeLogConfig
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.table import PartitionTable
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.node_logs import JOURNAL_BYTES, LEADER_EPOCH, Topic, batch


# Holds INV-CM1.
async def test_many_partitions_commit_together_and_come_back(tmp_path: Path) -> None:
    config = NodeLogConfig(segment_bytes=4096, journal_bytes=JOURNAL_BYTES)
    clock = SystemClock()
    sealed: list[Path] = []
    topic = Topic(partition_count=9)
    commit = GroupCommit(config, clock, on_sealed=sealed.append)
    table = PartitionTable(RealDisk(), tmp_path / "log", clock, config, commit)
    partitions = table.open_topic(topic)
    for partition in partitions:
        partition.become_leader(LEADER_EPOCH)
    running = asyncio.gather(commit.run())
    for _ in range(20):
        outcomes = [partition.writer.append(batch(2, size_bytes=400)) for partition in partitions]
        for partition, outcome in zip(partitions, outcomes, strict=True):
            await partition.wait_committed(outcome.next_offset)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    table.close()
    commit.close()
    assert sealed
    assert set(sealed) <= set(table.sealed_paths())

    again = GroupCommit(config, clock)
    table = PartitionTable(RealDisk(), tmp_path / "log", clock, config, again)
    for partition in table.open_topic(topic):
        assert partition.log.recovered_clean
        assert partition.log_end_offset == 40
        partition.become_leader(LeaderEpoch(LEADER_EPOCH + 1))
        read = partition.reader.fetch(39, 10_000, Isolation.READ_UNCOMMITTED)
        assert read.next_offset == 40
    table.close()
    again.close()


async def test_a_slow_or_failing_digest_stops_nothing(tmp_path: Path) -> None:
    config = NodeLogConfig(segment_bytes=4096, journal_bytes=JOURNAL_BYTES)
    clock = SystemClock()
    called = asyncio.Event()
    loop = asyncio.get_running_loop()

    def digest(path: Path) -> None:
        loop.call_soon_threadsafe(called.set)
        raise FileNotFoundError(path)

    commit = GroupCommit(config, clock, on_sealed=digest)
    table = PartitionTable(RealDisk(), tmp_path, clock, config, commit)
    partition = table.open_topic(Topic())[0]
    partition.become_leader(LEADER_EPOCH)
    running = asyncio.gather(commit.run())
    for _ in range(12):
        outcome = partition.writer.append(batch(1, size_bytes=900))
        await partition.wait_committed(outcome.next_offset)
    await called.wait()
    outcome = partition.writer.append(batch())
    await partition.wait_committed(outcome.next_offset)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    table.close()
    commit.close()


async def test_a_journal_of_many_logs_gives_each_what_it_lacks(tmp_path: Path) -> None:
    config, clock, count = NodeLogConfig(journal_bytes=JOURNAL_BYTES), SystemClock(), 3 * MANY_LOGS
    commit = GroupCommit(config, clock)
    table = PartitionTable(RealDisk(), tmp_path, clock, config, commit)
    partitions = table.open_topic(Topic(partition_count=count))
    for partition in partitions:
        partition.become_leader(LEADER_EPOCH)
        partition.writer.append(batch(1 + partition.tp.partition % 3))
    await commit.sync_group()
    assert all(p.high_watermark == 1 + p.tp.partition % 3 for p in partitions)
    for (
        partition
    ) in partitions:  # as after a power loss: what only the journal made durable is gone
        os.truncate(partition.log.segments.segments[0].path, 0)
    commit.close()

    again = GroupCommit(config, clock)
    table = PartitionTable(RealDisk(), tmp_path, clock, config, again)
    for partition in table.open_topic(Topic(partition_count=count)):
        assert partition.failed is None
        assert partition.log_end_offset == 1 + partition.tp.partition % 3
    table.close()
    again.close()


class _Dirty:
    """A log that has something to sync whenever it is asked, and counts that."""

    pending_seals = 0
    generation = 0

    def __init__(self) -> None:
        self.begun = self.synced = 0

    def begin_sync(self) -> SyncJob:
        self.begun += 1
        return SyncJob(
            self, 0, (), 0, (), Checkpoint(synced_offset=0, segment_base=0, segment_bytes=0)
        )

    def in_file(self, _generation: int, _offset: int) -> bool:
        return True

    def begin_file_sync(self) -> SyncJob | None:
        return None

    def run_sync(self, _job: SyncJob) -> OSError | None:
        return None

    def finish_sync(self, _job: SyncJob, _error: OSError | None) -> None:
        self.synced += 1

    def finish_journaled(self, _job: SyncJob, _error: OSError | None) -> None:
        self.synced += 1

    def take_sealed(self) -> list[Path]:
        return []


class _Groups:
    """A runner that notes how many jobs each group has."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def sync_all(self, jobs: Sequence[SyncWork]) -> list[OSError | None]:
        self.sizes.append(len(jobs))
        return [None] * len(jobs)

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        raise AssertionError("nothing runs in the background here")

    def close(self) -> None:
        """Nothing was begun."""


class _Clock(SystemClock):
    """Has an interval end at once, and counts them."""

    intervals = 0

    async def sleep_ms(self, duration_ms: float) -> None:
        self.intervals += 1
        await asyncio.sleep(0)


@pytest.mark.parametrize("policy", [FlushPolicy.COMMIT, FlushPolicy.INTERVAL])
async def test_INV_CM8_many_logs_are_several_groups_and_the_loop_turns_in_between(
    policy: FlushPolicy,
) -> None:
    clock, runner = _Clock(), _Groups()
    commit = GroupCommit(NodeLogConfig(flush_policy=policy), clock, runner=runner)
    logs = [_Dirty() for _ in range(2 * LOGS_AT_ONCE + 1)]
    for log in logs:
        commit.mark_dirty(log)
    running = asyncio.gather(commit.run())
    seen: list[int] = []
    while sum(runner.sizes) < len(logs):
        if len(runner.sizes) != len(seen):  # nobody else shares the loop: each group has a turn
            seen.append(len(runner.sizes))
        if seen == [1]:
            commit.mark_dirty(logs[0])  # once more: behind those that wait
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [log.begun for log in logs] == [log.synced for log in logs]
    assert runner.sizes[:2] == [LOGS_AT_ONCE, LOGS_AT_ONCE]
    assert seen[:2] == [1, 2]
    assert all(log.synced == 1 for log in logs[1:])
    assert clock.intervals == (policy is FlushPolicy.INTERVAL)
