"""Rule T24, the candidate's side of a donor: what it copies there never costs it what it holds itself."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from geo_replicator.events import MirrorLogEnd
from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.link.comparing import agrees
from geo_replicator.ports import LinkFailed, Primary
from geo_replicator.whole_cut import NO_ROUND
from geo_replicator.whole_ends import NOTHING_WHOLE
from idempotency.identity import LeaderEpoch
from region_broker.controller.access_commands import ChangeAccess
from region_broker.controller.metadata_commands import SetTopicConfigs
from region_broker.region.mirror.donor import NEVER_DUE, DonorPrimary
from region_broker.region.mirror.mirror_log import MirrorPartitions
from region_broker.region.mirror.mirror_view import MirrorView
from region_broker.region.mirror.region_link import PeerPrimary, primary_of, taking_of
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.ports import Term
from region_broker.region.tidemarks.service import TidemarkService, ledgers_of
from region_broker.security.access import (
    WILDCARD,
    AccessChange,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.fixtures.linked_regions import REGION_EPOCH, Site, primary_and_mirror
from tests.fixtures.waiting import until

RIGHT = Acl(
    ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:mallory", WILDCARD, Operation.READ, Permission.ALLOW
)  # fmt: skip
GIVEN = ChangeAccess(AccessChange(acls_added=(RIGHT,)))
REVOKED = ChangeAccess(AccessChange(acls_removed=(RIGHT,)))


def seen_by(candidate: Site, donor_port: int) -> tuple[DonorPrimary, MirrorPartitions]:
    """Return the donor that listens there, as the candidate sees it, and the candidate's own logs."""
    view = MirrorView(candidate.partitions, candidate.clock, 0, lambda *_: NO_ROUND)
    logs = MirrorPartitions(candidate.partitions, ledgers_of(candidate.metadata.image), view)
    addresses = RegionAddresses({"mirror": [("127.0.0.1", donor_port)]})
    primary = PeerPrimary(candidate.network, addresses, "mirror", candidate.identity, REGION_EPOCH)
    return DonorPrimary(primary, logs), logs


async def taking_from(
    candidate: Site, donor: Site, version: int, *, access_epoch: int = REGION_EPOCH
) -> tuple[Primary, MirrorPartitions]:
    """Return the donor as the candidate takes from it what it says beside its records, and the candidate's own logs."""
    port = await donor.listen()
    term = Term(REGION_EPOCH, LeaderEpoch(0), "mirror", from_donor=True)
    _, logs = seen_by(candidate, port)
    taking = taking_of(term, candidate.metadata, version, access_epoch=access_epoch)
    addresses = RegionAddresses({"mirror": [("127.0.0.1", port)]})
    primary = primary_of(candidate.network, addresses, term, candidate.identity, logs, taking)
    return primary, logs


def ends_of(logs: MirrorPartitions) -> Mapping[LogKey, MirrorLogEnd]:
    return {key: logs.end(key) for key in logs.keys()}  # noqa: SIM118 -- a port's method, no mapping


@asynccontextmanager
async def candidate_and_donor(folder: Path, *values: bytes) -> AsyncIterator[tuple[Site, Site]]:
    """A candidate that acted so far, and a donor that has copied `values` from it and then stands fenced for it."""
    async with primary_and_mirror(folder) as (candidate, donor, _, tasks):
        await candidate.create_topic("orders", 1)
        following = donor.mirror(tasks, await candidate.listen())
        await candidate.produce("orders", *values)
        end = candidate.partition("orders").log_end_offset
        await until(
            lambda: (
                (log := donor.partitions.get("orders", 0)) is not None and log.high_watermark >= end
            ),
            "copied",
        )
        following.cancel()
        await asyncio.wait([following])  # else it may yet take over what a test changes
        donor.source.promised_to = lambda: "primary"
        yield candidate, donor
        donor.server.close()


async def test_T24_a_donor_with_less_of_a_log_costs_the_candidate_nothing(
    tmp_path: Path,
) -> None:
    async with candidate_and_donor(tmp_path, b"a", b"b") as (candidate, donor):
        await candidate.produce("orders", b"c")
        primary, logs = seen_by(candidate, await donor.listen())
        async with primary.session() as (session, handshake):
            assert handshake.acting
            version, topics = await session.registry()
            assert version == NEVER_DUE
            assert {topic.name for topic in topics} == set(candidate.metadata.image.topics)
            ends = ends_of(logs)
            answers = await session.check(ends)
            assert answers.keys() == ends.keys()
            assert all(agrees(ends[key], answer) for key, answer in answers.items())


# Holds INV-QM2.
async def test_T24_a_donor_with_other_bytes_is_not_copied_from(tmp_path: Path) -> None:
    async with candidate_and_donor(tmp_path, b"a", b"b") as (candidate, donor):
        candidate.partition("orders").truncate_to(0)
        await candidate.produce("orders", b"x", b"y")
        await candidate.produce("orders", b"z")
        primary, logs = seen_by(candidate, await donor.listen())
        async with primary.session() as (session, _):
            with pytest.raises(LinkFailed, match="other bytes"):
                await session.check(ends_of(logs))


async def test_T24_only_the_region_that_was_promised_may_copy(tmp_path: Path) -> None:
    async with candidate_and_donor(tmp_path, b"a") as (candidate, donor):
        donor.source.promised_to = lambda: "third"
        primary, logs = seen_by(candidate, await donor.listen())
        async with primary.session() as (session, _):
            with pytest.raises(LinkFailed, match="does not act"):
                await session.check(ends_of(logs))


@pytest.mark.parametrize("told", [int(REGION_EPOCH), int(REGION_EPOCH) - 1, -1])
@pytest.mark.parametrize("later", ["candidate", "donor"])
async def test_INV_QM3_whoever_was_told_later_what_was_revoked_is_believed(
    tmp_path: Path, later: str, told: int
) -> None:
    """What one has reached says nothing of it: access comes at once, and records when there is room on the line. Nor need either have followed
    the last primary, which may have been lost before it told anything; an older donor does not say.
    """
    async with candidate_and_donor(tmp_path, b"a") as (candidate, donor):
        for site in (candidate, donor):
            await site.metadata.apply(GIVEN)
        await (candidate if later == "candidate" else donor).metadata.apply(REVOKED)
        donor.source.access_epoch = lambda: told
        ours = told if told >= 0 else int(REGION_EPOCH)
        primary, logs = await taking_from(candidate, donor, -1, access_epoch=ours)
        async with primary.session() as (session, _):
            await session.registry()
            assert candidate.metadata.image.access.acls == ()
            await donor.metadata.apply(GIVEN)  # the second change that it was told, or the third
            await session.fetch({key: end.end_offset for key, end in ends_of(logs).items()}, ())
        assert candidate.metadata.image.access.acls == ((RIGHT,) if later == "donor" else ())


@pytest.mark.parametrize("before", [0, int(REGION_EPOCH) - 1])
@pytest.mark.parametrize("astray", ["candidate", "donor"])
async def test_INV_QM3_the_number_of_a_region_that_has_not_followed_the_primary_says_nothing(
    tmp_path: Path, astray: str, before: int
) -> None:
    """It changed access while it was cut off, has returned, and had no link yet when the next primary was lost."""
    async with candidate_and_donor(tmp_path, b"a") as (candidate, donor):
        lost, kept = (candidate, donor) if astray == "candidate" else (donor, candidate)
        for change in (GIVEN, REVOKED, GIVEN):
            await lost.metadata.apply(change)
        for change in (GIVEN, REVOKED):
            await kept.metadata.apply(change)
        epoch_of = {id(lost): before, id(kept): int(REGION_EPOCH)}
        donor.source.access_epoch = lambda: epoch_of[id(donor)]
        primary, logs = await taking_from(
            candidate, donor, -1, access_epoch=epoch_of[id(candidate)]
        )
        async with primary.session() as (session, _):
            await session.registry()
            await session.fetch({key: end.end_offset for key, end in ends_of(logs).items()}, ())
        assert candidate.metadata.image.access == kept.metadata.image.access
        assert candidate.metadata.image.access.acls == ()


async def test_INV_QM3_access_is_of_whoever_was_followed_or_acted_here(tmp_path: Path) -> None:
    async with candidate_and_donor(tmp_path, b"a") as (acted, followed):
        for site in (acted, followed):
            assert site.source.access_epoch() == REGION_EPOCH
        started = TidemarkService(followed.tidemarks._parts)
        told, reached = started._parts.source.access_epoch, started._parts.reached
        for point in (BEFORE_ALL, TidemarkPoint(REGION_EPOCH, 1)):
            await reached.save(point, NOTHING_WHOLE)
            assert told() == point.region_epoch, "what it has reached, a start finds"


@pytest.mark.parametrize(
    ("own", "theirs", "counts"),
    [(5, 4, "own"), (4, 5, "theirs"), (5, 5, "theirs"), (5, -1, "theirs"), (-1, 5, "theirs")],
)
async def test_INV_QM4_configs_are_of_whoever_has_followed_the_primary_further(
    tmp_path: Path, own: int, theirs: int, counts: str
) -> None:
    """1. The donor is cut off. 2. A topic is to be sealed, or kept for longer; the candidate hears of it. 3. The primary is lost."""
    async with candidate_and_donor(tmp_path, b"a") as (candidate, donor):
        topic = candidate.metadata.image.topics["orders"]
        for site, retention_ms in ((candidate, "1000"), (donor, "2000")):
            configs = {**topic.configs, "retention.ms": retention_ms}
            await site.metadata.apply(SetTopicConfigs(topic.topic_id, configs))
        donor.source.followed_version = lambda epoch: theirs if epoch == REGION_EPOCH else -1
        primary, _ = await taking_from(candidate, donor, own)
        async with primary.session() as (session, _):
            _, topics = await session.registry()
        (told,) = (each for each in topics if each.topic_id == topic.topic_id)
        assert told.configs["retention.ms"] == ("1000" if counts == "own" else "2000")


async def test_INV_QM4_of_two_donors_one_after_the_other_the_newer_configs_stay(
    tmp_path: Path,
) -> None:
    """1. The first donor has newer configs, which are carried out, and is lost. 2. The second one has newer ones than were here first."""
    async with candidate_and_donor(tmp_path, b"a") as (_, candidate):
        service = candidate.tidemarks
        assert service.link is not None
        service.link.core.followed_version = 5
        for number, (told, counts) in enumerate([(7, 7), (6, 7), (-1, -1)]):
            before = service._followed_version(REGION_EPOCH)
            term = Term(REGION_EPOCH, LeaderEpoch(0), f"donor {number}", from_donor=True)
            link = service.open_link(term)
            service._taking.topics((), told)
            assert service._followed_version(REGION_EPOCH) == before, "nothing is carried out yet"
            link.core.followed_version = NEVER_DUE
            assert service._followed_version(REGION_EPOCH) == counts
