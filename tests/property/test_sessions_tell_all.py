"""INV-FE1, INV-FE6: a reader in a session learns what a reader that asks for everything learns, whatever happens."""

import random
from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType, iter_headers
from region_broker.partitions.partition import Partition
from region_broker.records.batches import Origin, Record, build_batch
from tests.fixtures.kafka_port import LEADER_EPOCH, RawClient, WireFixture, wire_fixture
from tests.fixtures.node_logs import append_marker

PARTITIONS, STEPS = 6, 80
VERSION = 12


class Reader:
    """A client in a session: what it was told of each partition, and where it reads on."""

    def __init__(self, client: RawClient, isolation_level: int) -> None:
        self.client = client
        self.isolation_level = isolation_level
        self.session_id = self.epoch = 0
        self.offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.told: dict[int, tuple[int, int, int]] = {}
        self.moved = set(range(PARTITIONS))

    async def fetch(self, max_wait_ms: int) -> bool:
        """Fetch once; return whether anything was told."""
        parts = [
            {"partition": index, "fetch_offset": self.offsets[index], "partition_max_bytes": 300}
            for index in sorted(self.moved)
        ]
        self.moved.clear()
        answer = await self.client.call(1, VERSION, {
            "max_wait": max_wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": self.isolation_level,
            "session_id": self.session_id, "session_epoch": self.epoch,
            "topics": [{"topic": "t", "partitions": parts}] if parts else [], "forgotten_topics_data": [],
        })  # fmt: skip
        assert answer.error_code == 0
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        rows = [row for topic in answer.responses for row in topic.partitions]
        for row in rows:
            self._note(row)
        return bool(rows)

    def _note(self, row: Any) -> None:
        index = row.partition_index
        if row.error_code == 1:  # out of range: go on at the first that is left, as consumers do
            self.offsets[index] = -1
            self.moved.add(index)
            return
        assert row.error_code == 0
        self.told[index] = (row.high_watermark, row.last_stable_offset, row.log_start_offset)
        for _, header in iter_headers(row.records or b""):
            self.offsets[index] = header.next_offset
            self.moved.add(index)


async def change(partition: Partition, chance: random.Random) -> None:
    """Let something happen to a partition."""
    producer_id = chance.randrange(3)
    match chance.randrange(7):
        case 0 | 1 | 2 if partition.is_leader:
            outcome = partition.writer.append(
                build_batch([Record(None, bytes(chance.randrange(400)))])
            )
            await partition.wait_committed(outcome.next_offset)
        case 3 if partition.is_leader:
            known = [
                facts for facts in partition.state.producers() if facts.producer_id == producer_id
            ]
            sequence = known[0].last_sequence + 1 if known else 0
            origin = Origin(
                ProducerId(producer_id),
                ProducerEpoch(0),
                SequenceNumber(max(0, sequence)),
                transactional=True,
            )
            outcome = partition.writer.append(
                build_batch([Record(None, b"in a transaction")], origin=origin)
            )
            await partition.wait_committed(max(0, outcome.next_offset))
        case 4 if partition.is_leader:
            outcome = append_marker(
                partition, producer_id=producer_id, producer_epoch=0, coordinator_epoch=1, decision=None,
                control_type=chance.choice([ControlType.ABORT, ControlType.COMMIT]), timestamp_ms=1,
            )  # fmt: skip
            await partition.wait_committed(max(0, outcome.next_offset))
        case 5 if partition.is_leader:
            await partition.retention.delete_records(chance.randint(0, partition.high_watermark))
        case 6:
            if partition.is_leader:
                partition.become_mirror()
            else:
                shown = chance.randint(0, partition.high_watermark)
                partition.show_up_to(shown, shown)
                if chance.random() < 0.5:
                    partition.become_leader(LeaderEpoch(partition.log.epochs.latest + LEADER_EPOCH))
        case _:
            pass


def truth(partition: Partition) -> tuple[int, int, int]:
    return (
        partition.sight.visible_end,
        partition.sight.last_stable_offset,
        partition.log_start_offset,
    )


async def read_all(fixture: WireFixture, reader: Reader) -> None:
    for _ in range(200):
        if not await reader.fetch(0) and not reader.moved:
            return
        for index in reader.moved:
            if reader.offsets[index] < 0:
                reader.offsets[index] = fixture.partition("t", index).log_start_offset
    raise AssertionError("there is no end of news")


@pytest.mark.parametrize("seed", range(8))
async def test_INV_FE1_a_session_tells_what_a_full_fetch_would_tell(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", PARTITIONS)
        readers = [Reader(await fixture.connect(), level) for level in (0, 1)]
        for _ in range(STEPS):
            for _ in range(chance.randrange(4)):
                await change(fixture.partition("t", chance.randrange(PARTITIONS)), chance)
            for reader in readers:
                if chance.random() < 0.5:
                    await reader.fetch(chance.choice([0, 0, 1]))
                    continue
                await read_all(fixture, reader)
                for index in range(PARTITIONS):
                    partition = fixture.partition("t", index)
                    assert reader.told[index] == truth(partition), (seed, index)
                    end = truth(partition)[reader.isolation_level]
                    assert reader.offsets[index] >= end, (seed, index)
