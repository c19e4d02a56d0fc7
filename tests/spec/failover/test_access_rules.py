"""Users, ACLs, quotas and tokens over a failover: in force in the region that takes over, and in the one that returns (INV-SAC1)."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.security.access import (
    AccessChange,
    Acl,
    DelegationToken,
    Operation,
    PatternType,
    Permission,
    Quota,
    ResourceType,
    ScramKeys,
)
from tests.fixtures.failover_regions import Pair, Site, fail_over
from tests.fixtures.waiting import until


def acl(name: str) -> Acl:
    return Acl(
        ResourceType.TOPIC, PatternType.LITERAL, name, "User:alice", "*", Operation.READ, Permission.DENY
    )  # fmt: skip


async def deny(site: Site, name: str) -> None:
    await site.topics.change_access(AccessChange(acls_added=(acl(name),)))


def denied(site: Site) -> list[str]:
    return [row.name for row in site.metadata.image.access.acls]


ALL_OF_IT = AccessChange(
    acls_added=(acl("a"),),
    keys_put=(ScramKeys("alice", "SCRAM-SHA-512", b"salt", 4096, b"stored", b"server"),),
    quotas_put=(Quota((("user", "alice"),), {"producer_byte_rate": 1024.0}),),
    tokens_put=(DelegationToken("id", "User:alice", "User:alice", (), 1, 2, 3),),
)


async def test_INV_SAC1_a_mirror_that_is_cut_off_goes_on_with_all_of_it_and_so_does_who_takes_over(
    tmp_path: Path,
) -> None:
    async with Pair(tmp_path) as pair:
        await pair.eu.topics.change_access(ALL_OF_IT)
        await pair.eu.write("under it")
        await pair.reached("under it")
        there = pair.eu.metadata.image.access
        assert all((there.acls, there.keys, there.quotas, there.tokens))
        await pair.eu.kill()
        await pair.us.kill()
        await pair.us.start()
        assert pair.us.metadata.image.access == there, "with nobody to ask"
        await fail_over(pair.us)
        assert pair.us.metadata.image.access == there


async def test_INV_SAC1_who_takes_over_denies_what_was_denied_and_who_returns_denies_as_that_one(
    tmp_path: Path,
) -> None:
    async with Pair(tmp_path) as pair:
        await deny(pair.eu, "a")
        await pair.eu.write("under it")
        await pair.reached("under it")
        assert denied(pair.us) == ["a"]
        with pytest.raises(CommandRefused):
            await deny(pair.us, "by nobody")
        await pair.us.kill()
        await deny(pair.eu, "lost")
        await pair.eu.kill()
        await pair.us.start()
        await fail_over(pair.us)
        assert denied(pair.us) == ["a"]
        await deny(pair.us, "b")
        await pair.eu.start()
        await pair.eu.until(Phase.MIRRORING)
        await until(lambda: denied(pair.eu) == ["a", "b"], "it follows who acts now")
        await pair.us.kill()
        await pair.us.start()
        assert denied(pair.us) == ["a", "b"]
