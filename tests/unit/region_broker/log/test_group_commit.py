"""Group commit with real threads on a real folder, and the seal callback."""

import asyncio
import os
from pathlib import Path

from idempotency.identity import LeaderEpoch
from region_broker.log.group_commit import GroupCommit
from region_broker.log.journal.replay import MANY_LOGS
from region_broker.log.log_config import NodeLogConfig
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
