"""The offsets ledger over real partitions on a real disk, with a real group commit."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId
from idempotency.record_batch import ControlType
from region_broker.controller.metadata_image import OFFSETS_LEDGER, TopicImage
from region_broker.groups.coordinator import GroupCoordinator
from region_broker.groups.messages import CommitRequest, MemberIdentity, OffsetToCommit
from region_broker.groups.ports import GroupPorts, LedgerFailed, TxnProducer
from region_broker.groups.records import LedgerRecordError
from region_broker.groups.settings import GroupSettings
from region_broker.groups.verdicts import GroupVerdict
from region_broker.ledgers.offsets_log import PartitionOffsetsLog
from region_broker.log.group_commit import GroupCommit
from region_broker.log.log_config import NodeLogConfig
from region_broker.partitions.table import PartitionTable
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.node_logs import JOURNAL_BYTES, append_marker
from tests.unit.region_broker.groups.fakes import Topics, join_request, sync_request, tp

LEDGER = TopicImage(topic_id=UUID(int=1), name=OFFSETS_LEDGER, partition_count=2, internal=True)
DATA = TopicImage(topic_id=UUID(int=2), name="orders", partition_count=1)


class Node:
    """The parts of a node that groups need."""

    def __init__(self, table: PartitionTable) -> None:
        self.table = table
        self.log = PartitionOffsetsLog(table, SystemClock())
        self.groups = GroupCoordinator(
            GroupPorts(
                log=self.log,
                ends=self.log,
                clock=SystemClock(),
                chance=SystemChance(),
                image=Topics,
            ),
            shard_count=2,
            settings=GroupSettings(),
        )

    def end_transaction(self, shard: int, producer: TxnProducer, *, commit: bool) -> None:
        partition = self.table.get(OFFSETS_LEDGER, shard)
        assert partition is not None
        outcome = append_marker(
            partition,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            control_type=ControlType.COMMIT if commit else ControlType.ABORT,
            coordinator_epoch=1,
            decision=None,
            timestamp_ms=1,
        )
        assert outcome.base_offset >= 0, outcome
        self.groups.on_marker_applied(shard, producer.producer_id, commit)


@asynccontextmanager
async def node(folder: Path, leader_epoch: int) -> AsyncIterator[Node]:
    config, clock = NodeLogConfig(journal_bytes=JOURNAL_BYTES), SystemClock()
    group_commit = GroupCommit(config, clock)
    table = PartitionTable(RealDisk(), folder, clock, config, group_commit)
    for topic in (LEDGER, DATA):
        for partition in table.open_topic(topic):
            partition.become_leader(LeaderEpoch(leader_epoch))
    async with asyncio.TaskGroup() as tasks:
        services = [tasks.create_task(group_commit.run())]
        made = Node(table)
        services.append(tasks.create_task(made.groups.run()))
        await asyncio.sleep(0)
        await made.groups.load()
        try:
            yield made
        finally:
            await made.groups.resign()
            for service in services:
                service.cancel()
    table.close()
    group_commit.close()


async def test_offsets_members_and_transactions_survive_a_restart(tmp_path: Path) -> None:
    staged, open_one = (
        TxnProducer(ProducerId(1000), ProducerEpoch(0)),
        TxnProducer(ProducerId(1001), ProducerEpoch(0)),
    )
    async with node(tmp_path, 1) as first:
        joined = await first.groups.join("g", join_request())
        assignments = {joined.member_id: b"all"}
        await first.groups.sync("g", sync_request(joined, assignments))
        who = MemberIdentity(joined.member_id)

        def request(partition: int, offset: int) -> CommitRequest:
            wanted = (OffsetToCommit(tp(partition), offset, LeaderEpoch(3), "meta"),)
            return CommitRequest(group_id="g", offsets=wanted, who=who, generation=1)

        assert (await first.groups.commit_offsets(request(0, 5))).verdict is GroupVerdict.OK
        await first.groups.txn_commit_offsets(request(1, 7), staged)
        await first.groups.txn_commit_offsets(request(2, 9), open_one)
        first.end_transaction(first.groups.shard_of("g"), staged, commit=True)
    async with node(tmp_path, 2) as second:
        beat = await second.groups.heartbeat("g", who, 1)
        assert beat is GroupVerdict.OK
        found = await second.groups.fetch_offsets("g", None, require_stable=True)
        assert [(p.tp.partition, p.verdict, p.committed_offset) for p in found.offsets] == [
            (0, GroupVerdict.OK, 5),
            (1, GroupVerdict.OK, 7),
            (2, GroupVerdict.UNSTABLE_OFFSET, -1),
        ]
        assert (found.offsets[0].leader_epoch, found.offsets[0].metadata) == (3, "meta")
        second.end_transaction(second.groups.shard_of("g"), open_one, commit=False)
        found = await second.groups.fetch_offsets("g", [tp(2)], require_stable=True)
        assert found.offsets[0].committed_offset == -1


# Holds INV-OL2.
async def test_transactional_append_holds_the_last_stable_offset(tmp_path: Path) -> None:
    async with node(tmp_path, 1) as made:
        appended = made.log.append(
            0, [(b"\x00\x02\x00\x01g", None)], producer=TxnProducer(ProducerId(5), ProducerEpoch(0))
        )
        await made.log.committed(0, appended.next_offset)
        partition = made.table.get(OFFSETS_LEDGER, 0)
        assert partition is not None
        assert partition.high_watermark == 1
        assert partition.sight.last_stable_offset == 0
        made.end_transaction(0, TxnProducer(ProducerId(5), ProducerEpoch(0)), commit=False)


# Holds INV-GR2, INV-OL3.
async def test_C22_damage_in_the_ledger_fails_its_load(tmp_path: Path) -> None:
    async with node(tmp_path, 1) as made:
        appended = made.log.append(0, [(b"\x00\x02\x00\x01g", None)])
        await made.log.committed(0, appended.next_offset)
        partition = made.table.get(OFFSETS_LEDGER, 0)
        assert partition is not None
        partition.log.durability.sync_now()
        with next(partition.log.folder.glob("*.log")).open("r+b") as file:
            file.seek(-3, 2)
            file.write(b"\xff")
        with pytest.raises(LedgerRecordError, match="damaged at 0"):
            await made.groups.load([0])


async def test_mirror_takes_no_records(tmp_path: Path) -> None:
    async with node(tmp_path, 1) as made:
        partition = made.table.get(OFFSETS_LEDGER, 0)
        assert partition is not None
        partition.become_mirror()
        with pytest.raises(LedgerFailed, match="NOT_LEADER"):
            made.log.append(0, [(b"\x00\x02\x00\x01g", None)])
        with pytest.raises(LedgerFailed, match="not open"):
            made.log.append(7, [(b"\x00\x02\x00\x01g", None)])


async def test_end_of_epoch_is_the_partitions_own(tmp_path: Path) -> None:
    async with node(tmp_path, 4) as made:
        assert made.log.end_of_epoch(tp(0), LeaderEpoch(4)) == 0
        assert made.log.end_of_epoch(tp(0), LeaderEpoch(9)) is None
        assert made.log.end_of_epoch(tp(3), LeaderEpoch(4)) is None


@pytest.mark.parametrize(("region_epoch", "end_offset"), [(1 << 3, None), (2 << 3 | 1, 0)])
async def test_T26_the_end_of_a_log_counts_once_a_region_took_over(
    tmp_path: Path, region_epoch: int, end_offset: int | None
) -> None:
    async with node(tmp_path, region_epoch << 16 | 1) as made:
        assert made.log.end_after_takeover(tp(0)) == end_offset
        assert made.log.end_after_takeover(tp(3)) is None
        partition = made.table.get("orders", 0)
        assert partition is not None
        partition.become_mirror()
        assert made.log.end_after_takeover(tp(0)) is None
