"""A region of three nodes goes from an older release to a newer one, node by node; then its feature level is raised (ADR 52).

The code is one; what an older release knows is said by the range of levels that a node is started with.
"""

from pathlib import Path

import pytest

from region_broker.controller.feature_levels import NOT_SUPPORTED
from region_broker.controller.image_database import MetadataUnreadable
from region_broker.controller.refusals import CommandRefused
from region_broker.node.node_ports import NodeRefused
from tests.simulation.region_cluster import Cluster, Member
from tests.simulation.region_nodes.test_operating import settled
from tests.simulation.test_region_of_three import (
    TOPIC,
    connected,
    everything_equal,
    values_at,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

OLD, NEW = range(1, 2), range(1, 3)


def levels(cluster: Cluster) -> set[int]:
    return {node.node.features.finalized for node in cluster.nodes.values() if node.runs}


async def of_older_nodes(folder: Path, seed: int) -> tuple[Cluster, Member]:
    cluster = Cluster(folder, seed)
    for node in cluster.nodes.values():
        node.levels = OLD
    await cluster.start()
    return cluster, await settled(cluster)


async def test_INV_FL2_a_region_is_upgraded_node_by_node_and_its_level_is_raised_last(
    tmp_path: Path,
) -> None:
    cluster, leader = await of_older_nodes(tmp_path, 41)
    try:
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, leader), [b"old"])
        for number, node in enumerate(cluster.nodes.values()):
            await node.stop()
            node.levels = NEW
            await node.start()
            leader = await settled(cluster)
            await write(await connected(cluster, leader), [b"%d" % number])
            assert levels(cluster) == {1}, "nothing is raised by itself"
            if number < 2:
                with pytest.raises(CommandRefused, match="Install the newer version") as refused:
                    await node.node.features.raise_to(2, dry_run=False)
                assert refused.value.code == NOT_SUPPORTED
        assert await leader.node.features.raise_to(2, dry_run=True)
        assert levels(cluster) == {1}
        assert await leader.node.features.raise_to(2, dry_run=False)
        await cluster.until(lambda: levels(cluster) == {2}, "all know the level")
        assert not await leader.node.features.raise_to(2, dry_run=False)
        with pytest.raises(CommandRefused, match="not lowered"):
            await leader.node.features.raise_to(1, dry_run=False)
        for node in cluster.nodes.values():
            await node.stop()
            await node.start()
            leader = await settled(cluster)
        assert levels(cluster) == {2}
        await everything_equal(cluster)
        assert sorted(await values_at(cluster, leader)) == [b"0", b"1", b"2", b"old"]
    finally:
        await cluster.stop()


async def test_INV_FL3_an_older_node_does_not_come_back_behind_a_raise_and_says_why(
    tmp_path: Path,
) -> None:
    cluster, leader = await of_older_nodes(tmp_path, 42)
    try:
        for node in cluster.nodes.values():
            await node.stop()
            node.levels = NEW
            await node.start()
            leader = await settled(cluster)
        away = next(node for node in cluster.nodes.values() if node is not leader)
        await away.stop()
        assert await leader.node.features.raise_to(2, dry_run=False)
        away.levels = OLD
        with pytest.RaisesGroup(
            pytest.RaisesExc(NodeRefused, match="Install the version that the other nodes run"),
            allow_unwrapped=True, flatten_subgroups=True,
        ):  # fmt: skip
            await away.start()  # its folder knows nothing of it yet: the others say so
        away._task = None
        away.levels = NEW
        await away.start()
        await settled(cluster)
        await away.stop()
        away.levels = OLD
        with pytest.raises(MetadataUnreadable, match="install the version that the other nodes"):
            await away.start()  # its own folder says so
        away.levels = NEW
        await away.start()
        await settled(cluster)
    finally:
        await cluster.stop()
