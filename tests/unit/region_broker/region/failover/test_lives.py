"""Rule T36: who is looked for where another start of a region comes, what is remembered, and who is told to stand aside."""

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from geo_replicator.folder_life import FolderIdentity, Shown
from region_broker.region.failover.peers import FailoverPeers
from region_broker.region.failover.steps.lives import Lives
from region_broker.region.folder.identity_file import FolderRecord, read_identity
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.protocol import (
    ASK_AGAIN,
    LED_BY_ANOTHER,
    NOT_LEADING,
    RUNS_ELSEWHERE,
    STANDS_ASIDE,
    Hello,
    PeerRefused,
)
from region_broker.region.peers.server import PeerServer
from tests.fixtures.linked_regions import CLUSTER_ID, PlayedIdentity
from tests.fixtures.node_logs import ManualClock, at_once
from tests.simulation.disk import SimulatedDisk
from tests.simulation.network import Fabric

FOLDER = Path("/data")


def start(*incarnations: str) -> Shown:
    return Shown(folder_id="f", incarnations=incarnations, incarnation_count=len(incarnations))


FIRST, NEXT, COPY = start("a"), start("a", "b"), start("a", "c")


@dataclass
class Started(PlayedIdentity):
    """A region that tells which start of it runs."""

    shown: Shown | None = None

    def hello(self) -> Hello:
        return msgspec.structs.replace(super().hello(), folder=self.shown)


class Node:
    """Region `us`, which judges what it hears of region `eu`; its clock stands still."""

    def __init__(self) -> None:
        """Nobody is at the address of `eu` yet."""
        self.disk, self.fabric = SimulatedDisk(), Fabric(random.Random(1))
        self.disk.make_dirs(FOLDER)
        identity = FolderIdentity(cluster_id=CLUSTER_ID, region="us", node_id=2, folder_id="g")
        self.folder = folder = FolderRecord(self.disk, FOLDER, identity, offload=at_once)
        self.begun: list[str] = []
        metadata: Any = SimpleNamespace(image=SimpleNamespace(regions={"eu": None}))
        addresses = RegionAddresses({"eu": [("127.0.0.1", 1)]})
        peers = FailoverPeers(self.fabric.site("us"), metadata, "us", addresses)
        peers.identity = self
        self.lives = Lives(
            ManualClock(), folder, peers, ask_timeout_ms=1_000, refused_pause_ms=1_000
        )
        self.lives.spawn = self._spawn
        self._tasks: list[asyncio.Task[None]] = []

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> bool:
        self.begun.append(name)
        if name.startswith("refused-by-"):  # it asks again after a time, which does not pass here
            work.close()
            return False
        self._tasks.append(asyncio.get_running_loop().create_task(work))
        return True

    def hello(self) -> Hello:
        return PlayedIdentity("us").hello()

    def learn(self, hello: Hello) -> None:
        self.lives.judge(hello)

    async def runs(self, shown: Shown) -> None:
        """Let this start answer at the address of `eu`."""
        self.fabric.kill("eu")
        await PeerServer(self.fabric.site("eu"), Started("eu", shown=shown)).start("127.0.0.1", 1)

    def meets(self, shown: Shown) -> str:
        """Return with which code the start is refused, empty where it is let in."""
        try:
            self.lives.judge(Started("eu", shown=shown).hello())
        except PeerRefused as refused:
            return refused.code
        return ""

    async def looked(self) -> None:
        """Return once all that was begun has ended."""
        while self._tasks:
            await self._tasks.pop()


async def test_INV_LV2_a_restart_is_looked_for_and_let_in_with_its_next_word() -> None:
    node = Node()
    assert node.meets(FIRST) == ""
    await node.runs(NEXT)
    assert node.meets(NEXT) == ASK_AGAIN
    await node.looked()
    assert node.meets(NEXT) == ""
    assert node.meets(FIRST) == ASK_AGAIN


async def test_INV_LV2_each_copy_is_refused_as_soon_as_the_original_has_answered() -> None:
    node = Node()
    assert node.meets(FIRST) == ""
    await node.runs(FIRST)
    for copied in (COPY, start("a", "d")):
        assert node.meets(copied) == ASK_AGAIN
        await node.looked()
        assert node.meets(copied) == RUNS_ELSEWHERE


async def test_INV_LV2_whoever_only_speaks_from_somewhere_is_not_at_the_address() -> None:
    node = Node()
    node.meets(FIRST)
    assert node.meets(COPY) == ASK_AGAIN
    await node.looked()
    assert node.meets(COPY) == ASK_AGAIN


async def test_INV_LV3_the_start_that_took_the_place_is_the_one_that_is_remembered() -> None:
    node = Node()
    for shown in (FIRST, NEXT):
        await node.runs(shown)
        node.meets(shown)
        await node.looked()
        node.meets(shown)
        await node.looked()
        kept = read_identity(node.disk, FOLDER)
        assert kept is not None
        assert kept.met["eu"].incarnations == shown.incarnations[-1:]


def answer(region: str, code: str = "") -> Hello:
    hello = PlayedIdentity(region).hello()
    return msgspec.structs.replace(
        hello, answers=True, refused_code=code, refused=code and f"{region} knows another"
    )


async def test_INV_LV4_a_node_stands_aside_until_each_region_that_refused_it_lets_it_in() -> None:
    lives = Node().lives
    for region in ("eu", "ap"):
        lives.heed(answer(region, RUNS_ELSEWHERE))
    lives.heed(answer("eu"))
    lives.heed(msgspec.structs.replace(answer("ap"), answers=False))
    assert lives.aside() == "region ap says that ap knows another"
    await lives.until_aside()
    with pytest.raises(PeerRefused) as refused:
        lives.admit(answer("eu"))
    assert refused.value.code == STANDS_ASIDE
    lives.heed(answer("ap"))
    assert not lives.aside()
    waiting = asyncio.get_running_loop().create_task(lives.until_aside())
    await asyncio.sleep(0)
    assert not waiting.done(), "it goes on"
    waiting.cancel()


async def test_INV_LV4_a_region_that_is_not_sure_is_asked_again_until_it_is() -> None:
    lives = Node().lives
    lives.heed(answer("eu", ASK_AGAIN))
    assert lives.unsure()
    assert not lives.unsure(), "it was said, and is asked again"
    lives.heed(answer("eu", ASK_AGAIN))
    lives.heed(answer("eu"))
    assert not lives.unsure()


async def test_INV_LV4_who_stands_aside_judges_nobody() -> None:
    node = Node()
    node.meets(FIRST)
    node.lives.heed(answer("ap", RUNS_ELSEWHERE))
    assert node.meets(COPY) == ""
    assert not node._tasks[1:], "nor does it look for anybody"
    await node.looked()


async def test_INV_LV3_a_disk_that_does_not_remember_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node()

    def broken(*_what: object) -> None:
        raise OSError("no space")

    node.disk.fault = broken
    assert node.meets(FIRST) == ""
    await node.looked()
    assert "the start of region eu is not remembered" in caplog.text
    assert node.meets(FIRST) == ""


def elected(*incarnations: str) -> Shown:
    return msgspec.structs.replace(start(*incarnations), elected=True)


async def test_INV_KL7_a_node_that_leads_no_more_is_told_so_and_nobody_is_looked_for() -> None:
    node = Node()
    assert node.meets(elected("a", "b")) == ""
    assert node.meets(elected("a", "b", "c")) == ""
    assert node.meets(elected("a", "b")) == LED_BY_ANOTHER
    await node.looked()
    kept = read_identity(node.disk, FOLDER)
    assert kept is not None
    assert kept.met["eu"].incarnations == ("a", "b", "c"), (
        "so that it is known after a restart, too"
    )
    assert not node.lives.twice()
    hello = Started("eu", shown=elected("a", "b")).hello()
    with pytest.raises(
        PeerRefused, match=r"another node leads region eu now.*Nothing is to be done"
    ):
        node.lives.admit(hello)


def leads_under(node: Node, *incarnations: str) -> None:
    """Let the region of the node end its chain so."""
    identity = node.folder.identity
    for incarnation in incarnations:
        identity = msgspec.structs.replace(identity, chain=identity.chain.with_start(incarnation))
    node.folder._identity = identity


async def test_INV_LV5_a_node_that_leads_no_more_stops_until_it_is_elected_again() -> None:
    node = Node()
    leads_under(node, "first")
    node.lives.heed(answer("eu", LED_BY_ANOTHER))
    await node.lives.until_aside()
    assert node.lives.aside() == "region eu says that eu knows another"
    assert "refused-by-eu" not in node.begun, "its own region tells it, and nobody else is asked"
    with pytest.raises(PeerRefused) as refused:
        node.lives.admit(answer("ap"))
    assert refused.value.code == NOT_LEADING
    assert node.meets(FIRST) == NOT_LEADING, "so that the region looks for who does"
    node.lives.judge(answer("ap"))  # who is asked is learnt from as ever
    leads_under(node, "second")
    assert not node.lives.aside()
    assert node.meets(FIRST) == ""
    waiting = asyncio.get_running_loop().create_task(node.lives.until_aside())
    await asyncio.sleep(0)
    assert not waiting.done(), "that was said of an earlier election"
    node.lives.heed(answer("eu", LED_BY_ANOTHER))
    await waiting


async def test_INV_FW6_whoever_forwards_is_told_of_each_election_once() -> None:
    node = Node()
    told: list[str] = []
    node.lives.on_elected = told.append
    for shown in (elected("a", "b"), elected("a", "b"), elected("a", "b", "c"), elected("a", "b")):
        node.meets(shown)
    assert told == ["eu"], "nothing was under way before the first one was met"
    await node.looked()


async def test_INV_FW6_a_restart_of_a_regions_only_node_is_no_election() -> None:
    """What was sent to its former life may have been carried out: nobody asks again for it."""
    node = Node()
    told: list[str] = []
    node.lives.on_elected = told.append
    node.meets(FIRST)
    await node.runs(NEXT)
    node.meets(NEXT)
    await node.looked()
    assert node.meets(NEXT) == ""
    assert node.meets(FIRST) != "", "the known one is another one"
    assert told == []
    await node.looked()


async def test_INV_LV5_whoever_told_it_so_lets_it_in_again() -> None:
    lives = Node().lives
    lives.heed(answer("eu", LED_BY_ANOTHER))
    lives.heed(answer("ap"))
    lives.heed(msgspec.structs.replace(answer("eu"), answers=False))
    assert lives.aside()
    lives.heed(answer("eu"))
    assert not lives.aside()


@pytest.mark.parametrize("code", [RUNS_ELSEWHERE, LED_BY_ANOTHER])
async def test_INV_LV4_a_node_that_does_not_lead_its_region_lets_nobody_in(code: str) -> None:
    lives = Node().lives
    lives.heed(answer("eu", code))
    lives.heed(answer("eu", NOT_LEADING))
    assert lives.aside() == "region eu says that eu knows another"
