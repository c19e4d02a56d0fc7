"""INV-FD6, INV-FD7, T31: what a region that is drained, or was, says to each candidate that asks."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from geo_replicator.failover import Phase
from geo_replicator.failover_events import Event, HistoryRefuted, PromiseGiven, TakeoverBegun
from geo_replicator.lineage import Cut, TidemarkPoint
from geo_replicator.tail import Tail
from idempotency.identity import RegionEpoch
from region_broker.controller.metadata_image import LineageEntry
from region_broker.region.failover import answers
from region_broker.region.failover.messages import (
    AskDrain,
    AskPromise,
    DrainEnded,
    EndDrain,
    PromiseAnswer,
)
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import PeerSession
from region_broker.region.ports import RegionLog
from tests.fixtures.failover_regions import Pair, Site, fail_over
from tests.fixtures.waiting import until

WANTED = RegionEpoch(17)
MINUTE_MS = 60_000


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


def order(operation_id: str, to_region: str) -> AskDrain:
    return AskDrain(operation_id=operation_id, to_region=to_region, timeout_ms=MINUTE_MS)


async def promised(
    pair: Pair, candidate: str, *, planned: bool = True, region_epoch: RegionEpoch = WANTED
) -> PromiseAnswer:
    """Ask eu for a promise, over a connection of us."""
    asked = AskPromise(
        domain="main", region_epoch=region_epoch, candidate=candidate, planned=planned
    )
    return await pair.us.driver.parts.peers.ask("eu", asked, PromiseAnswer, timeout_ms=20_000)


async def ended(pair: Pair, operation_id: str) -> DrainEnded:
    """Tell eu that an order of a drain is given up."""
    message = EndDrain(operation_id=operation_id, reason="it was given up")
    return await pair.us.driver.parts.peers.ask("eu", message, DrainEnded, timeout_ms=20_000)


async def test_INV_FD7_only_the_order_that_it_is_drained_by_ends_a_drain(pair: Pair) -> None:
    await pair.eu.answers.drain(order("first", "us"))
    with pytest.raises(PeerRefused, match="eu drains for region us, operation first: order it"):
        await pair.eu.answers.drain(order("second", "ap"))
    assert not (await ended(pair, "second")).acting
    assert pair.eu.driver.state.phase is Phase.DRAINING
    assert (await ended(pair, "first")).acting
    await pair.eu.until(Phase.ACTING)
    await pair.eu.answers.drain(order("third", "ap"))


async def test_INV_FD7_another_order_of_the_same_region_has_a_time_of_its_own(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A switch breaks off, and so does the message that ends its drain. 2. It is ordered again, a while before the first time is over."""
    clock = pair.eu.driver.parts.clock
    slept: list[float] = []
    woken = asyncio.Event()

    class Clock:
        def monotonic_ms(self) -> int:
            return now_ms

        async def sleep_ms(self, duration_ms: float) -> None:
            slept.append(duration_ms)
            await woken.wait()
            woken.clear()

    now_ms = clock.monotonic_ms()
    played = dataclasses.replace(pair.eu.driver.parts, clock=Clock())  # type: ignore[arg-type]
    for asks in (pair.eu.driver.steps, pair.eu.answers):
        monkeypatch.setattr(asks, "_parts", played)
    await pair.eu.answers.drain(order("first", "us"))
    await until(lambda: slept == [MINUTE_MS], "it waits for the promise")
    now_ms += MINUTE_MS - 1
    await pair.eu.answers.drain(order("second", "us"))
    now_ms += 1
    woken.set()
    await until(lambda: len(slept) == 2, "it waits on")
    assert slept[1] == MINUTE_MS - 1
    assert not (await ended(pair, "first")).acting
    assert (await ended(pair, "second")).acting


async def test_INV_FD6_a_drain_that_another_process_began_is_over_and_nothing_is_read_for_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A region is drained, and its node dies. 2. The next one has not recorded yet that the drain is over. 3. The candidate asks."""
    await pair.eu.write("first")
    await pair.eu.answers.drain(order("first", "us"))
    await pair.eu.kill()

    def hold(site: Site) -> None:
        async def held() -> Event:
            await asyncio.Event().wait()
            raise AssertionError("it waits for ever")

        site.driver.steps.roll_back_drain = held  # type: ignore[method-assign]

    async def read(_logs: Sequence[RegionLog], _cut: Cut) -> Tail:
        raise AssertionError("all that the region has is read")

    pair.eu.on_built = hold
    monkeypatch.setattr(answers, "tail_beyond", read)
    await pair.eu.start()
    assert pair.eu.driver.state.phase is Phase.DRAINING
    told = await promised(pair, "us")
    assert not told.granted
    assert "the drain for region us is over" in told.reason
    assert pair.eu.driver.state.phase is Phase.DRAINING


async def test_INV_FD6_a_region_that_is_drained_for_one_candidate_promises_no_other(
    pair: Pair,
) -> None:
    await pair.eu.answers.drain(order("first", "us"))
    told = await promised(pair, "ap")
    assert (told.granted, told.reason) == (
        False, "the drain for region ap is over: region eu drains for region us",
    )  # fmt: skip
    assert (await promised(pair, "us")).granted


async def test_INV_FD6_a_promise_is_not_repeated_once_another_region_is_heard_to_have_acted(
    pair: Pair,
) -> None:
    """1. A drained region promises; the answer is lost. 2. Another one is let act, without asking it. 3. It hears of that, and is asked again."""
    await pair.eu.driver.record(PromiseGiven(WANTED, "us"))
    assert (await promised(pair, "us")).granted
    later = LineageEntry(
        region_epoch=RegionEpoch(26), acting_region="ap", base_region_epoch=RegionEpoch(8),
        base_number=1, positions={},
    )  # fmt: skip
    hello = replace(pair.us.driver.hello(), region="ap", lineage=(later,))
    pair.eu.driver.outlook.heed(hello)
    told = await promised(pair, "us")
    assert not told.granted
    assert "the drain for region us is over: region eu is" in told.reason


async def test_INV_FD6_a_region_in_dispute_is_not_drained(pair: Pair) -> None:
    """It was drained once, and has acted since."""
    await pair.eu.driver.record(HistoryRefuted("us", RegionEpoch(8), 1, 1, "a mirror holds more"))
    told = await promised(pair, "us")
    assert not told.granted
    assert pair.eu.driver.state.phase is Phase.DISPUTED


async def test_INV_FD6_a_mirror_promises_whoever_takes_over_from_a_drained_region(
    pair: Pair,
) -> None:
    await pair.us.until(Phase.MIRRORING)
    asked = AskPromise(domain="main", region_epoch=WANTED, candidate="ap", planned=True)
    told = await pair.eu.driver.parts.peers.ask("us", asked, PromiseAnswer, timeout_ms=20_000)
    assert told.granted, told.reason


async def test_INV_FD6_a_region_that_returned_is_not_drained_for_who_has_not_heard_of_that(
    pair: Pair,
) -> None:
    """The candidate has made its handshake before, and its question has waited."""
    hello = replace(pair.us.driver.hello(), region="ap")
    await fail_over(pair.us)
    await pair.eu.until(Phase.MIRRORING)
    asked = AskPromise(domain="main", region_epoch=RegionEpoch(26), candidate="ap", planned=True)
    told = await pair.eu.answers._on_promise(PeerSession(1, "ap:1", hello), asked, memoryview(b""))
    assert not told.granted
    assert "the drain for region ap is over: region eu is mirroring" in told.reason


async def test_T31_a_region_that_drains_publishes_its_last_tidemark_before_any_promise(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A switch to ap: the last tidemark is under way. 2. A failover to us: what was answered would be lost, with eu up."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    await pair.eu.write("second")
    final_point, asked = pair.eu.answers._final_point, 0

    async def counted() -> TidemarkPoint:
        nonlocal asked
        asked += 1
        return await final_point()

    monkeypatch.setattr(pair.eu.answers, "_final_point", counted)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ends_somehow(pair))
        await pair.eu.until(Phase.DRAINING)
        operation = pair.us.operations.begin_failover(confirmed=True)
        await until(
            lambda: asked == 2 or pair.eu.driver.state.phase is Phase.FENCED, "us has asked"
        )
        assert asked == 2, "it promised at once"
        pair.eu.ledger.answers.set()
        await pair.us.ended(operation)
    assert operation.status == "succeeded", operation
    await pair.us.shows("second")


async def test_INV_FOP2_a_promise_that_was_in_vain_binds_no_mirror_that_was_started_again(
    pair: Pair,
) -> None:
    """1. us promises ap, which gives up, and says so. 2. us mirrors eu again, and its node is started again. 3. ap is away for good."""
    await pair.us.until(Phase.MIRRORING)
    vain = RegionEpoch(18)
    await pair.us.driver.record(PromiseGiven(vain, "ap"))
    hello = replace(pair.eu.driver.hello(), region="ap", abandoned_epoch=vain)
    pair.us.driver.outlook.heed(hello)
    await pair.us.until(Phase.MIRRORING)
    pair.us.driver.outlook._abandoned.clear()  # what only the former process had heard
    operation = await pair.us.ended(pair.us.operations.begin_switch())
    assert operation.status == "succeeded", operation


async def test_INV_FS8_a_planned_takeover_is_given_up_where_another_is_known_to_have_acted_since(
    pair: Pair,
) -> None:
    """Its entry is lower than what this region is to act under, so it is no news that would have ended the takeover."""
    await pair.us.until(Phase.MIRRORING)
    await pair.eu.write("first")
    await pair.reached("first")
    claim = pair.us.driver.outlook.claim().point
    later = LineageEntry(
        region_epoch=RegionEpoch(18), acting_region="ap", base_region_epoch=RegionEpoch(8),
        base_number=claim.number, positions={},
    )  # fmt: skip
    hello = replace(pair.eu.driver.hello(), region="ap", lineage=(later,))
    pair.us.driver.outlook.heed(hello)
    planned = TakeoverBegun(
        RegionEpoch(25), "eu", "first", True, False, (claim.region_epoch, claim.number)
    )
    with pytest.raises(Exception, match="region ap has acted since"):
        await pair.us.driver.steps._held(planned)


async def test_INV_FD6_a_region_that_cannot_record_who_acts_promises_whoever_follows_that(
    pair: Pair,
) -> None:
    """1. eu acted, and stands still, as there is no room for its return. 2. A switch goes from one of two others to the third."""
    hello = replace(pair.us.driver.hello(), region="ap", region_epoch=RegionEpoch(17))
    await pair.eu.driver.record(PromiseGiven(WANTED, "us"))
    asked = AskPromise(domain="main", region_epoch=RegionEpoch(26), candidate="ap", planned=True)
    told = await pair.eu.answers._on_promise(PeerSession(1, "ap:1", hello), asked, memoryview(b""))
    assert told.granted, told.reason


async def ends_somehow(pair: Pair) -> None:
    """Drain eu for ap; the promise to us may come before the answer."""
    with contextlib.suppress(PeerRefused):
        await pair.eu.answers.drain(order("first", "ap"))


async def test_INV_FD7_a_failover_to_the_region_that_it_is_drained_for_goes_the_planned_way(
    pair: Pair,
) -> None:
    """The switch that it was drained by has broken off."""
    await pair.us.until(Phase.MIRRORING)
    await pair.eu.answers.drain(order("first", "us"))
    operation = await pair.us.ended(pair.us.operations.begin_failover(confirmed=True))
    assert operation.status == "succeeded", operation
    assert operation.statement is not None
    assert operation.statement.planned
