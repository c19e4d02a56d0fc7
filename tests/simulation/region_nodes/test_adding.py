"""What is refused where a node is added to a region that runs, and that it changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.node.cluster_node import ClusterNode
from region_broker.region.cluster.cluster_orders import ClusterOrderRefused
from tests.simulation.region_cluster import region_cluster
from tests.simulation.region_nodes.growing import GrowingRegion, addresses, wanted

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

STRANGER = {"cluster_id": "another"}


def image(region: GrowingRegion) -> MetadataImage:
    return region.first.node.storage.metadata.image


async def refused(region: GrowingRegion, node_id: int, **more: Any) -> str:
    """Return the code and the text with which a node is refused; nothing has changed then."""
    first, before = region.first, image(region)
    with pytest.raises(CommandRefused) as error:
        await first.as_process(first.node.adding.add(wanted(node_id, **more), dry_run=False))
    assert image(region).added_nodes == before.added_nodes
    assert not first.has_turned
    return f"{error.value.code}: {error.value.reason}"


async def waiting(region: GrowingRegion, at: int, file: dict[str, Any]) -> None:
    """Run a process of the configuration `file` at the address of node `at`, which waits for its region."""
    node = region.grower(at)
    node.file = {**region.first.file, "data_dir": str(node.folder), **file}
    node.make_folder = lambda: None  # type: ignore[method-assign]
    await node.begin()
    member = node.process._present
    assert isinstance(member, ClusterNode)
    await region.until(lambda: member.peers._listener is not None, "its peer port is bound")


def two(own: int, *node_ids: int) -> dict[str, Any]:
    """Return what a file says of a region of several nodes."""
    nodes = [addresses(node_id) for node_id in node_ids]
    return {"node_id": own, "regions": [{"name": "eu", "ordinal": 0, "nodes": nodes}]}


async def test_INV_NAD2_who_is_not_that_node_is_not_added(tmp_path: Path) -> None:
    region = GrowingRegion(tmp_path, 61)
    try:
        await region.start()
        assert "the one that was asked" in await refused(region, 1)
        assert "is the address of" in await refused(region, 2, kafka="127.0.0.1:10000")
        assert "is the address of" in await refused(region, 2, peer="localhost:11000")
        assert "bad-node" in await refused(region, 2, http="nowhere")
        await waiting(region, 2, {**two(2, 2, 3), **STRANGER})
        assert "other-node-there: nothing was added" in await refused(region, 2)
        assert "another" in await refused(region, 2), "whose cluster it is, is said"
        await region.grower(2).kill()
        await waiting(region, 3, two(3, 1, 3))
        assert "is node 3 of this region" in await refused(region, 2, peer="127.0.0.1:11002")
        done = await region.add(3, region.first)
        assert done["changed"], "that very node may wait there already"
    finally:
        await region.stop()


async def test_INV_NAD2_a_machine_that_is_not_reached_is_added_by_an_operators_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nowhere(*_: object) -> None:
        raise OSError(113, "No route to host")

    region = GrowingRegion(tmp_path, 62)
    try:
        await region.start()
        monkeypatch.setattr(region.first.node.adding._parts.ports.network, "connect", nowhere)
        told = await refused(region, 2)
        assert "node-unreachable" in told
        assert "No route to host" in told
        assert "--unreached" in told
        done = await region.add(2, region.first, unreached=True)
        assert (done["changed"], done["turns"]) == (True, True)
    finally:
        await region.stop()


async def test_INV_NAD1_a_try_changes_nothing_and_what_is_known_is_added_again_without_a_change(
    tmp_path: Path,
) -> None:
    region = GrowingRegion(tmp_path, 63)
    try:
        await region.start()
        first = region.first
        tried = await first.as_process(first.node.adding.add(wanted(2), dry_run=True))
        assert (tried["changed"], tried["dry_run"], tried["config"]["node_id"]) == (True, True, 2)
        assert image(region).added_nodes == {}
        assert not first.has_turned
        await region.add(2, first)
        await region.until(lambda: first.has_turned and first.leads, "turned")
        version = image(region).version
        again = await region.add(2, first)
        assert (again["changed"], again["turns"]) == (False, False)
        assert image(region).version == version
        operating = first.node.operating
        assert operating is not None
        with pytest.raises(ClusterOrderRefused, match="no node 4"):
            await operating.order("remove", 4, dry_run=False, confirmed=False)
        await operating.order("remove", 2, dry_run=True, confirmed=False)
        assert {*image(region).added_nodes} == {2}
        await operating.order("remove", 2, dry_run=False, confirmed=False)  # INV-CLO4
        assert image(region).added_nodes == {}
        assert first.leads
    finally:
        await region.stop()


async def test_INV_NAD2_a_region_of_an_older_level_says_what_to_do(tmp_path: Path) -> None:
    region = GrowingRegion(tmp_path, 64)
    try:
        region.first.levels = range(1, 3)
        await region.start()
        await region.first.stop()
        region.first.levels = range(1, 4)
        await region.first.start()
        told = await refused(region, 2)
        assert "feature-level" in told
        assert "tidemark cluster upgrade --finalize" in told
        await region.first.node.features.raise_to(3, dry_run=False)
        assert (await region.add(2, region.first))["changed"]
    finally:
        await region.stop()


async def test_INV_NAD4_without_a_quorum_nothing_is_added_and_that_is_said_at_once(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 65) as cluster:
        left, *others = cluster.nodes.values()
        group = left.node.storage.metadata.group
        await cluster.until(lambda: len(group.membership.voters) == 3, "three vote")
        for other in others:
            await other.kill()
        await cluster.until(lambda: group.leader is None, "nobody leads the quorum")
        adding = left.node.adding.add(wanted(4), dry_run=False)
        with pytest.raises(CommandRefused, match="nobody leads the quorum") as refused:
            await left.as_process(adding)
        assert refused.value.code == "no-quorum"
        assert left.node.storage.metadata.image.added_nodes == {}
