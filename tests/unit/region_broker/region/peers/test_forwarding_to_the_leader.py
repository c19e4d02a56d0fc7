"""Requests go to the node that leads the region, over the simulated network: in order, under its leader epoch, or not at all."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import wraps

import msgspec
import pytest

from region_broker.controller.metadata_image import MetadataImage
from region_broker.handlers.dispatch.services import ForwardingFailed
from region_broker.limits import NODE_SILENCE_MS
from region_broker.region.cluster.leader_route import LeaderRoute, QuorumRoute
from region_broker.region.peers import forwarder as forwarding
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.forwarder import ForwardTarget, PeerForwarder
from region_broker.region.peers.protocol import PeerUnreachable
from region_broker.wire.connection_state import ConnectionState
from tests.fixtures.cluster_images import member
from tests.fixtures.linked_regions import PlayedIdentity
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.region_nodes import NodeSide, standing_of
from tests.simulation.network import Fabric
from tests.simulation.region_pair import SeededChance
from tests.simulation.simulated_loop import LoopClock, run_simulated
from tests.unit.region_broker.region.peers.test_forwarder import (
    Acting,
    Answers,
    context,
    request,
)

CREATE_TOPICS, DESCRIBE_QUORUM = 19, 55
PORT = 9_093


def at_its_site(image: MetadataImage) -> MetadataImage:
    """Let each node be met at a site of its own."""
    nodes = {
        node_id: msgspec.structs.replace(found, peer_host=str(node_id), peer_port=PORT)
        for node_id, found in image.nodes.items()
    }
    return msgspec.structs.replace(image, nodes=nodes)


@dataclass
class World:
    """Node 1 leads, node 2 forwards. Each sees the region for itself."""

    fabric: Fabric
    seen: dict[int, SeenRegion]
    sides: dict[int, NodeSide] = field(default_factory=dict)
    answers: Answers = field(default_factory=Answers)
    acting: Acting = field(default_factory=Acting)
    forwarder: PeerForwarder | None = None

    async def forward(self, number: int, state: ConnectionState, connection: int = 1) -> object:
        assert self.forwarder is not None
        ctx = context(connection, state, key=CREATE_TOPICS)
        return await self.forwarder.forward(ctx, request(number, key=CREATE_TOPICS))

    def all_see(self, change: Callable[[SeenRegion], None], *nodes: int) -> None:
        for node_id in nodes or (1, 2):
            change(self.seen[node_id])
            self.seen[node_id].image = at_its_site(self.seen[node_id].image)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World(Fabric(random.Random(1), delay_ms_max=1.0), {})
    for node_id in (1, 2):
        seen = made.seen[node_id] = SeenRegion(node_id)
        seen.image = at_its_site(seen.image)
        made.sides[node_id] = NodeSide(
            standing_of(member(node_id)), made.fabric.site(str(node_id)),
            {member(each): (str(each), PORT) for each in (1, 2)},
            clock=LoopClock(), chance=SeededChance(random.Random(node_id)),
        )  # fmt: skip
    routes = {
        node_id: LeaderRoute(lambda seen=seen: seen.image, standing_of(member(node_id)))  # type: ignore[misc]
        for node_id, seen in made.seen.items()
    }
    target = ForwardTarget(made.answers, made.acting, routes[1].leads_under)
    door = made.sides[1].server.node_door
    assert door is not None
    target.register_for_nodes(door)
    made.forwarder = PeerForwarder(
        made.fabric.site("2"), PlayedIdentity("eu"), RegionAddresses({}), LoopClock(), origin=7,
        leader_route=routes[2].route,
    )  # fmt: skip
    async with asyncio.TaskGroup() as tasks:
        for node_id, side in made.sides.items():
            await side.start(str(node_id), PORT)
        running = [tasks.create_task(side.run()) for side in made.sides.values()]
        running.append(tasks.create_task(made.forwarder.run()))
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


async def refused(call: Awaitable[object], why: str) -> bool:
    """Return whether what was refused may have happened."""
    with pytest.raises(ForwardingFailed, match=why) as failed:
        await call
    return failed.value.may_have_happened


@simulated
async def test_requests_go_to_the_leader_verbatim_and_in_order(made: World) -> None:
    state = ConnectionState()
    sent = [made.forward(number, state) for number in range(20)]
    answers = await asyncio.gather(*sent)
    assert answers == [bytes(request(n, key=CREATE_TOPICS))[::-1] for n in range(20)]
    assert [number for _, _, number in made.answers.seen] == list(range(20))
    assert {peer.numbering.origin for peer in made.answers.peers} == {7}


@simulated
async def test_INV_FW3_what_asks_for_the_quorum_is_taken_by_who_leads_no_logs(made: World) -> None:
    made.all_see(SeenRegion.led_by_nobody)
    route = QuorumRoute(lambda: made.seen[2].image, standing_of(member(2)), lambda: member(1))
    assert made.forwarder is not None
    made.forwarder._leader_route = route.route
    ctx = context(1, ConnectionState(), key=DESCRIBE_QUORUM)
    asked = request(5, key=DESCRIBE_QUORUM)
    assert await made.forwarder.forward(ctx, asked) == bytes(asked)[::-1]
    assert await refused(made.forward(6, ConnectionState()), "leader epoch") is False


@simulated
async def test_nobody_asks_for_the_quorum_at_a_leader_that_is_not_known(made: World) -> None:
    standing, image = standing_of(member(2)), made.seen[2].image
    with pytest.raises(PeerUnreachable, match="quorum"):
        QuorumRoute(lambda: image, standing, lambda: None).route()
    assert QuorumRoute(lambda: image, standing, lambda: member(2)).route() is None


@simulated
async def test_INV_FW1_each_client_connection_is_one_there_and_ends_there(made: World) -> None:
    states = ConnectionState(), ConnectionState()
    for number, state in enumerate(states, 1):
        await made.forward(number, state, connection=number)
    peers = made.answers.peers
    assert peers[0].connection_id < peers[1].connection_id
    ended: list[int] = []
    for number, peer in enumerate(peers):
        peer.state.on_end(lambda number=number: ended.append(number))  # type: ignore[misc]
    states[1].end()
    await asyncio.sleep(1)
    assert ended == [1]


@simulated
async def test_the_connection_of_the_quorum_stays_beside_it(made: World) -> None:
    for side in made.sides.values():
        side.received("metadata")
    await made.forward(1, ConnectionState())
    assert made.sides[1].watched.heard == {}, "a request is no sign of life of the quorum's member"


# Holds INV-FW3.
@simulated
async def test_what_came_under_another_leader_epoch_is_not_executed(made: World) -> None:
    state = ConnectionState()
    await made.forward(1, state)
    made.all_see(SeenRegion.led_by_nobody)
    made.all_see(lambda seen: seen.led_by(2, 2), 1)
    made.seen[2].image = at_its_site(SeenRegion(2).image)  # it has not heard of it
    assert not await refused(made.forward(2, state), "this node does not lead")
    assert [number for _, _, number in made.answers.seen] == [1]


# Holds INV-FW3.
@simulated
async def test_a_leader_that_was_elected_again_executes_nothing_of_before(made: World) -> None:
    before = made.seen[2].image
    made.all_see(SeenRegion.led_by_nobody)
    made.all_see(lambda seen: seen.led_by(2, 2))
    made.all_see(lambda seen: seen.back(1))
    made.all_see(lambda seen: seen.led_by_nobody())
    made.all_see(lambda seen: seen.led_by(1, 3))
    made.seen[2].image = before
    assert not await refused(made.forward(1, ConnectionState()), "leads under leader epoch")
    assert made.answers.seen == []


@simulated
async def test_while_nobody_leads_nothing_is_sent(made: World) -> None:
    made.all_see(SeenRegion.led_by_nobody)
    assert not await refused(made.forward(1, ConnectionState()), "no node of this region leads")


# Holds INV-FW6.
@simulated
async def test_what_waits_for_a_node_that_leads_no_more_ends_and_may_have_happened(
    made: World,
) -> None:
    assert made.forwarder is not None
    made.answers.hangs = asyncio.Event()
    waiting = asyncio.get_running_loop().create_task(made.forward(1, ConnectionState()))
    await asyncio.sleep(1)
    made.forwarder.follow_leader()
    made.forwarder.follow("us", made.acting.region_epoch)
    await asyncio.sleep(1)
    assert not waiting.done(), "nothing has changed within the region"
    made.all_see(SeenRegion.led_by_nobody)
    made.forwarder.follow_leader()
    assert await refused(waiting, "closed here")
    made.answers.hangs.set()


# Holds INV-FW2.
@simulated
async def test_what_was_sent_into_a_cut_may_have_happened(made: World) -> None:
    made.answers.hangs = asyncio.Event()
    waiting = asyncio.get_running_loop().create_task(made.forward(1, ConnectionState()))
    await asyncio.sleep(1)
    made.fabric.drop("1", "2")
    assert await refused(waiting, "broke|closed")
    made.answers.hangs.set()


@simulated
async def test_INV_PS9_a_request_that_takes_longer_than_a_node_may_be_silent_is_answered(
    made: World,
) -> None:
    made.answers.hangs = asyncio.Event()
    waiting = asyncio.get_running_loop().create_task(made.forward(1, ConnectionState()))
    await asyncio.sleep(3 * NODE_SILENCE_MS / 1_000)
    made.answers.hangs.set()
    assert await waiting == bytes(request(1, key=CREATE_TOPICS))[::-1]


@pytest.mark.parametrize("pause_ms", [*range(2_000, 6_000, 250), 4_999, 5_000, 5_001])
def test_INV_FW7_no_request_is_lost_because_its_connection_was_idle(pause_ms: int) -> None:
    async def play() -> None:
        async with world() as made:
            state = ConnectionState()
            for number in range(4):
                await made.forward(number, state)
                await asyncio.sleep(pause_ms / 1_000)
            assert [number for _, _, number in made.answers.seen] == [0, 1, 2, 3]

    run_simulated(play(), 1)


@simulated
async def test_large_answers_come_back(made: World) -> None:
    """More than a handshake may have."""
    frame = memoryview(bytes(request(1, key=CREATE_TOPICS)) + bytes(1 << 20))
    assert made.forwarder is not None
    answer = await made.forwarder.forward(context(1, ConnectionState(), key=CREATE_TOPICS), frame)
    assert answer == bytes(frame)[::-1]


@simulated
async def test_who_cannot_be_reached_is_not_asked_again_at_once(made: World) -> None:
    made.fabric.bar("2", "1")
    state = ConnectionState()
    for _ in range(2):
        assert not await refused(made.forward(1, state), "cannot reach|took no connection|barred")
    made.fabric.unbar("2", "1")
    await asyncio.sleep(2 * forwarding.RETRY_PAUSE_MS / 1_000)
    await made.forward(2, state)
