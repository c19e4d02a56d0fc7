"""What a node writes of its region's birth at its start takes nothing back that was recorded meanwhile (INV-M18)."""

import msgspec
import pytest

from geo_replicator.folder_life import Birth
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.cluster_commands import BearDomain
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.metadata_commands import PutDomain, RecordLineage, apply, birth_of
from region_broker.controller.metadata_image import (
    NO_REGION_EPOCH,
    DomainImage,
    LineageEntry,
    MetadataImage,
)
from region_broker.controller.refusals import STALE_REGION_EPOCH, CommandRefused

BIRTH = Birth(birth_id="b" * 32, region="eu", region_epoch=RegionEpoch(8), wall_ms=1)
OTHER = Birth(birth_id="c" * 32, region="us", region_epoch=RegionEpoch(16), wall_ms=2)
UNBORN = DomainImage(name="main", acting_region="", region_epoch=NO_REGION_EPOCH, shard_count=4)
BORN = DomainImage(name="main", acting_region="eu", region_epoch=RegionEpoch(8), shard_count=4)


def entry(region_epoch: int, base: int = 8) -> LineageEntry:
    return LineageEntry(
        region_epoch=RegionEpoch(region_epoch), acting_region="us", base_region_epoch=RegionEpoch(base), base_number=5
    )  # fmt: skip


def having(*domains: DomainImage) -> MetadataImage:
    return MetadataImage(version=0, cluster_id="c", domains={each.name: each for each in domains})


def borne(present: MetadataImage, domain: DomainImage) -> DomainImage:
    return apply(present, BearDomain(domain)).main_domain


def with_birth(domain: DomainImage, birth: Birth | None = BIRTH) -> DomainImage:
    return msgspec.structs.replace(domain, birth=birth)


def test_INV_FL1_a_birth_is_written_as_all_nodes_of_the_region_know_it() -> None:
    older = msgspec.structs.replace(having(BORN), feature_level=1)
    assert birth_of(older, BORN) == PutDomain(BORN)
    assert birth_of(msgspec.structs.replace(older, feature_level=2), BORN) == BearDomain(BORN)


@pytest.mark.parametrize("learnt", [False, True])
def test_INV_M18_a_takeover_that_was_recorded_after_the_node_had_read_stays(learnt: bool) -> None:
    read = having(BORN)
    meanwhile = apply(read, RecordLineage("main", entry(17)))
    if learnt:
        meanwhile = apply(meanwhile, RecordLineage("main", entry(9), learnt=True))
    assert borne(meanwhile, with_birth(read.main_domain)) == with_birth(meanwhile.main_domain)


def test_INV_M18_a_birth_that_is_there_stays_and_so_does_all_else() -> None:
    present = having(with_birth(BORN))
    other = DomainImage(name="main", acting_region="us", region_epoch=RegionEpoch(16), shard_count=8)  # fmt: skip
    for domain in (with_birth(BORN), with_birth(BORN, OTHER)):
        assert borne(present, domain) == present.main_domain
    led = having(
        msgspec.structs.replace(
            with_birth(BORN), lineage=(entry(17),), region_epoch=RegionEpoch(17)
        )
    )
    assert borne(led, with_birth(msgspec.structs.replace(other, region_epoch=RegionEpoch(25)), OTHER)) == led.main_domain  # fmt: skip


def test_INV_M18_what_is_absent_is_there_then_and_doing_it_again_changes_nothing() -> None:
    first = borne(having(), UNBORN)
    assert first == UNBORN
    acting = borne(having(first), BORN)
    assert acting == BORN
    whole = borne(having(acting), with_birth(BORN))
    assert whole == with_birth(BORN)
    for domain in (UNBORN, BORN, with_birth(BORN)):
        assert borne(having(whole), domain) == whole


@pytest.mark.parametrize("level", [1, 3, 4])
@pytest.mark.parametrize("several", [False, True], ids=["one node", "several nodes"])
def test_INV_M24_what_is_learnt_takes_the_place_of_what_was_begun_under_its_epoch(
    *, several: bool, level: int
) -> None:
    """Where an older node may apply the same commands, it would refuse it, and have another lineage (INV-FL4)."""
    begun = apply(having(BORN), RecordLineage("main", entry(17, base=8)))
    begun = apply(begun, RecordLineage("main", entry(9), learnt=True))
    led = Leadership(leader=None, leader_epoch=LeaderEpoch(1), in_sync=(), version=1)
    leadership = led if several else None
    begun = msgspec.structs.replace(begun, feature_level=level, leadership=leadership)
    first = msgspec.structs.replace(entry(17), base_number=4)
    with pytest.raises(CommandRefused):
        apply(begun, RecordLineage("main", first))
    learn = RecordLineage("main", first, learnt=True)
    if several and level < 4:
        with pytest.raises(CommandRefused) as refused:
            apply(begun, learn)
        assert refused.value.code == STALE_REGION_EPOCH
        return
    domain = apply(begun, learn).main_domain
    assert domain.lineage == (entry(9), first)
    assert (domain.acting_region, domain.region_epoch) == ("us", 17)
