"""Nodes of one region make their handshake: who is refused, by name, at both ends, and that older versions are left alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from region_broker.controller.raft.entries import Member
from region_broker.ports.network import ByteStream
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.cluster.raft_messages import RaftNotice
from region_broker.region.cluster.standing import NodeStanding, StandingTowards
from region_broker.region.peers.client import opened
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import (
    PURPOSES,
    NodeHello,
    NodeIdentity,
    Probe,
    Probed,
    Purpose,
)
from region_broker.region.peers.protocol import (
    HANDSHAKE_FRAME_BYTES_MAX,
    PREFACE,
    FrameKind,
    FrameReader,
    PeerMessage,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    decode_message,
    encode_frame,
)
from region_broker.region.peers.replacement import Replacement
from region_broker.region.peers.server import PeerServer, PeerSettings
from region_broker.region.peers.sessions import NodeSession, PeerSession, Reply
from tests.fixtures.cluster_images import starts
from tests.fixtures.linked_regions import PlayedIdentity
from tests.fixtures.region_nodes import NodeSide, member, real_node, running, standing_of
from tests.fixtures.waiting import until

ONE, TWO = member(1), member(2)
LIFE = UUID(int=77)


class Ask(PeerMessage, frozen=True, kw_only=True):
    """A message that is registered for regions."""


class Told(PeerMessage, frozen=True, kw_only=True):
    """Its answer."""


@asynccontextmanager
async def handshaken(
    address: tuple[str, int], identity: NodeIdentity, purpose: Purpose = "raft"
) -> AsyncIterator[tuple[NodeClient, NodeHello]]:
    """Make the handshake of a node, as its transport does, or whatever the connection is for."""
    client = await NodeClient.connect(AsyncioNetwork(), address)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(client.run())
        try:
            yield client, await client.handshake(identity, purpose)
        finally:
            reading.cancel()


async def refusal_of(address: tuple[str, int], identity: NodeIdentity) -> PeerRefused:
    """Return why the handshake was refused."""
    with pytest.RaisesGroup(PeerRefused) as caught:
        async with handshaken(address, identity):
            pass
    (refused,) = caught.value.exceptions
    assert isinstance(refused, PeerRefused)
    return refused


class Blind:
    """A node that objects to nobody: what is refused, the other side refuses."""

    def __init__(self, standing: NodeStanding) -> None:
        self._standing = standing

    def hello(self) -> NodeHello:
        return self._standing.hello()

    def objection(self, _theirs: NodeHello) -> PeerRefused | None:
        return None


OLDER = starts(TWO, "s1", "t2")


def is_older(theirs: NodeHello) -> bool:
    return theirs.starts == OLDER


REPLACED = {
    member(8): Replacement(
        cluster_id="c", region="eu", node_id=1, incarnation=ONE.incarnation, leader_id=1, metadata_version=7,
        successor=UUID(int=88), is_removed=False, unclean=0,
    )
}  # fmt: skip

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other-cluster": ({"cluster_id": "another"}, "belongs to cluster"),
    "other-region": ({"region": "us"}, "nodes of two regions say Hello"),
    "feature-level": ({"levels": range(9, 10)}, "update the older one first"),
    "feature-level 0": ({"levels": range(1)}, "update the older one first"),
    "same-member": ({"member": ONE, "life": LIFE}, "a copy of its folder"),
    "same-member itself": (
        {"member": ONE, "life": standing_of(ONE).life},
        "an address of another node leads here",
    ),
    "removed-member": ({"member": Member(9, UUID(int=9))}, "let it join as a new member"),
    "replaced-member": ({"member": member(8)}, "took the place of that of node 8"),
    "outdated-folder": ({"starts": lambda: OLDER}, "is an older copy"),
    "other-member": ({"member": Member(-1, UUID(int=9))}, "no id of a node"),
}


def other(said: dict[str, Any]) -> NodeStanding:
    """Return the standing of the second node, with something else."""
    return replace(standing_of(TWO), **said)


def first_node(settings: PeerSettings | None = None) -> NodeSide:
    removed = {Member(9, UUID(int=9))}
    standing = standing_of(
        ONE, is_removed=removed.__contains__, is_outdated=is_older, replaced=REPLACED.get
    )
    return real_node({}, standing, settings)


@pytest.mark.parametrize("name", REFUSED)
async def test_INV_CLH1_the_listener_refuses_by_name(name: str) -> None:
    said, reason = REFUSED[name]
    node = first_node()
    async with running(node):
        refused = await refusal_of(node.addresses[ONE], Blind(other(said)))
        assert refused.code == name.split(maxsplit=1)[0]
        assert reason in refused.reason
        assert refused.replacement == REPLACED.get(other(said).member), "INV-FRP2: with its grounds"
        async with handshaken(node.addresses[ONE], standing_of(TWO)) as (_, theirs):
            assert theirs == standing_of(ONE).hello()
    assert node.watched.heard == {TWO: 1}, "who is refused is not heard"


def said_by_older_code(me: Member) -> NodeHello:
    """Return the hello of a version that tells no levels: it speaks 1, and refuses what speaks anything else."""
    hello = standing_of(me).hello()
    return msgspec.structs.replace(
        hello, lowest_level=None, newest_level=None, finalized_level=None
    )


def objection(ours: NodeStanding, theirs: NodeHello) -> str:
    found = ours.objection(theirs)
    return "" if found is None else found.code


def test_INV_FL3_older_code_is_let_in_until_the_level_is_finalized() -> None:
    at_one = standing_of(ONE, finalized=lambda: 1)
    at_two = standing_of(ONE, finalized=lambda: 2)
    assert at_one.hello().feature_level == 1, "older code refuses whoever speaks another one"
    assert at_two.hello().feature_level == 2
    assert objection(at_one, said_by_older_code(TWO)) == ""
    assert objection(standing_of(ONE), said_by_older_code(TWO)) == ""
    assert objection(at_two, said_by_older_code(TWO)) == "newer-feature-level"


def test_INV_FL3_both_codes_must_know_the_level_of_either_region() -> None:
    joins = standing_of(TWO)
    old = standing_of(TWO, levels=range(1, 2))
    new = standing_of(TWO, levels=range(2, 4))
    at_one = standing_of(ONE, finalized=lambda: 1)
    at_two = standing_of(ONE, finalized=lambda: 2)
    assert objection(at_two, joins.hello()) == objection(joins, at_two.hello()) == ""
    assert objection(at_one, joins.hello()) == objection(joins, at_one.hello()) == ""
    assert objection(at_two, old.hello()) == "newer-feature-level"
    assert objection(old, at_two.hello()) == "feature-level", "it says so itself, and is told"
    assert objection(at_one, new.hello()) == objection(new, at_one.hello()) == "feature-level"
    behind = standing_of(TWO, finalized=lambda: 1)
    assert objection(at_two, behind.hello()) == "", "it was away while the level was raised"


@pytest.mark.parametrize("name", REFUSED)
async def test_INV_CLH1_so_does_whoever_calls(name: str) -> None:
    said, reason = REFUSED[name]
    removed = {Member(9, UUID(int=9))}
    me = standing_of(
        ONE, is_removed=removed.__contains__, is_outdated=is_older, replaced=REPLACED.get
    )
    async with answering(other(said).hello) as address:
        refused = await refusal_of(address, me)
        assert refused.code == name.split(maxsplit=1)[0]
        assert reason in refused.reason


async def test_who_answers_in_another_members_place_is_not_spoken_to() -> None:
    node = first_node()
    async with running(node):
        towards = StandingTowards(standing_of(TWO), member(3))
        refused = await refusal_of(node.addresses[ONE], towards)
    assert refused.code == "other-member"
    assert "where node 3/" in refused.reason


@asynccontextmanager
async def answering(hello: Callable[[], NodeHello]) -> AsyncIterator[tuple[str, int]]:
    """A listener that answers every handshake with `hello`."""

    async def answer(stream: ByteStream) -> None:
        stream.write(*encode_frame(FrameKind.ANSWER, 1, hello()))
        while await stream.read(1 << 16):
            pass
        stream.close()

    listener = await AsyncioNetwork().listen("127.0.0.1", 0, answer)
    yield "127.0.0.1", listener.port
    listener.close()
    await listener.wait_closed()


# -- two kinds of sessions -------------------------------------------------------------------------


def with_ask(node: NodeSide) -> list[int]:
    """Register a message for regions; return how often it was served."""
    served: list[int] = []

    async def tell(_session: PeerSession, _message: Ask, _attachment: memoryview) -> Told:
        served.append(1)
        return Told()

    node.server.register(Ask, tell)
    return served


async def test_INV_PSS1_a_session_is_served_what_is_registered_for_its_kind_only() -> None:
    node = first_node()
    served = with_ask(node)
    async with running(node):
        address = node.addresses[ONE]
        async with handshaken(address, standing_of(TWO)) as (as_node, _):
            assert await as_node.call(Probe(), Probed) == Probed()
            for other in (Ask(), PlayedIdentity("us").hello()):
                with pytest.raises(PeerRefused, match="does not serve") as refused:
                    await as_node.call(other, Told)
                assert refused.value.code == "unknown-message"
            assert not served
            assert not node.identity.heard
            assert await as_node.call(Probe(), Probed) == Probed()
        async with opened(AsyncioNetwork(), address, PlayedIdentity("us")) as (as_region, _):
            assert await as_region.call(Ask(), Told) == Told()
            for message in (Probe(), standing_of(member(3)).hello()):
                with pytest.raises(PeerRefused, match="does not serve"):
                    await as_region.call(message, Probed)
            assert await as_region.call(Ask(), Told) == Told()
    assert set(node.watched.heard) == {TWO}
    assert len(served) == 2


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_INV_PSS3_a_nodes_session_is_served_what_is_registered_for_its_purpose_only(
    purpose: Purpose,
) -> None:
    node = first_node()
    received = node.received("metadata")
    assert node.server.node_door is not None

    async def tell(_session: NodeSession, _message: Ask, _attachment: memoryview) -> Told:
        return Told()

    for other in set(PURPOSES) - {purpose}:
        node.server.node_door.handlers_for(other).register(Ask, tell)
    async with (
        running(node),
        handshaken(node.addresses[ONE], standing_of(TWO), purpose) as (client, _),
    ):
        with pytest.raises(PeerRefused, match="does not serve"):
            await client.call(Ask(), Told)
        if purpose == "raft":
            assert await client.call(Probe(), Probed) == Probed()
            return
        with pytest.raises(PeerRefused, match="does not serve"):
            await client.call(Probe(), Probed)
        client.notify(NOTICE)
        await until(lambda: client.ended is not None, "the quorum's message ends it")
    assert (received, node.watched.heard, node.watched.lost) == ([], {}, [])


async def test_INV_PSS3_a_purpose_that_nobody_knows_is_no_hello() -> None:
    node = first_node()
    hello = msgspec.to_builtins(standing_of(TWO).hello()) | {"purpose": "fun"}

    class NodeHello(PeerMessage, frozen=True, kw_only=True):
        """The same on the wire."""

        cluster_id: str
        region: str
        node_id: int
        incarnation: UUID
        life: UUID
        feature_level: int
        purpose: str

    async with running(node):
        stream = await AsyncioNetwork().connect(*node.addresses[ONE])
        said = msgspec.convert(hello, NodeHello)
        stream.write(PREFACE, *encode_frame(FrameKind.REQUEST, 1, said))
        assert await rest_of(stream) == b""


async def test_INV_CLT4_connections_of_other_purposes_take_nobodys_place() -> None:
    node = first_node()
    address = node.addresses
    async with running(node):
        async with (
            handshaken(address[ONE], standing_of(TWO)) as (raft, _),
            handshaken(address[ONE], standing_of(TWO), "forward") as (forward, _),
            handshaken(address[ONE], standing_of(TWO), "forward") as (another, _),
            handshaken(address[ONE], standing_of(TWO), "replica") as (replica, _),
        ):
            for client in (forward, another, replica):
                with pytest.raises(PeerRefused, match="does not serve"):
                    await client.call(Ask(), Told)
            assert await raft.call(Probe(), Probed) == Probed()
        await until(lambda: node.watched.lost == [TWO], "the quorum's connection ended")
    assert node.watched.lost == [TWO], "only that one's end is told"


async def test_INV_PS9_a_forwarded_request_that_takes_long_is_waited_for() -> None:
    node = first_node(PeerSettings(node_silence_ms=100))
    assert node.server.node_door is not None
    begun, finish = asyncio.Event(), asyncio.Event()

    async def tell(_session: NodeSession, _message: Ask, _attachment: memoryview) -> Told:
        begun.set()
        await finish.wait()
        return Told()

    for purpose in PURPOSES:
        node.server.node_door.handlers_for(purpose).register(Ask, tell)
    async with (
        running(node),
        handshaken(node.addresses[ONE], standing_of(TWO), "forward") as (forward, _),
        handshaken(node.addresses[ONE], standing_of(TWO), "replica") as (replica, _),
    ):
        answer = forward.begin(Ask(), Told)
        await begun.wait()
        # Nothing comes on either for as long; one of both has a request under way.
        await until(lambda: replica.ended is not None, "the silent one is left")
        assert forward.ended is None
        finish.set()
        assert (await answer)[0] == Told()
        await until(lambda: forward.ended is not None, "and the other when it is silent, too")


NOTICE = RaftNotice(group="metadata")


@pytest.mark.parametrize(
    ("opening", "frames"),
    [
        (standing_of(TWO).hello(), [(FrameKind.REQUEST, standing_of(member(3)).hello())]),
        (standing_of(TWO).hello(), [(FrameKind.NOTICE, Ask())]),
        (standing_of(TWO).hello(), [(FrameKind.NOTICE, Probe())]),
        (standing_of(TWO).hello(), [(FrameKind.ANSWER, Probed())]),
        (PlayedIdentity("us").hello(), [(FrameKind.NOTICE, NOTICE)]),
        (None, [(FrameKind.NOTICE, NOTICE)]),
        (None, [(FrameKind.NOTICE, standing_of(TWO).hello())]),
        (None, [(FrameKind.REQUEST, Probe())]),
        (None, [(FrameKind.REQUEST, NOTICE)]),
    ],
    ids=[
        "a second handshake", "a region's message as a notice", "a request as a notice", "an answer",
        "a notice of a region", "a notice before the handshake", "a handshake as a notice",
        "a request before the handshake", "a notice as a request",
    ],
)  # fmt: skip
async def test_INV_PSS2_what_does_not_belong_on_a_session_ends_it_without_effect(
    opening: PeerMessage | None, frames: list[tuple[FrameKind, PeerMessage]]
) -> None:
    node = first_node()
    served, received = with_ask(node), node.received("metadata")
    async with running(node):
        stream = await AsyncioNetwork().connect(*node.addresses[ONE])
        stream.write(PREFACE)
        if opening is not None:
            stream.write(*encode_frame(FrameKind.REQUEST, 1, opening))
            assert await stream.read(1 << 16)
        heard = node.watched.heard.copy()
        for kind, message in frames:
            stream.write(*encode_frame(kind, 0, message))
        assert await rest_of(stream) == b""
        assert (served, received, node.watched.heard) == ([], [], heard)
        async with handshaken(node.addresses[ONE], standing_of(member(4))) as (client, _):
            assert await client.call(Probe(), Probed) == Probed()


async def rest_of(stream: ByteStream) -> bytes:
    """Return what comes until the other side closes."""
    found = b""
    with suppress(OSError):
        while data := await stream.read(1 << 16):
            found += data
    stream.abort()
    await stream.wait_closed()
    return found


async def test_a_large_frame_is_not_taken_before_the_handshake() -> None:
    node = first_node()
    async with running(node):
        stream = await AsyncioNetwork().connect(*node.addresses[ONE])
        hello = encode_frame(
            FrameKind.REQUEST, 1, standing_of(TWO).hello(), (bytes(HANDSHAKE_FRAME_BYTES_MAX),)
        )
        stream.write(PREFACE, *hello)
        assert await rest_of(stream) == b""
    assert node.watched.heard == {}


async def test_a_large_answer_is_taken_after_the_handshake() -> None:
    node = first_node()
    assert node.server.node_door is not None
    large = bytes(HANDSHAKE_FRAME_BYTES_MAX + 1)

    async def tell(_session: NodeSession, _message: Ask, _attachment: memoryview) -> Reply:
        return Reply(Told(), [large])

    node.server.node_door.handlers_for("replica").register(Ask, tell)
    async with (
        running(node),
        handshaken(node.addresses[ONE], standing_of(TWO), "replica") as (replica, _),
    ):
        told, attachment = await replica.begin(Ask(), Told)
    assert (told, bytes(attachment)) == (Told(), large), "a follower that is behind is sent a lot"


async def test_INV_PS6_a_node_that_makes_no_handshake_is_cut_off() -> None:
    node = first_node(PeerSettings(stall_timeout_ms=100))
    async with running(node):
        stream = await AsyncioNetwork().connect(*node.addresses[ONE])
        stream.write(PREFACE)
        assert await rest_of(stream) == b""


async def test_INV_PS9_a_node_that_says_nothing_is_left_and_a_region_is_not() -> None:
    node = first_node(PeerSettings(node_silence_ms=100))
    with_ask(node)
    async with (
        running(node),
        opened(AsyncioNetwork(), node.addresses[ONE], PlayedIdentity("us")) as (region, _),
        handshaken(node.addresses[ONE], standing_of(TWO)) as (client, _),
    ):
        await until(lambda: client.ended is not None, "the silent node is left")
        assert node.watched.lost == [TWO]
        assert await region.call(Ask(), Told) == Told()


# -- other versions --------------------------------------------------------------------------------


async def test_a_version_that_knows_no_nodes_closes_the_connection() -> None:
    """As every version before did: it takes the first message for a Hello."""
    server = PeerServer(AsyncioNetwork(), PlayedIdentity("eu"), PeerSettings())
    listener = await server.start("127.0.0.1", 0)
    with pytest.RaisesGroup(PeerUnreachable):
        async with handshaken(("127.0.0.1", listener.port), standing_of(TWO)):
            pass
    server.close()
    await server.wait_closed()


async def test_INV_PF1_what_made_no_handshake_is_sent_no_notice() -> None:
    node = first_node()
    async with running(node):
        client = await NodeClient.connect(AsyncioNetwork(), node.addresses[ONE])
        with pytest.raises(AssertionError, match="INV-PF1"):
            client.notify(NOTICE)
        client.close()


def test_INV_PF1_a_notice_has_no_correlation_id() -> None:
    reader = FrameReader(1 << 20)
    (frame,) = reader.feed(b"".join(encode_frame(FrameKind.NOTICE, 0, NOTICE)))
    assert decode_message(frame, RaftNotice) == NOTICE
    with pytest.raises(PeerProtocolError, match="INV-PF1"):
        list(reader.feed(b"".join(encode_frame(FrameKind.NOTICE, 7, NOTICE))))


async def test_a_peer_that_sends_a_notice_where_answers_belong_is_left() -> None:
    async def notify(stream: ByteStream) -> None:
        stream.write(*encode_frame(FrameKind.NOTICE, 0, NOTICE))
        await rest_of(stream)

    listener = await AsyncioNetwork().listen("127.0.0.1", 0, notify)
    with pytest.raises(PeerUnreachable, match="a notice where only answers may come"):
        async with (
            asyncio.timeout(10),
            opened(AsyncioNetwork(), ("127.0.0.1", listener.port), PlayedIdentity("mirror")),
        ):
            pass
    listener.close()
    await listener.wait_closed()


def test_a_hello_stands_on_the_wire_as_it_is_written_down() -> None:
    """msgpack of named fields: what another version reads."""
    hello = standing_of(TWO).hello()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(hello)) == {
        "cluster_id": hello.cluster_id, "region": "eu", "node_id": 2,
        "incarnation": "00000000-0000-0000-0000-000000000002",
        "life": "00000000-0000-0002-0000-000000000000", "feature_level": 1,
        "purpose": "raft", "starts": None, "lowest_level": 1, "newest_level": 4, "finalized_level": None,
        "damaged": False, "opens_logs": False,
    }  # fmt: skip
    shown = standing_of(TWO, starts=lambda: OLDER).hello()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shown))["starts"] == {
        "folder_id": TWO.incarnation.hex, "history": None, "incarnations": ["s1", "t2"],
        "incarnation_count": 2, "aside": False, "elected": False,
    }  # fmt: skip
    assert NodeHello.__name__ == "NodeHello"


async def test_INV_CV4_a_node_says_whether_it_is_about_to_open_its_logs_and_when_it_has() -> None:
    node = first_node()
    opens = True
    async with (
        running(node),
        handshaken(node.addresses[ONE], standing_of(TWO, opens_logs=lambda: opens)) as (client, _),
    ):
        assert node.transport.opens_logs(TWO)
        await client.call(Probe(opens_logs=True), Probed)
        assert node.transport.opens_logs(TWO)
        await client.call(Probe(), Probed)
        assert not node.transport.opens_logs(TWO)
    assert not node.transport.opens_logs(member(3)), "who is not connected has said nothing"
