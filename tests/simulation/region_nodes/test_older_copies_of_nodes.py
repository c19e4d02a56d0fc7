"""A node of a region of three is started on an older copy of its folder (ADR 46, INV-MN7)."""

from pathlib import Path

import pytest

from region_broker.node import NodeRefused
from tests.simulation.folder_faults import copy_of, empty_folder, restore
from tests.simulation.region_cluster import Cluster, Member, region_cluster
from tests.simulation.region_pair import until
from tests.simulation.test_region_of_three import (
    TOPIC,
    all_in_sync,
    connected,
    everything_equal,
    leadership,
    values_at,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

RECORDS = [b"%d" % number for number in range(8)]


async def restarted_follower(cluster: Cluster) -> tuple[Member, Member]:
    """Return the leader of a region that has records, and a follower that was just killed."""
    leader = await all_in_sync(cluster)
    await leader.node.topics.create_topic(TOPIC, 2, {})
    await write(await connected(cluster, leader), RECORDS[:3])
    other = next(node for node in cluster.nodes.values() if node is not leader)
    await other.kill()
    return leader, other


async def is_refused(node: Member) -> None:
    """Start it on an older copy; it is refused, and once more without asking anybody."""
    await node.begin()
    await until(lambda: node.died, "it is refused")
    assert "is an older copy" in node.why_died()
    await node.kill()
    with pytest.raises(NodeRefused, match="is an older copy"):
        await node.begin()


async def test_INV_MN7_INV_CNN5_a_follower_on_an_older_copy_is_refused_until_it_has_another_folder(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 51) as cluster:
        leader, other = await restarted_follower(cluster)
        older = copy_of(other)
        await other.start()
        await all_in_sync(cluster)
        await write(await connected(cluster, leader), RECORDS[3:5])
        await other.kill()
        newest = copy_of(other)
        restore(other, older)
        await is_refused(other)
        await write(await connected(cluster, leader), RECORDS[5:])
        assert other.node_id not in {one.node_id for one in leadership(leader).in_sync}
        restore(other, newest)
        await other.start()
        await all_in_sync(cluster)
        await other.kill()
        restore(other, older)
        await is_refused(other)
        empty_folder(other)
        await other.start()
        await all_in_sync(cluster)
        await everything_equal(cluster)
        assert await values_at(cluster, leader) == RECORDS


async def test_INV_MN7_all_stop_and_one_comes_back_with_an_older_copy_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """It was in sync, so it could lead: all that it lacks would be gone."""
    async with region_cluster(tmp_path, 52) as cluster:
        leader, older_one = await restarted_follower(cluster)
        older = copy_of(older_one)
        await older_one.start()
        await all_in_sync(cluster)
        await write(await connected(cluster, leader), RECORDS[3:])
        third = next(n for n in cluster.nodes.values() if n not in (leader, older_one))
        for node in cluster.nodes.values():
            await node.kill()
        restore(older_one, older)
        await older_one.begin()
        await third.begin()
        await until(lambda: older_one.died, "it is refused")
        assert "is an older copy" in older_one.why_died()
        await older_one.kill()
        await leader.begin()
        second = await cluster.until_led()
        assert await values_at(cluster, second) == RECORDS
