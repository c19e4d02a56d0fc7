"""A folder whose place another one took: who says so, of whom, and when it is believed."""

from collections.abc import Callable

import pytest
from msgspec import structs

from region_broker.controller.cluster_commands import (
    AddNode,
    ChangeInSync,
    FenceNode,
    RegisterNode,
    RemoveNode,
)
from region_broker.controller.cluster_folders import Succession, successor_of
from region_broker.controller.cluster_image import AddedNode
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member, Membership
from region_broker.region.cluster.replaced_folder import Own, disbelief, farewell, replacement_of
from region_broker.region.peers.replacement import Replacement
from tests.fixtures.cluster_images import after, in_sync, leader_epoch, life, member, node

ONE, LOST, THREE = member(1), member(2), member(3)
NEW = member(2, folder=2)
VOTERS = Membership((ONE, NEW, THREE), ())
OWN = Own(ONE, "c", "eu")
ITSELF = Own(LOST, "c", "eu")
"""The replaced folder, started again."""
NODES = frozenset({1, 2, 3})
SAID = Replacement(
    cluster_id="c", region="eu", node_id=1, incarnation=ONE.incarnation, leader_id=1, metadata_version=100,
    successor=NEW.incarnation, is_removed=False, unclean=0,
)  # fmt: skip


def replaced() -> MetadataImage:
    """Return a region whose second node was registered anew with another folder; the leader has dropped the lost one."""
    taken = RegisterNode(node(2, folder=2, start=2))
    return after(in_sync(), FenceNode(2, life(2)), taken, without_the_lost_one())


def without_the_lost_one() -> ChangeInSync:
    return ChangeInSync(ONE, leader_epoch(1), (ONE, THREE), 2)


def removed() -> MetadataImage:
    return after(replaced(), RemoveNode(2, NEW.incarnation))


def added_again() -> MetadataImage:
    back = AddedNode(node_id=2, kafka="h:1", peer="h:2", http="h:3")
    return after(removed(), AddNode(back))


def still_in_sync() -> MetadataImage:
    return after(in_sync(), FenceNode(2, life(2)), RegisterNode(node(2, folder=2, start=2)))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (in_sync, None),
        (still_in_sync, None),
        (replaced, Succession(NEW.incarnation, is_removed=False)),
        (removed, Succession(NEW.incarnation, is_removed=True)),
        (added_again, None),
    ],
)
def test_INV_MFD2_a_folder_has_a_successor_where_the_metadata_prove_it(
    make: Callable[[], MetadataImage], expected: Succession | None
) -> None:
    image = make()
    assert successor_of(image, LOST) == expected
    assert successor_of(image, NEW) is None, "the newest one has none"
    assert successor_of(image, member(2, folder=9)) is None, "a folder that nobody knows"
    assert successor_of(image, Member(3, LOST.incarnation)) is None, "nor under another node id"
    assert successor_of(image, ONE) is None


def test_INV_MFD2_nor_while_a_folder_is_remembered_by_its_node_alone() -> None:
    image = structs.replace(replaced(), folders={})
    assert successor_of(image, LOST) == Succession(NEW.incarnation, is_removed=False)
    assert successor_of(structs.replace(removed(), folders={}), LOST) is None


def test_INV_FRP1_a_voter_that_hears_a_leader_says_so() -> None:
    image = replaced()
    said = replacement_of(LOST, image, VOTERS, THREE, OWN)
    assert said == structs.replace(SAID, leader_id=3, metadata_version=image.version)
    assert replacement_of(NEW, image, VOTERS, THREE, OWN) is None


def test_INV_FRP1_nobody_else_does_nor_of_a_member_of_the_quorum() -> None:
    image = replaced()
    assert replacement_of(LOST, image, VOTERS, None, OWN) is None
    learns = Membership((NEW, THREE), (ONE,))
    assert replacement_of(LOST, image, learns, THREE, OWN) is None
    for both in (Membership((ONE, LOST), ()), Membership((ONE,), (LOST,))):
        assert replacement_of(LOST, image, both, ONE, OWN) is None
    assert replacement_of(LOST, still_in_sync(), VOTERS, ONE, OWN) is None


def test_INV_FRP2_a_word_on_grounds_is_believed() -> None:
    assert disbelief(SAID, in_sync(), ITSELF, NODES) == ""
    by_unknown = structs.replace(SAID, leader_id=4)
    assert disbelief(by_unknown, in_sync(), ITSELF, NODES) == "", "who leads is not known here"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"cluster_id": "another"}, "of cluster 'another'"),
        ({"region": "us"}, "region 'us'"),
        ({"node_id": 7, "leader_id": 7}, "no other node of this region"),
        ({"incarnation": LOST.incarnation}, "no other node of this region"),
        ({"successor": LOST.incarnation}, "this very folder"),
        ({"metadata_version": 0}, "knows less of the region"),
        ({"leader_id": 3}, "node 3 leads the quorum"),
    ],
)
def test_INV_FRP2_any_other_word_is_not(change: dict[str, object], why: str) -> None:
    assert why in disbelief(structs.replace(SAID, **change), in_sync(), ITSELF, NODES)


def test_INV_FRP2_nor_is_one_without_grounds() -> None:
    assert disbelief(None, in_sync(), ITSELF, NODES) == "it names no grounds"


def test_who_was_replaced_is_told_by_whom_and_what_the_folder_may_hold() -> None:
    told = farewell(SAID, in_sync(), ITSELF, "/data")
    assert "node 1 of region eu refuses this folder (/data, " in told
    assert f"node 2 of this region is folder {NEW.incarnation} now" in told
    assert "it led when" not in told
    assert "Do not run tidemark init" in told
    assert "stop the other one, tidemark cluster node remove 2, tidemark cluster node add 2" in told


def test_who_led_or_was_passed_over_by_an_operators_word_is_told_so() -> None:
    led = farewell(SAID, in_sync(), Own(ONE, "c", "eu"), "/data")
    assert "it led when it was last up to date" in led
    unclean = farewell(structs.replace(SAID, unclean=1), in_sync(), ITSELF, "/data")
    assert "may hold acknowledged records that nobody else has" in unclean
    gone = farewell(structs.replace(SAID, is_removed=True), in_sync(), ITSELF, "/data")
    assert f"was folder {NEW.incarnation} later, and was removed" in gone
    assert "node remove" not in gone
