"""Raft's messages between nodes: whose they are, what ends a connection, and what happens when one ends (INV-CLT, INV-CLL)."""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest

from region_broker.controller.raft.effects import (
    AppendRequest,
    BeginElection,
    Message,
    Received,
    VoteRequest,
)
from region_broker.controller.raft.entries import Entry, EntryKind, LogIndex, Member, Term
from region_broker.limits import (
    MIB,
    NODE_PROBE_MS,
    NODE_PROBE_TIMEOUT_MS,
    NODE_SILENCE_MS,
)
from region_broker.ports.network import ByteStream, Network, TlsContexts
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.cluster import transport as transport_module
from region_broker.region.cluster.member_line import PAUSE_MS_MAX, PAUSE_MS_MIN
from region_broker.region.cluster.raft_messages import RaftNotice
from region_broker.region.cluster.transport import ANY_FOLDER
from region_broker.region.peers.protocol import (
    PREFACE,
    FrameKind,
    FrameReader,
    Refusal,
    decode_message,
    encode_frame,
)
from region_broker.region.peers.replacement import Replacement
from tests.fixtures.region_nodes import (
    Addresses,
    NodeSide,
    member,
    real_node,
    running,
    standing_of,
)
from tests.fixtures.waiting import until
from tests.simulation.network import Fabric
from tests.simulation.region_pair import SeededChance
from tests.simulation.simulated_loop import LoopClock, run_simulated

ONE, TWO, THREE = member(1), member(2), member(3)


def vote(number: int) -> Message:
    return VoteRequest(Term(number), LogIndex(0), Term(0), pre=True)


def two_nodes() -> tuple[NodeSide, NodeSide]:
    addresses: Addresses = {}
    return real_node(addresses, standing_of(ONE)), real_node(addresses, standing_of(TWO))


async def test_INV_CLT2_messages_arrive_in_order_as_the_member_that_made_the_handshake() -> None:
    one, two = two_nodes()
    at_one, at_two = one.received("metadata"), two.received("metadata")
    async with running(one, two):
        for number in range(100):
            one.group("metadata").send(TWO, vote(number))
            two.group("metadata").send(ONE, vote(1_000 + number))
        await until(lambda: len(at_one) == len(at_two) == 100, "all arrive")
    assert at_two == [Received(ONE, vote(number)) for number in range(100)]
    assert at_one == [Received(TWO, vote(1_000 + number)) for number in range(100)]
    assert one.watched.heard[TWO] > 100 < two.watched.heard[ONE]


async def test_INV_CLT2_each_of_several_members_is_credited_with_its_own_messages() -> None:
    addresses: Addresses = {}
    nodes = [real_node(addresses, standing_of(each)) for each in (ONE, TWO, THREE)]
    arrived = [node.received("metadata") for node in nodes]
    async with running(*nodes):
        for number in range(30):
            for sender in nodes:
                for target in {ONE, TWO, THREE} - {sender.me}:
                    sender.group("metadata").send(target, vote(100 * sender.me.node_id + number))
        await until(lambda: all(len(each) == 60 for each in arrived), "all arrive")
    for received in (each for node in arrived for each in node):
        assert received.message.term // 100 == received.sender.node_id


async def test_groups_of_one_process_share_a_connection_and_get_their_own_messages() -> None:
    one, two = two_nodes()
    metadata, directory = two.received("metadata"), two.received("directory")
    async with running(one, two):
        for number in range(10):
            one.group("metadata").send(TWO, vote(number))
            one.group("directory").send(TWO, vote(100 + number))
        await until(lambda: len(metadata) == len(directory) == 10, "all arrive")
        assert len(two.server._connections) == 1
    assert [each.message for each in metadata] == [vote(number) for number in range(10)]
    assert [each.message for each in directory] == [vote(100 + number) for number in range(10)]


async def test_the_largest_messages_pass() -> None:
    one, two = two_nodes()
    arrived = two.received("metadata")
    entry = Entry(LogIndex(1), Term(1), EntryKind.COMMAND, random.Random(1).randbytes(4 * MIB))
    large = AppendRequest(Term(1), LogIndex(0), Term(0), (entry,), LogIndex(0), 0)
    async with running(one, two):
        for _ in range(3):
            one.group("metadata").send(TWO, large)
        await until(lambda: len(arrived) == 3, "all arrive")
    assert [each.message for each in arrived] == [large] * 3


# -- who speaks ------------------------------------------------------------------------------------


class ByHand:
    """A connection of a test that says what it likes as `me`."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.answer: Any = None
        self._reader = FrameReader(1 << 20)

    @classmethod
    async def of(cls, node: NodeSide, me: Member, **other: Any) -> "ByHand":
        """Connect, and make the handshake."""
        self = cls(await AsyncioNetwork().connect(*node.addresses[node.me]))
        hello = standing_of(me, **other).hello()
        self.stream.write(PREFACE, *encode_frame(FrameKind.REQUEST, 1, hello))
        self.answer = await self.frame()
        return self

    async def frame(self) -> Any:
        """Return the next frame, None at the end."""
        while data := await self.stream.read(1 << 16):
            for frame in self._reader.feed(data):
                return frame
        return None

    def notify(self, group: str, data: bytes) -> None:
        self.stream.write(*encode_frame(FrameKind.NOTICE, 0, RaftNotice(group=group), (data,)))

    async def is_left(self) -> bool:
        """Return once the other side has ended it."""
        with suppress(OSError):
            while await self.frame() is not None:
                pass
        self.close()
        return True

    def close(self) -> None:
        self.stream.abort()


async def test_INV_CLT2_a_member_cannot_speak_as_another_one() -> None:
    """It has nowhere to say so: a sender in the message is not looked at, and a second handshake ends the session."""
    one = real_node({}, standing_of(ONE))
    arrived = one.received("metadata")
    async with running(one):
        two = await ByHand.of(one, TWO)
        as_three = {"type": "BeginElection", "term": 4, "sender": msgspec.to_builtins(THREE)}
        two.notify("metadata", msgspec.msgpack.encode(as_three))
        await until(lambda: bool(arrived), "it arrives")
        assert arrived == [Received(TWO, BeginElection(Term(4)))]
        two.stream.write(*encode_frame(FrameKind.REQUEST, 2, standing_of(THREE).hello()))
        two.notify("metadata", msgspec.msgpack.encode(BeginElection(Term(5))))
        assert await two.is_left()
        assert len(arrived) == 1
        assert THREE not in one.watched.heard


GOOD = msgspec.msgpack.encode(BeginElection(Term(4)))
BAD: dict[str, tuple[str, bytes]] = {
    "no group of this name": ("else", GOOD),
    "no group": ("", GOOD),
    "no message": ("metadata", b""),
    "half a message": ("metadata", GOOD[:-1]),
    "a term that falls below 0": ("metadata", msgspec.msgpack.encode(BeginElection(Term(-1)))),
    "a gap": ("metadata", msgspec.msgpack.encode(
        AppendRequest(Term(1), LogIndex(0), Term(0), (Entry(LogIndex(2), Term(1), EntryKind.COMMAND),), LogIndex(0), 0)
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
async def test_INV_CLT2_what_is_no_message_of_a_group_here_ends_its_connection_and_nothing_else(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, three = real_node({}, standing_of(ONE)), real_node({}, standing_of(THREE))
    three.addresses = one.addresses
    arrived = one.received("metadata")
    async with running(one):
        two, good = await ByHand.of(one, TWO), await ByHand.of(one, THREE)
        two.notify(*BAD[name])
        two.notify("metadata", GOOD)
        assert await two.is_left()
        assert one.watched.lost == [TWO]
        good.notify("metadata", GOOD)
        await until(lambda: bool(arrived), "the other member is served")
        good.close()
    assert arrived == [Received(THREE, BeginElection(Term(4)))]
    assert any("disconnected" in text for text in caplog.messages), "with a reason"


async def test_a_member_that_is_removed_while_it_is_connected_is_left_with_its_next_word() -> None:
    removed: set[Member] = set()
    one = real_node({}, standing_of(ONE, is_removed=removed.__contains__))
    arrived = one.received("metadata")
    async with running(one):
        two = await ByHand.of(one, TWO)
        two.notify("metadata", GOOD)
        await until(lambda: bool(arrived), "it arrives")
        removed.add(TWO)
        two.notify("metadata", GOOD)
        assert await two.is_left()
    assert len(arrived) == 1


async def test_so_is_a_member_whose_place_another_folder_takes_meanwhile() -> None:
    replaced: dict[Member, Replacement] = {}
    one = real_node({}, standing_of(ONE, replaced=replaced.get))
    arrived = one.received("metadata")
    async with running(one):
        two = await ByHand.of(one, TWO)
        two.notify("metadata", GOOD)
        await until(lambda: bool(arrived), "it arrives")
        replaced[TWO] = Replacement(
            cluster_id="c", region="eu", node_id=1, incarnation=ONE.incarnation, leader_id=1, metadata_version=7,
            successor=UUID(int=88), is_removed=False, unclean=0,
        )  # fmt: skip
        two.notify("metadata", GOOD)
        assert await two.is_left()
        again = await ByHand.of(one, TWO)
        refusal = decode_message(again.answer, Refusal)
        assert (refusal.code, refusal.replacement) == ("replaced-member", replaced[TWO])
        assert await again.is_left()
    assert len(arrived) == 1


async def test_INV_CLT4_another_start_of_a_member_is_refused_while_one_is_connected() -> None:
    one = real_node({}, standing_of(ONE))
    async with running(one):
        first = await ByHand.of(one, TWO, life=UUID(int=1))
        copy = await ByHand.of(one, TWO, life=UUID(int=2))
        assert decode_message(copy.answer, Refusal).code == "runs-elsewhere"
        assert await copy.is_left()
        assert one.watched.lost == []
        first.close()
        await until(lambda: one.watched.lost == [TWO], "the first one's end is told")
        again = await ByHand.of(one, TWO, life=UUID(int=2))
        assert again.answer.kind is FrameKind.ANSWER
        again.close()


async def test_INV_CLT4_a_members_newest_connection_takes_the_place_of_its_former_one() -> None:
    one = real_node({}, standing_of(ONE))
    arrived = one.received("metadata")
    async with running(one):
        first = await ByHand.of(one, TWO)
        second = await ByHand.of(one, TWO)
        assert await first.is_left()
        second.notify("metadata", GOOD)
        await until(lambda: bool(arrived), "the second is served")
        assert one.watched.lost == [], "the member is still there"
        second.close()
        await until(lambda: one.watched.lost == [TWO], "now it is lost")


# -- lines, on simulated time ----------------------------------------------------------------------


@dataclass
class Simulated:
    """Nodes on simulated time; `tries`: when each of them tried to connect."""

    fabric: Fabric = field(default_factory=lambda: Fabric(random.Random(1), delay_ms_max=1.0))
    addresses: Addresses = field(default_factory=dict)
    tries: list[float] = field(default_factory=list)

    def node(self, me: Member, **other: Any) -> NodeSide:
        site = self.fabric.site(str(me.node_id))
        return NodeSide(
            standing_of(me, **other), Counting(site, self.tries), self.addresses, clock=LoopClock(),
            chance=SeededChance(random.Random(me.node_id)),
        )  # fmt: skip

    async def start(self, node: NodeSide, tasks: asyncio.TaskGroup) -> asyncio.Task[None]:
        await node.start(str(node.me.node_id), 9_000)
        return tasks.create_task(node.run())


class Counting:
    """A `Network` that notes when something is connected."""

    def __init__(self, network: Network, tries: list[float]) -> None:
        self._network = network
        self._tries = tries
        self.listen = network.listen

    async def connect(
        self,
        host: str,
        port: int,
        *,
        tls: TlsContexts | None = None,
        server_name: str | None = None,
    ) -> ByteStream:
        assert tls is None, server_name
        self._tries.append(asyncio.get_running_loop().time())
        return await self._network.connect(host, port)


Body = Callable[[Simulated, asyncio.TaskGroup], Coroutine[Any, Any, list[asyncio.Task[None]]]]


def simulated(body: Body) -> Callable[[], None]:
    """Run a test on simulated time; it returns what is to be cancelled at its end."""

    async def play() -> None:
        async with asyncio.TaskGroup() as tasks:
            for task in await body(Simulated(), tasks):
                task.cancel()

    def test() -> None:
        run_simulated(play(), 1)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


async def passes(duration_s: float, each: Callable[[], None]) -> None:
    """Let time pass, and do something every 50 ms of it, as a leader does."""
    for _ in range(int(duration_s * 20)):
        each()
        await asyncio.sleep(0.05)


@simulated
async def test_INV_CLL2_tries_are_further_and_further_apart_and_begin_anew_when_the_member_comes_in(
    world: Simulated, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    one, two = world.node(ONE), world.node(TWO)
    arrived = two.received("metadata")
    world.addresses[TWO] = ("2", 9_000)
    running_one = await world.start(one, tasks)
    await passes(20, lambda: one.group("metadata").send(TWO, vote(1)))
    pauses = [(b - a) * 1_000 for a, b in zip(world.tries, world.tries[1:], strict=False)]
    assert 15 < len(world.tries) < 45, "within 20 s"
    for place, pause_ms in enumerate(pauses):
        longest_ms = min(PAUSE_MS_MIN * 2**place, PAUSE_MS_MAX)
        # and 50 ms until the next message, 10 that the try takes
        assert longest_ms / 2 <= pause_ms <= longest_ms + 60, (place, pause_ms)
    tried = len(world.tries)
    running_two = await world.start(two, tasks)
    began_s = asyncio.get_running_loop().time()
    two.group("metadata").send(ONE, vote(2))
    one.group("metadata").send(TWO, vote(3))
    while not arrived:
        one.group("metadata").send(TWO, vote(3))
        await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - began_s < 0.15, "sooner than the longest pause"
    assert len(world.tries) <= tried + 3
    arrived.clear()
    world.fabric.drop("1", "2")
    await asyncio.sleep(0.01)
    one.group("metadata").send(TWO, vote(4))
    await asyncio.sleep(0.1)
    assert [each.message for each in arrived] == [vote(4)], "the pauses have begun anew"
    return [running_one, running_two]


@simulated
async def test_INV_CND3_damage_is_told_as_two_nodes_meet_and_with_each_probe(
    world: Simulated, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    """Whoever leads the quorum next has just connected to those that vote for it."""
    damaged = {ONE: True, TWO: True}
    one, two = (world.node(each, is_damaged=lambda each=each: damaged[each]) for each in (ONE, TWO))
    started = [await world.start(node, tasks) for node in (one, two)]
    two.received("metadata")
    one.group("metadata").send(TWO, vote(1))
    await passes(0.2, lambda: None)
    assert one.watched.damaged == {TWO: [True]}, "with its hello"
    assert two.watched.damaged == {}
    await passes(1.5, lambda: None)
    assert two.watched.damaged == {ONE: [True]}, "with the first probe"
    damaged.update({ONE: False, TWO: False})
    await passes(1.5, lambda: None)
    assert (one.watched.damaged, two.watched.damaged) == (
        {TWO: [True, False]},
        {ONE: [True, False]},
    )
    return started


@simulated
async def test_INV_CLL1_what_waits_while_nobody_can_be_reached_is_lost(
    world: Simulated, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    one, two = world.node(ONE), world.node(TWO)
    arrived = two.received("metadata")
    world.addresses[TWO] = ("2", 9_000)
    running_one = await world.start(one, tasks)
    one.group("metadata").send(TWO, vote(1))
    await asyncio.sleep(5)
    running_two = await world.start(two, tasks)
    await asyncio.sleep(5)
    assert len(world.tries) == 1, "nobody is called who is not wanted"
    one.group("metadata").send(TWO, vote(2))
    await asyncio.sleep(1)
    assert arrived == [Received(ONE, vote(2))]
    return [running_one, running_two]


@simulated
async def test_a_broken_connection_is_told_at_once_at_both_ends_and_made_again(
    world: Simulated, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    one, two = world.node(ONE), world.node(TWO)
    arrived = two.received("metadata")
    nodes = [await world.start(one, tasks), await world.start(two, tasks)]
    one.group("metadata").send(TWO, vote(1))
    await asyncio.sleep(1)
    world.fabric.drop("1", "2")
    await asyncio.sleep(0.001)
    assert (one.watched.lost, two.watched.lost) == ([TWO], [ONE])
    one.group("metadata").send(TWO, vote(2))
    await asyncio.sleep(0.2)
    assert [each.message for each in arrived] == [vote(1), vote(2)]
    return nodes


@simulated
async def test_INV_CLL3_a_connection_on_which_nothing_comes_is_given_up_at_both_ends(
    world: Simulated, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    """INV-PS9, too: nobody is told that the other one is gone."""
    one, two = world.node(ONE), world.node(TWO)
    two.received("metadata")
    nodes = [await world.start(one, tasks), await world.start(two, tasks)]
    one.group("metadata").send(TWO, vote(1))
    await asyncio.sleep(10)
    assert one.watched.lost == two.watched.lost == [], "probes keep an idle connection"
    assert one.watched.heard[TWO] >= 9 <= two.watched.heard[ONE]
    world.fabric.hush("1", "2")
    await asyncio.sleep((NODE_PROBE_MS + NODE_PROBE_TIMEOUT_MS) / 1_000 + 0.1)
    assert one.watched.lost == [TWO]
    await asyncio.sleep((NODE_SILENCE_MS - NODE_PROBE_TIMEOUT_MS) / 1_000)
    assert two.watched.lost == [ONE]
    world.fabric.heal("1", "2")
    before = two.watched.heard[ONE]
    await passes(3, lambda: one.group("metadata").send(TWO, vote(2)))
    assert two.watched.heard[ONE] > before, "and it is made again"
    return nodes


@simulated
async def test_INV_CLT3_nobody_makes_a_node_connect_by_naming_members(
    world: Simulated, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    removed = {member(4)}
    one = world.node(ONE, is_removed=removed.__contains__)
    running_one = await world.start(one, tasks)
    world.addresses[member(4)] = ("4", 9_000)
    for number in range(2, 1_000):
        one.group("metadata").send(Member(number, UUID(int=number << 8)), vote(1))
    one.group("metadata").send(member(4), vote(1))
    assert one.transport._lines == {}
    await asyncio.sleep(1)
    assert world.tries == []
    world.addresses[TWO] = ("2", 9_000)
    one.group("metadata").send(TWO, vote(1))
    await asyncio.sleep(1)
    assert [*one.transport._lines] == [TWO]
    del world.addresses[TWO]
    one.group("metadata").send(TWO, vote(1))
    await asyncio.sleep(1)
    assert one.transport._lines == {}, "a line ends with the member's address"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport_module, "LINES_MAX", 3)
        for number in range(2, 10):
            world.addresses[member(number)] = ("2", 9_000)
            one.group("metadata").send(member(number), vote(1))
        assert len(one.transport._lines) == 3
    return [running_one]


def test_INV_CLQ1_too_much_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        world = Simulated()
        one = world.node(ONE)
        world.addresses[TWO] = ("2", 9_000)
        for number in range(5_000):  # nothing runs yet
            one.group("metadata").send(TWO, vote(number))
        assert len(one.transport._lines[TWO]._queue) == 1_024

    with caplog.at_level(logging.WARNING):
        run_simulated(play(), 1)
    assert [text for text in caplog.messages if "too much waits" in text] == caplog.messages
    assert len(caplog.messages) == 1


def test_that_a_node_is_not_met_is_told_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node that joins asks the others twice a second, for as long as it takes."""

    async def play() -> None:
        world = Simulated()
        one, two = world.node(ONE), world.node(TWO)
        async with asyncio.TaskGroup() as tasks:
            running = [await world.start(one, tasks)]
            world.addresses[Member(2, ANY_FOLDER)] = ("2", 9_000)
            seek = partial(one.transport.send_to_node, "metadata", 2, vote(1))
            await passes(10, seek)
            running.append(await world.start(world.node(THREE), tasks))
            world.addresses[Member(2, ANY_FOLDER)] = ("3", 9_000)
            await passes(5, seek)
            world.addresses[Member(2, ANY_FOLDER)] = ("4", 9_000)
            await passes(5, seek)
            running.append(await world.start(two, tasks))
            world.addresses[Member(2, ANY_FOLDER)] = ("2", 9_000)
            await passes(5, seek)
            for task in running:
                task.cancel()

    with caplog.at_level(logging.INFO, "tidemark.cluster"):
        run_simulated(play(), 1)
    told = [text for text in caplog.messages if text.startswith("node 2 is")]
    assert ["not met yet" in text for text in told] == [True, False, True, False], told


@simulated
async def test_a_peer_that_does_not_read_holds_nobody_up_and_little_waits_for_it(
    world: Simulated, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    """INV-CLT1: two stands still; three gets what is sent to it meanwhile."""
    one, two, three = world.node(ONE), world.node(TWO), world.node(THREE)
    arrived = three.received("metadata")
    two.received("metadata")
    nodes = [await world.start(each, tasks) for each in (one, two, three)]
    one.group("metadata").send(TWO, vote(0))
    await asyncio.sleep(0.5)
    world.fabric.hush("1", "2")
    entry = Entry(LogIndex(1), Term(1), EntryKind.COMMAND, bytes(MIB))
    large = AppendRequest(Term(1), LogIndex(0), Term(0), (entry,), LogIndex(0), 0)
    for number in range(100):
        one.group("metadata").send(TWO, large)
        one.group("metadata").send(THREE, vote(number))
        await asyncio.sleep(0.01)
    assert [each.message for each in arrived] == [vote(number) for number in range(100)]
    assert one.transport._lines[TWO]._queue._bytes <= 16 * MIB
    return nodes
