"""Where a region of several nodes is met: which of them is tried when, and what ends the search (INV-RAD1 to INV-RAD3)."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import ClassVar

import pytest

from region_broker.ports.network import ByteStream
from region_broker.region.failover.peers import HANDSHAKE_TIMEOUT_MS
from region_broker.region.peers import addresses as meeting
from region_broker.region.peers.addresses import (
    NEXT_AFTER_S,
    RegionAddresses,
    enter_region,
    opened_region,
)
from region_broker.region.peers.client import CONNECT_TIMEOUT_S
from region_broker.region.peers.protocol import (
    LED_BY_ANOTHER,
    NOT_ACTING,
    NOT_LEADING,
    STALE_REGION_EPOCH,
    Hello,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.peers.server import PeerServer
from tests.fixtures.linked_regions import PlayedIdentity
from tests.simulation.network import Fabric
from tests.simulation.simulated_loop import run_simulated

HOST = "127.0.0.1"


@dataclass
class Says(PlayedIdentity):
    """A node that refuses every handshake with that code, or lets everybody in."""

    code: str = ""

    def learn(self, hello: Hello) -> None:
        super().learn(hello)
        if self.code:
            raise PeerRefused(self.code, f"node says {self.code}")


class Region:
    """Region `eu` of nodes 1 to 3, as node `us` meets it."""

    def __init__(self, *ports: int) -> None:
        """Nobody listens yet."""
        self.fabric = Fabric(random.Random(1))
        self.addresses = RegionAddresses({"eu": [(HOST, port) for port in ports or (1, 2, 3)]})
        self.nodes: dict[int, Says] = {}
        self.servers: dict[int, PeerServer] = {}
        self.us = PlayedIdentity("us")

    async def runs(self, **codes: str) -> None:
        """Let these nodes run (`n1` ...), each with what it says."""
        for name, code in codes.items():
            node_id = int(name[1:])
            self.nodes[node_id] = Says("eu", code=code)
            self.servers[node_id] = PeerServer(self.fabric.site(name), self.nodes[node_id])
            await self.servers[node_id].start(HOST, node_id)

    async def is_mute(self, node_id: int) -> None:
        """Let it take connections and say nothing."""

        async def says_nothing(_stream: ByteStream) -> None:
            await asyncio.Event().wait()

        await self.fabric.site(f"n{node_id}").listen(HOST, node_id, says_nothing)

    async def handshake(self) -> list[int]:
        """Let this node in, and return who was asked for that, in order."""
        before = {node_id: len(node.heard) for node_id, node in self.nodes.items()}
        async with opened_region(self.fabric.site("us"), self.addresses, "eu", self.us) as (
            _,
            hello,
        ):
            assert hello.region == "eu"
        return [each for each, node in self.nodes.items() if len(node.heard) > before[each]]


def simulated(test: Callable[[Region], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on simulated time."""

    @wraps(test)
    def run() -> None:
        async def play() -> None:
            await test(Region())

        run_simulated(play(), 1)

    del run.__wrapped__  # pytest would ask for its argument
    return run


def now_s() -> float:
    return asyncio.get_running_loop().time()


@simulated
async def test_INV_RAD1_who_let_this_node_in_last_is_tried_first(region: Region) -> None:
    await region.runs(n1=NOT_LEADING, n2=NOT_LEADING, n3="")
    assert await region.handshake() == [1, 2, 3]
    assert await region.handshake() == [3], "it led a moment ago"
    region.nodes[3].code, region.nodes[2].code = NOT_LEADING, ""
    assert await region.handshake() == [1, 2, 3]
    assert await region.handshake() == [2]


@pytest.mark.parametrize("code", [NOT_LEADING, NOT_ACTING, LED_BY_ANOTHER])
def test_INV_RAD2_one_that_does_not_lead_or_starts_or_is_gone_is_no_word_of_its_region(
    code: str,
) -> None:
    async def play() -> None:
        region = Region()
        await region.runs(n2=code, n3="")
        began_s = now_s()
        assert await region.handshake() == [2, 3]
        assert now_s() - began_s < NEXT_AFTER_S, "nothing was waited for"

    run_simulated(play(), 1)


@simulated
async def test_INV_RAD2_any_other_refusal_is_a_word_of_the_region(region: Region) -> None:
    await region.runs(n1=NOT_LEADING, n2=STALE_REGION_EPOCH, n3="")
    with pytest.raises(PeerRefused, match=f"^node says {STALE_REGION_EPOCH}$") as refused:
        await region.handshake()
    assert refused.value.code == STALE_REGION_EPOCH
    assert not region.nodes[3].heard, "nobody else was tried"


@simulated
async def test_INV_RAD2_a_node_that_does_not_know_yet_that_it_leads_no_more_is_passed_by(
    region: Region,
) -> None:
    class Judging(PlayedIdentity):
        def learn(self, hello: Hello) -> None:
            super().learn(hello)
            if len(self.heard) == 1:
                raise PeerRefused(LED_BY_ANOTHER, "another node leads region eu now")

    region.us = Judging("us")
    await region.runs(n1="", n2="")
    assert await region.handshake() == [1, 2]
    assert region.addresses.of("eu")[0] == (HOST, 2)


@simulated
async def test_where_nobody_speaks_for_the_region_each_node_is_named(region: Region) -> None:
    with pytest.raises(PeerUnreachable) as unreachable:
        await region.handshake()
    for node_id in (1, 2, 3):
        assert f"cannot reach {HOST}:{node_id}: " in str(unreachable.value)
    assert not unreachable.value.sent
    await region.runs(n1=NOT_LEADING)
    with pytest.raises(PeerRefused, match="no node of region eu speaks for it") as refused:
        await region.handshake()
    assert refused.value.code == NOT_LEADING
    assert f"{HOST}:1: node says {NOT_LEADING}; cannot reach {HOST}:2: " in refused.value.reason


@simulated
async def test_a_node_whose_answer_is_lost_is_no_reason_to_stop(region: Region) -> None:
    async def hangs_up(stream: ByteStream) -> None:
        await stream.read(1)
        stream.close()

    await region.fabric.site("n1").listen(HOST, 1, hangs_up)
    await region.runs(n2="")
    assert await region.handshake() == [2]


@simulated
async def test_INV_RAD3_silent_nodes_hold_up_the_next_one_for_a_moment(region: Region) -> None:
    await region.runs(n1="", n3="")
    await region.is_mute(2)
    region.fabric.cut("us", "n1", silent=True)
    began_s = now_s()
    assert await region.handshake() == [3]
    assert 2 * NEXT_AFTER_S <= now_s() - began_s < 3 * NEXT_AFTER_S
    assert 3 * NEXT_AFTER_S < HANDSHAKE_TIMEOUT_MS / 1_000, "so a question is asked in time"
    assert await region.handshake() == [3]


@simulated
async def test_INV_RAD3_a_leader_that_takes_its_time_is_waited_for(region: Region) -> None:
    await region.runs(n1="", n2=NOT_LEADING, n3=NOT_LEADING)
    region.fabric.delay_ms_max = 4_000.0
    assert 1 in await region.handshake()
    assert region.addresses.of("eu")[0] == (HOST, 1)


@simulated
async def test_who_keeps_silent_is_given_up_in_the_end(region: Region) -> None:
    for node_id in (1, 2, 3):
        await region.is_mute(node_id)
    began_s = now_s()
    with pytest.raises(PeerUnreachable, match="did not make its handshake within"):
        await region.handshake()
    assert now_s() - began_s < CONNECT_TIMEOUT_S + 3 * NEXT_AFTER_S


@pytest.mark.parametrize("after_ms", range(0, 900, 7))
def test_INV_RAD3_no_connection_is_left_open_whenever_the_search_is_given_up(after_ms: int) -> None:
    async def play() -> None:
        region = Region()
        await region.runs(n1=NOT_LEADING, n3="")
        await region.is_mute(2)
        region.fabric.delay_ms_max = 200.0
        clients = []

        async def search(tasks: asyncio.TaskGroup) -> None:
            entered = await enter_region(
                region.fabric.site("us"), region.addresses, "eu", region.us, tasks.create_task
            )
            clients.append(entered.client)

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            searching = tasks.create_task(search(tasks))
            await asyncio.wait([searching], timeout=after_ms / 1_000)
            searching.cancel()
            await asyncio.wait([searching])
            for client in clients:
                client.close()
        # The group ends once each connection that was begun has ended.

    run_simulated(play(), after_ms)


def test_INV_RAD4_a_node_of_another_region_at_the_address_is_not_taken_for_this_one() -> None:
    async def play() -> None:
        region = Region(1)
        await region.runs(n1="")
        elsewhere = RegionAddresses({"ap": region.addresses.of("eu")})
        async with asyncio.TaskGroup() as tasks:
            with pytest.raises(PeerUnreachable, match=r"met as region ap, and it is region eu"):
                await enter_region(
                    region.fabric.site("us"), elsewhere, "ap", region.us, tasks.create_task
                )

    run_simulated(play(), 1)


def test_an_only_node_is_asked_as_ever() -> None:
    async def play() -> None:
        region = Region(1)
        with pytest.raises(PeerUnreachable, match=r"^cannot reach 127.0.0.1:1: [^;]*$"):
            await region.handshake()
        await region.runs(n1=NOT_LEADING)
        with pytest.raises(PeerRefused, match=f"^node says {NOT_LEADING}$"):
            await region.handshake()

    run_simulated(play(), 1)


@simulated
async def test_a_region_that_nobody_configured_is_said_so(region: Region) -> None:
    with pytest.raises(PeerUnreachable, match="no region is called ap"):
        region.addresses.of("ap")


@dataclass
class PlayedClient:
    """A `PeerClient` that lets this node in once `may_enter` is set; the second one takes its time to be given up."""

    may_enter: ClassVar[asyncio.Event]
    made: ClassVar[list["PlayedClient"]]
    port: int
    closed: bool = False

    @classmethod
    async def connect(
        cls, _network: object, address: tuple[str, int], _who: object
    ) -> "PlayedClient":
        cls.made.append(cls(address[1]))
        return cls.made[-1]

    async def run(self) -> None:
        """Nothing is said."""

    async def handshake(self) -> Hello:
        try:
            await self.may_enter.wait()
            if self.port == 3:
                await asyncio.Event().wait()
        finally:
            if self.port == 3:
                await asyncio.sleep(1)
        return PlayedIdentity("eu").hello()

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_INV_RAD3_of_two_that_let_this_node_in_at_once_one_is_kept_and_none_if_it_is_given_up(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> list[bool]:
        PlayedClient.may_enter, PlayedClient.made = asyncio.Event(), []
        region = Region()
        searching = asyncio.get_running_loop().create_task(
            enter_region(
                region.fabric.site("us"), region.addresses, "eu", region.us,
                asyncio.get_running_loop().create_task,
            )
        )  # fmt: skip
        await asyncio.sleep(3 * NEXT_AFTER_S)
        PlayedClient.may_enter.set()
        await asyncio.sleep(0.5)
        assert not searching.done(), "the third one takes its time"
        if is_cancelled:
            searching.cancel()
        await asyncio.wait([searching])
        await asyncio.sleep(1)
        assert searching.cancelled() is is_cancelled
        return [client.closed for client in PlayedClient.made]

    monkeypatch.setattr(meeting, "PeerClient", PlayedClient)
    assert run_simulated(play(), 1) == [is_cancelled, True, True]
