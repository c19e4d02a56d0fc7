"""What was cut off is on every node of the region, not only on those that had it (INV-TLC)."""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from geo_replicator.quarantine import CutCause, Provenance
from idempotency.identity import RegionEpoch
from region_broker.controller.cluster_commands import FenceNode, UnfenceNode
from region_broker.controller.cluster_image import FolderImage
from region_broker.controller.metadata_image import LineageEntry, MetadataImage
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Record, build_batch
from region_broker.region.cluster import tail_copies
from region_broker.region.cluster.tail_copies import (
    AskTailPiece,
    AskTails,
    TailCopies,
    TailCopiesParts,
    TailList,
    TailPiece,
)
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.peers.node_protocol import STATEMENTS
from region_broker.region.peers.sessions import NodeSession
from tests.fixtures.cluster_images import after, in_sync, life, member
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.region_nodes import Addresses, NodeSide, real_node, running, standing_of
from tests.fixtures.waiting import until

FIRST, SECOND = RegionEpoch(17), RegionEpoch(25)


def taken_over(image: MetadataImage) -> MetadataImage:
    """Return the image after a takeover by another region."""
    entry = LineageEntry(region_epoch=FIRST, acting_region="us", base_region_epoch=RegionEpoch(8), base_number=1)  # fmt: skip
    domain = msgspec.structs.replace(image.domains["main"], lineage=(entry,))
    return msgspec.structs.replace(image, domains={"main": domain})


def batch(offset: int, word: str = "lost") -> bytes:
    return build_batch([Record(None, f"{word} {offset}".encode())], base_offset=offset)


def named(
    first: int = 10, last: int = 29, epoch: RegionEpoch = FIRST, **other: object
) -> Provenance:
    """Return what names a tail of a log in region eu."""
    tail = Provenance(
        domain="main", topic="orders", topic_id=UUID(int=1), partition=3, lineage_epoch=epoch, first_offset=first, last_offset=last,
        region="eu", region_epoch=RegionEpoch(8), acting_region="us", base_region_epoch=RegionEpoch(8), base_number=1,
        byte_count=0, batch_count=0, crc32c=0, moved_wall_ms=9,
    )  # fmt: skip
    return msgspec.structs.replace(tail, **other)


class Node:
    """A node of a region of three, with its quarantine and its copier; it sees the image that it is given."""

    def __init__(self, node_id: int, addresses: Addresses, folder: Path) -> None:
        self.me = member(node_id)
        self.seen = SeenRegion(node_id)
        self.folder = folder / str(node_id)
        self.side: NodeSide = real_node(addresses, standing_of(self.me))
        assert self.side.server.node_door is not None
        self.lineage = self.cut_by = 1
        self.no_room: str | None = None
        self.begin_anew()
        self.copies.serve_on(self.side.server.node_door.handlers_for(STATEMENTS))

    def begin_anew(self) -> None:
        """As another life does: with what is on the disk."""
        self.store = QuarantineStore(RealDisk(), self.folder)
        self.copies = TailCopies(
            TailCopiesParts(
                me=self.me, region="eu", image=lambda: self.seen.image, store=self.store, line=self.side.transport._parts,
                cut_by=lambda: self.cut_by, lineage=lambda: self.lineage, no_room=lambda: self.no_room, acknowledged_on=lambda: 2,
            )
        )  # fmt: skip
        self.sees(taken_over(in_sync()))

    def sees(self, image: MetadataImage) -> None:
        self.seen.image = image
        self.copies.take_image(image)

    async def cuts(self, tail: Provenance, word: str = "lost") -> Provenance:
        return await self.store.move_in(tail, lambda offset: batch(offset, word))

    def has(self, *tails: Provenance) -> bool:
        """Return whether it holds just these, and all of them whole."""
        kept = self.store.tails()
        for tail in kept:
            assert sum(map(len, self.store.chunks(tail))) == tail.byte_count
        return {tail.identity for tail in kept} == {tail.identity for tail in tails}

    @property
    def outstanding(self) -> dict[int, str]:
        return {each.node_id: each.reason for each in self.copies.elsewhere().outstanding}


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Node, Node, Node]:
    """Node 1 leads, all are in sync."""
    addresses: Addresses = {}
    one, two, three = (Node(node_id, addresses, tmp_path) for node_id in (1, 2, 3))
    return one, two, three


@asynccontextmanager
async def copying(nodes: Sequence[Node], *answering: Node) -> AsyncIterator[None]:
    """Let `nodes` ask for what they lack, and `answering` answer."""
    async with running(*(node.side for node in answering)), asyncio.TaskGroup() as tasks:
        work = [tasks.create_task(node.copies.run()) for node in nodes]
        try:
            yield
        finally:
            for task in work:
                task.cancel()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried again at once."""
    for name in ("AGAIN_MS", "TROUBLE_AGAIN_MS", "LOOK_AGAIN_MS"):
        monkeypatch.setattr(tail_copies, name, 20)


async def test_INV_TLC1_every_node_has_in_the_end_what_one_has_cut_off(
    nodes: tuple[Node, Node, Node],
) -> None:
    """Node 1, which leads, was away while the records were acknowledged."""
    one, two, three = nodes
    lost = await two.cuts(named())
    async with copying(nodes, *nodes):
        await until(lambda: all(node.has(lost) for node in nodes), "all have it")
        await until(lambda: not one.outstanding and not three.outstanding, "and know it")


async def test_INV_TLC1_tails_of_two_takeovers_and_others_of_the_same_name_are_all_kept(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, three = nodes
    held = [
        await two.cuts(named()),
        await two.cuts(named(epoch=SECOND)),
        await three.cuts(named(), "another history"),
        await three.cuts(named(cause=CutCause.DIVERGENCE)),
    ]
    async with copying(nodes, *nodes):
        await until(lambda: all(node.has(*held) for node in nodes), "all have all of them")
    assert sorted(tail.edition for tail in one.store.tails()) == [0, 0, 1, 2]


async def test_a_tail_within_a_longer_one_is_not_copied_and_the_longer_one_is(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, three = nodes
    shorter, longer = await one.cuts(named(last=20)), await two.cuts(named())
    async with copying(nodes, *nodes):
        await until(lambda: not one.outstanding and not two.outstanding, "all is compared")
        await until(lambda: not three.outstanding, "and by the third one")
    assert two.has(longer)
    assert one.has(shorter, longer)


async def test_INV_TLC3_a_takeover_that_is_heard_of_while_tails_are_copied_has_all_compared_again(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other one will cut off by it is in no list yet."""
    one, two, _ = nodes
    lost = await two.cuts(named())
    keep_copy = one.store.keep_copy

    async def kept_meanwhile(tail: Provenance, pieces: AsyncIterator[bytes]) -> None:
        await keep_copy(tail, pieces)
        one.lineage = 2

    monkeypatch.setattr(one.store, "keep_copy", kept_meanwhile)
    async with copying([one], two):
        await until(lambda: bool(one.copies._compared), "it has all of what was cut before")
        assert one.has(lost)
        assert two.me.node_id in one.outstanding


async def test_INV_TLC1_what_a_node_cuts_off_later_is_found(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    one, two, three = nodes
    async with copying([one], two, three):
        await until(lambda: not one.outstanding, "nobody has anything")
        lost = await two.cuts(named())
        await until(lambda: one.has(lost), "it is kept")


async def test_INV_TLC1_a_node_that_was_away_is_asked_when_it_is_heard(
    nodes: tuple[Node, Node, Node],
) -> None:
    """Until then it is outstanding; and so it is, where it has never been compared with."""
    one, two, three = nodes
    lost = await three.cuts(named())
    away = after(one.seen.image, FenceNode(3, life(3)))
    one.sees(away)
    async with copying([one], two):
        await until(lambda: one.outstanding == {3: "it is not heard"}, "two is compared with")
        assert not one.copies.elsewhere().may_hold_more, "an acknowledged record is on two nodes"
        async with running(three.side):
            one.sees(after(away, UnfenceNode(3, life(3))))
            await until(lambda: one.has(lost), "it is kept")
            await until(lambda: not one.outstanding, "nobody is outstanding")
            one.sees(after(one.seen.image, FenceNode(3, life(3))))
            assert not one.outstanding, "all that it has is here"


async def test_INV_TLC6_what_too_few_are_compared_of_may_have_lost_more(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, _, _ = nodes
    assert one.copies.elsewhere().may_hold_more
    one.sees(in_sync())
    assert not one.outstanding, "nobody ever took over"


async def test_INV_TLC6_folders_that_are_gone_may_have_had_more(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    """One has been removed, another one has got an empty folder: an acknowledged record may have been on just these."""
    one, two, _ = nodes
    one.sees(after(one.seen.image, FenceNode(3, life(3))))
    async with copying([one], two):
        await until(lambda: one.outstanding == {3: "it is not heard"}, "two is compared with")
    gone = {UUID(int=77): FolderImage(node_id=4, since_version=0, removed=True)}
    image = one.seen.image
    one.sees(msgspec.structs.replace(image, folders={**image.folders, **gone}))
    elsewhere = one.copies.elsewhere()
    assert elsewhere.may_hold_more
    assert [each.node_id for each in elsewhere.outstanding] == [3, 4]
    assert "was removed" in elsewhere.outstanding[1].reason
    replaced = {UUID(int=78): FolderImage(node_id=4, since_version=0)}
    nodes_left = {at: node for at, node in image.nodes.items() if at != 3}
    three = {key: each for key, each in image.folders.items() if each.node_id != 3}
    one.sees(msgspec.structs.replace(image, nodes=nodes_left, folders={**three, **replaced}))
    elsewhere = one.copies.elsewhere()
    assert (elsewhere.outstanding, elsewhere.may_hold_more) == ((), False), "it is on another one"
    both = {**three, **gone, **replaced}
    one.sees(msgspec.structs.replace(image, nodes=nodes_left, folders=both))
    elsewhere = one.copies.elsewhere()
    assert elsewhere.may_hold_more
    assert "another data folder" in elsewhere.outstanding[1].reason


async def test_INV_TLC6_a_folder_that_was_compared_with_before_it_went_is_known(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    one, two, three = nodes
    async with copying([one], two, three):
        await until(lambda: not one.outstanding, "all are compared with")
    image = one.seen.image
    only_one = {1: image.nodes[1]}
    one.sees(msgspec.structs.replace(image, nodes=only_one))
    assert not one.copies.elsewhere().may_hold_more
    one.begin_anew()
    one.sees(msgspec.structs.replace(image, nodes=only_one))
    assert one.copies.elsewhere().may_hold_more, "another life does not know that"


async def test_INV_TLC7_a_node_that_has_put_a_log_aside_uncut_says_so_of_itself(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    one, two, three = nodes
    async with copying([one], two, three):
        await until(lambda: not one.outstanding, "all are compared with")
        one.copies._parts = replace(one.copies._parts, aside_uncut=lambda: ["a/0.uncut.damaged"])
        assert "put aside" in one.outstanding[1]
        assert "a/0.uncut.damaged" in one.outstanding[1]
        assert not one.copies.elsewhere().may_hold_more, "what was acknowledged is on another one"
        two.cut_by = 0  # as it has, too
        one.lineage = three.cut_by = 2
        one.sees(one.seen.image)
        await until(lambda: "put one aside uncut" in one.outstanding.get(2, ""), "it is told")
        assert one.copies.elsewhere().may_hold_more


async def test_INV_TLC2_a_tail_that_comes_in_pieces_counts_when_it_is_whole(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    """Node 2 falls during the copy; node 3, that has its tail by then, gives it on."""
    monkeypatch.setattr(tail_copies, "PIECE_BYTES", 100)
    one, two, three = nodes
    lost = await two.cuts(named())
    await two.cuts(named())
    sent = 0
    falls, fell = asyncio.Event(), asyncio.Event()
    real = two.store.piece

    async def piece(*arguments: object) -> bytes | None:
        nonlocal sent
        sent += 1
        if sent == 5:
            falls.set()
            await fell.wait()
            raise OSError(errno.EIO, "it falls")
        return await real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(two.store, "piece", piece)
    async with copying([one], three):
        async with running(two.side):
            await falls.wait()
            assert one.has(), "what is not whole is no tail"
            assert 2 in one.outstanding
            fell.set()
        await three.cuts(named())
        await until(lambda: one.has(lost), "it is kept")
        await until(lambda: set(one.outstanding) == {2}, "the one that fell is outstanding still")


async def test_INV_TLC2_a_copy_that_was_broken_off_by_a_kill_begins_anew(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_copies, "PIECE_BYTES", 100)
    one, two, three = nodes
    lost = await two.cuts(named())
    folder = one.folder / "main" / f"{UUID(int=1).hex}-3"
    folder.mkdir(parents=True)
    (folder / f"{FIRST}-{10:020d}-{29:020d}.copied.partial").write_bytes(b"x" * 9_999)
    async with copying([one], two, three):
        await until(lambda: one.has(lost), "it is kept")
    assert not list(folder.glob("*.partial"))


async def test_INV_TLC1_a_full_disk_keeps_a_copy_waiting_and_no_other(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch, soon: None
) -> None:
    one, two, three = nodes
    big, small = await two.cuts(named()), await two.cuts(named(epoch=SECOND))
    real, is_full = one.store.keep_copy, True

    async def keep(tail: Provenance, pieces: AsyncIterator[bytes]) -> None:
        if is_full and tail.identity == big.identity:
            raise OSError(errno.ENOSPC, "No space left on device")
        await real(tail, pieces)

    monkeypatch.setattr(one.store, "keep_copy", keep)
    async with copying([one], two, three):
        await until(lambda: one.has(small), "the other one is kept")
        await until(lambda: set(one.outstanding) == {2}, "and node 2 is outstanding")
        assert "No space left on device" in one.outstanding[2]
        is_full = False
        await until(lambda: one.has(big, small), "it is kept when there is room")
        await until(lambda: not one.outstanding, "and known")


async def test_INV_TLC4_a_disk_that_is_nearly_full_takes_no_copies(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    one, two, three = nodes
    lost = await two.cuts(named())
    one.no_room = "the disk is nearly full"
    async with copying([one], two, three):
        await until(lambda: "nearly full" in one.outstanding.get(2, ""), "it is said")
        assert one.has()
        one.no_room = None
        await until(lambda: one.has(lost), "it is kept when there is room")


async def test_INV_TLC3_who_has_not_cut_yet_is_outstanding(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    one, two, three = nodes
    two.cut_by = 0
    async with copying([one], two, three):
        await until(lambda: set(one.outstanding) == {2}, "node 3 has cut")
        assert "has not cut" in one.outstanding[2]
        lost = await two.cuts(named())
        two.cut_by = 1
        await until(lambda: not one.outstanding, "node 2 has cut")
        assert one.has(lost)
        one.lineage = 2
        assert set(one.outstanding) == {2, 3}, "there was another takeover"


async def test_INV_TLC1_another_lineage_and_another_life_are_asked_about_at_once(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, three = nodes
    async with copying([one], two, three):
        await until(lambda: not one.outstanding, "all is compared")
        image = one.seen.image
        domain = image.domains["main"]
        entry = msgspec.structs.replace(domain.lineage[0], region_epoch=SECOND)
        domain = msgspec.structs.replace(domain, lineage=(*domain.lineage, entry))
        for node in nodes:
            node.lineage = node.cut_by = 2
        one.sees(msgspec.structs.replace(image, domains={"main": domain}))
        assert set(one.outstanding) == {2, 3}, "there was another takeover"
        await until(lambda: not one.outstanding, "both were asked again")
        image = one.seen.image
        reborn = msgspec.structs.replace(image.nodes[2], life=UUID(int=77))
        one.sees(msgspec.structs.replace(image, nodes={**image.nodes, 2: reborn}))
        assert set(one.outstanding) == {2}, "its process is another one"
        await until(lambda: not one.outstanding, "it was asked again")


async def test_INV_TLC1_what_changes_while_the_nodes_are_asked_has_them_asked_again(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = nodes
    real, is_first = three.store.kept, True

    async def kept() -> object:
        nonlocal is_first
        if is_first:
            is_first = False
            for node in nodes:
                node.lineage = node.cut_by = 2
            image = one.seen.image
            domain = image.domains["main"]
            entry = msgspec.structs.replace(domain.lineage[0], region_epoch=SECOND)
            domain = msgspec.structs.replace(domain, lineage=(*domain.lineage, entry))
            one.sees(msgspec.structs.replace(image, domains={"main": domain}))
        return await real()

    monkeypatch.setattr(three.store, "kept", kept)
    async with copying([one], two, three):
        await until(lambda: not one.outstanding, "node 2 was asked again")


async def test_INV_TLC1_who_does_not_answer_is_asked_again_soon_and_who_has_trouble_later(
    nodes: tuple[Node, Node, Node],
) -> None:
    one, two, three = nodes
    async with running(two.side, three.side):
        assert await one.copies._look() == tail_copies.LOOK_AGAIN_MS
        two.cut_by = 0
        assert await one.copies._look() == tail_copies.AGAIN_MS
        two.cut_by = 1
        await two.cuts(named())
        one.no_room = "the disk is nearly full"
        assert await one.copies._look() == tail_copies.TROUBLE_AGAIN_MS
        three.cut_by = 0
        assert await one.copies._look() == tail_copies.AGAIN_MS


async def test_INV_TLC3_a_list_counts_for_the_lineage_that_was_cut_by_before_it_was_read(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cut off by the next one while the list is read may not be in it."""
    _, two, _ = nodes
    real = two.store.kept

    async def kept() -> object:
        found = await real()
        two.cut_by = 2
        return found

    monkeypatch.setattr(two.store, "kept", kept)
    session: NodeSession = None  # type: ignore[assignment]
    ask = AskTails(known_digest="", from_index=0)
    answer = await two.copies._on_ask(session, ask, memoryview(b""))
    assert isinstance(answer.message, TailList)
    assert answer.message.cut_by == 1


async def test_a_tail_that_was_taken_away_and_one_that_came_are_another_list(
    nodes: tuple[Node, Node, Node],
) -> None:
    """There are as many as before."""
    _, two, _ = nodes
    session: NodeSession = None  # type: ignore[assignment]

    async def digest() -> str:
        ask = AskTails(known_digest="", from_index=0)
        answer = await two.copies._on_ask(session, ask, memoryview(b""))
        assert isinstance(answer.message, TailList)
        assert answer.message.tail_count == 1
        return answer.message.digest

    gone = await two.cuts(named())
    before = await digest()
    (batches,) = two.folder.rglob("*.batches")
    batches.unlink()
    ask = AskTailPiece.of(gone.identity, 0)
    answer = await two.copies._on_ask_piece(session, ask, memoryview(b""))
    assert answer.message == TailPiece(there=False)
    await two.cuts(named(epoch=SECOND))
    assert await digest() != before


async def test_a_tail_that_is_damaged_there_is_said_and_comes_from_who_has_it_whole(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    one, two, three = nodes
    lost = await two.cuts(named())
    (batches,) = two.folder.rglob("*.batches")
    batches.write_bytes(batches.read_bytes()[:-1] + b"x")
    async with copying([one], two, three):
        await until(lambda: "not what its provenance says" in one.outstanding.get(2, ""), "said")
        assert one.has()
        await three.cuts(named())
        await until(lambda: one.has(lost), "it is kept")
        await until(lambda: not one.outstanding, "nothing is outstanding")


async def test_what_an_operator_takes_away_during_the_copy_is_asked_for_no_more(
    nodes: tuple[Node, Node, Node], soon: None
) -> None:
    one, two, three = nodes
    await two.cuts(named())
    (batches,) = two.folder.rglob("*.batches")
    batches.unlink()
    async with copying([one], two, three):
        await until(lambda: not one.outstanding, "node 2 names it no more")
    assert one.has()


async def test_a_long_list_comes_in_pieces(
    nodes: tuple[Node, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_copies, "NAMED_MAX", 2)
    one, two, three = nodes
    lost = [await two.cuts(named(partition=partition, last=12)) for partition in range(5)]
    async with copying([one], two, three):
        await until(lambda: one.has(*lost), "all are kept")


async def test_another_life_has_what_was_copied(nodes: tuple[Node, Node, Node]) -> None:
    one, two, three = nodes
    lost = await two.cuts(named())
    async with copying([one], two, three):
        await until(lambda: one.has(lost), "it is kept")
    one.begin_anew()
    assert one.has(lost)
    assert set(one.outstanding) == {2, 3}, "what was compared is asked anew"


@pytest.mark.parametrize("other", [{"domain": "../../escaped"}, {"region": "us"}])
async def test_INV_TLC5_what_is_no_tail_of_this_region_is_not_kept(
    nodes: tuple[Node, Node, Node], other: dict[str, str], soon: None, tmp_path: Path
) -> None:
    one, two, three = nodes
    lost = await two.cuts(named())
    tail = msgspec.structs.replace(lost, **other)
    two.store._kept, two.store._has_looked = {tail.identity: tail}, True
    async with copying([one], two, three):
        await until(lambda: "it names a tail of" in one.outstanding.get(2, ""), "it is refused")
    assert one.has()
    assert not list(tmp_path.rglob("escaped*"))  # noqa: ASYNC240 -- small


async def test_INV_TLC5_only_what_is_in_the_own_list_is_sent(
    nodes: tuple[Node, Node, Node],
) -> None:
    _, two, _ = nodes
    lost = await two.cuts(named())
    session: NodeSession = None  # type: ignore[assignment]

    async def asked(tail: Provenance) -> object:
        ask = AskTailPiece.of(tail.identity, -5)
        return (await two.copies._on_ask_piece(session, ask, memoryview(b""))).message

    assert await asked(lost) == TailPiece(there=True)
    assert await asked(msgspec.structs.replace(lost, domain="../2/main")) == TailPiece(there=False)
    answer = await two.copies._on_ask(
        session, AskTails(known_digest="", from_index=-5), memoryview(b"")
    )
    assert isinstance(answer.message, TailList)
    assert answer.message.tail_count == 1
    known = AskTails(known_digest=answer.message.digest, from_index=0)
    assert not (await two.copies._on_ask(session, known, memoryview(b""))).attachment
