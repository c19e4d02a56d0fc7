"""A candidate that dies in the middle, and is passed over, comes back to a lineage that has gone on without it."""

import asyncio
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from geo_replicator.failover_events import Event
from idempotency.identity import RegionEpoch
from region_broker.node import Node
from region_broker.region.verdict_service import VerdictService
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_deleted_by_the_lost import cut_off_before_it_compares
from tests.simulation.test_folders_without_history import TOPIC, shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def hangs_when_recorded(node: Node) -> asyncio.Event:
    """Let the node hang as soon as it has written down that it takes over; set the returned event then."""
    recorded = asyncio.Event()

    async def hanging(*_given: object) -> None:
        recorded.set()
        await asyncio.Event().wait()

    node.failover.steps._cut_for = hanging  # type: ignore[method-assign,assignment]
    return recorded


def stands_fenced(node: Node) -> None:
    """Let the node not return once it has heard of a higher region epoch."""

    async def stand(*_given: object) -> Event:
        await node.role.fence("it is slow")
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    node.failover.steps.stand_fenced = stand  # type: ignore[method-assign,assignment]


def verdicts(region: Region) -> VerdictService:
    """Return what answers for transactions and records."""
    storage = region.node.storage
    return VerdictService(storage.partitions, storage.metadata, region.node.role)


async def passed_over(pair: Pair) -> tuple[Region, Region]:
    """Let us write down that it takes over, and die; ap, which has shown one more, takes over. Return both; only ap is up."""
    ap = pair.regions["ap"]
    await three_records(pair)
    pair.fabric.cut("eu", "us")
    await write(pair.eu, b"four")
    await pair.until(lambda: shown(ap) == 4, "ap shows one more")
    await ap.kill()
    await pair.eu.kill()
    recorded = hangs_when_recorded(pair.us.node)
    pair.us.node.operations.begin_failover(confirmed=True)
    await until(recorded.is_set, "us has recorded that it takes over")
    await pair.us.kill()
    us = pair.regions.pop("us")
    pair.regions.pop("eu")
    await ap.start()
    await pair.take_over(planned=False, by=ap)
    return us, ap


async def test_T31_a_candidate_that_was_passed_over_returns(tmp_path: Path) -> None:
    """1. eu is lost while us is down: ap takes over under 18, and dies when that is written down. 2. us is up, and takes over
    under 17: it has heard of nothing. 3. eu is back, and takes over under 24. 4. ap is back.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        await pair.until(lambda: shown(ap) == 3, "ap shows all")
        await pair.us.kill()
        await pair.eu.kill()
        recorded = hangs_when_recorded(ap.node)
        ap.node.operations.begin_failover(confirmed=True)
        await until(recorded.is_set, "ap has recorded that it takes over")
        assert ap.phase is Phase.CUTTING
        await ap.kill()
        del pair.regions["ap"]
        pair.regions.pop("eu")
        await pair.us.start()
        await pair.take_over(planned=False, by=pair.us)
        assert pair.us.node.role.region_epoch == 17
        await write(pair.us, b"four")
        await pair.eu.begin()
        pair.regions["eu"] = pair.eu
        await pair.until(lambda: shown(pair.eu) == 4, "eu has returned")
        await pair.take_over(planned=True, by=pair.eu)
        assert pair.eu.node.role.region_epoch == 24
        await write(pair.eu, b"five")
        await ap.begin()
        pair.regions["ap"] = ap
        await pair.until(lambda: ap.phase is Phase.MIRRORING, "ap returns")
        await pair.until(lambda: shown(ap) == 5, "ap shows all")


async def test_T29_what_a_takeover_that_never_acted_had_not_is_not_called_lost(
    tmp_path: Path,
) -> None:
    """1. eu is lost, and ap, which has shown more, is down: us takes over, and dies when that is written down. 2. ap takes
    over from its own tidemark. 3. us returns, and is switched to later. It is asked for what ap had and still has.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        us, ap = await passed_over(pair)
        assert ap.node.role.region_epoch == 18
        told = await verdicts(ap).verdict(TOPIC, 0, 3, RegionEpoch(8))
        assert told.verdict == "committed", told
        await us.begin()
        pair.regions["us"] = us
        await pair.until(lambda: shown(us) == 4, "us has returned")
        await pair.take_over(planned=True, by=us)
        assert shown(us) == 4
        told = await verdicts(us).verdict(TOPIC, 0, 3, RegionEpoch(8))
        assert told.verdict == "committed", told


async def test_T25_a_takeover_that_never_acted_takes_nothing_from_who_returns(
    tmp_path: Path,
) -> None:
    """1. us writes down that it takes over, and dies. 2. ap takes over from a later tidemark. 3. eu returns, hears of both,
    and holds all that ap began with. 4. ap is lost before eu compared its logs: eu takes over.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        us, ap = await passed_over(pair)
        await us.begin()
        pair.regions["us"] = us
        pair.fabric.heal("eu", "us")
        await pair.until(lambda: shown(us) == 4, "us has returned")
        await us.kill()
        await us.begin()
        pair.eu.on_open = cut_off_before_it_compares(pair)
        await pair.eu.begin()
        pair.regions["eu"] = pair.eu
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "eu has returned")
        await ap.kill()
        del pair.regions["ap"]
        await us.kill()
        del pair.regions["us"]
        operation = pair.eu.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the takeover ends")
        assert operation.status == "succeeded", operation
        assert shown(pair.eu) == 4


async def test_T25_a_region_that_acted_and_was_passed_over_claims_nothing_that_it_never_held(
    tmp_path: Path,
) -> None:
    """1. us acts from a tidemark below what ap has reached. 2. us is lost; ap, which never heard of it, acts from there.
    3. us is back, with another record where ap's base has one, and hears of ap. 4. ap is lost: us takes over, uncut.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        pair.fabric.cut("eu", "us")
        await write(pair.eu, b"four")
        await pair.until(lambda: shown(ap) == 4, "ap shows one more")
        await ap.kill()
        await pair.eu.kill()
        pair.regions.pop("eu")
        await pair.take_over(planned=False, by=pair.us)
        held = pair.us.node.storage.metadata.image.main_domain.lineage[-1].base_number
        assert shown(pair.us) == 3
        await write(pair.us, b"another")
        await pair.us.kill()
        us = pair.regions.pop("us")
        await ap.start()
        await pair.take_over(planned=False, by=ap)
        assert (ap.node.role.region_epoch, shown(ap)) == (18, 4)
        us.on_open = stands_fenced
        await us.begin()
        pair.regions["us"] = us
        await until(lambda: us.phase is Phase.FENCED, "us has heard of ap")
        await ap.kill()
        del pair.regions["ap"]
        await pair.take_over(planned=False, by=us)
        assert us.node.storage.metadata.image.main_domain.lineage[-1].base_number == held
        assert shown(us) == 3
