"""Nodes that know each other by certificate: between regions and within one, in both directions, and strangers."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from region_broker.controller.raft.effects import Message, VoteRequest
from region_broker.controller.raft.entries import LogIndex, Term
from region_broker.ports.network import ByteStream, Network
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.network import AsyncioNetwork, SecuredStream
from region_broker.region.peers.client import opened
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.protocol import PREFACE, PeerRefused, PeerUnreachable, ShutOut
from region_broker.region.peers.server import PeerServer
from region_broker.security.certificates import issue_node
from region_broker.security.failed_handshakes import FailedHandshakes
from region_broker.security.node_names import NodeName
from region_broker.security.peer_network import OTHER_CERTIFICATE, PeerNetwork, contradiction
from region_broker.security.tls import ClientTls, ServerTls
from tests.fixtures.certificates import NOW, authority, leaf_key, put, user_certificate
from tests.fixtures.linked_regions import CLUSTER_ID, PlayedIdentity
from tests.fixtures.region_nodes import Addresses, NodeSide, member, running, standing_of
from tests.fixtures.waiting import until

ONE, TWO = member(1), member(2)


def certificate_of(region: str, node_id: int = 1, cluster_id: str = CLUSTER_ID) -> x509.Certificate:
    name = NodeName(region, node_id, cluster_id)
    return issue_node(authority(), name, ["localhost"], leaf_key().public_key(), now=NOW)


def network_of(folder: Path, certificate: x509.Certificate | None) -> PeerNetwork:
    files = put(folder, certificate)
    shown = ServerTls(
        put(folder.with_name("any"), certificate_of("any")) if certificate is None else files,
        "required",
    )
    return PeerNetwork(AsyncioNetwork(), shown, ClientTls(files, check_host=False), CLUSTER_ID)


@pytest.fixture
def eu(tmp_path: Path) -> PeerNetwork:
    return network_of(tmp_path / "eu", certificate_of("eu"))


async def test_INV_PNT1_nodes_of_two_regions_meet(eu: PeerNetwork, tmp_path: Path) -> None:
    server, met = PeerServer(eu, PlayedIdentity("eu")), PlayedIdentity("us")
    listener = await server.start("127.0.0.1", 0)
    us = network_of(tmp_path / "us", certificate_of("us"))
    async with opened(us, ("127.0.0.1", listener.port), met) as (_, hello):
        assert hello.region == "eu"
    server.close()
    await server.wait_closed()


STRANGERS = {
    "a user's": user_certificate("eu"),
    "of another cluster": certificate_of("us", cluster_id="another"),
    "none": None,
}


@pytest.mark.parametrize("shown", STRANGERS.values(), ids=STRANGERS.keys())
async def test_INV_PNT1_who_is_no_node_of_this_cluster_gets_nothing(
    eu: PeerNetwork, tmp_path: Path, shown: x509.Certificate | None
) -> None:
    identity = PlayedIdentity("eu")
    server = PeerServer(eu, identity)
    listener = await server.start("127.0.0.1", 0)
    address = ("127.0.0.1", listener.port)
    with pytest.raises(PeerUnreachable):
        async with opened(network_of(tmp_path / "x", shown), address, PlayedIdentity("us")):
            pass
    plain: Network = AsyncioNetwork()
    with pytest.raises(PeerUnreachable):
        async with opened(plain, address, PlayedIdentity("us")):
            pass
    stream = await plain.connect(
        *address, tls=ClientTls(put(tmp_path / "y", shown), check_host=False)
    )
    stream.write(PREFACE)
    with suppress(OSError):
        assert await stream.read(1) == b"", "not a byte"
    stream.abort()
    assert not identity.heard
    server.close()
    await server.wait_closed()


async def test_INV_PNT3_a_user_at_the_peer_port_is_one_line_and_a_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed, heard = FailedHandshakes(SystemClock()), list[str]()
    failed.heard = lambda port, handshake: heard.append(f"{port} {handshake.reason}")
    files = put(tmp_path / "eu", certificate_of("eu"))
    network = PeerNetwork(
        AsyncioNetwork(), ServerTls(files, "required"), ClientTls(files, check_host=False), CLUSTER_ID,
        failed.on_port("peer"),
    )  # fmt: skip
    server = PeerServer(network, PlayedIdentity("eu"))
    listener = await server.start("127.0.0.1", 0)
    alice = ClientTls(put(tmp_path / "alice", user_certificate("alice")), check_host=False)
    for _ in range(5):
        stream = await AsyncioNetwork().connect("127.0.0.1", listener.port, tls=alice)
        with suppress(OSError):
            assert await stream.read(1) == b""
        stream.abort()
    await until(lambda: failed.count("peer", "bad_certificate") == 5, "each is counted")
    assert heard == ["peer bad_certificate"] * 5
    assert len([each for each in caplog.messages if "127.0.0.1" in each]) == 1
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("shown", STRANGERS.values(), ids=STRANGERS.keys())
async def test_INV_PNT1_nothing_is_said_to_who_is_no_node_of_this_cluster(
    eu: PeerNetwork, tmp_path: Path, shown: x509.Certificate | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[bytes] = []
    left: list[object] = []
    abort = SecuredStream.abort

    def noted(stream: SecuredStream) -> None:
        left.append(stream)
        abort(stream)

    monkeypatch.setattr(SecuredStream, "abort", noted)

    async def listen(stream: ByteStream) -> None:
        with suppress(OSError):
            heard.append(await stream.read(1 << 16))
        stream.abort()

    impostor = ServerTls(put(tmp_path / "x", shown), "none") if shown else None
    listener = await AsyncioNetwork().listen("127.0.0.1", 0, listen, tls=impostor)
    with pytest.raises(PeerUnreachable) as refused:
        async with opened(eu, ("127.0.0.1", listener.port), PlayedIdentity("eu")):
            pass
    assert not refused.value.sent
    # What shows a user's certificate does not come so far: that one may not serve.
    assert left or shown is not STRANGERS["of another cluster"], "and it is not kept"
    listener.close()
    await listener.wait_closed()
    assert all(PREFACE not in each for each in heard)


async def test_INV_PSP1_a_node_of_another_region_is_not_ours_by_saying_so(
    eu: PeerNetwork, tmp_path: Path
) -> None:
    identity = PlayedIdentity("eu")
    server = PeerServer(eu, identity)
    listener = await server.start("127.0.0.1", 0)
    us = network_of(tmp_path / "us", certificate_of("us"))
    for claimed in (
        PlayedIdentity("eu"),
        PlayedIdentity("ap"),
        PlayedIdentity("us", cluster_id="another"),
    ):
        with pytest.raises(PeerRefused) as refused:
            async with opened(us, ("127.0.0.1", listener.port), claimed):
                pass
        assert refused.value.code == OTHER_CERTIFICATE
        assert "its certificate is of node 1 of region us" in refused.value.reason
        assert not claimed.heard, "nothing of ours was told"
    assert not identity.heard
    server.close()
    await server.wait_closed()


async def test_INV_PSP1_who_answers_as_another_region_is_not_believed(
    eu: PeerNetwork, tmp_path: Path
) -> None:
    """A node of region ap that has us's address answers as us: nothing of what it says is learnt."""
    impostor = PeerServer(network_of(tmp_path / "ap", certificate_of("ap")), PlayedIdentity("us"))
    listener, ours = await impostor.start("127.0.0.1", 0), PlayedIdentity("eu")
    with pytest.raises(PeerUnreachable, match="is not who it says"):
        async with opened(eu, ("127.0.0.1", listener.port), ours):
            pass
    assert not ours.heard
    impostor.close()
    await impostor.wait_closed()


def side(folder: Path, addresses: Addresses, me: int, certificate: x509.Certificate) -> NodeSide:
    return NodeSide(
        standing_of(member(me)), network_of(folder / f"n{me}", certificate), addresses,
        clock=SystemClock(), chance=SystemChance(),
    )  # fmt: skip


async def test_INV_PNT1_nodes_of_one_region_meet_over_tls(tmp_path: Path) -> None:
    addresses: Addresses = {}
    one = side(tmp_path, addresses, 1, certificate_of("eu", 1))
    two = side(tmp_path, addresses, 2, certificate_of("eu", 2))
    arrived, message = two.received("metadata"), vote()
    async with running(one, two):
        one.group("metadata").send(TWO, message)
        await until(lambda: len(arrived) == 1, "it arrives")
    assert arrived[0].sender == ONE


def vote() -> Message:
    return VoteRequest(Term(1), LogIndex(0), Term(0), pre=True)


@pytest.mark.parametrize(
    "shown", [certificate_of("eu", 3), certificate_of("us", 1)], ids=["node 3", "region us"]
)
async def test_INV_PSP1_no_node_votes_with_the_certificate_of_another(
    tmp_path: Path, shown: x509.Certificate
) -> None:
    two = side(tmp_path, {}, 2, certificate_of("eu", 2))
    arrived = two.received("metadata")
    async with running(two):
        client = await NodeClient.connect(network_of(tmp_path / "x", shown), two.addresses[two.me])
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(client.run())
            with pytest.raises(PeerRefused) as refused:
                await client.handshake(standing_of(ONE))
            reading.cancel()
        assert refused.value.code == OTHER_CERTIFICATE
    assert not arrived
    assert not two.watched.heard


async def test_INV_PSP1_a_node_does_not_talk_to_one_with_the_certificate_of_another(
    tmp_path: Path,
) -> None:
    addresses: Addresses = {}
    one = side(tmp_path, addresses, 1, certificate_of("eu", 1))
    false_two = side(tmp_path, addresses, 2, certificate_of("eu", 3))
    arrived = false_two.received("metadata")
    async with running(one, false_two):
        for _ in range(3):
            one.group("metadata").send(TWO, vote())
        await until(lambda: one.transport.life_of(TWO) is None and _tried(one), "it was tried")
    assert not arrived
    assert not one.watched.heard


def _tried(node: NodeSide) -> bool:
    return any(line._said is not None for line in node.transport._lines.values())


@pytest.mark.parametrize(
    ("shown", "is_believed"), [(certificate_of("us", 2), False), (certificate_of("eu", 2), True)], ids=["us", "eu"]
)  # fmt: skip
async def test_INV_PSP2_no_other_region_shuts_a_node_out_for_good(
    tmp_path: Path, shown: x509.Certificate, is_believed: bool
) -> None:
    """Who has a certificate of region us, and node 2's address, refuses node 1: it was removed. A refusal names nobody."""
    two = NodeSide(
        standing_of(TWO, is_removed=lambda each: each == ONE), network_of(tmp_path / "n2", shown), {},
        clock=SystemClock(), chance=SystemChance(),
    )  # fmt: skip
    async with running(two):
        ours = network_of(tmp_path / "n1", certificate_of("eu", 1))
        client = await NodeClient.connect(ours, two.addresses[TWO])
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(client.run())
            with pytest.raises(ShutOut if is_believed else PeerUnreachable):
                await client.handshake(standing_of(ONE))
            reading.cancel()


def test_INV_PNT2_without_tls_what_is_said_counts() -> None:
    assert contradiction(None, NodeName("eu", 1, CLUSTER_ID)) is None


def test_INV_PNT2_a_certificate_of_no_node_contradicts_every_node() -> None:
    said = NodeName("eu", 1, CLUSTER_ID)
    der = user_certificate().public_bytes(Encoding.DER)
    assert "its certificate is of no node" in str(contradiction(der, said))
    assert contradiction(None, said) is None, "without TLS there is none"
