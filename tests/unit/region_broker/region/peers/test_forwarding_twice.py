"""From a node of a mirror region over the one that leads it to the one that leads the primary region (INV-FW8, INV-FW6)."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps

import pytest

from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext
from region_broker.region.cluster.leader_route import LeaderRoute
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.forwarder import ForwardTarget, PeerForwarder, this_node_leads
from region_broker.region.peers.protocol import NOT_LEADING, Hello, PeerRefused
from region_broker.region.peers.server import PeerServer
from region_broker.wire.connection import Incoming
from region_broker.wire.connection_state import ConnectionState, Hop
from tests.fixtures.cluster_images import member
from tests.fixtures.linked_regions import PlayedIdentity
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.region_nodes import NodeSide, standing_of
from tests.simulation.network import Fabric
from tests.simulation.region_pair import SeededChance
from tests.simulation.simulated_loop import LoopClock, run_simulated
from tests.unit.region_broker.region.peers.test_addresses import Says
from tests.unit.region_broker.region.peers.test_forwarder import (
    Acting,
    Answers,
    context,
    request,
)
from tests.unit.region_broker.region.peers.test_forwarding_to_the_leader import (
    CREATE_TOPICS,
    PORT,
    at_its_site,
    refused,
)


@dataclass
class Carries:
    """A dispatcher that forwards whatever comes, and answers with the reason where that fails."""

    forwarder: PeerForwarder
    hops: list[Hop] = field(default_factory=list)
    met_at: list[object] = field(default_factory=list)

    async def answer(self, incoming: Incoming) -> bytes | None:
        self.hops.append(incoming.peer.state.hop)
        self.met_at.append(incoming.peer.state.met_at)
        ctx = RequestContext(
            services=None,  # type: ignore[arg-type]
            connection_id=incoming.peer.connection_id,
            api_key=incoming.api_key,
            version=incoming.version,
            correlation_id=incoming.correlation_id,
            peer=incoming.peer.address,
            connection_state=incoming.peer.state,
            newest_connection_id=incoming.peer.numbering.newest,
        )
        try:
            return await self.forwarder.forward(ctx, incoming.frame)
        except ForwardingFailed as failed:
            return f"not forwarded: {failed} {failed.may_have_happened}".encode()


class World:
    """Region `us` mirrors: node 1 leads it, node 2 follows. Of region `eu`, which acts, node 1 or node 2 leads."""

    def __init__(self) -> None:
        """Nothing runs yet."""
        self.fabric = Fabric(random.Random(1), delay_ms_max=1.0)
        self.follows = PlayedIdentity("us", acting_region="eu")
        addresses = RegionAddresses({"eu": [("eu1", PORT), ("eu2", PORT)]})
        seen = SeenRegion(1)
        image = at_its_site(seen.image)
        self.sides = {
            node_id: NodeSide(
                standing_of(member(node_id)), self.fabric.site(str(node_id)),
                {member(each): (str(each), PORT) for each in (1, 2)},
                clock=LoopClock(), chance=SeededChance(random.Random(node_id)),
            )
            for node_id in (1, 2)
        }  # fmt: skip
        routes = {
            each: LeaderRoute(lambda: image, standing_of(member(each))) for each in self.sides
        }
        self.forwarders = {
            each: PeerForwarder(
                self.fabric.site(str(each)), self.follows, addresses, LoopClock(), origin=each,
                leader_route=routes[each].route,
            )
            for each in self.sides
        }  # fmt: skip
        self.leader = Carries(self.forwarders[1])
        door = self.sides[1].server.node_door
        assert door is not None
        mirror = Acting(acting=False)
        ForwardTarget(self.leader, mirror, routes[1].leads_under).register_for_nodes(door)
        self.primary = {1: Answers(), 2: Answers()}
        self.says = {each: Says("eu", acting_region="eu") for each in (1, 2)}
        self.servers: dict[int, PeerServer] = {}

    async def primary_runs(self) -> None:
        """Let both nodes of region `eu` listen; none refuses to lead."""
        for each, says in self.says.items():
            server = self.servers[each] = PeerServer(self.fabric.site(f"eu{each}"), says)
            ForwardTarget(self.primary[each], Acting()).register(server)
            await server.start(f"eu{each}", PORT)

    def leads_no_more(self, node_id: int) -> None:
        """Let a node of region `eu` refuse handshakes and requests."""

        def not_led(_hello: Hello) -> None:
            raise PeerRefused(NOT_LEADING, f"node {node_id} does not lead")

        self.says[node_id].code = NOT_LEADING
        self.servers[node_id].admit = not_led

    async def ask(
        self, number: int, state: ConnectionState, at: int, connection: int = 1
    ) -> object:
        """Ask a node of the mirror."""
        ctx = context(connection, state, key=CREATE_TOPICS)
        return await self.forwarders[at].forward(ctx, request(number, key=CREATE_TOPICS))


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    await made.primary_runs()
    async with asyncio.TaskGroup() as tasks:
        for node_id, side in made.sides.items():
            await side.start(str(node_id), PORT)
        running = [tasks.create_task(side.run()) for side in made.sides.values()]
        running += [tasks.create_task(each.run()) for each in made.forwarders.values()]
        await asyncio.sleep(0)
        yield made
        for task in running:
            task.cancel()


def simulated(test: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on simulated time."""

    async def play() -> None:
        async with world() as made:
            await test(made)

    @wraps(test)
    def run() -> None:
        run_simulated(play(), 1)

    del run.__wrapped__  # pytest would ask for its argument
    return run


@simulated
async def test_what_a_node_of_a_mirror_is_asked_reaches_who_leads_the_primary_region_in_order(
    made: World,
) -> None:
    states = {1: ConnectionState(), 2: ConnectionState()}
    for connection, state in states.items():
        sent = [made.ask(number, state, 2, connection) for number in range(20)]
        expected = [bytes(request(n, key=CREATE_TOPICS))[::-1] for n in range(20)]
        assert await asyncio.gather(*sent) == expected
    assert [number for _, _, number in made.primary[1].seen] == [*range(20), *range(20)]
    assert len({number for number, _, _ in made.primary[1].seen}) == 2, "a connection for each"
    assert {peer for _, peer, _ in made.primary[1].seen} == {"client-1", "client-2"}
    assert set(made.leader.hops) == {Hop.NODE}
    assert set(made.leader.met_at) == {None}, (
        "clients of this region meet nodes where everybody does (INV-HMN3)"
    )
    assert {peer.state.hop for peer in made.primary[1].peers} == {Hop.REGION}
    ended: list[int] = []
    made.primary[1].peers[0].state.on_end(lambda: ended.append(1))
    states[1].end()
    await asyncio.sleep(1)
    assert ended == [1]


@pytest.mark.parametrize(
    ("hop", "at", "why"),
    [
        (Hop.REGION, 1, "came from another region is not forwarded to region eu"),
        (Hop.REGION, 2, "came from another region is not forwarded to node 1"),
        (Hop.NODE, 2, "came from another node of this region is not forwarded to node 1"),
        (Hop.NODE, 1, ""),
        (Hop.CLIENT, 1, ""),
        (Hop.CLIENT, 2, ""),
    ],
)
def test_INV_FW8_each_hop_is_a_farther_one(hop: Hop, at: int, why: str) -> None:
    async def play() -> None:
        async with world() as made:
            asking = made.ask(1, ConnectionState(hop=hop), at)
            if why:
                assert not await refused(asking, why)
                assert not made.primary[1].seen
            else:
                assert await asking == bytes(request(1, key=CREATE_TOPICS))[::-1]

    run_simulated(play(), 1)


@simulated
async def test_INV_FW8_two_regions_that_each_take_the_other_one_for_the_primary_pass_nothing_round(
    made: World,
) -> None:
    """1. Region `eu` lets a request in. 2. It is read in pieces, and the region acts no more. 3. It would be forwarded to whoever acts."""
    back = PeerForwarder(
        made.fabric.site("eu1"), PlayedIdentity("eu", acting_region="us"),
        RegionAddresses({"us": [("1", PORT)]}), LoopClock(), origin=9, leader_route=this_node_leads,
    )  # fmt: skip
    carries = Carries(back)
    server = PeerServer(made.fabric.site("eu3"), PlayedIdentity("eu", acting_region="eu"))
    ForwardTarget(carries, Acting()).register(server)
    await server.start("eu3", PORT)
    made.forwarders[1]._addresses = RegionAddresses({"eu": [("eu3", PORT)]})
    answer = await made.ask(1, ConnectionState(), 2)
    assert (
        answer
        == b"not forwarded: what came from another region is not forwarded to region us False"
    )
    assert carries.hops == [Hop.REGION]
    server.close()


@simulated
async def test_INV_FW3_another_node_of_the_primary_region_is_found_once_it_leads(
    made: World,
) -> None:
    state = ConnectionState()
    await made.ask(1, state, 1)
    made.leads_no_more(1)
    assert not await refused(made.ask(2, state, 1), "node 1 does not lead")
    await asyncio.sleep(1)
    await made.ask(3, state, 1)
    assert [number for _, _, number in made.primary[1].seen] == [1]
    assert [number for _, _, number in made.primary[2].seen] == [3]


@simulated
async def test_INV_FW6_what_waits_for_a_node_of_another_region_that_leads_no_more_ends(
    made: World,
) -> None:
    made.primary[1].hangs = asyncio.Event()
    waiting = asyncio.get_running_loop().create_task(made.ask(1, ConnectionState(), 1))
    await asyncio.sleep(1)
    made.forwarders[1].follow_election("ap")
    await asyncio.sleep(1)
    assert not waiting.done(), "that is another region"
    made.forwarders[1].follow_election("eu")
    assert await refused(waiting, "closed here")
    made.primary[1].hangs.set()
