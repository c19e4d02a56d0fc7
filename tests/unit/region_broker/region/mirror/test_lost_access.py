"""What a region that returns tells of the users and ACLs that it loses by that."""

import logging
from contextlib import nullcontext

import pytest
from msgspec.structs import replace

from geo_replicator.ports import LinkFailed
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.access_commands import FollowAccess
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.image_database import MetadataUnsettled
from region_broker.controller.metadata_commands import Command, CommandRefused, apply
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import COMMAND_TOO_LARGE
from region_broker.region.mirror.lost_access import named, undone
from region_broker.region.mirror.region_link import taking_of
from region_broker.region.ports import Term
from region_broker.security.access import (
    NO_ACCESS,
    Access,
    AccessChange,
    Acl,
    DelegationToken,
    Operation,
    PatternType,
    Permission,
    Quota,
    ResourceType,
    ScramKeys,
    changed,
)
from tests.fixtures.cluster_images import member
from tests.fixtures.linked_regions import PlayedMetadata, first_image


def acl(principal: str) -> Acl:
    topic, literal = ResourceType.TOPIC, PatternType.LITERAL
    return Acl(topic, literal, "orders", principal, "*", Operation.READ, Permission.ALLOW)


def keys(user: str, salt: bytes = b"s") -> ScramKeys:
    return ScramKeys(user, "SCRAM-SHA-256", salt, 4096, b"stored-key", b"server-key")


def quota(user: str, rate: float) -> Quota:
    return Quota((("user", user),), {"producer_byte_rate": rate})


THEIRS = changed(
    NO_ACCESS,
    AccessChange(
        acls_added=(acl("User:mallory"), acl("User:both")),
        keys_put=(keys("mallory"), keys("both"), keys("changed")),
        quotas_put=(quota("mallory", 1.0), quota("changed", 1.0)),
        tokens_put=(DelegationToken("t1", "User:mallory", "User:mallory", (), 1, 2, 3),),
    ),
)
OURS = changed(
    THEIRS,
    AccessChange(
        acls_added=(acl("User:new"),),
        acls_removed=(acl("User:mallory"),),
        keys_put=(keys("changed", b"other"), keys("new")),
        keys_removed=(("mallory", "SCRAM-SHA-256"),),
        quotas_put=(Quota((("user", "mallory"),), {}), quota("changed", 2.0)),
        tokens_put=(DelegationToken("t2", "User:new", "User:new", (), 1, 2, 3),),
        tokens_removed=("t1",),
    ),
)


LATER = changed(OURS, AccessChange(acls_removed=(acl("User:new"),)))


def test_what_is_undone_makes_what_is_theirs_ours_again() -> None:
    again = changed(THEIRS, undone(OURS, THEIRS))
    assert again == OURS
    assert named(undone(OURS, OURS)) == ""


async def told(caplog: pytest.LogCaptureFixture, *said: Access, access_epoch: int = 8) -> str:
    """Return what is told at WARNING where a region that has `OURS` follows region epoch 17, whose primary says these."""
    metadata = PlayedMetadata(first_image())
    await metadata.apply(FollowAccess(OURS))
    term = Term(RegionEpoch(17), LeaderEpoch(0), "us")
    taking = taking_of(term, metadata, -1, access_epoch=access_epoch)
    with caplog.at_level(logging.WARNING, "tidemark.access"):
        for access in said:
            await taking.access(access, 17)
    assert metadata.image.access == said[-1]
    return caplog.text


async def test_INV_MAC1_a_region_that_returns_tells_by_name_what_is_undone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It had taken a right away, and a password, and was lost before anybody heard of it."""
    text = await told(caplog, THEIRS)
    assert "acls_removed: ALLOW User:mallory from * READ on TOPIC:LITERAL:orders" in text
    assert "keys_removed: mallory SCRAM-SHA-256" in text
    assert "delegations_removed: t1" in text
    assert "changed SCRAM-SHA-256" in text
    assert "User:both" not in text
    assert "stored" not in text


async def test_INV_MAC1_what_is_undone_is_told_where_nobody_hears_that_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The command takes effect, and its outcome is lost with an election: the next session finds nothing to do."""

    class Unsettled(PlayedMetadata):
        async def apply(self, command: Command) -> MetadataImage:
            await super().apply(command)
            raise MetadataUnsettled("no quorum")

    who = member(1)
    leader = Leadership(leader=who, leader_epoch=LeaderEpoch(1), in_sync=(who,), version=1)
    metadata = Unsettled(replace(first_image(), leadership=leader))
    metadata.image = apply(metadata.image, FollowAccess(OURS))
    term = Term(RegionEpoch(17), LeaderEpoch(0), "us")
    with caplog.at_level(logging.WARNING, "tidemark.access"):
        for ended in (pytest.raises(LinkFailed), nullcontext()):
            with ended:
                await taking_of(term, metadata, -1, access_epoch=8).access(THEIRS, 17)
    assert metadata.image.access == THEIRS
    assert caplog.text.count("keys_removed: mallory SCRAM-SHA-256") == 1


async def test_INV_MAC1_what_is_undone_is_told_once_where_it_is_tried_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a region of several nodes whose disk is full, say: a session comes every few seconds."""

    class Full(PlayedMetadata):
        async def apply(self, command: Command) -> MetadataImage:
            raise CommandRefused(COMMAND_TOO_LARGE, "too large")

    metadata = Full(first_image())
    metadata.image = apply(metadata.image, FollowAccess(OURS))
    taking = taking_of(Term(RegionEpoch(17), LeaderEpoch(0), "us"), metadata, -1, access_epoch=8)
    with caplog.at_level(logging.WARNING, "tidemark.access"):
        for _ in range(3):
            with pytest.raises(LinkFailed):
                await taking.access(THEIRS, 17)
        assert caplog.text.count("keys_removed: mallory SCRAM-SHA-256") == 1
        with pytest.raises(LinkFailed):
            await taking.access(LATER, 17)
    assert caplog.text.count("(INV-MAC1)") == 2, "another one is told"


@pytest.mark.parametrize(
    ("said", "access_epoch"),
    [
        pytest.param((LATER,), 17, id="one that followed already"),
        pytest.param((THEIRS,), 0, id="a new one"),
        pytest.param((OURS, THEIRS), 8, id="what changes later"),
    ],
)
async def test_INV_MAC1_what_a_primary_changes_is_no_loss(
    caplog: pytest.LogCaptureFixture, said: tuple[Access, ...], access_epoch: int
) -> None:
    assert await told(caplog, *said, access_epoch=access_epoch) == ""


def test_INV_MAC1_of_a_great_many_the_first_are_named() -> None:
    many = changed(
        NO_ACCESS, AccessChange(acls_added=tuple(acl(f"User:{n:04}") for n in range(1_000)))
    )
    text = named(undone(many, NO_ACCESS))
    assert "User:0199 " in text
    assert "User:0200 " not in text
    assert text.endswith(", and 800 more")
