"""Who returns to a leader that has copied a cleaned log keeps nothing that it alone has (R5, INV-CLW3, INV-RPH4)."""

import pytest

from idempotency.record_batch import iter_headers
from region_broker.partitions.cleaner import Cleaner, CleanerParts
from region_broker.records.batches import Record, build_batch
from region_broker.replication.facts import LogHistory
from tests.fixtures.cluster_images import leader_epoch
from tests.fixtures.node_logs import InlineRunner, InstantClock
from tests.fixtures.older_cleaner import clean_as_before
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion, bytes_of, live
from tests.simulation.disk import SimulatedDisk

CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
}


def some(keys: str) -> bytes:
    """Return a batch of ten records: one for each of the keys `keys`0 to `keys`9."""
    return build_batch(
        [Record(f"{keys}{number}".encode(), b"v" * 40, timestamp_ms=1) for number in range(10)]
    )


async def write(node: ReplicaNode, keys: str, count: int) -> None:
    for _ in range(count // 10):
        await node.produce(some(keys))


async def clean(node: ReplicaNode) -> None:
    parts = CleanerParts(
        partitions=lambda: iter(node.table),
        bound_of=lambda partition: partition.high_watermark,
        disk=node.disk,
        clock=InstantClock(),
        worker=InlineRunner(),
    )
    assert await Cleaner(parts).clean_dirtiest()


@pytest.mark.parametrize(
    ("cleaned_before", "copied_before"), [(False, False), (True, False), (True, True)]
)
def test_R5_INV_CLW3_INV_RPH4_a_former_leader_is_cut_by_who_has_copied_a_cleaned_log(
    cleaned_before: bool, copied_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Node 1 writes 50 records that no other node gets, and is away. 2. Node 2 leads, then again, and cleans what is superseded.
    3. Node 3 begins with an empty disk, and leads. 4. Node 1 returns. Cleaned, or copied, before first batches were kept, or starts told.
    """
    if cleaned_before:
        clean_as_before(monkeypatch)
    if copied_before:
        monkeypatch.setattr(LogHistory, "starts_after", lambda *_: ())

    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start(topic_configs=CONFIGS)
        await write(one, "first", 100)
        for _ in range(5):
            one.append(some("alone"))
        await one.kill()
        region.fence(1)
        region.elect(2)
        await write(two, "again", 100)
        region.elect(2)
        await write(two, "again", 200)
        await clean(two)
        await three.kill()
        region.fence(3)
        three.disk, three.folder = SimulatedDisk(), 2
        await three.start()
        await region.until(lambda: three.member in region.leadership.in_sync, "it has copied it")
        region.elect(3)
        await one.start()
        assert one.partition().log_end_offset == 150, "its tail is there"
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        await write(three, "more", 10)
        headers = [header for _, header in iter_headers(bytes_of(one.partition()))]
        assert not [
            each
            for each in headers
            if each.base_offset >= 100 and each.leader_epoch == leader_epoch(1)
        ]
        assert one.partition().log_end_offset == three.partition().log_end_offset

    live(life)
