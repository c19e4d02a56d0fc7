"""What the commands about nodes and leadership do, and when they are refused: rule by rule."""

from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from idempotency.identity import RegionEpoch
from region_broker.controller.cluster_commands import (
    ChangeInSync,
    DrainNode,
    ElectLeader,
    ElectUnclean,
    FenceNode,
    RegisterNode,
    RemoveNode,
    UnfenceNode,
)
from region_broker.controller.cluster_image import (
    FOLDERS_MAX,
    NODES_MAX,
    REMEMBERED_MAX,
    Leadership,
)
from region_broker.controller.metadata_commands import (
    Command,
    CommandRefused,
    PutDomain,
    RecordLineage,
    TakeLeaderEpoch,
    apply,
)
from region_broker.controller.metadata_image import LineageEntry, MetadataImage
from region_broker.controller.metadata_machine import MachineState, decode_state, encode_state
from region_broker.controller.raft.entries import Member
from tests.fixtures.cluster_images import (
    after,
    born,
    in_sync,
    leader_epoch,
    led_by_one,
    let_in,
    life,
    main_domain,
    member,
    node,
    refusal,
    starts,
)

A, B, C = member(1), member(2), member(3)
EMPTIED = member(2, folder=2)
FENCED_LEADER = after(in_sync(), FenceNode(1, life(1)))


def led(image: MetadataImage) -> tuple[Member | None, tuple[Member, ...], int]:
    """Return leader, in-sync set and version."""
    found = image.leadership
    assert found is not None
    return found.leader, found.in_sync, found.version


def nobody_leads() -> MetadataImage:
    """Return a region whose three nodes were fenced, the leader first."""
    fences = [FenceNode(number, life(number)) for number in (1, 2, 3)]
    return after(in_sync(), *fences)


# --- nodes ---


def test_INV_MN2_a_node_begins_fenced_whatever_it_says() -> None:
    said = structs.replace(node(1), fenced=False, draining=True, former_lives=(UUID(int=9),))
    found = after(born(), RegisterNode(said)).nodes[1]
    assert found == structs.replace(said, fenced=True, draining=False, former_lives=())
    assert after(born(), *let_in(1)).nodes[1].fenced is False


def test_a_node_that_registers_twice_in_one_life_stays_what_it_is() -> None:
    image = after(in_sync(), DrainNode(2, life(2)), RegisterNode(node(2, rack="r")))
    found = image.nodes[2]
    assert (found.fenced, found.draining, found.rack, found.former_lives) == (False, True, "r", ())


@pytest.mark.parametrize(
    ("node_id", "expected"),
    [
        (
            1,
            (None, (A, B, C), 3),
        ),  # the leader: nobody leads, and all that were in sync still hold everything
        (2, (A, (A, B, C), 2)),
    ],
)
def test_INV_MN2_INV_MH3_a_new_life_begins_fenced_and_leads_nothing(
    node_id: int, expected: tuple[Member | None, tuple[Member, ...], int]
) -> None:
    image = after(in_sync(), RegisterNode(node(node_id, start=2)))
    found = image.nodes[node_id]
    assert (found.fenced, found.former_lives) == (True, (life(node_id),))
    assert led(image) == expected


def test_INV_MN2_a_new_life_drains_no_more() -> None:
    image = after(in_sync(), DrainNode(2, life(2)), RegisterNode(node(2, start=2)))
    assert image.nodes[2].draining is False


def test_INV_MN1_a_life_that_was_replaced_does_not_come_back() -> None:
    image = after(in_sync(), *[RegisterNode(node(2, start=number)) for number in range(2, 5)])
    for number in range(1, 4):
        assert refusal(image, RegisterNode(node(2, start=number))) == "life-replaced"
    assert refusal(image, RegisterNode(node(2, start=4))) == ""
    assert refusal(image, RegisterNode(node(2, folder=2, start=4))) == "life-replaced"


def test_what_is_remembered_of_a_node_is_bounded() -> None:
    image = after(in_sync(), FenceNode(2, life(2)))
    for number in range(2, REMEMBERED_MAX + 9):
        image = after(image, RegisterNode(node(2, folder=number, start=number)))
    found = image.nodes[2]
    assert len(found.former_lives) == len(found.former_incarnations) == REMEMBERED_MAX
    assert found.former_lives[-1] == life(2, REMEMBERED_MAX + 7)
    assert found.former_incarnations[-1] == member(2, REMEMBERED_MAX + 7).incarnation


def test_INV_MN3_another_folder_takes_a_node_id_only_from_a_fenced_one_and_is_remembered() -> None:
    other = RegisterNode(node(2, folder=2, start=2))
    assert refusal(in_sync(), other) == "node-id-in-use"
    image = after(in_sync(), FenceNode(2, life(2)), other)
    assert image.nodes[2].former_incarnations == (B.incarnation,)
    assert image.nodes[2].fenced
    assert led(image) == (A, (A, B, C), 2), "who led is to drop the former folder"
    assert image.node_of(B) is None
    assert image.node_of(EMPTIED) == image.nodes[2]


def test_INV_MN2_another_folder_is_not_in_sync_by_its_node_id() -> None:
    image = after(nobody_leads(), *let_in(2, folder=2, start=2))
    assert led(image) == (None, (A, B, C), 3), "the former folder is still awaited"
    assert refusal(image, ElectLeader(EMPTIED, leader_epoch(2), 3)) == "not-in-sync"
    assert refusal(image, ElectLeader(B, leader_epoch(2), 3)) == "other-incarnation"
    returned = after(image, FenceNode(2, life(2, 2)), *let_in(2, start=3))
    assert led(after(returned, ElectLeader(B, leader_epoch(2), 3))) == (B, (A, B, C), 4)


def test_a_folder_belongs_to_one_node() -> None:
    twice = structs.replace(node(4), incarnation=B.incarnation)
    assert refusal(in_sync(), RegisterNode(twice)) == "incarnation-in-use"
    fenced = after(in_sync(), FenceNode(3, life(3)))
    exchanged = structs.replace(node(3, start=2), incarnation=B.incarnation)
    assert refusal(fenced, RegisterNode(exchanged)) == "incarnation-in-use"


def test_INV_MN4_a_second_node_waits_until_the_first_has_led() -> None:
    alone = after(born(), *let_in(1))
    assert refusal(alone, RegisterNode(node(2))) == "leadership-not-begun"
    begun = after(alone, ElectLeader(A, leader_epoch(1), 0))
    assert refusal(begun, RegisterNode(node(2))) == ""
    emptied = RegisterNode(node(1, folder=2, start=2))
    assert refusal(after(alone, FenceNode(1, life(1))), emptied) == "leadership-not-begun"
    removed = after(alone, RemoveNode(1, A.incarnation))
    assert refusal(removed, RegisterNode(node(2))) == ""


def test_a_region_has_a_bounded_number_of_nodes() -> None:
    image = led_by_one()
    for number in range(4, NODES_MAX + 1):
        image = after(image, RegisterNode(node(number)))
    assert refusal(image, RegisterNode(node(NODES_MAX + 1))) == "too-many-nodes"
    assert refusal(image, RegisterNode(node(2, start=2))) == ""


@pytest.mark.parametrize("make", [FenceNode, UnfenceNode, DrainNode])
def test_INV_MN1_only_the_life_that_is_named_is_fenced_unfenced_or_drained(
    make: type[FenceNode | UnfenceNode | DrainNode],
) -> None:
    assert refusal(in_sync(), make(9, life(9))) == "unknown-node"
    assert refusal(in_sync(), make(2, life(2, 2))) == "other-life"
    assert refusal(in_sync(), make(2, life(2))) == ""


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([FenceNode(2, life(2))], (A, (A, B, C), 2)),  # INV-MH3: who leads drops it
        ([DrainNode(2, life(2))], (A, (A, B, C), 2)),
        ([DrainNode(1, life(1))], (A, (A, B, C), 2)),  # it leads until another one does
        ([FenceNode(1, life(1))], (None, (A, B, C), 3)),  # INV-MH2
        ([FenceNode(2, life(2)), FenceNode(1, life(1))], (None, (A, B, C), 3)),
        ([FenceNode(1, life(1)), FenceNode(2, life(2))], (None, (A, B, C), 3)),  # INV-MH4
        ([FenceNode(2, life(2)), UnfenceNode(2, life(2))], (A, (A, B, C), 2)),
        ([UnfenceNode(2, life(2))], (A, (A, B, C), 2)),
        ([FenceNode(1, life(1)), UnfenceNode(1, life(1))], (None, (A, B, C), 3)),
        ([FenceNode(1, life(1)), RegisterNode(node(1, start=2))], (None, (A, B, C), 3)),
    ],
)  # fmt: skip
def test_INV_MH2_INV_MH3_INV_MH4_what_becomes_of_the_leadership_when_nodes_change(
    commands: list[Command], expected: tuple[Member | None, tuple[Member, ...], int]
) -> None:
    assert led(after(in_sync(), *commands)) == expected


def test_INV_MN5_a_node_on_which_the_logs_hang_is_not_removed() -> None:
    assert refusal(in_sync(), RemoveNode(9, A.incarnation)) == "unknown-node"
    assert refusal(in_sync(), RemoveNode(2, EMPTIED.incarnation)) == "other-incarnation"
    assert refusal(in_sync(), RemoveNode(1, A.incarnation)) == "node-leads"
    image = after(in_sync(), RemoveNode(2, B.incarnation))
    assert 2 not in image.nodes
    assert led(image)[:2] == (A, (A, C))
    last = after(led_by_one(), FenceNode(1, life(1)))
    assert refusal(last, RemoveNode(1, A.incarnation)) == "only-in-sync"
    assert refusal(last, RemoveNode(2, B.incarnation)) == ""
    without_a = after(nobody_leads(), RemoveNode(1, A.incarnation))
    assert led(without_a)[:2] == (None, (B, C))
    emptied = after(without_a, RegisterNode(node(3, folder=2, start=2)))
    assert refusal(emptied, RemoveNode(2, B.incarnation)) == "only-in-sync", "C is gone"
    assert refusal(emptied, RemoveNode(3, member(3, 2).incarnation)) == ""


def test_INV_MN6_the_folder_of_a_removed_node_does_not_register_again() -> None:
    image = after(in_sync(), FenceNode(2, life(2)), RemoveNode(2, B.incarnation))
    assert refusal(image, RegisterNode(node(2, start=2))) == "member-removed"
    emptied = after(image, RegisterNode(node(2, folder=2, start=3)))
    assert emptied.nodes[2].member == EMPTIED
    assert refusal(emptied, RegisterNode(node(2, start=4))) == "member-removed"
    with pytest.raises(CommandRefused, match="start it with an empty one"):
        apply(emptied, RegisterNode(node(2, start=4)))


def test_INV_MN7_a_folder_that_does_not_know_its_newest_start_is_an_older_copy() -> None:
    image = after(in_sync(), RegisterNode(node(2, start=2), starts(B, "s1")))
    image = after(image, RegisterNode(node(2, start=3), starts(B, "s1", "s2", "s3")))
    for copy in (("s1",), ("s1", "t2"), ("s1", "t2", "t3"), ("s1", "t2", "t3", "t4")):
        late = RegisterNode(node(2, start=4), starts(B, *copy))
        assert refusal(image, late) == "folder-wound-back", copy
    assert refusal(image, RegisterNode(node(2, start=3), starts(B, "s1", "s2", "s3"))) == ""
    assert refusal(image, RegisterNode(node(2, start=4), starts(B, "s1", "s2", "s3", "s4"))) == ""
    assert refusal(image, RegisterNode(node(2, start=4))) == "", "of a version that does not tell"
    late = RegisterNode(node(2, start=2), starts(B, "s1", "s2"))
    assert refusal(image, late) == "life-replaced", "a message that came late is no older copy"


def test_INV_MN7_a_former_folder_that_comes_back_is_judged_by_its_own_starts() -> None:
    """It is in sync until who leads drops it: what it had registered counts, whatever came in its place meanwhile."""
    image = after(nobody_leads(), RegisterNode(node(2, start=2), starts(B, "s1", "s2")))
    image = after(image, RegisterNode(node(2, folder=2, start=3), starts(EMPTIED, "e1")))
    assert B in led(image)[1]
    older = RegisterNode(node(2, start=4), starts(B, "s1", "t2"))
    assert refusal(image, older) == "folder-wound-back"
    assert refusal(image, RegisterNode(node(2, start=4), starts(B, "s1", "s2", "s3"))) == ""


def test_INV_MFD1_what_is_remembered_of_folders_is_bounded_and_those_in_use_are_kept() -> None:
    image = after(in_sync(), FenceNode(2, life(2)), RemoveNode(2, B.incarnation))
    assert set(image.folders) == {A.incarnation, B.incarnation, C.incarnation}
    for number in range(2, FOLDERS_MAX):
        image = after(image, RegisterNode(node(2, folder=number, start=number)))
    assert len(image.folders) == FOLDERS_MAX
    assert not image.has_removed(B)
    assert {A.incarnation, C.incarnation} <= set(image.folders)
    assert member(2, 2).incarnation in image.folders


# --- elections ---


def test_who_is_drained_is_refused_with_the_way_out() -> None:
    """An operator's drain lasts until a restart: nothing says that the node is about to stop."""
    drained = after(FENCED_LEADER, DrainNode(2, life(2)))
    with pytest.raises(CommandRefused, match=r"drained.* restart it, or name another node"):
        apply(drained, ElectLeader(B, leader_epoch(2), 3))


def test_INV_MH3_an_election_takes_a_leader_epoch_and_drops_nobody() -> None:
    image = after(in_sync(), FenceNode(1, life(1)), ElectLeader(B, leader_epoch(2), 3))
    assert image.leadership == Leadership(
        leader=B, leader_epoch=leader_epoch(2), in_sync=(A, B, C), version=4, unclean=0
    )
    assert image.last_leader_epoch == leader_epoch(2)
    drained = after(in_sync(), DrainNode(1, life(1)), ElectLeader(C, leader_epoch(2), 2))
    assert led(drained) == (C, (A, B, C), 3)
    replaced = after(FENCED_LEADER, FenceNode(2, life(2)), *let_in(2, folder=2, start=2))
    assert led(after(replaced, ElectLeader(C, leader_epoch(2), 3))) == (C, (A, B, C), 4)
    moved = after(in_sync(), ElectLeader(C, leader_epoch(2), 2))
    assert led(moved) == (C, (A, B, C), 3), "who led is still in sync"


def test_the_first_leader_is_the_only_node() -> None:
    alone = after(born(), *let_in(1))
    image = after(alone, ElectLeader(A, leader_epoch(1), 0))
    assert led(image) == (A, (A,), 1)
    assert refusal(alone, ElectUnclean(A, leader_epoch(1), 0)) == "leadership-not-begun"
    assert refusal(alone, ElectLeader(A, leader_epoch(1), 1)) == "leadership-changed"


@pytest.mark.parametrize(
    ("image", "command", "code"),
    [
        (FENCED_LEADER, ElectLeader(B, leader_epoch(2), 2), "leadership-changed"),
        (FENCED_LEADER, ElectLeader(B, leader_epoch(1), 3), "leader-epoch-taken"),  # INV-MH1
        (FENCED_LEADER, ElectLeader(B, leader_epoch(2, RegionEpoch(16)), 3), "other-region-epoch"),  # T19
        (FENCED_LEADER, ElectLeader(B, leader_epoch(2, RegionEpoch(0)), 3), "other-region-epoch"),
        (FENCED_LEADER, ElectLeader(A, leader_epoch(2), 3), "node-fenced"),
        (FENCED_LEADER, ElectLeader(member(9), leader_epoch(2), 3), "unknown-node"),
        (FENCED_LEADER, ElectLeader(EMPTIED, leader_epoch(2), 3), "other-incarnation"),
        (after(FENCED_LEADER, DrainNode(2, life(2))), ElectLeader(B, leader_epoch(2), 3), "node-draining"),
        (led_by_one(), ElectLeader(B, leader_epoch(2), 1), "not-in-sync"),  # INV-MH5
        (structs.replace(FENCED_LEADER, domains={}), ElectLeader(B, leader_epoch(2), 3), "unknown-domain"),
        (FENCED_LEADER, ElectLeader(B, leader_epoch(2), 3), ""),
    ],
)  # fmt: skip
def test_INV_MH1_INV_MH5_T19_an_election_is_refused(
    image: MetadataImage, command: ElectLeader, code: str
) -> None:
    assert refusal(image, command) == code


LOST = after(led_by_one(), FenceNode(1, life(1)))


def test_INV_MH5_an_unclean_election_is_offered_only_where_nobody_in_sync_runs() -> None:
    order = ElectLeader(B, leader_epoch(2), 1)
    with pytest.raises(CommandRefused, match=r"wait until it is in sync .*let one lead that is: 1"):
        apply(led_by_one(), order)
    with pytest.raises(CommandRefused, match=r"wait until one of 1.* is back, or .*unclean"):
        apply(LOST, structs.replace(order, expected_version=2))


@pytest.mark.parametrize(
    ("image", "command", "code"),
    [
        (LOST, ElectUnclean(B, leader_epoch(2), 2), ""),
        (LOST, ElectUnclean(B, leader_epoch(2), 1), "leadership-changed"),
        (LOST, ElectUnclean(B, leader_epoch(1), 2), "leader-epoch-taken"),
        (LOST, ElectUnclean(A, leader_epoch(2), 2), "node-fenced"),
        (LOST, ElectUnclean(EMPTIED, leader_epoch(2), 2), "other-incarnation"),
        (led_by_one(), ElectUnclean(B, leader_epoch(2), 1), "election-can-be-clean"),
        (after(FENCED_LEADER, FenceNode(2, life(2))), ElectUnclean(C, leader_epoch(2), 3), "election-can-be-clean"),
    ],
)  # fmt: skip
def test_R7_INV_MH5_an_unclean_election_is_refused_where_it_is_not_needed(
    image: MetadataImage, command: ElectUnclean, code: str
) -> None:
    assert refusal(image, command) == code


def test_R7_INV_MH5_an_unclean_election_is_counted() -> None:
    image = after(LOST, ElectUnclean(B, leader_epoch(2), 2))
    assert image.leadership == Leadership(
        leader=B, leader_epoch=leader_epoch(2), in_sync=(B,), version=3, unclean=1
    )
    again = after(image, FenceNode(2, life(2)), ElectUnclean(C, leader_epoch(3), 4))
    assert again.leadership is not None
    assert again.leadership.unclean == 2
    clean = after(again, ElectLeader(C, leader_epoch(4), 5))
    assert clean.leadership is not None
    assert clean.leadership.unclean == 2


# --- the in-sync set ---


FAILED_OVER = after(in_sync(), PutDomain(main_domain(RegionEpoch(16))))


@pytest.mark.parametrize(
    ("image", "command", "code"),
    [
        (in_sync(), ChangeInSync(A, leader_epoch(1), (A, B), 2), ""),
        (in_sync(), ChangeInSync(A, leader_epoch(1), (A,), 2), ""),
        (after(in_sync(), FenceNode(2, life(2))), ChangeInSync(A, leader_epoch(1), (A, B), 2), ""),  # it stays for now
        (in_sync(), ChangeInSync(A, leader_epoch(1), (), 2), "leader-not-in-sync"),
        (in_sync(), ChangeInSync(A, leader_epoch(1), (B, C), 2), "leader-not-in-sync"),
        (in_sync(), ChangeInSync(A, leader_epoch(1), (A, B), 1), "leadership-changed"),
        (in_sync(), ChangeInSync(A, leader_epoch(2), (A, B), 2), "not-the-leader"),
        (in_sync(), ChangeInSync(B, leader_epoch(1), (A, B), 2), "not-the-leader"),
        (FENCED_LEADER, ChangeInSync(A, leader_epoch(1), (A, B), 3), "not-the-leader"),
        (born(), ChangeInSync(A, leader_epoch(1), (A,), 0), "not-the-leader"),
        (FAILED_OVER, ChangeInSync(A, leader_epoch(1), (A,), 2), "other-region-epoch"),  # T19
        (led_by_one(), ChangeInSync(A, leader_epoch(1), (A, B, C), 1), ""),
        (led_by_one(), ChangeInSync(A, leader_epoch(1), (A, EMPTIED), 1), "other-incarnation"),
        (led_by_one(), ChangeInSync(A, leader_epoch(1), (A, member(9)), 1), "unknown-node"),
        (after(led_by_one(), FenceNode(2, life(2))), ChangeInSync(A, leader_epoch(1), (A, B), 1), "node-fenced"),
        (after(led_by_one(), DrainNode(2, life(2))), ChangeInSync(A, leader_epoch(1), (A, B), 1), "node-draining"),
    ],
)  # fmt: skip
def test_INV_MH6_only_the_leader_says_who_is_in_sync_and_only_of_who_may_be(
    image: MetadataImage, command: ChangeInSync, code: str
) -> None:
    assert refusal(image, command) == code


def test_an_in_sync_set_is_sorted_and_counted() -> None:
    image = after(led_by_one(), ChangeInSync(A, leader_epoch(1), (C, A, C), 1))
    assert led(image) == (A, (A, C), 2)
    assert image.last_leader_epoch == leader_epoch(1)


# --- failover, and regions of one node ---


def test_T19_a_failover_leaves_who_is_in_sync_and_asks_for_an_election() -> None:
    takeover = LineageEntry(
        region_epoch=RegionEpoch(17), acting_region="us", base_region_epoch=RegionEpoch(8), base_number=1
    )  # fmt: skip
    image = after(in_sync(), RecordLineage("main", takeover))
    assert image.leadership == in_sync().leadership
    assert refusal(image, ElectLeader(A, leader_epoch(2), 2)) == "other-region-epoch"
    elected = after(image, ElectLeader(A, leader_epoch(1, RegionEpoch(17)), 2))
    assert led(elected) == (A, (A, B, C), 3)
    assert elected.last_leader_epoch == leader_epoch(1, RegionEpoch(17))


def test_T1_where_nobody_was_elected_leader_epochs_are_counted_as_before() -> None:
    taken = after(born(), TakeLeaderEpoch(leader_epoch(3)))
    assert taken.last_leader_epoch == leader_epoch(3)
    assert refusal(taken, TakeLeaderEpoch(leader_epoch(3))) == "leader-epoch-taken"
    joined = after(taken, *let_in(1))
    assert refusal(joined, ElectLeader(A, leader_epoch(3), 0)) == "leader-epoch-taken"
    assert refusal(in_sync(), TakeLeaderEpoch(leader_epoch(9))) == "leader-epoch-by-election"


def test_a_snapshot_of_an_older_version_has_no_nodes() -> None:
    older = msgspec.msgpack.encode([{"version": 7, "cluster_id": "c"}])
    assert decode_state(older) == MachineState(MetadataImage(version=7, cluster_id="c"))
    state = MachineState(in_sync())
    assert decode_state(encode_state(state)) == state
