"""A node that was away for longer than tombstones and markers stay has what its leader has, and nothing that these ended (R5, INV-RPF10)."""

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType, iter_headers
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Origin, Record, build_batch, iter_records
from region_broker.region.cluster import replica_sending
from region_broker.region.cluster.replica_term import COMES_BACK_MS
from region_broker.replication.effects import FollowerEffect
from region_broker.replication.events import EpochsChecked, FollowerEvent
from region_broker.replication.facts import Drops
from region_broker.replication.following import FollowingCore
from tests.fixtures.node_logs import append_marker
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion, bytes_of, live
from tests.unit.region_broker.region.cluster.test_cleaned_leaders import CONFIGS, clean, write

GONE_AT_ONCE = CONFIGS | {"delete.retention.ms": "0"}
PRODUCER = 7


def txn(key: str, sequence: int) -> bytes:
    origin = Origin(
        ProducerId(PRODUCER), ProducerEpoch(0), SequenceNumber(sequence), transactional=True
    )
    return build_batch([Record(key.encode(), b"in doubt", timestamp_ms=1)], origin=origin)


async def end_txn(node: ReplicaNode, kind: ControlType) -> None:
    outcome = append_marker(
        node.partition(), producer_id=PRODUCER, producer_epoch=0, control_type=kind, coordinator_epoch=1,
        decision=None, timestamp_ms=1,
    )  # fmt: skip
    await node.partition().wait_committed(outcome.next_offset)


async def put(node: ReplicaNode, key: str, value: bytes | None) -> None:
    await node.produce(build_batch([Record(key.encode(), value, timestamp_ms=1)]))


async def clean_often(node: ReplicaNode, times: int = 3) -> None:
    """What is superseded goes, then what stands alone gets its time, then it goes."""
    for _ in range(times):
        await write(node, "fill", 200)
        await clean(node)


def keys_of(partition: Partition) -> set[bytes | None]:
    """Return the keys of all records of clients that are there."""
    data = bytes_of(partition)
    batches = [
        data[at : at + each.size_bytes] for at, each in iter_headers(data) if not each.is_control
    ]
    return {record.key for batch in batches for record in iter_records(batch)}


def shown(partition: Partition) -> dict[bytes | None, bytes]:
    """Return the newest value of each key as a read-committed reader finds it at the leader."""
    found: dict[bytes | None, bytes | None] = {}
    offset = partition.log_start_offset
    while True:
        got = partition.reader.fetch(offset, 1 << 20, Isolation.READ_COMMITTED)
        if not got.data:
            return {key: value for key, value in found.items() if value is not None}
        for at, header in iter_headers(got.data):
            gone = any(
                each.producer_id == header.producer_id
                and each.first_offset <= header.base_offset <= each.last_offset
                for each in got.aborted
            )
            if not gone and not header.is_control:
                batch = got.data[at : at + header.size_bytes]
                found |= {record.key: record.value for record in iter_records(batch)}
        offset = got.next_offset


async def away_over_tombstones(region: ReplicaRegion) -> list[ReplicaNode]:
    """1. All have `K`, and what producer 7 wrote. 2. Node 3 is away. 3. `K` is deleted, the transaction aborted, another one of 7 committed.
    4. The leader cleans until neither tombstone nor marker is left."""
    nodes = one, _, three = await region.start(topic_configs=GONE_AT_ONCE)
    await put(one, "K", b"v1")
    await one.produce(txn("in doubt", 0))
    end = one.partition().log_end_offset
    await region.until(lambda: three.partition().commits.durable_end == end, "node 3 has it")
    await three.kill()
    region.fence(3)
    await region.until(lambda: region.in_sync() == {1, 2}, "it is out")
    await region.clock.sleep_ms(COMES_BACK_MS)
    await put(one, "K", None)
    await end_txn(one, ControlType.ABORT)
    await one.produce(txn("decided", 1))
    await end_txn(one, ControlType.COMMIT)
    await clean_often(one)
    assert one.partition().log.cleaning.dropped_below > end
    assert b"K" not in keys_of(one.partition())
    return nodes


def test_R5_INV_RPF10_who_was_away_over_tombstones_and_markers_copies_the_log_whole() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await away_over_tombstones(region)
        await three.start()
        assert b"K" in keys_of(three.partition()), "it has what was deleted since"
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        assert bytes_of(three.partition()) == bytes_of(one.partition())
        before = shown(one.partition())
        region.elect(3)
        await put(three, "more", b"v")
        assert shown(three.partition()) == before | {b"more": b"v"}
        assert before.keys().isdisjoint({b"K", b"in doubt"})
        region.elect(2)
        await put(two, "more", b"w")
        assert shown(two.partition()) == before | {b"more": b"w"}, "which was never cleaned"

    live(life)


def test_INV_CLS5_INV_RPF10_who_has_copied_what_was_dropped_tells_of_it_when_it_leads() -> None:
    """1. Node 2 copies the cleaned log with an empty disk. 2. It leads, and has cleaned nothing. 3. Node 3 returns."""

    async def life(region: ReplicaRegion) -> None:
        _, two, three = await away_over_tombstones(region)
        await two.kill()
        region.fence(2)
        two.disk, two.folder = type(two.disk)(), 2
        await two.start()
        await region.until(lambda: two.member in region.leadership.in_sync, "it has copied it")
        region.elect(2)
        await two.kill(power=True)
        await two.start()
        region.elect(2)
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        assert b"K" not in keys_of(three.partition())
        assert bytes_of(three.partition()) == bytes_of(two.partition())

    live(life)


def test_INV_RPF10_who_is_in_sync_is_told_of_nothing_that_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has all that is committed: what it has is given up by no word of a leader."""
    told: list[Drops | None] = []
    step = FollowingCore.step

    def listening(core: FollowingCore, event: FollowerEvent, now_ms: int) -> list[FollowerEffect]:
        if isinstance(event, EpochsChecked):
            told.extend(each.drops for each in event.logs.values() if each is not None)
        return step(core, event, now_ms)

    monkeypatch.setattr(FollowingCore, "step", listening)

    async def life(region: ReplicaRegion) -> None:
        await region.start(2, topic_configs=GONE_AT_ONCE)
        assert told == [Drops(0, 0)]
        region.elect(2)
        await region.until(lambda: len(told) == 2, "node 1 has compared its log with node 2's")
        assert told[1] is None

    live(life)


def test_INV_CLN7_INV_RTM6_who_copies_a_log_that_is_cleaned_all_the_time_comes_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each cleaning finds tombstones whose time is over; and sessions end meanwhile."""
    monkeypatch.setattr(replica_sending, "LOG_BYTES_MAX", 512)
    begun: list[int] = []
    start_at = Partition.start_at

    def counted(partition: Partition, offset: int) -> None:
        begun.append(offset)
        start_at(partition, offset)

    monkeypatch.setattr(Partition, "start_at", counted)

    async def life(region: ReplicaRegion) -> None:
        one, _, three = await away_over_tombstones(region)
        for number in range(40):
            await write(one, f"stays{number}", 10)
        dropped_below = one.partition().log.cleaning.dropped_below
        await three.start()
        rounds = 0
        while region.in_sync() != {1, 2, 3}:
            rounds += 1
            assert rounds < 100, "it does not come to the end"
            await put(one, f"K{rounds}", None)
            await write(one, "fill", 80)
            await clean(one)
            if rounds % 3 == 0:
                three.following.compare_anew("a connection ends")
        assert rounds > 3, "it was cleaned while it was copied"
        assert begun == [0], "once, though sessions ended"
        before = shown(one.partition())
        region.elect(3)
        await put(three, "more", b"v")
        assert shown(three.partition()) == before | {b"more": b"v"}
        await clean_often(three)
        assert three.partition().log.cleaning.dropped_below > dropped_below, (
            "it holds nothing any more"
        )

    live(life)
