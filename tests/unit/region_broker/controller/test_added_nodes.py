"""Nodes that are added to a region while it runs: what the metadata make of it, and when they refuse it."""

from pathlib import Path

import msgspec
import pytest

from idempotency.identity import RegionEpoch
from region_broker.controller.cluster_commands import (
    AddNode,
    ElectLeader,
    FenceNode,
    FinalizeLevel,
    RegisterNode,
    RemoveNode,
    WithdrawNode,
)
from region_broker.controller.cluster_image import NODES_MAX, AddedNode
from region_broker.controller.feature_levels import allows
from region_broker.controller.metadata_commands import PutDomain
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_store import region_in_log, stored_image
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.cluster_images import (
    after,
    born,
    leader_epoch,
    let_in,
    main_domain,
    member,
    node,
    refusal,
)
from tests.fixtures.metadata_stores import open_metadata


def added(node_id: int, host: str = "") -> AddedNode:
    """Return a node at a host of its own."""
    host = host or f"eu{node_id}"
    return AddedNode(
        node_id=node_id, kafka=f"{host}:9092", peer=f"{host}:9094", http=f"{host}:9093"
    )


def led() -> MetadataImage:
    return after(born(), *let_in(1), ElectLeader(member(1), leader_epoch(1), 0))


def test_INV_MN8_a_node_that_was_added_is_known_until_it_is_withdrawn_or_removed() -> None:
    image = after(born(), AddNode(added(2)), AddNode(added(3)))
    assert image.added_nodes == {2: added(2), 3: added(3)}
    assert after(image, WithdrawNode(3)).added_nodes == {2: added(2)}
    image = after(led(), AddNode(added(2)), *let_in(2))
    assert refusal(image, WithdrawNode(2)) == "node-registered"
    assert refusal(image, WithdrawNode(4)) == "unknown-node"
    image = after(image, FenceNode(2, node(2).life), RemoveNode(2, member(2).incarnation))
    assert image.added_nodes == {}


def test_INV_MN8_no_two_nodes_have_an_address_in_common() -> None:
    image = after(led(), AddNode(added(2)))
    for field in ("kafka", "peer", "http"):
        clash = msgspec.structs.replace(added(3), **{field: "eu2:9094"})
        assert refusal(image, AddNode(clash)) == "address-in-use"
    at_the_first = msgspec.structs.replace(added(3), peer="127.0.0.1:9093")  # as it registered
    assert refusal(image, AddNode(at_the_first)) == "address-in-use"


def test_INV_MN8_one_that_is_heard_keeps_its_addresses_and_one_that_is_not_may_move() -> None:
    image = after(led(), AddNode(added(2)), *let_in(2))
    assert refusal(image, AddNode(added(2, "elsewhere"))) == "node-id-in-use"
    assert refusal(image, AddNode(added(1, "elsewhere"))) == "node-id-in-use"
    away = after(image, FenceNode(2, node(2).life), AddNode(added(2, "elsewhere")))
    assert away.added_nodes[2] == added(2, "elsewhere")


def test_INV_MN8_as_it_registered_it_may_be_said_again() -> None:
    same = AddedNode(
        node_id=1, kafka="127.0.0.1:9092", peer="127.0.0.1:9093", http="127.0.0.1:8080"
    )
    assert after(led(), AddNode(same)).added_nodes == {1: same}


def test_INV_MN8_the_number_of_nodes_is_bounded() -> None:
    image = after(born(), *(AddNode(added(number)) for number in range(NODES_MAX)))
    assert refusal(image, AddNode(added(NODES_MAX))) == "too-many-nodes"


def test_INV_FL1_nodes_are_added_from_level_3_on() -> None:
    assert not allows(2, AddNode(added(2)))
    assert not allows(2, WithdrawNode(2))
    assert allows(3, AddNode(added(2)))


async def test_what_was_added_is_in_the_database_and_in_the_log_and_gone_when_it_is_withdrawn(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m.db"
    store = await open_metadata(path, new_cluster_id="c")
    await store.apply(PutDomain(main_domain(RegionEpoch(8))))
    await store.apply(AddNode(added(2)))
    await store.apply(RegisterNode(node(1)))
    await store.apply(AddNode(added(3)))
    live = store.image
    assert region_in_log(path, RealDisk()) == live
    await store.close()
    assert stored_image(path, RealDisk()) == region_in_log(path, RealDisk()) == live
    store = await open_metadata(path, new_cluster_id="c")
    assert store.image == live
    await store.apply(WithdrawNode(2))
    await store.apply(WithdrawNode(3))
    await store.close()
    store = await open_metadata(path, new_cluster_id="c")
    assert store.image.added_nodes == {}
    await store.close()


async def test_an_older_release_may_come_back_until_its_region_is_raised(tmp_path: Path) -> None:
    """ADR 52: the schema is that of the older release, whose code refuses another one."""
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c", levels=range(1, 3))
    await store.close()
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    assert store.image.feature_level == 2
    await store.close()
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c", levels=range(1, 3))
    await store.close()
    store = await open_metadata(tmp_path / "m.db", new_cluster_id="c")
    await store.apply(FinalizeLevel(3))
    await store.apply(AddNode(added(2)))
    await store.close()
    with pytest.raises(Exception, match="install the version"):
        await open_metadata(tmp_path / "m.db", new_cluster_id="c", levels=range(1, 3))
