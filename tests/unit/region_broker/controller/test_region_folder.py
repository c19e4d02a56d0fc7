"""What a region of several nodes knows of itself: who may change it, and what an election adds (ADR 48)."""

import asyncio
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from geo_replicator.folder_life import Birth, Chain, LifeVerdict, Shown, judge_lives
from idempotency.fencing import leader_epoch
from idempotency.identity import Member, RegionEpoch
from region_broker.controller.cluster_commands import ElectLeader, RegisterNode, UnfenceNode
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.image_database import ImageDatabase
from region_broker.controller.metadata_commands import PutDomain, apply
from region_broker.controller.metadata_image import DomainImage, MetadataImage
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.entries import LogIndex, Term
from region_broker.controller.refusals import CommandRefused
from region_broker.controller.region_folder import (
    BeginRegionFolder,
    JoinHistory,
    NoteMet,
    RecordFailover,
    RegionFolder,
)
from region_broker.ports.system.disk import RealDisk

EPOCH = RegionEpoch(8)
BIRTH = Birth(birth_id="b" * 32, region="us", region_epoch=EPOCH, wall_ms=1)
OTHER = Birth(birth_id="c" * 32, region="us", region_epoch=EPOCH, wall_ms=2)
FOUNDER = RegionFolder(folder_id="f" * 32, chain=Chain().with_start("0" * 32))
FIRST, SECOND = leader_epoch(EPOCH, 1), leader_epoch(EPOCH, 2)


def node(number: int) -> NodeImage:
    return NodeImage(
        node_id=number, incarnation=UUID(int=number), life=UUID(int=100 + number), kafka_host="h", kafka_port=1,
        peer_host="h", peer_port=2, http_host="h", http_port=3,
    )  # fmt: skip


def led() -> MetadataImage:
    """A region whose first node leads."""
    image = MetadataImage(version=0, cluster_id="c")
    domain = DomainImage(name="main", acting_region="us", region_epoch=EPOCH, shard_count=1)
    first = node(1)
    for command in (
        PutDomain(domain),
        RegisterNode(first),
        UnfenceNode(1, first.life),
        ElectLeader(first.member, FIRST, 0),
    ):
        image = apply(image, command)
    return image


def begun() -> MetadataImage:
    return apply(led(), BeginRegionFolder(FIRST, FOUNDER))


def again(image: MetadataImage, epoch: int) -> MetadataImage:
    assert image.leadership is not None
    first = Member(1, UUID(int=1))
    return apply(image, ElectLeader(first, leader_epoch(EPOCH, epoch), image.leadership.version))


def test_INV_MRF1_only_the_leader_changes_it_under_its_own_leader_epoch() -> None:
    for command in (
        BeginRegionFolder(SECOND, FOUNDER),
        RecordFailover(SECOND, 0, b"x"),
        JoinHistory(SECOND, BIRTH),
        NoteMet(SECOND, "eu", Shown()),
    ):
        with pytest.raises(CommandRefused, match="leads this region under leader epoch"):
            apply(begun(), command)


def test_INV_MRF1_a_leader_that_was_deposed_records_no_step() -> None:
    image = again(begun(), 2)
    with pytest.raises(CommandRefused) as refused:
        apply(image, RecordFailover(FIRST, 0, b"late"))
    assert refused.value.code == "not-the-leader"
    assert apply(image, RecordFailover(SECOND, 0, b"next")).region_folder is not None


def test_INV_MRF2_a_step_names_the_one_before() -> None:
    image = apply(begun(), RecordFailover(FIRST, 0, b"one"))
    with pytest.raises(CommandRefused) as refused:
        apply(image, RecordFailover(FIRST, 0, b"two"))
    assert refused.value.code == "failover-moved-on"
    with pytest.raises(CommandRefused, match="has come to step 1, not 2"):
        apply(image, RecordFailover(FIRST, 2, b"three"))
    folder = apply(image, RecordFailover(FIRST, 1, b"two")).region_folder
    assert folder is not None
    assert (folder.failover, folder.failover_number) == (b"two", 2)


def test_it_is_begun_once() -> None:
    image = apply(begun(), RecordFailover(FIRST, 0, b"one"))
    other = replace_id(FOUNDER, "e" * 32)
    assert apply(image, BeginRegionFolder(FIRST, other)).region_folder == image.region_folder


def replace_id(folder: RegionFolder, folder_id: str) -> RegionFolder:
    return msgspec.structs.replace(folder, folder_id=folder_id)


def test_nothing_is_changed_of_what_is_not_begun() -> None:
    with pytest.raises(CommandRefused, match="does not know its history yet"):
        apply(led(), JoinHistory(FIRST, BIRTH))


def shown(image: MetadataImage) -> Shown:
    folder = image.region_folder
    assert folder is not None
    return Shown(
        folder_id=folder.folder_id,
        incarnations=folder.chain.newest,
        incarnation_count=folder.chain.count,
    )


def test_INV_MRF3_each_election_is_a_later_start_of_the_chain_that_the_founder_began() -> None:
    before = Shown(folder_id=FOUNDER.folder_id, incarnations=("0" * 32,), incarnation_count=1)
    image = begun()
    assert judge_lives(before, shown(image)) is LifeVerdict.SAME
    for epoch in (2, 3, 4):
        elected = again(image, epoch)
        assert judge_lives(shown(image), shown(elected)) is LifeVerdict.LATER
        assert judge_lives(before, shown(elected)) is LifeVerdict.LATER
        image = elected


def test_INV_MRF3_two_copies_of_a_region_part() -> None:
    """The same leader epoch in two copies of a quorum: other processes lead."""
    one = begun()
    restarted = msgspec.structs.replace(node(1), life=UUID(int=777))
    other = apply(apply(one, RegisterNode(restarted)), UnfenceNode(1, restarted.life))
    verdict = judge_lives(shown(again(one, 2)), shown(again(other, 2)))
    assert verdict is LifeVerdict.PARTED


def test_INV_MRF4_one_history_for_life() -> None:
    image = apply(begun(), JoinHistory(FIRST, BIRTH))
    folder = image.region_folder
    assert folder is not None
    assert (folder.born, folder.joined, folder.history) == (None, BIRTH, BIRTH)
    assert apply(image, JoinHistory(FIRST, BIRTH)).region_folder == folder
    with pytest.raises(CommandRefused, match="empty the folders of all its nodes"):
        apply(image, JoinHistory(FIRST, OTHER))


def test_INV_MRF4_a_region_that_was_born_with_its_history_joins_it_no_second_time() -> None:
    born = apply(led(), BeginRegionFolder(FIRST, msgspec.structs.replace(FOUNDER, born=BIRTH)))
    assert apply(born, JoinHistory(FIRST, BIRTH)).region_folder == born.region_folder


def test_T36_the_start_of_each_other_region_is_remembered() -> None:
    image = begun()
    for region in ("eu", "asia"):
        image = apply(image, NoteMet(FIRST, region, Shown(folder_id=region)))
    assert image.region_folder is not None
    assert {*image.region_folder.met} == {"eu", "asia"}


def test_it_is_stored_with_the_image(tmp_path: Path) -> None:
    async def stored() -> MetadataImage:
        image = apply(begun(), JoinHistory(FIRST, BIRTH))
        image = apply(image, NoteMet(FIRST, "eu", Shown(folder_id="a", incarnations=("1",))))
        image = apply(image, RecordFailover(FIRST, 0, b"state"))
        path = tmp_path / "metadata.db"
        for _ in range(2):
            database = await ImageDatabase.open(path, RealDisk(), new_cluster_id="c")
            position = LogPosition(Member(1, UUID(int=1)), LogIndex(1), Term(1))
            await database.write(image, position)
            await database.close()
        database = await ImageDatabase.open(path, RealDisk(), new_cluster_id="c")
        await database.close()
        assert database.stored.image == image
        return image

    assert asyncio.run(stored()).region_folder is not None
