"""Who leads by an operator's order ends below where a follower's log begins (INV-RPH3): that log stops, or is copied anew."""

import pytest

from idempotency.pieces import drained
from region_broker.controller.cluster_commands import ElectUnclean
from tests.fixtures.cluster_images import leader_epoch
from tests.fixtures.node_logs import batch
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion, bytes_of, live

CONFIGS = {"segment.bytes": "4096", "retention.ms": "-1"}


async def led_by_the_shortest(region: ReplicaRegion) -> tuple[ReplicaNode, ReplicaNode]:
    """Return the leader, and who follows it.

    1. Node 2 is away for longer than retention. 2. The others are lost. 3. It is elected uncleanly. 4. Node 1 returns.
    """
    one, two, three = await region.start(topic_configs=CONFIGS)
    for number in range(2):
        await one.produce(batch(5), number)
    await two.kill()
    await region.until(lambda: region.in_sync() == {1, 3}, "it is out of sync")
    for _ in range(60):
        await one.produce(batch(2, size_bytes=200))
    await one.partition().retention.delete_records(one.partition().high_watermark - 10)
    drained(one.table.upkeep.maintain(lambda _: None))
    assert one.partition().kept_from > 5
    await one.kill()
    await three.kill()
    for node_id in (1, 3):
        region.fence(node_id)
    await two.start()
    last = region.leadership
    region.change(
        ElectUnclean(two.member, leader_epoch((last.leader_epoch & 0xFFFF) + 1), last.version)
    )
    assert two.partition().log_end_offset == 5
    await one.start()
    return two, one


def test_INV_RPH3_where_the_region_acts_that_log_stops_and_the_others_are_followed() -> None:
    async def life(region: ReplicaRegion) -> None:
        two, one = await led_by_the_shortest(region)
        two.append(batch(3), 1)
        await region.until(lambda: one.partition(1).log_end_offset == 8, "another log is copied")
        assert "parts from the leader's log at 5" in str(one.partition().failed)
        kept = bytes_of_stopped(one)
        for _ in range(70):
            two.append(batch(2, size_bytes=200))
        await region.clock.sleep_ms(2_000)
        assert two.partition().high_watermark == two.partition().log_end_offset
        assert region.in_sync() == {2}, "it lacks what was written from 5 on"
        assert bytes_of_stopped(one) == kept

    live(life, partitions=2)


def bytes_of_stopped(node: ReplicaNode) -> tuple[int, int]:
    """Return where a log begins and ends that serves nobody."""
    return node.partition().kept_from, node.partition().log_end_offset


@pytest.mark.parametrize("is_empty", [False, True])
def test_INV_RPH3_where_the_region_mirrors_another_one_it_is_copied_anew(is_empty: bool) -> None:
    async def life(region: ReplicaRegion) -> None:
        region.mirrors = True
        if is_empty:  # all that it had was moved away, and then its node ended
            region.before_cut = lambda node: node.partition().truncate_to(
                node.partition().kept_from
            )
        two, one = await led_by_the_shortest(region)
        await region.until(lambda: region.in_sync() == {1, 2}, "it is in sync")
        assert one.partition().kept_from == 0
        two.append(batch(2))
        await region.until(lambda: one.partition().high_watermark == 7, "it is copied on")
        assert bytes_of(one.partition()) == bytes_of(two.partition())

    live(life, partitions=2)
