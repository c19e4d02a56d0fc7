"""Questions to other regions: how long a silent one keeps whoever asks, by a clock that jumps (INV-FP1, INV-FP4)."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from idempotency.identity import RegionEpoch
from region_broker.ports.network import ByteStream
from region_broker.region.failover.messages import AskStatus, SiteStatus
from region_broker.region.failover.peers import HANDSHAKE_TIMEOUT_MS, FailoverPeers
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.protocol import PeerUnreachable
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import PeerSession
from tests.fixtures.linked_regions import PlayedIdentity
from tests.simulation.network import Fabric
from tests.simulation.simulated_loop import run_simulated

LONG_MS = 60_000
ADDRESSES = RegionAddresses({"mute": [("127.0.0.1", 1)], "awake": [("127.0.0.1", 2)]})


async def _says_nothing(_stream: ByteStream) -> None:
    await asyncio.Event().wait()


def played(play: Callable[[Fabric, FailoverPeers], Awaitable[None]]) -> None:
    """Run `play` with a region ("mute") that takes connections and says nothing, and nobody else yet."""

    async def run() -> None:
        fabric = Fabric(random.Random(1))
        regions = dict.fromkeys(("mute", "awake", "asking"))
        metadata = SimpleNamespace(image=SimpleNamespace(regions=regions))
        peers = FailoverPeers(fabric.site("asking"), metadata, "asking", ADDRESSES)
        peers.identity = PlayedIdentity("asking")
        await fabric.site("mute").listen("127.0.0.1", 1, _says_nothing)
        await play(fabric, peers)

    run_simulated(run(), seed=1)


def passed_ms(since_s: float) -> float:
    return (asyncio.get_running_loop().time() - since_s) * 1000


async def awake(fabric: Fabric, answer_after_ms: int) -> None:
    """Let "awake" make a handshake at once, and answer questions after so long."""

    async def answer(_session: PeerSession, _message: AskStatus, _rest: memoryview) -> SiteStatus:
        await asyncio.sleep(answer_after_ms / 1000)
        return SiteStatus(
            region="awake", phase="mirroring", acting=False, region_epoch=RegionEpoch(1), promised_epoch=RegionEpoch(0), promised_candidate="",
            highest_epoch_known=RegionEpoch(1), claim_region_epoch=RegionEpoch(1), claim_number=1,
        )  # fmt: skip

    server = PeerServer(fabric.site("awake"), PlayedIdentity("awake"))
    server.register(AskStatus, answer)
    await server.start("127.0.0.1", 2)


def test_INV_FP4_a_region_without_a_handshake_is_given_up_long_before_one_that_takes_its_time() -> (
    None
):
    async def play(fabric: Fabric, peers: FailoverPeers) -> None:
        await awake(fabric, LONG_MS // 2)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(PeerUnreachable, match="did not make its handshake"):
            await peers.ask("mute", AskStatus(region="asking"), SiteStatus, timeout_ms=LONG_MS)
        assert passed_ms(began_s) < 2 * HANDSHAKE_TIMEOUT_MS
        found = await peers.ask("awake", AskStatus(region="asking"), SiteStatus, timeout_ms=LONG_MS)
        assert found.region == "awake"

    played(play)


def test_INV_FP1_a_region_that_shakes_hands_and_does_not_answer_is_given_up_in_time() -> None:
    async def play(fabric: Fabric, peers: FailoverPeers) -> None:
        await awake(fabric, LONG_MS * 2)
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(PeerUnreachable, match="did not answer"):
            await peers.ask("awake", AskStatus(region="asking"), SiteStatus, timeout_ms=LONG_MS)
        assert LONG_MS <= passed_ms(began_s) < 1.1 * LONG_MS

    played(play)


def test_INV_FP4_nobody_waits_for_a_handshake_with_a_region_that_was_silent_when_asked_last() -> (
    None
):
    async def play(fabric: Fabric, peers: FailoverPeers) -> None:
        await awake(fabric, 0)
        question = AskStatus(region="asking")
        answers, missing = await peers.ask_all(
            question, SiteStatus, timeout_ms=HANDSHAKE_TIMEOUT_MS
        )
        assert (set(answers), set(missing)) == ({"awake"}, {"mute"})
        began_s = asyncio.get_running_loop().time()
        assert await peers.handshake_with_all(timeout_ms=HANDSHAKE_TIMEOUT_MS) == ["awake"]
        assert passed_ms(began_s) < HANDSHAKE_TIMEOUT_MS
        fabric.kill("mute")
        await awakened(fabric)
        await peers.handshake("mute", timeout_ms=HANDSHAKE_TIMEOUT_MS)
        assert sorted(await peers.handshake_with_all(timeout_ms=HANDSHAKE_TIMEOUT_MS)) == [
            "awake",
            "mute",
        ]

    played(play)


async def awakened(fabric: Fabric) -> None:
    """Let "mute" be a node like any other."""
    await PeerServer(fabric.site("mute"), PlayedIdentity("mute")).start("127.0.0.1", 1)
