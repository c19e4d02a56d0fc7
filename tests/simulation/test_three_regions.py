"""Rule T24 over three regions: what a third region has shown is not taken back by a failover candidate that had reached less."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from geo_replicator.directory import next_region_epoch
from geo_replicator.events import HandshakeDone
from geo_replicator.failover import Phase
from geo_replicator.failover_events import HigherEpochLearned, PromiseGiven
from geo_replicator.lineage import LogKey
from geo_replicator.ports import FetchAnswer, LinkFailed, PrimarySession
from idempotency.identity import RegionEpoch
from region_broker.controller.metadata_image import OFFSETS_LEDGER
from region_broker.records.batches import Record, build_batch
from region_broker.region.failover import peers as failover_peers
from region_broker.region.failover.messages import AskPromise
from region_broker.region.failover.operations import Operation, OperationRefused
from region_broker.region.mirror.region_link import PeerPrimary, PeerPrimarySession
from region_broker.region.peers import forwarder
from region_broker.region.peers.protocol import Frame, PeerMessage, PeerRefused
from region_broker.region.peers.sessions import Handling, PeerSession, Reply
from region_broker.security import access
from region_broker.security.access import (
    WILDCARD,
    AccessChange,
    Acl,
    PatternType,
    Permission,
    ResourceType,
)
from tests.simulation.folder_faults import lose_log
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.region_pair import Pair, Region, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

TOPIC = "orders"
OTHER = "old-orders"
VALUES = (b"one", b"two", b"three")
RIGHT = Acl(
    ResourceType.TOPIC, PatternType.LITERAL, TOPIC, "User:mallory", WILDCARD, access.Operation.READ, Permission.ALLOW
)  # fmt: skip
GIVEN = AccessChange(acls_added=(RIGHT,))
REVOKED = AccessChange(acls_removed=(RIGHT,))


async def write(region: Region, value: bytes, topic: str = TOPIC) -> None:
    """Append one record as an acknowledged write."""
    outcome = region.partition(topic, 0).writer.append(build_batch([Record(None, value)]))
    await region.partition(topic, 0).wait_committed(outcome.next_offset)


def shown(region: Region, topic: str = TOPIC) -> int:
    """Return how many records of the topic this region shows, -1 where there is no such topic."""
    found = region.node.storage.partitions.get(topic, 0)
    return -1 if found is None else found.sight.visible_end


def shown_whole(region: Region) -> int:
    """Return how many of them a read-committed reader gets."""
    return region.partition(TOPIC, 0).sight.last_stable_offset


def retention_of(region: Region) -> str | None:
    """Return the topic's `retention.ms` here."""
    return region.node.storage.metadata.image.topics[TOPIC].configs.get("retention.ms")


def rights_at(region: Region) -> tuple[Acl, ...]:
    """Return the ACLs here."""
    return region.node.storage.metadata.image.access.acls


async def values_at(pair: Pair, region: Region) -> list[bytes]:
    """Return what a reader of this region gets."""
    reader = Reader(TOPIC, 1, committed=True)
    connection = await Connection.open(pair.fabric.site("reader"), region.kafka_port)
    while await reader.read(connection):
        pass
    return [value for *_, value in reader.records]


@asynccontextmanager
async def one_behind(
    tmp_path: Path, seed: int, *, deletes: str = ""
) -> AsyncIterator[tuple[Pair, Region]]:
    """Run eu, us and ap; ap has shown two records more than us, and the deletion of a topic, when eu is lost."""
    async with region_pair(tmp_path, seed, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        for topic in (TOPIC, OTHER):
            await pair.create_topic(topic, 1)
            await write(pair.eu, VALUES[0], topic)
        await pair.until(
            lambda: all(shown(r, t) == 1 for r in (pair.us, ap) for t in (TOPIC, OTHER)),
            "both show",
        )
        pair.fabric.cut("eu", "us")
        for value in VALUES[1:]:
            await write(pair.eu, value)
        if deletes:
            await pair.eu.node.topics.delete_topic(deletes)
            await pair.until(lambda: shown(ap, deletes) == -1, "ap has no such topic any more")
        await pair.until(lambda: shown(ap) == 3, "ap shows all")
        await pair.eu.kill()
        del pair.regions["eu"]
        yield pair, ap


async def ended(pair: Pair, operation: Operation) -> Operation:
    """Return the operation when it has ended."""
    await pair.until(lambda: operation.status != "running", "the takeover ends")
    return operation


async def test_T24_a_candidate_first_copies_what_another_region_that_promised_has_reached(
    tmp_path: Path,
) -> None:
    async with one_behind(tmp_path, 1) as (pair, ap):
        claimed = ap.node.tidemarks.claim().point
        operation = await pair.fail_over()
        assert operation.statement is not None
        base = operation.statement.tidemark_region_epoch, operation.statement.tidemark_number
        assert base >= claimed
        await pair.until(lambda: ap.phase is Phase.MIRRORING, "ap follows us")
        assert await values_at(pair, ap) == list(VALUES)
        assert await values_at(pair, pair.us) == list(VALUES)
        await write(pair.us, b"four")
        await pair.until(lambda: shown(ap) == 4, "and goes on")


@pytest.mark.parametrize("later", ["us", "ap"])
async def test_INV_QM4_the_configs_of_whoever_has_heard_the_primary_last_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str
) -> None:
    """1. One of us and ap is cut off. 2. A config changes; us, which lacks records, hears of it, or ap does. 3. us copies from ap."""
    fetch = PeerPrimarySession.fetch

    def stalled(
        session: PeerPrimarySession, positions: Mapping[LogKey, int], forgotten: Sequence[LogKey]
    ) -> Awaitable[FetchAnswer]:
        if stalls:
            raise LinkFailed("no records come")
        return fetch(session, positions, forgotten)

    async with region_pair(tmp_path, 11, names=("eu", "us", "ap")) as pair:
        ap, stalls = pair.regions["ap"], False
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, VALUES[0])
        await pair.until(lambda: all(shown(r) == 1 for r in (pair.us, ap)), "both show")
        pair.fabric.cut("eu", "us")
        for value in VALUES[1:]:
            await write(pair.eu, value)
        await pair.until(lambda: shown(ap) == 3, "ap shows all")
        hears = pair.regions[later]
        if later == "us":
            pair.fabric.cut("eu", "ap")
            stalls = True
            monkeypatch.setattr(PeerPrimarySession, "fetch", stalled)
            pair.fabric.heal("eu", "us")
        topic = pair.eu.node.storage.metadata.image.topics[TOPIC]
        configs = {**topic.configs, "retention.ms": "123456789"}
        await pair.eu.node.topics.change_configs(TOPIC, configs, topic.configs)
        await pair.until(lambda: retention_of(hears) == "123456789", "one of them hears of it")
        await pair.eu.kill()
        del pair.regions["eu"]
        stalls = False
        await pair.fail_over()
        assert retention_of(pair.us) == "123456789"
        assert await values_at(pair, pair.us) == list(VALUES)


async def test_INV_QM3_a_region_that_returned_and_followed_nobody_yet_does_not_act_under_the_access_of_its_lost_life(
    tmp_path: Path,
) -> None:
    """Its changes of access, of which nobody heard, are more than those of the region that took over, and which it never met."""
    async with region_pair(tmp_path, 12, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.create_topic(TOPIC, 1)
        await pair.eu.node.topics.change_access(GIVEN)
        await write(pair.eu, VALUES[0])
        await pair.until(
            lambda: all(shown(r) == 1 and rights_at(r) for r in (pair.us, ap)), "both follow"
        )
        pair.fabric.cut("eu", "us")
        pair.fabric.cut("eu", "ap")
        for change in (REVOKED, GIVEN, REVOKED, GIVEN):
            await pair.eu.node.topics.change_access(change)
        await pair.fail_over()
        await pair.us.node.topics.change_access(REVOKED)
        await write(pair.us, VALUES[1])
        await pair.until(lambda: shown(ap) == 2 and not rights_at(ap), "ap follows us")
        pair.fabric.heal("eu", "ap")
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "eu has returned")
        assert rights_at(pair.eu), "and has heard nothing of us itself"
        await pair.us.kill()
        del pair.regions["us"]
        await pair.take_over(planned=False, by=pair.eu)
        assert not rights_at(pair.eu)
        assert await values_at(pair, pair.eu) == list(VALUES[:2])
        await pair.until(lambda: ap.phase is Phase.MIRRORING, "ap follows eu")
        assert not rights_at(ap)


async def test_T24_a_candidate_that_cannot_copy_it_cuts_nothing_and_names_the_way_out(
    tmp_path: Path,
) -> None:
    async with one_behind(tmp_path, 2, deletes=OTHER) as (pair, ap):
        # ap has carried out a deletion that us has not heard of: us will not drop what it holds for that.
        operation = await ended(pair, pair.us.node.operations.begin_failover(confirmed=True))
        assert operation.status == "failed"
        assert "region ap has reached" in operation.error
        assert "tidemark region failover --to ap" in operation.error
        assert "--accept-behind" in operation.error
        assert await values_at(pair, pair.us) == [VALUES[0]]
        assert await values_at(pair, ap) == list(VALUES)
        operation = await ended(pair, ap.node.operations.begin_failover(confirmed=True))
        assert operation.status == "succeeded", operation
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows ap")
        await pair.until(lambda: shown_whole(pair.us) == 3, "us has all")
        assert await values_at(pair, pair.us) == await values_at(pair, ap) == list(VALUES)


async def test_T24_INV_CUP1_a_lesser_claim_is_no_way_round_the_greatest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. us copies nothing from eu any more, ap does for a while. 2. An order drains eu in vain. 3. eu and ap promise."""
    follow = PeerPrimary.session

    def stalled(
        primary: PeerPrimary,
    ) -> AbstractAsyncContextManager[tuple[PrimarySession, HandshakeDone]]:
        if (primary._identity.hello().region, primary._region) == ("us", "eu"):
            raise LinkFailed("nothing arrives")
        return follow(primary)

    async with region_pair(tmp_path, 10, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, VALUES[0])
        await pair.until(lambda: all(shown(r) == 1 for r in (pair.us, ap)), "both show")
        monkeypatch.setattr(PeerPrimary, "session", stalled)
        pair.fabric.drop("eu", "us")
        await write(pair.eu, VALUES[1])
        await pair.until(lambda: shown(ap) == 2, "ap shows two")
        pair.fabric.cut("eu", "ap")
        await write(pair.eu, VALUES[2])
        await pair.until(lambda: shown_whole(pair.eu) == 3, "eu shows all")
        operation = await ended(pair, pair.us.node.operations.begin_failover(confirmed=True))
        assert operation.status == "failed", operation
        assert "region eu has reached" in operation.error
        assert "nothing arrives" in operation.error
        pair.fabric.heal("eu", "ap")
        await pair.take_over(planned=False, by=pair.eu)
        await pair.until(lambda: shown(ap) == 3, "ap shows all three")
        assert await values_at(pair, ap) == await values_at(pair, pair.eu) == list(VALUES)


async def test_T24_a_candidate_copies_what_another_region_has_reached_that_lost_a_log_without_records(
    tmp_path: Path,
) -> None:
    """Whoever takes over cuts nothing to what it copies from: nobody's history is in danger (INV-QM1)."""
    async with one_behind(tmp_path, 7) as (pair, ap):
        await ap.node.failover.record(
            PromiseGiven(RegionEpoch(17), "us")
        )  # and then its link was cut
        await ap.kill()
        lose_log(ap, OFFSETS_LEDGER, 0)
        await ap.begin()
        await pair.until(lambda: ap.phase is Phase.FENCED, "it is up")
        await pair.fail_over()
        assert await values_at(pair, pair.us) == list(VALUES)
        await pair.until(lambda: ap.phase is Phase.MIRRORING, "ap follows us")


@pytest.mark.parametrize("times", [1, 2], ids=["once", "for good"])
async def test_T24_a_lost_promise_of_a_region_that_is_up_is_asked_for_again_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    async with one_behind(tmp_path, 6) as (pair, ap):
        lost: list[object] = []
        read = ap.node.peers._handlers._requests[AskPromise.__name__]

        def losing(frame: Frame, hand_back: Callable[[], None]) -> Handling[PeerSession]:
            handling = read(frame, hand_back)

            async def promised(session: PeerSession) -> PeerMessage | Reply:
                promise = await handling(session)
                if len(lost) < times:
                    lost.append(promise)
                    raise PeerRefused("lost", "the connection broke")
                return promise

            return promised

        monkeypatch.setitem(ap.node.peers._handlers._requests, AskPromise.__name__, losing)
        operation = await pair.fail_over()
        assert operation.statement is not None
        named = "region ap did not say what it has reached" in operation.statement.open_bound
        assert named == (times == 2)
        kept = VALUES if times == 1 else VALUES[:1]
        assert await values_at(pair, pair.us) == list(kept)


async def test_T24_only_the_operators_word_takes_back_what_another_region_has_shown(
    tmp_path: Path,
) -> None:
    async with one_behind(tmp_path, 3) as (pair, ap):
        claimed = ap.node.tidemarks.claim().point
        operation = await ended(
            pair, pair.us.node.operations.begin_failover(confirmed=True, accept_behind=True)
        )
        assert operation.status == "succeeded", operation
        assert operation.statement is not None
        assert f"region ap has reached {claimed}" in operation.statement.open_bound
        await pair.until(lambda: ap.phase is Phase.MIRRORING, "ap follows us")
        sight = ap.partition(TOPIC, 0).sight
        await pair.until(lambda: sight.last_stable_offset > 0, "ap shows a whole cut again")
        assert await values_at(pair, ap) == await values_at(pair, pair.us) == [VALUES[0]]


@pytest.mark.parametrize("gave_up", [False, True], ids=["may act", "gave up"])
async def test_T24_a_region_that_promised_a_higher_epoch_does_not_follow_who_acts_below_it(
    tmp_path: Path, *, gave_up: bool
) -> None:
    """It would reach, and report to sync commits, what the one that it promised may be about to take back."""
    async with region_pair(tmp_path, 8, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.create_topic(TOPIC, 1)
        pair.fabric.cut("us", "ap")
        pair.fabric.cut("us", "eu")
        await pair.fail_over()
        promised = next_region_epoch([pair.us.node.failover.state.region_epoch], 0)
        await ap.node.failover.record(PromiseGiven(promised, "eu"))
        pair.fabric.heal("us", "ap")
        pair.fabric.heal("us", "eu")
        await write(pair.us, VALUES[0])
        await pair.until(lambda: shown(pair.eu) == 1, "eu follows us")
        role = ap.node.role
        await pair.until(lambda: "eu was promised the higher" in role.reason_not_acting, "it waits")
        assert ap.phase is Phase.FENCED
        if gave_up:
            eu = pair.eu.node.failover
            eu._state = replace(eu.state, abandoned_epoch=promised)
            await pair.until(lambda: shown(ap) == 1, "ap follows us, too")
        else:
            operation = await ended(
                pair, ap.node.operations.begin_failover(confirmed=True, accept_behind=True)
            )
            assert operation.status == "succeeded", operation
            await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows ap")


async def test_T24_a_promise_that_was_given_up_keeps_neither_the_primary_nor_who_gave_it(
    tmp_path: Path,
) -> None:
    """The primary was away while another region took over in vain: each would wait for the other."""
    async with region_pair(tmp_path, 9, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.create_topic(TOPIC, 1)
        await pair.eu.kill()
        promised = next_region_epoch([pair.us.node.failover.state.region_epoch], 2)
        await pair.us.node.failover.record(PromiseGiven(promised, "ap"))
        await pair.eu.begin()
        role = pair.eu.node.role
        await pair.until(lambda: "ap was promised" in role.reason_not_acting, "eu waits for ap")
        with pytest.raises(OperationRefused, match="stands still: region ap was promised"):
            pair.eu.node.operations.begin_failover(confirmed=True)
        ap.node.failover._state = replace(ap.node.failover.state, abandoned_epoch=promised)
        await pair.until(lambda: role.acting, "eu acts again")
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows it again")


async def test_T31_a_silent_region_does_not_keep_a_fenced_one_from_what_the_living_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for the silent one would wait for ever here: its questions have no time-out to speak of."""
    async with region_pair(tmp_path, 4, names=("eu", "us", "ap")) as pair:
        await pair.create_topic(TOPIC, 1)
        driver = pair.us.node.failover
        patient = dataclasses.replace(driver.settings, ask_timeout_ms=10**9)
        monkeypatch.setattr(driver.outlook, "settings", patient)
        pair.fabric.cut("us", "ap", silent=True)
        await driver.record(HigherEpochLearned(driver.state.region_epoch, "eu"))
        assert pair.us.phase is Phase.FENCED
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows eu again")
        await write(pair.eu, VALUES[0])
        await pair.until(lambda: shown(pair.us) == 1, "and copies")


@pytest.mark.parametrize("address", ["us", "ap"])
async def test_INV_FW6_a_client_does_not_wait_for_a_primary_that_stands_still_and_acts_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """At the address of the region that takes over, and of one that follows it; nothing else would end its request."""
    monkeypatch.setattr(forwarder, "FORWARD_TIMEOUT_S", 10.0**9)
    monkeypatch.setattr(failover_peers, "HANDSHAKE_TIMEOUT_MS", 300)
    async with region_pair(tmp_path, 5, names=("eu", "us", "ap")) as pair:
        await pair.create_topic(TOPIC, 1)
        port = pair.regions[address].kafka_port
        client = await Connection.open(pair.fabric.site("client"), port)
        await client.init_producer_id("billing")
        for other in ("us", "ap"):
            pair.fabric.hush("eu", other)
        asking = asyncio.get_running_loop().create_task(client.init_producer_id("billing"))
        await pair.fail_over()
        with pytest.raises(Refused, match="coordinator_not_available"):
            async with asyncio.timeout(30):
                await asking
        standing = {Phase.ACTING, Phase.MIRRORING}
        await pair.until(lambda: pair.regions[address].phase in standing, "it acts, or follows")
        assert (await client.init_producer_id("billing"))[0] >= 0
