"""A cut that another history made may lie within a batch of this one."""

from pathlib import Path

from geo_replicator.lineage import Cut, TidemarkPoint
from region_broker.adapters.takeover.log_surgery import CutReason, cut_logs, key_of
from region_broker.adapters.takeover.quarantine_store import QuarantineStore
from tests.log_world import batch, world


async def test_T23_a_batch_that_the_cut_goes_through_is_cut_off_and_kept_as_a_whole() -> None:
    some = world()
    partition = some.partition
    for _ in range(2):
        partition.append(batch(5))
    some.sync()
    tail = partition.read_raw(5, 1 << 20, partition.log_end_offset)
    partition.become_mirror()
    store = QuarantineStore(some.disk, Path("/data/quarantine"))
    cut = Cut(TidemarkPoint(16, 3), {key_of(partition): 7})
    reason = CutReason("main", 16, "us", 16, "eu", 0)
    (kept,) = await cut_logs([partition], cut, reason, store)
    assert partition.log_end_offset == 5
    assert (kept.first_offset, kept.last_offset, kept.byte_count) == (5, 9, len(tail))
