"""Hostile bytes at a peer port that speaks TLS: whoever shows no certificate of a node of this region is told nothing by it, whatever it sends.

INV-PNT1, INV-PSP1. Frames are those of sound nodes and regions, mutated by a seed, behind a handshake that claims to be a node of this region.
"""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from region_broker.ports.network import TlsContexts
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.cluster.raft_messages import RaftNotice
from region_broker.region.peers.node_protocol import Probe
from region_broker.region.peers.protocol import (
    PEER_FRAME_BYTES_MAX,
    PREFACE,
    CheckLogs,
    Frame,
    FrameKind,
    FrameReader,
    Refusal,
    SyncTopics,
    decode_message,
    encode_frame,
)
from region_broker.security.tls import ClientTls
from tests.fixtures.certificates import authority, put, user_certificate
from tests.fixtures.linked_regions import REGION_EPOCH, PlayedIdentity
from tests.fixtures.region_nodes import Addresses, NodeSide, member, running, standing_of
from tests.fixtures.waiting import until
from tests.property.wire_fuzz import mutated
from tests.unit.region_broker.region.cluster.test_raft_messages import SOUND
from tests.unit.region_broker.region.peers.test_peers_by_certificate import (
    certificate_of,
    network_of,
)

ONE, GOOD_ONE = member(1), member(2)
TURNS = 60
CLAIMS = [
    b"".join(encode_frame(FrameKind.REQUEST, 1, standing_of(member(3)).hello())),
    b"".join(encode_frame(FrameKind.REQUEST, 1, PlayedIdentity("eu").hello())),
]
FRAMES = [
    *CLAIMS,
    *(
        b"".join(encode_frame(FrameKind.NOTICE, 0, RaftNotice(group="metadata"), (msgspec.msgpack.encode(each),)))
        for each in SOUND
    ),
    b"".join(encode_frame(FrameKind.REQUEST, 2, Probe())),
    b"".join(encode_frame(FrameKind.REQUEST, 3, SyncTopics(region_epoch=REGION_EPOCH))),
    b"".join(encode_frame(FrameKind.REQUEST, 4, CheckLogs(region_epoch=REGION_EPOCH, logs=()))),
]  # fmt: skip

NOBODY = {
    "a user's": user_certificate("eu"),
    "of another cluster": certificate_of("eu", 3, cluster_id="another"),
    "of another CA": user_certificate("eu", by=authority("another CA")),
    "none": None,
}
ELSEWHERE = {"of region us": certificate_of("us", 3), "of node 4": certificate_of("eu", 4)}


def side(folder: Path, addresses: Addresses, node_id: int) -> NodeSide:
    network = network_of(folder / f"n{node_id}", certificate_of("eu", node_id))
    return NodeSide(
        standing_of(member(node_id)), network, addresses, clock=SystemClock(), chance=SystemChance()
    )  # fmt: skip


async def answered(node: NodeSide, tls: TlsContexts | None, data: bytes) -> bytes:
    """Send bytes; return all that the node says to them until it ends the connection, or has said nothing for a while."""
    said = b""
    with suppress(OSError):
        stream = await AsyncioNetwork().connect(*node.addresses[ONE], tls=tls)
        with suppress(OSError, TimeoutError):
            stream.write(data)
            await stream.drain()
            async with asyncio.timeout(0.05):  # half a frame is waited for
                while more := await stream.read(1 << 16):
                    said += more
        stream.abort()
    return said


def frames_of(data: bytes) -> list[Frame]:
    return list(FrameReader(PEER_FRAME_BYTES_MAX).feed(data))


def hostile(chance: random.Random) -> bytes:
    """Return a claim to be a node of region eu, as it is or mutated, and mutated frames behind it."""
    claim = chance.choice(CLAIMS)
    opening = PREFACE + (claim if chance.random() < 0.5 else mutated(chance, claim))
    if chance.random() < 0.1:
        opening = mutated(chance, opening)
    return opening + b"".join(mutated(chance, chance.choice(FRAMES)) for _ in range(3))


async def played(folder: Path, tls: TlsContexts | None) -> list[bytes]:
    """Send hostile bytes to a node beside a good one; return what it answered to each. Nothing of them is taken, and the good one is served."""
    addresses: Addresses = {}
    node, good = side(folder, addresses, 1), side(folder, addresses, 2)
    arrived, chance, answers = node.received("metadata"), random.Random(7), list[bytes]()
    async with running(node, good):
        for _ in range(TURNS):
            answers.append(await answered(node, tls, hostile(chance)))
        good.group("metadata").send(ONE, SOUND[0])
        await until(lambda: len(arrived) == 1, "the good member's word")
        assert {each.sender for each in arrived} == node.watched.heard.keys() == {GOOD_ONE}
        assert [*node.transport._sessions] == [GOOD_ONE]
        assert not node.identity.heard, "nothing was learnt of a region"
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("shown", NOBODY.values(), ids=NOBODY.keys())
async def test_INV_PNT1_who_is_no_node_is_answered_not_a_byte_whatever_it_sends(
    tmp_path: Path, shown: x509.Certificate | None
) -> None:
    tls = ClientTls(put(tmp_path / "x", shown), check_host=False)
    assert await played(tmp_path, tls) == [b""] * TURNS


@pytest.mark.slow
async def test_INV_PNT1_who_speaks_no_tls_is_answered_no_frame_whatever_it_sends(
    tmp_path: Path,
) -> None:
    answers = await played(tmp_path, None)
    assert {each[:1] for each in answers} <= {b"", b"\x15"}, (
        "an alert of TLS (RFC 8446, 5.1) at most"
    )


@pytest.mark.slow
@pytest.mark.parametrize("shown", ELSEWHERE.values(), ids=ELSEWHERE.keys())
async def test_INV_PSP1_who_is_a_node_of_another_place_is_only_refused_whatever_it_sends(
    tmp_path: Path, shown: x509.Certificate
) -> None:
    tls = ClientTls(put(tmp_path / "x", shown), check_host=False)
    said = [frame for data in await played(tmp_path, tls) for frame in frames_of(data)]
    assert {frame.kind for frame in said} == {FrameKind.REFUSAL}
    assert {decode_message(frame, Refusal).code for frame in said} == {"other-certificate"}
