"""Loss statements are on every node of the region, not only where the takeover was led (INV-LSC)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from geo_replicator.lineage import EMPTY_CUT, Cut, TidemarkPoint
from geo_replicator.loss import LossStatement, Takeover, make_statement
from geo_replicator.tail import Tail
from idempotency.identity import RegionEpoch
from region_broker.controller.metadata_image import LineageEntry, MetadataImage
from region_broker.ports.system.disk import RealDisk
from region_broker.region.cluster import statement_copies
from region_broker.region.cluster.statement_copies import (
    AskStatementPiece,
    Named,
    StatementCopies,
    StatementCopiesParts,
    StatementPiece,
    _CannotBe,
    _fetched,
)
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.peers.node_protocol import STATEMENTS
from region_broker.region.peers.sessions import NodeSession, Reply
from tests.fixtures.cluster_images import in_sync, member
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.region_nodes import Addresses, NodeSide, real_node, running, standing_of
from tests.fixtures.waiting import until

FIRST, SECOND = RegionEpoch(16), RegionEpoch(24)
BASE = Cut(TidemarkPoint(RegionEpoch(8), 1), {})


def entry(region_epoch: RegionEpoch) -> LineageEntry:
    return LineageEntry(
        region_epoch=region_epoch, acting_region="eu", base_region_epoch=RegionEpoch(8), base_number=1
    )  # fmt: skip


def with_lineage(image: MetadataImage, *epochs: RegionEpoch) -> MetadataImage:
    domain = msgspec.structs.replace(image.domains["main"], lineage=tuple(map(entry, epochs)))
    return msgspec.structs.replace(image, domains={"main": domain})


def statement_of(
    region_epoch: RegionEpoch, open_bound: str = "", base: Cut = BASE
) -> LossStatement:
    takeover = Takeover(
        "main", "us", "eu", region_epoch=region_epoch, planned=False, last_heard_ms=0
    )
    made = make_statement(takeover, base, [], Tail(), now_wall_ms=1)
    return msgspec.structs.replace(made, open_bound=open_bound)


class Node:
    """A node of a region of three, with its quarantine and its copier; it sees the image that it is given."""

    def __init__(self, node_id: int, addresses: Addresses, folder: Path) -> None:
        self.me = member(node_id)
        self.seen = SeenRegion(node_id)
        self.store = QuarantineStore(RealDisk(), folder / str(node_id))
        self.side: NodeSide = real_node(addresses, standing_of(self.me))
        self.copies = StatementCopies(
            StatementCopiesParts(
                me=self.me,
                image=lambda: self.seen.image,
                store=self.store,
                line=self.side.transport._parts,
            )
        )
        assert self.side.server.node_door is not None
        self.copies.serve_on(self.side.server.node_door.handlers_for(STATEMENTS))

    def sees(self, image: MetadataImage) -> None:
        self.seen.image = image
        self.copies.take_image(image)

    def has(self, *epochs: RegionEpoch) -> bool:
        return all(self.store.statement("main", each) == statement_of(each) for each in epochs)


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Node, Node, Node]:
    """Node 1 leads."""
    addresses: Addresses = {}
    one, two, three = (Node(node_id, addresses, tmp_path) for node_id in (1, 2, 3))
    return one, two, three


@asynccontextmanager
async def copying(nodes: Sequence[Node], *answering: Node) -> AsyncIterator[None]:
    """Let `nodes` look for what they lack, and `answering` answer."""
    async with running(*(node.side for node in answering)), asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(node.copies.run()) for node in nodes]
        try:
            yield
        finally:
            for task in work:
                task.cancel()


async def test_INV_LSC1_a_follower_keeps_what_the_leader_has_of_its_lineage(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, three = nodes
    for epoch in (FIRST, SECOND):
        one.store.keep_statement(statement_of(epoch))
    two.sees(with_lineage(in_sync(), FIRST, SECOND))
    three.sees(with_lineage(in_sync(), SECOND))
    async with copying([two, three], one):
        await until(lambda: two.has(FIRST, SECOND) and three.has(SECOND), "they are kept")
    assert three.store.statement("main", FIRST) is None, "nobody speaks of it there"


async def test_INV_LSC1_it_looks_again_when_the_lineage_changes(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, _ = nodes
    two.sees(with_lineage(in_sync(), FIRST))
    one.store.keep_statement(statement_of(FIRST))
    async with copying([two], one):
        await until(lambda: two.has(FIRST), "the first is kept")
        one.store.keep_statement(statement_of(SECOND))
        two.sees(with_lineage(in_sync(), FIRST, SECOND))
        await until(lambda: two.has(SECOND), "the second is kept")


async def test_INV_LSC1_a_leader_that_does_not_answer_is_asked_again(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_copies, "AGAIN_MS", 20)
    one, two, _ = nodes
    one.store.keep_statement(statement_of(FIRST))
    two.sees(with_lineage(in_sync(), FIRST))
    async with copying([two], two):
        await until(lambda: bool(two.copies._said), "it has asked in vain")
        async with running(one.side):
            await until(lambda: two.has(FIRST), "it is kept")


async def test_what_nobody_has_yet_is_asked_for_again(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_copies, "NOT_THERE_AGAIN_MS", 20)
    one, two, _ = nodes
    two.sees(with_lineage(in_sync(), FIRST))
    async with copying([two], one):
        await asyncio.sleep(0.1)
        one.store.keep_statement(statement_of(FIRST))
        await until(lambda: two.has(FIRST), "it is kept")


async def test_INV_LSC4_who_leads_asks_those_who_follow(nodes: tuple[Node, Node, Node]) -> None:
    """Node 3 has led the takeover, and fell before node 1, which leads now, had copied anything."""
    one, two, three = nodes
    three.store.keep_statement(statement_of(FIRST))
    one.sees(with_lineage(in_sync(), FIRST))
    async with copying([one], two, three):
        await until(lambda: one.has(FIRST), "it is kept")


async def test_nobody_is_asked_while_nobody_leads(nodes: tuple[Node, Node, Node]) -> None:
    _, two, _ = nodes
    two.seen.led_by_nobody()
    two.sees(with_lineage(two.seen.image, FIRST))
    assert two.copies._asked() == []
    assert await two.copies._look() is None


async def test_a_large_statement_comes_in_pieces(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statement_copies, "PIECE_BYTES", 100)
    one, two, _ = nodes
    one.store.keep_statement(statement_of(FIRST))
    two.sees(with_lineage(in_sync(), FIRST))
    async with copying([two], one):
        await until(lambda: two.has(FIRST), "it is kept")


async def test_INV_LSC2_another_statement_a_damaged_one_and_one_too_large_are_not_kept(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep no other one back."""
    one, two, _ = nodes
    third, fourth = RegionEpoch(32), RegionEpoch(40)
    for epoch, found in {
        SECOND: statement_of(FIRST), third: statement_of(third), fourth: statement_of(fourth, "x" * 5_000),
    }.items():  # fmt: skip
        path = one.store._statement_path("main", epoch)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(found)[: -3 if epoch == third else None])
    one.store.keep_statement(statement_of(FIRST))
    monkeypatch.setattr(statement_copies, "STATEMENT_BYTES_MAX", 4_000)
    two.sees(with_lineage(in_sync(), FIRST, SECOND, third, fourth))
    async with copying([two], one):
        await until(lambda: two.has(FIRST), "the one that is one is kept")
    for epoch in (SECOND, third, fourth):
        assert two.store.statement_bytes("main", epoch) is None


async def test_INV_LSC2_a_statement_that_was_not_asked_for_is_not_kept(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, _ = nodes
    path = one.store._statement_path("main", SECOND)
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(statement_of(FIRST)))
    two.sees(with_lineage(in_sync(), SECOND))
    async with copying([two], one):
        await until(lambda: "another one" in two.copies._said, "it was refused")
    assert two.store.statement("main", FIRST) is None


async def test_INV_LSC2_what_is_there_is_never_written_over(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, _ = nodes
    for epoch in (FIRST, SECOND):
        one.store.keep_statement(statement_of(epoch))
    own = statement_of(FIRST, "this node's own")
    two.store.keep_statement(own)
    two.sees(with_lineage(in_sync(), FIRST, SECOND))
    async with copying([two], one):
        await until(lambda: two.has(SECOND), "the other one is kept")
    assert two.store.statement("main", FIRST) == own


async def test_INV_LSC2_a_statement_of_a_base_that_was_not_chosen_is_none(
    nodes: tuple[Node, Node, Node],
) -> None:
    """1. A node states the loss, and dies. 2. Another one leads, and chooses another base. 3. The first one is back."""
    one, two, three = nodes
    one.store.keep_statement(statement_of(FIRST))
    two.store.keep_statement(statement_of(FIRST, "it was never lost", EMPTY_CUT))
    two.sees(with_lineage(in_sync(), FIRST))
    async with copying([two], one):
        await until(lambda: two.has(FIRST), "the one of the lineage is kept")
    three.store.keep_statement(statement_of(FIRST, base=EMPTY_CUT))
    three.store.keep_statement(statement_of(FIRST))
    assert three.has(FIRST), "nor does it stand in the way of whoever leads the takeover next"


async def test_INV_LSC2_a_statement_of_another_base_is_not_kept(
    nodes: tuple[Node, Node, Node],
) -> None:
    """It says of another cut what was lost."""
    one, two, _ = nodes
    one.store.keep_statement(statement_of(FIRST))
    one.store.keep_statement(statement_of(SECOND, base=EMPTY_CUT))
    two.sees(with_lineage(in_sync(), FIRST, SECOND))
    async with copying([two], one):  # the newest is asked for first
        await until(lambda: two.has(FIRST), "what is of the lineage is kept")
        assert two.store.statement_bytes("main", SECOND) is None


@pytest.mark.parametrize("domain", ["../1/main", "/etc", "other"])
async def test_INV_LSC3_no_other_folder_is_looked_into(
    nodes: tuple[Node, Node, Node], domain: str
) -> None:
    one, _, _ = nodes
    one.store.keep_statement(statement_of(FIRST))
    one.sees(in_sync())
    session: NodeSession = None  # type: ignore[assignment]

    async def asked(name: str) -> Reply:
        ask = AskStatementPiece(domain=name, region_epoch=FIRST, from_byte=-5)
        return await one.copies._on_ask(session, ask, memoryview(b""))

    assert await asked(domain) == Reply(StatementPiece(size_bytes=-1))
    found = await asked("main")
    assert isinstance(found.message, StatementPiece)
    assert found.message.size_bytes > 0


async def test_a_node_that_moved_is_asked_again_after_another_was_elected(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, three = nodes
    one.store.keep_statement(statement_of(FIRST))
    image = with_lineage(in_sync(), FIRST)
    three.sees(image)
    async with copying([three], two):
        await until(lambda: bool(three.copies._said), "node 1 does not answer")
        two.store.keep_statement(statement_of(FIRST))
        three.seen.led_by_nobody()
        three.seen.led_by(2, 2)
        three.copies.take_image(three.seen.image)
        await until(lambda: three.has(FIRST), "node 2 has it")


class Answers:
    """A node that sends these pieces, each with what it says is the size of the whole."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)

    async def begin(self, *_: object) -> tuple[StatementPiece, memoryview]:
        size_bytes, piece = self.answers.pop(0)
        return StatementPiece(size_bytes=size_bytes), memoryview(piece)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([(10, b"12345"), (12, b"67890")], "has changed meanwhile"),
        ([(10, b"12345"), (5, b"67890")], "has changed meanwhile"),
        ([(10, b"12345"), (-1, b"")], "that it has -1 bytes"),
        ([(4, b"12345")], "has 5 bytes, not 4"),
        ([(10, b"1234567"), (10, b"890x")], "has 11 bytes, not 10"),
        ([(10, b"12345"), (10, b"")], "that it has 10 bytes"),
        ([(0, b"12345")], "that it has 0 bytes"),
    ],
)
async def test_INV_LSC2_pieces_that_are_no_whole_are_none(
    answers: list[tuple[int, bytes]], why: str
) -> None:
    named = Named("main", FIRST, TidemarkPoint(RegionEpoch(8), 1))
    with pytest.raises(_CannotBe, match=why):
        await _fetched(Answers(*answers), named)  # type: ignore[arg-type]
    assert await _fetched(Answers((10, b"12345"), (10, b"67890")), named) == b"1234567890"  # type: ignore[arg-type]
    assert await _fetched(Answers((-1, b"")), named) is None  # type: ignore[arg-type]
