"""The controller's core where leaders are spread: who is fenced first, and who is elected next."""

from msgspec import structs

from idempotency.fencing import LEADER_COUNTER_MAX
from region_broker.controller.cluster.elections import (
    candidates,
    due_election,
    due_group_election,
    group_candidates,
)
from region_broker.controller.cluster.events import (
    DrainAsked,
    Offline,
    Online,
    OrderAnswered,
    Outcome,
    PreferredAsked,
)
from region_broker.controller.cluster.orders import is_past
from region_broker.controller.cluster_commands import (
    DrainNode,
    ElectGroupLeader,
    ElectLeader,
    FenceNode,
    RegisterNode,
    UnfenceNode,
)
from region_broker.controller.leadership_rules import KEPT_FOR_MAIN
from region_broker.controller.metadata_image import MetadataImage
from tests.fixtures.cluster_images import after, leader_epoch, let_in, life, node
from tests.fixtures.spread_images import (
    A,
    B,
    C,
    elected,
    gathering_of,
    group,
    left_with,
    shrunk,
    spread,
)
from tests.unit.region_broker.controller.cluster.test_core import LIVES, Region

WHY = "none of those that hold all that was committed is heard"


def test_INV_CV1_who_may_lead_the_region_is_in_sync_in_every_group() -> None:
    image = spread()
    image = after(left_with(image, 1, B, C), FenceNode(1, life(1)))
    assert candidates(image, 1) == [B, C]
    assert due_election(image, 1) == ElectLeader(B, leader_epoch(4), 4)


def test_INV_CV3_a_data_group_without_leader_gets_one_and_never_the_main_leader() -> None:
    region = Region(spread()).lead()
    region.pass_time(750, heard=(1, 3))
    assert region.taken() == [FenceNode(2, LIVES[2]), ElectGroupLeader(1, C, leader_epoch(4), 2)]
    image = after(region.image, FenceNode(3, life(3)))
    assert group_candidates(image, 1) == []
    assert due_group_election(image) is None


def test_INV_CV3_the_preferred_node_is_elected_then_who_leads_the_fewest() -> None:
    image = after(spread(), *let_in(4))
    fourth = image.nodes[4].member
    image = after(image, shrunk(image, 1, A, B, C, fourth), FenceNode(2, life(2)))
    assert group_candidates(image, 1) == [fourth, C]
    image = after(image, UnfenceNode(2, life(2)))
    assert group_candidates(image, 1) == [B, fourth, C]
    assert due_group_election(image) == ElectGroupLeader(1, B, leader_epoch(4), 3)
    image = after(image, elected(image, 1, fourth))
    assert due_group_election(image) is None, "one that leads goes on, preferred or not"
    assert group_candidates(image, 0) == group_candidates(image, 7) == []


def test_INV_CV3_whoever_leads_the_region_is_elected_first_and_leads_all() -> None:
    region = Region(spread()).lead()
    region.pass_time(750, heard=(3,))
    assert region.taken() == [
        FenceNode(1, LIVES[1]), FenceNode(2, LIVES[2]), ElectLeader(C, leader_epoch(4), 4),
    ]  # fmt: skip
    assert region.image.spread is None


def test_INV_CK4_leaders_are_fenced_before_others() -> None:
    image = spread()
    image = after(image, elected(image, 1, C), elected(after(image, elected(image, 1, C)), 2, C))
    region = Region(image).lead()
    region.applies = False
    region.pass_time(750, heard=(1,))
    assert region.taken() == [FenceNode(3, LIVES[3])]


def test_INV_CV3_a_data_leader_that_is_about_to_stop_is_replaced_before_the_order_is_done() -> None:
    region = Region(spread()).lead()
    region.hear(1, 2, 3)
    region.tell(DrainAsked(5, 2))
    assert region.taken() == [DrainNode(2, LIVES[2]), ElectGroupLeader(1, C, leader_epoch(4), 1)]
    assert region.loud == [OrderAnswered(5, Outcome.DONE)]


def test_an_order_to_move_the_leader_gathers() -> None:
    region = Region(spread()).lead()
    region.tell(PreferredAsked(1, 3))
    assert region.taken() == [ElectLeader(C, leader_epoch(4), 3)]
    assert region.image.spread is None


def silent_group() -> Region:
    """Return a region whose second data group nobody may lead."""
    image = spread()
    region = Region(after(image, shrunk(image, 2, A, C))).lead()
    region.pass_time(750, heard=(1, 2))
    return region


def test_INV_CK5_where_nobody_can_lead_a_data_group_that_is_said_and_when_it_is_over() -> None:
    region = silent_group()
    assert region.loud == [Offline((A, C), WHY, 2)]
    region.pass_time(1_000, heard=(1, 2))
    assert len(region.loud) == 1
    region.change(gathering_of(region.image))
    assert region.loud[1:] == [Online(A, 2)]
    region = silent_group()
    region.lives[3] = life(3, 2)
    region.change(RegisterNode(node(3, start=2)))
    region.hear(3)
    assert region.taken()[-1] == ElectGroupLeader(2, C, leader_epoch(4), group(region.image, 2).version - 1)  # fmt: skip
    assert region.loud[1:] == [Online(C, 2)]


def test_INV_SPR5_no_election_is_due_in_a_data_group_that_would_be_refused() -> None:
    """Else it is asked for again and again, and orders wait for ever."""
    last = leader_epoch(LEADER_COUNTER_MAX - KEPT_FOR_MAIN)
    image = after(structs.replace(spread(), last_leader_epoch=last), FenceNode(2, life(2)))
    assert due_group_election(image) is None
    fewer = structs.replace(image, last_leader_epoch=type(last)(last - 1))
    assert due_group_election(fewer) == ElectGroupLeader(1, C, last, 2)


def test_INV_CK2_what_became_of_an_election_is_seen_in_its_group() -> None:
    image = after(spread(), FenceNode(2, life(2)))
    due = due_group_election(image)
    assert due is not None
    assert not is_past(image, due)
    assert is_past(after(image, due), due)


def test_INV_CS3_who_is_awaited_in_a_data_group_does_not_wait() -> None:
    region = silent_group()
    for number in range(2, 5):  # it flaps
        region.lives[3] = life(3, number)
        region.change(RegisterNode(node(3, start=number)))
        region.hear(3)
        assert not region.image.nodes[3].fenced
        region.change(FenceNode(3, life(3, number)))


def unspread(image: MetadataImage) -> MetadataImage:
    return after(image, gathering_of(image))


def test_nothing_of_it_is_there_while_one_node_leads_all() -> None:
    image = unspread(spread())
    assert due_group_election(image) is None
    assert group_candidates(image, 1) == []
