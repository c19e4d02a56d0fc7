"""A node whose folder was lost went on with another one, and the lost folder is started again (INV-FRP1, INV-FRP2, INV-CNN4)."""

from pathlib import Path

import pytest

from region_broker.controller.metadata_image import MetadataImage
from tests.simulation.folder_faults import copy_of, empty_folder, restore
from tests.simulation.region_cluster import Cluster, Member, region_cluster
from tests.simulation.region_nodes.growing import wanted
from tests.simulation.region_nodes.test_operating import dropped, order, quorum_leader, settled
from tests.simulation.region_pair import until
from tests.simulation.test_region_of_three import (
    TOPIC,
    all_in_sync,
    connected,
    everything_equal,
    values_at,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

RECORDS = [b"%d" % number for number in range(4)]


def image_of(node: Member) -> MetadataImage:
    return node.node.storage.metadata.image


async def ends(node: Member) -> str:
    """Start a node that is told that it was replaced; return why it ended."""
    await node.begin()
    await until(lambda: node.died, "INV-CNN4: it is told to end")
    why = node.why_died()
    await node.kill()
    assert "took the place of it" in why, why
    return why


async def add(cluster: Cluster, node_id: int) -> None:
    node = quorum_leader(cluster)
    await node.as_process(
        node.node.adding.add(wanted(node_id, rack=f"rack-eu-{node_id}"), dry_run=False)
    )


async def test_INV_FRP1_INV_FRP2_a_folder_that_was_replaced_ends_until_its_node_is_added_again(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 71) as cluster:
        leader = await settled(cluster)
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, leader), RECORDS[:2])
        gone = next(
            node for node in cluster.nodes.values()
            if node is not leader and node is not quorum_leader(cluster)
        )  # fmt: skip
        await gone.kill()
        await cluster.until(lambda: dropped(leader, gone), "it is dropped")
        former = copy_of(gone)
        empty_folder(gone)
        await gone.start()
        await settled(cluster)
        successor = image_of(leader).nodes[gone.node_id].incarnation
        await gone.kill()
        await cluster.until(lambda: dropped(leader, gone), "it is dropped")
        restore(gone, former)
        why = await ends(gone)
        assert f"node {gone.node_id} of this region is folder {successor} now" in why
        assert "Do not run tidemark init" in why
        assert image_of(leader).nodes[gone.node_id].incarnation == successor, (
            "also while that is silent"
        )
        await order(quorum_leader(cluster), "remove", gone.node_id)
        assert f"was folder {successor} later, and was removed" in await ends(gone)
        await add(cluster, gone.node_id)
        await gone.start()
        await all_in_sync(cluster)
        await write(await connected(cluster, leader), RECORDS[2:])
        await everything_equal(cluster)
        assert await values_at(cluster, leader) == RECORDS
