"""What a node says of its region of three nodes, and how it finds the one that leads (INV-CLV, INV-CLR)."""

from uuid import UUID

import msgspec
import pytest

from idempotency.identity import RegionEpoch
from region_broker.controller.cluster_commands import FenceNode, RegisterNode
from region_broker.controller.cluster_image import Leadership, Spread
from region_broker.controller.raft.entries import Member
from region_broker.handlers.dispatch.nodes import KnownNode, NodeFacts
from region_broker.region.cluster.leader_route import LeaderRoute
from region_broker.region.cluster.standing import StandingTowards
from region_broker.region.cluster.view import RegionNodes
from region_broker.region.peers.protocol import PeerUnreachable
from tests.fixtures.cluster_images import after, born, leader_epoch, life, main_domain, member, node
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.region_nodes import standing_of


def ids(nodes: tuple[KnownNode, ...]) -> list[int]:
    return [each.node_id for each in nodes]


@pytest.mark.parametrize("me", [1, 2, 3])
def test_each_node_tells_the_same_and_only_the_leader_leads(me: int) -> None:
    facts = SeenRegion(me).view.facts
    assert ids(facts.told) == ids(facts.registered) == [1, 2, 3]
    assert (facts.leader_id, facts.leader_epoch, facts.leads) == (1, leader_epoch(1), me == 1)
    assert (facts.replicas, facts.in_sync, facts.offline) == ((1, 2, 3), (1, 2, 3), ())
    assert not facts.is_alone
    assert facts.is_primary


def test_a_change_of_leader_is_told_as_nobody_and_then_under_a_greater_leader_epoch() -> None:
    seen = SeenRegion(2)
    seen.led_by_nobody()
    facts = seen.view.facts
    assert (facts.leader, facts.leader_id, facts.leads) == (None, -1, False)
    assert facts.current_leader == {"leader_id": -1, "leader_epoch": -1}
    assert (facts.replicas, facts.in_sync, facts.offline) == ((1, 2, 3), (1, 2, 3), (1,))
    assert ids(facts.told) == [2, 3]
    seen.led_by(2, 2)
    facts = seen.view.facts
    assert (facts.leader_id, facts.leader_epoch, facts.leads) == (2, leader_epoch(2), True)
    assert facts.replicas == (2, 1, 3)  # INV-CLV4
    assert facts.in_sync == (1, 2, 3)  # until the leader says otherwise (INV-MH3)


def test_INV_CLV1_a_node_that_is_not_heard_or_not_registered_tells_itself() -> None:
    seen = SeenRegion(3)
    seen.image = after(seen.image, FenceNode(3, life(3)))
    assert ids(seen.view.facts.told) == [1, 2, 3]
    assert ids(SeenRegion(9).view.facts.told) == [1, 2, 3, 9]
    assert SeenRegion(9).view.facts.replicas == (1, 2, 3)


def test_INV_CLV2_another_folder_of_the_leading_node_does_not_lead() -> None:
    seen = SeenRegion(1)
    other = RegionNodes(
        lambda: seen.image, member(1, folder=2), KnownNode(1, "127.0.0.1", 9092), "eu", several=True
    )
    assert not other.facts.leads
    assert seen.view.facts.leads


def test_a_new_life_of_the_leader_leads_once_it_is_elected_again() -> None:
    seen = SeenRegion(1)
    seen.image = after(seen.image, RegisterNode(node(1, start=2)))
    facts = seen.view.facts
    assert (facts.leads, facts.leader) == (False, None)


def test_racks_are_told() -> None:
    seen = SeenRegion(1)
    seen.image = after(seen.image, RegisterNode(node(2, start=2, rack="b")))
    racks = {each.node_id: each.row()["rack"] for each in seen.view.facts.registered}
    assert racks == {1: None, 2: "b", 3: None}


def test_INV_HNV1_a_region_of_one_node_is_its_only_node_until_several_are_configured() -> None:
    own = KnownNode(7, "here", 9092)

    def view(*, several: bool) -> RegionNodes:
        return RegionNodes(born, Member(7, life(7)), own, "eu", several=several)

    facts = view(several=False).facts
    assert (facts.is_alone, facts.leads, facts.leader, facts.told) == (True, True, own, (own,))
    facts = view(several=True).facts
    assert (facts.is_alone, facts.leads, facts.leader, facts.told) == (False, False, None, (own,))


def test_in_a_mirror_each_log_says_under_which_epoch_it_is_written() -> None:
    seen = SeenRegion(2)
    abroad = msgspec.structs.replace(main_domain(RegionEpoch(17)), acting_region="us")
    seen.image = msgspec.structs.replace(seen.image, domains={"main": abroad})
    facts = seen.view.facts
    assert (facts.leader_id, facts.leader_epoch, facts.is_primary) == (1, None, False)
    assert facts.epoch_to_tell(leader_epoch(5)) == leader_epoch(5)
    assert (facts.current_leader["leader_id"], facts.endpoints) == (-1, [])


def test_facts_are_made_once_for_an_image() -> None:
    seen = SeenRegion(2)
    assert seen.view.facts is seen.view.facts
    first = seen.view.facts
    seen.image = msgspec.structs.replace(seen.image, version=seen.image.version + 1)
    assert seen.view.facts == first
    seen.led_by_nobody()
    assert seen.view.facts != first


# -- the way to the leader ----------------------------------------------------------------------------


def test_INV_CLR1_both_sides_go_by_the_leadership_of_the_image() -> None:
    seen = SeenRegion(2)
    routes = {
        node_id: LeaderRoute(lambda: seen.image, standing_of(member(node_id))) for node_id in (1, 2)
    }
    route = routes[2].route()
    assert route is not None
    assert (route.member, route.leader_epoch) == (member(1), leader_epoch(1))
    assert route.address == ("127.0.0.1", 9093)
    assert isinstance(route.identity, StandingTowards)
    assert route.identity.expected == member(1), "nobody else is spoken to"
    assert routes[1].route() is None
    assert routes[1].leads_under() == leader_epoch(1)
    assert routes[2].leads_under() is None
    seen.led_by_nobody()
    for route_of in routes.values():
        with pytest.raises(PeerUnreachable, match="no node of this region leads") as caught:
            route_of.route()
        assert not caught.value.sent
        assert route_of.leads_under() is None
    seen.led_by(2, 2)
    assert routes[2].leads_under() == leader_epoch(2)
    assert routes[2].route() is None


def test_in_a_region_where_nobody_is_ever_elected_there_is_no_way_within() -> None:
    route = LeaderRoute(born, standing_of(member(1)))
    assert route.route() is None
    assert route.leads_under() is None


def test_facts_of_a_spread_are_the_same_object_until_a_group_or_its_topics_change() -> None:
    seen = SeenRegion(2)
    rows = {
        number: Leadership(
            leader=member(number + 1),
            leader_epoch=leader_epoch(10 + number),
            in_sync=members,
            version=1,
        )
        for number, members in ((n, (member(1), member(2), member(3))) for n in (1, 2))
    }
    spread = Spread(groups=rows, preferred=(1, 2, 3), topics=(UUID(int=1), UUID(int=2)))

    def told(spread: Spread) -> NodeFacts:
        version = seen.image.version + 1
        seen.image = msgspec.structs.replace(seen.image, version=version, spread=spread)
        return seen.view.facts

    first = told(spread)
    assert told(spread) is first  # rows of Metadata are not looked at one by one for that
    assert told(msgspec.structs.replace(spread, groups=dict(rows))) is first
    made = told(msgspec.structs.replace(spread, topics=(*spread.topics, UUID(int=3))))
    assert made is not first
    assert made.spread is not None
    assert made.spread.topics[-1] == UUID(int=3)
    version_2 = msgspec.structs.replace(rows[2], leader_epoch=leader_epoch(20))
    elected = told(msgspec.structs.replace(spread, groups={**rows, 2: version_2}))
    assert [each.leader_epoch for each in elected.groups[1:]] == [
        leader_epoch(11),
        leader_epoch(20),
    ]
    assert told(msgspec.structs.replace(spread, preferred=(1, 3, 2))) is not elected
    seen.image = msgspec.structs.replace(seen.image, spread=None)
    assert seen.view.facts.spread is None
