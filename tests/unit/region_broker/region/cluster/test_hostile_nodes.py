"""Mutated and hostile bytes at the node side of the peer port: no crash, no memory that grows, and others are served."""

import asyncio
import random
import struct
from contextlib import suppress

import msgspec
import pytest

from region_broker.controller.raft.carrying import INBOX_BYTES_MAX
from region_broker.controller.raft.effects import (
    AppendRequest,
    BeginElection,
    Received,
    SnapshotRequest,
    message_bytes,
)
from region_broker.controller.raft.entries import Term
from region_broker.limits import MIB
from region_broker.ports.network import ByteStream
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.cluster.raft_messages import (
    RaftNotice,
    decode_raft_message,
)
from region_broker.region.peers.node_protocol import Probe
from region_broker.region.peers.protocol import PREFACE, FrameKind, PeerProtocolError, encode_frame
from region_broker.region.peers.server import PeerSettings
from tests.fixtures.memory_census import resident_bytes
from tests.fixtures.raft_groups import several
from tests.fixtures.region_nodes import NodeSide, member, real_node, running, standing_of
from tests.fixtures.waiting import until
from tests.property.wire_fuzz import mutated
from tests.simulation.simulated_loop import run_simulated
from tests.unit.region_broker.region.cluster.test_raft_messages import APPEND, PIECE, SOUND

ONE, GOOD_ONE = member(1), member(2)
GROWTH_BYTES_MAX = 48 * MIB
HELLO = b"".join(encode_frame(FrameKind.REQUEST, 1, standing_of(member(3)).hello()))


def notice(data: bytes, group: str = "metadata") -> bytes:
    return b"".join(encode_frame(FrameKind.NOTICE, 0, RaftNotice(group=group), (data,)))


FRAMES = [
    HELLO,
    *(notice(msgspec.msgpack.encode(message)) for message in SOUND),
    b"".join(encode_frame(FrameKind.REQUEST, 2, Probe())),
]


class Good:
    """A member beside them: each of its words must arrive."""

    def __init__(self, node: NodeSide) -> None:
        self.side = real_node(node.addresses, standing_of(GOOD_ONE))
        self._arrived: list[Received] = []
        self._term = 0
        node.group("metadata").deliver_to(self._take)

    def _take(self, received: Received) -> None:
        if received.sender == GOOD_ONE:
            self._arrived.append(received)

    async def is_served(self) -> None:
        self._term += 1
        wanted = Received(GOOD_ONE, BeginElection(Term(self._term)))

        def arrives() -> bool:
            if wanted not in self._arrived:
                self.side.group("metadata").send(ONE, wanted.message)
            return wanted in self._arrived

        await until(arrives, "the good member's word")
        self._arrived.clear()


async def sent(node: NodeSide, data: bytes) -> None:
    """Send bytes, and read until the other side ends it, or answers nothing more for our end."""
    stream = await AsyncioNetwork().connect(*node.addresses[ONE])
    with suppress(OSError):
        stream.write(data)
        await stream.drain()
        await read_out(stream)
    stream.abort()
    await stream.wait_closed()


async def read_out(stream: ByteStream) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.02):  # whoever takes it all says nothing, and goes on
            while await stream.read(1 << 16):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_mutated_frames_of_nodes_end_their_connection_at_most(seed: int) -> None:
    chance = random.Random(seed)
    node = real_node({}, standing_of(ONE))
    good = Good(node)
    async with running(node, good.side):
        await good.is_served()
        before_bytes = 0
        for turn in range(250):
            if turn == 50:
                before_bytes = resident_bytes()
            opening = HELLO if chance.random() < 0.8 else b""
            frames = b"".join(mutated(chance, chance.choice(FRAMES)) for _ in range(4))
            await sent(node, PREFACE + opening + frames)
            if turn % 50 == 0:
                await good.is_served()
        await good.is_served()
        assert resident_bytes() - before_bytes < GROWTH_BYTES_MAX
        await until(lambda: len(node.server._connections) == 1, "nobody else stays")
        assert [*node.transport._sessions] == [GOOD_ONE]
        assert node.server.memory.held_bytes == 0


def test_INV_CLM1_mutated_messages_are_refused_or_in_range() -> None:
    chance = random.Random(1)
    bodies = [msgspec.msgpack.encode(message) for message in SOUND]
    read = 0
    for _ in range(30_000):
        data = mutated(chance, chance.choice(bodies))
        try:
            message = decode_raft_message(memoryview(data))
        except PeerProtocolError:
            continue
        read += 1
        assert 0 <= message.term < 2**62
        if isinstance(message, AppendRequest):
            indexes = [entry.index for entry in message.entries]
            first = message.previous_index + 1
            assert indexes == [*range(first, first + len(indexes))]
            terms = [
                message.previous_term,
                *(entry.term for entry in message.entries),
                message.term,
            ]
            assert terms == sorted(terms)
    assert read > 3_000, "some of it passes"


HOSTILE: dict[str, bytes] = {
    "a frame of 4 GiB": struct.pack(">I", 2**32 - 1),
    "a frame of 128 MiB that does not come": struct.pack(">IBQB", 128 * MIB, 4, 0, 0),
    "an unknown kind": struct.pack(">IBQBI", 14, 5, 0, 0, 0),
    "a notice that has a number": struct.pack(">IBQBI", 14, 4, 9, 0, 0),
    "a notice without a tag": struct.pack(">IBQBI", 14, 4, 0, 0, 0),
    "a group's name of 60 KiB": notice(b"", "x" * 60_000),
    "an array of 2**32 entries": notice(
        msgspec.msgpack.encode(APPEND).replace(b"\xa7entries\x93", b"\xa7entries\xdd\xff\xff\xff\xff")
    ),
    "bytes of 4 GiB": notice(
        msgspec.msgpack.encode(PIECE).replace(b"\xa4data\xc4\x05", b"\xa4data\xc6\xff\xff\xff\xff")
    ),
    "a deep message": notice(b"\x81" * 100_000),
    "a Kafka request": bytes.fromhex("0000002000120003"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bytes_of_a_node_end_its_connection_only(name: str) -> None:
    node = real_node({}, standing_of(ONE), PeerSettings(stall_timeout_ms=200))
    good = Good(node)
    async with running(node, good.side):
        await good.is_served()
        before_bytes = resident_bytes()
        stream = await AsyncioNetwork().connect(*node.addresses[ONE])
        stream.write(PREFACE, HELLO, HOSTILE[name])
        with suppress(OSError):
            while await stream.read(1 << 16):
                pass
        stream.abort()
        await good.is_served()
        assert resident_bytes() - before_bytes < GROWTH_BYTES_MAX


@pytest.mark.slow
async def test_a_flood_of_notices_leaves_time_for_others_and_no_memory_behind() -> None:
    """A member that sends as fast as it can, small messages and large ones."""
    node = real_node({}, standing_of(ONE))
    good = Good(node)
    large = notice(msgspec.msgpack.encode(msgspec.structs.replace(PIECE, data=bytes(MIB))))
    small = notice(msgspec.msgpack.encode(BeginElection(Term(1)))) * 2_000
    async with running(node, good.side):
        await good.is_served()
        stream = await AsyncioNetwork().connect(*node.addresses[ONE])
        stream.write(PREFACE, HELLO)
        before_bytes, heard = 0, node.watched.heard
        for turn in range(60):
            if turn == 20:
                before_bytes = resident_bytes()
            stream.write(large, small)
            await stream.drain()
            if turn % 10 == 0:
                await good.is_served()
        await until(lambda: heard[member(3)] == 1 + 60 * 2_001, "all of it is taken")
        assert resident_bytes() - before_bytes < GROWTH_BYTES_MAX
        assert node.watched.lost == [], "and the good member stays"
        stream.abort()


def test_INV_RK5_messages_that_a_group_cannot_take_in_time_are_bounded_in_bytes() -> None:
    """A group that waits for its disk is sent 16 times what it may hold."""
    message = SnapshotRequest(Term(0), PIECE.point, 0, bytes(4 * MIB), last=False)

    async def play() -> None:
        async with several(3) as (leader, follower, _):
            for _ in range(16 * INBOX_BYTES_MAX // (4 * MIB)):
                follower.running.request_handler(Received(member(9), message))
            carrier = follower.running._carrier
            held_bytes = sum(
                message_bytes(event.message)
                for event in carrier._inbox
                if isinstance(event, Received)
            )
            assert INBOX_BYTES_MAX - 5 * MIB < held_bytes == carrier._inbox_bytes <= INBOX_BYTES_MAX
            await leader.running.propose(b"and it goes on")
            await until(lambda: follower.machine.taken == [b"and it goes on"], "it goes on")
            assert carrier._inbox_bytes < MIB

    run_simulated(play(), 1)
