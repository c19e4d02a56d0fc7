"""The peer protocol: framing, handshake, refusals, hostile bytes, order."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from geo_replicator.folder_life import Birth, Shown
from geo_replicator.lineage import LogKey
from idempotency.identity import RegionEpoch
from region_broker.controller.metadata_image import LineageEntry
from region_broker.ports.network import ByteStream
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.peers import protocol
from region_broker.region.peers.client import PeerClient, opened
from region_broker.region.peers.hellos import check_hello
from region_broker.region.peers.protocol import (
    HANDSHAKE_FRAME_BYTES_MAX,
    PREFACE,
    VIEWED_BYTES_MIN,
    FrameKind,
    FrameReader,
    Hello,
    PeerMessage,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
    ReachedNoted,
    decode_message,
    encode_frame,
)
from region_broker.region.peers.server import (
    NOT_BEGUN_MAX,
    PeerServer,
    PeerSettings,
)
from region_broker.region.peers.sessions import PeerSession, Reply
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.linked_regions import CLUSTER_ID, PlayedIdentity
from tests.fixtures.waiting import until


class Ask(PeerMessage, frozen=True, kw_only=True):
    """A message of the test's own."""

    number: int


class Told(PeerMessage, frozen=True, kw_only=True):
    """Its answer."""

    number: int


class Much(PeerMessage, frozen=True, kw_only=True):
    """Asks for MUCH_BYTES."""


MUCH_BYTES = 4 << 20
HELLO = PlayedIdentity("primary").hello()


def frame(message: PeerMessage, *attachment: bytes, correlation_id: int = 1) -> bytes:
    return b"".join(encode_frame(FrameKind.REQUEST, correlation_id, message, attachment))


def test_frames_come_out_as_they_went_in_however_they_are_cut() -> None:
    sent = frame(HELLO, b"raw", b"bytes") + frame(Ask(number=7), correlation_id=2)
    reader = FrameReader(1 << 20, preface=True)
    frames = [got for byte in PREFACE + sent for got in reader.feed(bytes([byte]))]
    assert [decode_message(frames[0], Hello), bytes(frames[0].attachment)] == [HELLO, b"rawbytes"]
    assert decode_message(frames[1], Ask) == Ask(number=7)
    assert [got.correlation_id for got in frames] == [1, 2]


@pytest.mark.parametrize("first_bytes", range(1, len(PREFACE) + 8))
def test_a_frame_comes_out_whose_front_lies_in_two_chunks(first_bytes: int) -> None:
    sent = PREFACE + frame(HELLO, bytes(5_000))
    reader = FrameReader(1 << 20, preface=True)
    assert list(reader.feed(sent[:first_bytes])) == []
    (found,) = reader.feed(sent[first_bytes:])
    assert decode_message(found, Hello) == HELLO


def test_frames_of_any_size_come_out_in_chunks_of_any_size_and_small_ones_keep_no_chunk() -> None:
    """A mirror's answers have megabytes; what is said beside them is kept by whoever waits, and no chunk of 256 KiB with it."""
    chance = random.Random(5)
    sizes = [0, 1, 5_000, VIEWED_BYTES_MIN, 300_000, 2_000_000] * 3
    chance.shuffle(sizes)
    sent = [chance.randbytes(size) for size in sizes]
    stream = b"".join(
        frame(Ask(number=7), attached, correlation_id=at) for at, attached in enumerate(sent, 1)
    )
    for chunk_bytes in (1_460, 65_536, 262_144):
        reader = FrameReader(1 << 22)
        found = [
            got
            for start in range(0, len(stream), chunk_bytes)
            for got in reader.feed(stream[start : start + chunk_bytes])
        ]
        assert [got.correlation_id for got in found] == list(range(1, len(sent) + 1))
        assert [bytes(got.attachment) for got in found] == sent
        assert reader.held_bytes == 0
        for got in found:
            with memoryview(cast("bytes", got.attachment.obj)) as kept:
                assert kept.nbytes <= 4 * len(got.attachment) + 1_000


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "neither Kafka nor HTTP"),
        (b"\x00\x00\x00\x20\x00\x12\x00\x03", "neither Kafka nor HTTP"),
        (PREFACE + b"\x7f\xff\xff\xff", "frame of 2147483647 bytes"),
        (PREFACE + b"\x00\x00\x00\x00", "frame of 0 bytes"),
        (PREFACE + struct.pack(">IBQB", 14, 9, 1, 0) + bytes(4), "kind 9"),
        (PREFACE + struct.pack(">IBQB", 14, 1, 1, 200) + bytes(4), "within its tag"),
        (PREFACE + struct.pack(">IBQBI", 14, 1, 1, 0, 99), "longer than its frame"),
        (PREFACE + struct.pack(">IBQBI", 14, 1, 1, 0, 1), "longer than its frame"),
        (PREFACE + struct.pack(">IBQB", 15, 1, 1, 1) + b"\xff" + bytes(4), "not ASCII"),
    ],
)
def test_bytes_that_are_no_frame_are_refused_with_a_reason(garbage: bytes, reason: str) -> None:
    reader = FrameReader(HANDSHAKE_FRAME_BYTES_MAX, preface=True)
    with pytest.raises(PeerProtocolError, match=reason):
        list(reader.feed(garbage))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91" * 10_000, b"\x81\xa6number\xa1x"])
def test_messages_that_do_not_fit_their_type_are_refused(body: bytes) -> None:
    tag = b"Ask"
    whole = struct.pack(">BQB", 1, 1, len(tag)) + tag + struct.pack(">I", len(body)) + body
    (got,) = FrameReader(1 << 20).feed(struct.pack(">I", len(whole)) + whole)
    with pytest.raises(PeerProtocolError, match="malformed"):
        decode_message(got, Ask)
    with pytest.raises(PeerProtocolError, match="expected Told"):
        decode_message(got, Told)


@asynccontextmanager
async def served(
    identity: PlayedIdentity, settings: PeerSettings | None = None
) -> AsyncIterator[tuple[PeerServer, tuple[str, int]]]:
    """A server that doubles numbers, slow ones (odd) after a turn of the loop."""
    server = PeerServer(AsyncioNetwork(), identity, settings or PeerSettings())
    started: list[int] = []

    async def tell(_session: PeerSession, message: Ask, attachment: memoryview) -> Told | Reply:
        started.append(message.number)
        assert started == sorted(started)
        if message.number % 2:
            await asyncio.sleep(0)
        if message.number == 13:
            raise PeerRefused("unlucky", "13 is not told")
        return Reply(Told(number=2 * message.number), (bytes(attachment), b"!"))

    async def send_much(_session: PeerSession, _message: Much, _attachment: memoryview) -> Reply:
        return Reply(Told(number=0), (bytes(MUCH_BYTES),))

    server.register(Ask, tell)
    server.register(Much, send_much)
    listener = await server.start("127.0.0.1", 0)
    try:
        yield server, ("127.0.0.1", listener.port)
    finally:
        server.close()
        await server.wait_closed()


async def test_requests_are_answered_and_refusals_are_answers() -> None:
    network, mirror = AsyncioNetwork(), PlayedIdentity("mirror")
    async with (
        served(PlayedIdentity("primary")) as (_, address),
        opened(network, address, mirror) as (client, hello),
    ):
        assert (hello.region, mirror.heard[0].region) == ("primary", "primary")
        answers = [client.begin(Ask(number=number), Told, (b"a",)) for number in range(1, 13)]
        told = [await answer for answer in answers]
        assert [(got.number, bytes(raw)) for got, raw in told] == [
            (2 * number, b"a!") for number in range(1, 13)
        ]
        with pytest.raises(PeerRefused, match="13 is not told") as refused:
            await client.call(Ask(number=13), Told)
        assert refused.value.code == "unlucky"
        with pytest.raises(PeerRefused, match="does not serve 'Told'"):
            await client.call(Told(number=1), Ask)
        with pytest.raises(PeerUnreachable, match="expected ReachedNoted") as failed:
            await client.call(Ask(number=14), ReachedNoted)
        assert failed.value.sent


async def test_INV_LV1_a_session_with_its_handshake_before_is_answered_no_more_once_its_node_is_refused() -> (
    None
):
    network, mirror = AsyncioNetwork(), PlayedIdentity("mirror")

    def refuse(hello: Hello) -> None:
        raise PeerRefused("runs-elsewhere", f"another node runs as region {hello.region}")

    async with (
        served(PlayedIdentity("primary")) as (server, address),
        opened(network, address, mirror) as (client, _),
    ):
        assert (await client.call(Ask(number=2), Told)).number == 4
        server.admit = refuse
        with pytest.raises(PeerRefused, match="another node runs as region mirror") as refused:
            await client.call(Ask(number=4), Told)
        assert refused.value.code == "runs-elsewhere"


async def test_other_clusters_are_refused_and_learn_nothing() -> None:
    primary, stranger = PlayedIdentity("primary"), PlayedIdentity("x", cluster_id="other")
    async with served(primary) as (server, address):
        server.audit = trail = ToldTrail()
        with pytest.raises(PeerRefused, match="check its peer addresses") as refused:
            async with opened(AsyncioNetwork(), address, stranger):
                pass
    assert refused.value.code == "other-cluster"
    assert primary.heard == []
    [told] = trail.told
    assert (told.kind, told.outcome, told.reason) == ("peer-refusal", "refused", "other-cluster")
    assert (told.actor.host, told.resource) == ("127.0.0.1", f"x/{stranger.hello().node_id}")
    assert told.actor.principal == f"Node:x/{stranger.hello().node_id}"


async def test_bytes_of_no_peer_are_a_refusal_of_nobody() -> None:
    async with served(PlayedIdentity("primary")) as (server, address):
        server.audit = trail = ToldTrail()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
        await until(lambda: trail.told != [], "it is told")
    assert trail.short() == [("User:ANONYMOUS", "handshake", "", "refused")]
    assert trail.told[0].reason == "no-peer"


@dataclass
class Saying(PlayedIdentity):
    """A region that says more in its hello."""

    more: dict[str, Any] = field(default_factory=dict)

    def hello(self) -> Hello:
        return msgspec.structs.replace(super().hello(), **self.more)


ENTRY = LineageEntry(
    region_epoch=RegionEpoch(17), acting_region="primary", base_region_epoch=RegionEpoch(8), base_number=5
)  # fmt: skip


@pytest.mark.parametrize(("cluster_id", "told"), [("other", ()), (CLUSTER_ID, (ENTRY,))])
async def test_who_is_refused_is_told_the_lineage_unless_it_is_of_another_cluster(
    cluster_id: str, told: tuple[LineageEntry, ...]
) -> None:
    primary = Saying("primary", region_epoch=17, more={"lineage": (ENTRY,)})
    late = PlayedIdentity("mirror", cluster_id=cluster_id)
    async with served(primary) as (_, address):
        with pytest.raises(PeerRefused):
            async with opened(AsyncioNetwork(), address, late):
                pass
    assert late.heard[0].lineage == told


async def test_a_caller_says_a_small_hello_without_its_lineage() -> None:
    primary = PlayedIdentity("primary")
    async with (
        served(primary) as (_, address),
        opened(AsyncioNetwork(), address, Saying("mirror", more={"lineage": (ENTRY,)})),
    ):
        assert primary.heard[0].lineage == ()


async def test_T32_a_folder_without_history_may_ask_under_a_lower_region_epoch() -> None:
    newborn = Saying("mirror", more={"folder": Shown(folder_id="f", incarnations=("s",))})
    async with (
        served(PlayedIdentity("primary", region_epoch=17)) as (_, address),
        opened(AsyncioNetwork(), address, newborn) as (client, _),
    ):
        assert (await client.call(Ask(number=2), Told)).number == 4


async def test_what_waits_in_a_session_ends_with_its_connection() -> None:
    over = asyncio.Event()

    async def wait(session: PeerSession, _message: Told, _attachment: memoryview) -> Told:
        session.on_close(over.set)
        return Told(number=1)

    async with served(PlayedIdentity("primary")) as (server, address):
        server.register(Told, wait)
        async with opened(AsyncioNetwork(), address, PlayedIdentity("mirror")) as (client, _):
            await client.call(Told(number=1), Told)
            assert not over.is_set()
        async with asyncio.timeout(10):
            await over.wait()


async def test_lower_region_epochs_are_refused_and_both_sides_learn() -> None:
    primary, late = PlayedIdentity("primary", region_epoch=17), PlayedIdentity("mirror")
    async with served(primary) as (_, address):
        with pytest.raises(PeerRefused, match="follow that lineage first"):
            async with opened(AsyncioNetwork(), address, late):
                pass
    assert [hello.region_epoch for hello in late.heard] == [17]
    assert [hello.region_epoch for hello in primary.heard] == [8]


async def test_a_server_learns_a_higher_region_epoch_and_talks_on() -> None:
    primary, candidate = PlayedIdentity("primary"), PlayedIdentity("mirror", region_epoch=17)
    async with (
        served(primary) as (_, address),
        opened(AsyncioNetwork(), address, candidate) as (client, _),
    ):
        assert (await client.call(Ask(number=2), Told)).number == 4
    assert [hello.region_epoch for hello in primary.heard] == [17]


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFACE + b"\xff" * 64,
        PREFACE + frame(Ask(number=1)),
        PREFACE + b"".join(encode_frame(FrameKind.ANSWER, 1, HELLO)),
        PREFACE + frame(HELLO, bytes(HANDSHAKE_FRAME_BYTES_MAX)),
        b"\x00" * 99,
    ],
)
async def test_garbage_closes_its_connection_and_harms_nobody_else(garbage: bytes) -> None:
    network = AsyncioNetwork()
    async with (
        served(PlayedIdentity("primary")) as (_, address),
        opened(network, address, PlayedIdentity("mirror")) as (client, _),
    ):
        stream = await network.connect(*address)
        stream.write(garbage)
        assert await stream.read(100) == b""
        stream.close()
        assert (await client.call(Ask(number=2), Told)).number == 4


async def test_a_peer_that_asks_where_it_should_answer_is_left() -> None:
    network = AsyncioNetwork()

    async def ask_back(stream: ByteStream) -> None:
        stream.write(frame(Ask(number=1)))
        while await stream.read(1 << 16):
            pass
        stream.close()

    listener = await network.listen("127.0.0.1", 0, ask_back)
    with pytest.raises(PeerUnreachable, match="a request where only answers may come"):
        async with (
            asyncio.timeout(10),
            opened(network, ("127.0.0.1", listener.port), PlayedIdentity("mirror")),
        ):
            pass
    listener.close()
    await listener.wait_closed()


async def test_requests_end_when_the_peer_goes_and_say_that_they_were_sent() -> None:
    network = AsyncioNetwork()

    async def read_then_close(stream: ByteStream) -> None:
        await stream.read(1 << 16)
        stream.close()

    listener = await network.listen("127.0.0.1", 0, read_then_close)
    client = await PeerClient.connect(
        network, ("127.0.0.1", listener.port), PlayedIdentity("mirror")
    )
    serving = asyncio.get_running_loop().create_task(client.run())
    answer = client.begin(Ask(number=1), Told)
    with pytest.raises(PeerUnreachable, match="closed the connection") as failed:
        await answer
    assert failed.value.sent
    with pytest.raises(PeerUnreachable) as later:
        await client.call(Ask(number=2), Told)
    assert not later.value.sent
    await serving
    listener.close()
    await listener.wait_closed()


async def test_a_port_that_nobody_listens_on_is_unreachable() -> None:
    network = AsyncioNetwork()

    async def never(_stream: object) -> None:
        raise AssertionError

    listener = await network.listen("127.0.0.1", 0, never)
    port = listener.port
    listener.close()
    await listener.wait_closed()
    with pytest.raises(PeerUnreachable, match="cannot reach") as failed:
        await PeerClient.connect(network, ("127.0.0.1", port), PlayedIdentity("mirror"))
    assert not failed.value.sent


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[ByteStream]:
    """A connection that has made its handshake; what it sends is the test's affair."""
    stream = await AsyncioNetwork().connect(*address)
    try:
        stream.write(PREFACE, frame(HELLO))
        assert await stream.read(1 << 16)  # the server's handshake
        yield stream
    finally:
        stream.abort()
        await stream.wait_closed()


async def closed_by_peer(stream: ByteStream) -> bool:
    """Return once the other side has closed; bytes before that are thrown away."""
    try:
        while await stream.read(1 << 20):
            pass
    except OSError:
        pass
    stream.abort()
    await stream.wait_closed()
    return True


async def test_INV_PS6_peers_that_stop_within_large_frames_give_way() -> None:
    """Memory is full of halves of frames; small requests are served, the halves go, and a large one is answered."""
    settings = PeerSettings(memory_bytes=1 << 20, pressed_timeout_ms=200)
    large = frame(Ask(number=2), bytes(8 << 20))
    async with (
        AsyncExitStack() as stalled,
        served(PlayedIdentity("primary"), settings) as (server, address),
    ):
        for _ in range(4):
            (await stalled.enter_async_context(connected(address))).write(large[: 1 << 19])
        await until(lambda: server.memory.full, "memory is full")
        async with opened(AsyncioNetwork(), address, PlayedIdentity("mirror")) as (client, _):
            assert (await client.call(Ask(number=1), Told)).number == 2
            async with asyncio.timeout(30):
                _, told = await client.begin(Ask(number=2), Told, (bytes(8 << 20),))
            assert len(told) == (8 << 20) + 1
            assert len(server._connections) < 5  # whoever held it back is gone


async def test_INV_PS6_answers_that_a_peer_does_not_take_are_few_and_end_its_connection() -> None:
    settings = PeerSettings(memory_bytes=8 * MUCH_BYTES, stall_timeout_ms=300)
    async with served(PlayedIdentity("primary"), settings) as (server, address):
        most_bytes = 0

        def given_up() -> bool:
            nonlocal most_bytes
            most_bytes = max(most_bytes, server.memory.held_bytes)
            return most_bytes > 0 and not server._connections

        async with connected(address) as deaf:
            for number in range(200):
                deaf.write(frame(Much(), correlation_id=number))
            await until(given_up, "it is cut off")
        assert most_bytes <= settings.memory_bytes + 2 * NOT_BEGUN_MAX * MUCH_BYTES
        assert server.memory.held_bytes == 0
        async with opened(AsyncioNetwork(), address, PlayedIdentity("mirror")) as (client, _):
            assert (await client.call(Ask(number=1), Told)).number == 2


async def test_INV_PS6_who_makes_no_handshake_is_cut_off_and_connections_are_bounded() -> None:
    settings = PeerSettings(stall_timeout_ms=200, connections_max=2)
    async with served(PlayedIdentity("primary"), settings) as (_, address):
        silent = await AsyncioNetwork().connect(*address)
        async with connected(address) as link:
            assert await closed_by_peer(await AsyncioNetwork().connect(*address))
            assert await closed_by_peer(silent)
            link.write(frame(Ask(number=1)))  # silent for as long, but it has made its handshake
            assert await link.read(1 << 16)


async def test_INV_PS8_a_connection_that_was_accepted_before_the_close_is_ended() -> None:
    network = AsyncioNetwork()
    server = PeerServer(network, PlayedIdentity("eu"), PeerSettings())
    late = await network.listen("127.0.0.1", 0, server._serve)
    server.close()
    peer = await network.connect(late.host, late.port)
    async with asyncio.timeout(10):
        with suppress(OSError):  # it is cut off, not ended in order
            assert await peer.read(1) == b""
    peer.abort()
    late.close()
    await late.wait_closed()


async def test_INV_PN5_what_a_handler_raises_is_told_while_another_peer_stays_connected() -> None:
    """1. A mirror's link is open. 2. A promise meets a disk that fails. 3. The node must end, not wait for the mirror."""
    network = AsyncioNetwork()
    server = PeerServer(network, PlayedIdentity("eu"), PeerSettings())

    async def fail(_session: PeerSession, _message: Ask, _attachment: memoryview) -> Told:
        raise OSError("the journal cannot be written")

    server.register(Ask, fail)
    listener = await server.start("127.0.0.1", 0)
    address = ("127.0.0.1", listener.port)
    async with opened(network, address, PlayedIdentity("us")) as (mirror, _):
        async with opened(network, address, PlayedIdentity("ap")) as (candidate, _):
            with pytest.raises(PeerUnreachable):
                await candidate.call(Ask(number=1), Told)
        with pytest.RaisesGroup(OSError, flatten_subgroups=True):
            async with asyncio.timeout(10):
                await server.wait_closed()
        del mirror
        server.close()


class Starting(PlayedIdentity):
    """A node that does not know its region yet (`node.handshake`)."""

    def hello(self) -> Hello:
        raise PeerRefused("not-acting", "this node is starting")


async def test_who_cannot_say_yet_who_it_is_refuses_a_region_and_serves_on() -> None:
    async with served(Starting("us")) as (_, address):
        for _ in range(2):  # the port is still open after the first
            with pytest.raises(PeerRefused, match="this node is starting"):
                async with opened(AsyncioNetwork(), address, PlayedIdentity("eu")):
                    pass


async def test_INV_PF2_an_answer_that_no_frame_holds_ends_its_connection_and_not_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How long an answer is depends on what was asked, and so on who asks."""
    network, mirror = AsyncioNetwork(), PlayedIdentity("mirror")
    monkeypatch.setattr(protocol, "PEER_FRAME_BYTES_MAX", MUCH_BYTES)
    async with served(PlayedIdentity("primary")) as (_, address):
        async with opened(network, address, mirror) as (client, _):
            with pytest.raises(PeerUnreachable, match="closed the connection"):
                await client.call(Much(), Told)
        async with opened(network, address, mirror) as (client, _):
            assert (await client.call(Ask(number=2), Told)).number == 4


def began(region_epoch: int, base_number: int = 1, **positions: int) -> LineageEntry:
    return LineageEntry(
        region_epoch=RegionEpoch(region_epoch), acting_region="us", base_region_epoch=RegionEpoch(1),
        base_number=base_number, positions=positions,
    )  # fmt: skip


def born(region_epoch: int) -> Shown:
    return Shown(history=Birth(birth_id="b", region="us", region_epoch=RegionEpoch(region_epoch), wall_ms=1))  # fmt: skip


ORDERS = UUID(int=7).hex
UNSOUND = [
    *(
        pytest.param({"lineage": (began(8), began(9, **{key: 1}))}, id=f"a log called {key!r}")
        for key in (
            "",
            "x",
            "x/0",
            f"{ORDERS}/",
            f"{ORDERS}/x",
            f"{ORDERS}/-1",
            f"{ORDERS[1:]}/1",
            f"{ORDERS}/1/1",
            f"{ORDERS}/1\n",
            f"{ORDERS}/\u0661",
        )
    ),
    *(
        pytest.param({"lineage": (began(9, **{f"{ORDERS}/0": end}),)}, id=f"a log cut at {end}")
        for end in (-1, 1 << 63)
    ),
    pytest.param({"lineage": (began(9, 1 << 63),)}, id="a tidemark of 64 bits"),
    pytest.param({"lineage": (began(9, -1),)}, id="a negative tidemark"),
    pytest.param({"folder": born(1 << 63)}, id="a birth at an epoch of 64 bits"),
    pytest.param({"folder": born(1 << 15)}, id="a birth at one of 16"),
    pytest.param({"region_epoch": 1 << 15}, id="an epoch of 16 bits"),
    pytest.param({"region_epoch": (1 << 64) - 1}, id="one of 64"),
    pytest.param({"region_epoch": -2}, id="a negative one"),
    pytest.param({"abandoned_epoch": 1 << 15}, id="one that was given up"),
    pytest.param({"lineage": (began(1 << 15),)}, id="one that began"),
    pytest.param({"lineage": (began(9), began(8))}, id="newest first"),
    pytest.param({"lineage": (began(8), began(8))}, id="one twice"),
]
"""Region epochs have 15 bits (T19), and a lineage is a history."""


def test_INV_PHL2_what_regions_say_is_learnt() -> None:
    positions = {LogKey(UUID(int=7), number).encode(): (1 << 63) - 1 for number in (0, 999)}
    lineage = (began(8, 0), began(9, (1 << 63) - 1, **positions))
    check_hello(msgspec.structs.replace(PlayedIdentity("us").hello(), lineage=lineage, folder=born((1 << 15) - 1)))  # fmt: skip


async def test_a_lineage_of_many_logs_and_takeovers_is_heard() -> None:
    """Each entry names every log: with 10,000 of them, forty-one switches have more than 16 MiB."""
    positions = {LogKey(UUID(int=number), 0).encode(): 1 << 40 for number in range(10_000)}
    lineage = tuple(began(8 * number, **positions) for number in range(1, 42))
    assert len(msgspec.msgpack.encode(lineage)) > 16 * 1024 * 1024

    class OfLongLife(PlayedIdentity):
        def hello(self) -> Hello:
            return msgspec.structs.replace(super().hello(), lineage=lineage)

    mirror = PlayedIdentity("mirror")
    async with (
        served(OfLongLife("primary")) as (_, address),
        opened(AsyncioNetwork(), address, mirror) as (_, hello),
    ):
        assert len(hello.lineage) == len(lineage)
    assert len(mirror.heard) == 1


@pytest.mark.parametrize("said", UNSOUND)
async def test_INV_PHL1_INV_PHL2_what_no_region_can_have_said_is_not_learnt(
    said: dict[str, Any],
) -> None:
    network, primary = AsyncioNetwork(), PlayedIdentity("primary")
    async with served(primary) as (_, address):
        stream = await network.connect(*address)
        hello = msgspec.structs.replace(PlayedIdentity("mirror").hello(), **said)
        stream.write(PREFACE + frame(hello))
        assert await stream.read(100) == b""
        stream.close()
        assert primary.heard == []
        async with opened(network, address, PlayedIdentity("mirror")) as (client, _):
            assert (await client.call(Ask(number=2), Told)).number == 4
        assert len(primary.heard) == 1


@pytest.mark.parametrize("said", UNSOUND)
async def test_INV_PHL1_INV_PHL2_nor_is_it_learnt_from_who_answers(said: dict[str, Any]) -> None:
    class Unsound(PlayedIdentity):
        def hello(self) -> Hello:
            return msgspec.structs.replace(super().hello(), **said)

    mirror = PlayedIdentity("mirror")
    async with served(Unsound("primary")) as (_, address):
        with pytest.raises(PeerUnreachable, match="region primary"):
            async with opened(AsyncioNetwork(), address, mirror):
                pass
    assert mirror.heard == []
