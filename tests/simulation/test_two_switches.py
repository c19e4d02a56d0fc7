"""Two orders at once in three regions: what a planned switch takes over from is the region that was drained for it, or nothing."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from geo_replicator.directory import next_region_epoch
from geo_replicator.events import HandshakeDone
from geo_replicator.failover import Phase
from geo_replicator.failover import State as FailoverState
from geo_replicator.failover_events import CutChosen, Event, PromiseGiven, TakeoverBegun
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.ports import LinkFailed, PrimarySession
from region_broker.region.failover.messages import AskPromise, DrainEnded, EndDrain, SiteStatus
from region_broker.region.failover.operations import Operation
from region_broker.region.mirror.region_link import PeerPrimary
from region_broker.region.peers.protocol import PeerRefused
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_folders_without_history import shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
NAMES = ("eu", "us", "ap")


async def all_show(pair: Pair, count: int) -> None:
    """Return once every region shows as many records."""
    await pair.until(lambda: {shown(each) for each in pair.regions.values()} == {count}, "all show")


async def ended(pair: Pair, operation: Operation) -> Operation:
    """Return the operation when it has ended."""
    await pair.until(lambda: operation.status != "running", "the operation ends")
    return operation


def events_at(region: Region) -> list[Event]:
    """Return what the region records from now on, of itself."""
    recorded: list[Event] = []
    driver = region.node.failover
    told = driver.on_step

    def note(event: Event, before: FailoverState, after: FailoverState) -> None:
        recorded.append(event)
        told(event, before, after)

    driver.on_step = note
    return recorded


def loses_questions_for_promises(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a region that is up answer none of them, as one whose connection breaks each time."""

    def lost(*_given: object) -> None:
        raise PeerRefused("lost", "the connection broke")

    monkeypatch.setitem(
        region.node.peers._handlers._requests, AskPromise.__name__, lost
    )  # fmt: skip


def copies_nothing_from_eu(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let nothing arrive at a mirror from eu any more, while questions are answered."""
    follow = PeerPrimary.session

    def stalled(
        primary: PeerPrimary,
    ) -> AbstractAsyncContextManager[tuple[PrimarySession, HandshakeDone]]:
        if (primary._identity.hello().region, primary._region) == (name, "eu"):
            raise LinkFailed("nothing arrives")
        return follow(primary)

    monkeypatch.setattr(PeerPrimary, "session", stalled)


async def drained_for_ap(pair: Pair) -> Region:
    """Let eu be drained for ap, which records its takeover under 18, and dies before it has asked anybody; return ap."""
    await three_records(pair)
    await all_show(pair, 3)
    ap, recorded = pair.regions["ap"], asyncio.Event()

    async def hanging(_takeover: TakeoverBegun) -> Event:
        recorded.set()
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    ap.node.failover.steps.collect_promises = hanging  # type: ignore[method-assign,assignment]
    ap.node.operations.begin_switch()
    await until(recorded.is_set, "ap has recorded that it takes over")
    await ap.kill()
    return pair.regions.pop("ap")


async def starts_again(pair: Pair, ap: Region) -> None:
    """Let ap go on with what it had recorded, until it acts or has given it up."""
    await ap.begin()
    pair.regions["ap"] = ap
    assert ap.node.failover.state.takeover is not None
    await pair.until(lambda: ap.node.failover.state.takeover is None, "its takeover ends")


async def test_INV_FD6_a_region_that_is_fenced_for_one_candidate_is_not_drained_for_another(
    tmp_path: Path,
) -> None:
    """1. eu is drained for ap, which dies. 2. The drain ends. 3. A switch goes to us, eu promises it, and the link between them
    breaks: us acts and acknowledges. 4. ap is back, hears eu only, and asks it for the promise of a drained region.
    """
    async with region_pair(tmp_path, 1, names=NAMES) as pair:
        ap = await drained_for_ap(pair)
        takeover = ap.node.failover.state.takeover
        assert takeover is not None
        drained = EndDrain(operation_id=takeover.operation_id, reason="the switch timed out")
        told = await pair.us.node.failover.parts.peers.ask(
            "eu", drained, DrainEnded, timeout_ms=5_000
        )
        assert told.acting
        await pair.until(lambda: pair.eu.node.role.acting, "eu takes writes again")
        await write(pair.eu, b"four")
        driver = pair.us.node.failover
        told_of = driver.on_step

        def breaks(event: Event, before: FailoverState, after: FailoverState) -> None:
            if isinstance(event, CutChosen):
                pair.fabric.cut("eu", "us")
            told_of(event, before, after)

        driver.on_step = breaks
        await pair.take_over(planned=True)
        await write(pair.us, b"five")
        assert pair.eu.phase is Phase.FENCED
        pair.fabric.cut("us", "ap")
        await starts_again(pair, ap)
        assert ap.phase is Phase.FENCED, "it was given up"
        assert "region us was promised region epoch 17" in ap.node.failover.state.reason
        for other in ("eu", "ap"):
            pair.fabric.heal("us", other)
        await all_show(pair, 5)
        assert pair.us.node.role.acting


async def test_INV_FS8_a_planned_switch_is_given_up_where_a_region_is_at_a_later_epoch(
    tmp_path: Path,
) -> None:
    """1. eu is drained for ap, which dies. 2. eu and us do not reach each other: a failover goes to us, by the operator's
    word, and us acknowledges. 3. ap is back within the time of the drain. us refuses it, as one from the past.
    """
    async with region_pair(tmp_path, 2, names=NAMES) as pair:
        ap = await drained_for_ap(pair)
        pair.fabric.cut("eu", "us")
        await pair.fail_over()
        await write(pair.us, b"four")
        assert pair.eu.phase is Phase.DRAINING
        await starts_again(pair, ap)
        assert ap.phase is Phase.FENCED, "it was given up"
        assert "region us answers and is at a later region epoch" in ap.node.failover.state.reason
        pair.fabric.heal("eu", "us")
        await all_show(pair, 4)
        assert pair.us.node.role.acting


@pytest.mark.parametrize("kind", ["switch", "failover"])
async def test_INV_FOP2_an_order_ends_where_another_region_acts_by_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """1. A switch to ap, which lags. 2. A failover to us, which hears nothing of ap. 3. ap follows us: its tidemarks are later
    ones than the last one of eu, which is a mirror, too, and would promise. Of us no promise arrives.
    """
    async with region_pair(tmp_path, 3, names=NAMES) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        await all_show(pair, 3)
        copies_nothing_from_eu(monkeypatch, "ap")
        pair.fabric.drop("eu", "ap")
        await write(pair.eu, b"four")
        operations = ap.node.operations
        order = (
            operations.begin_switch()
            if kind == "switch"
            else operations.begin_failover(confirmed=True)
        )
        await pair.until(lambda: pair.eu.phase is Phase.DRAINING, "eu is drained")
        recorded = events_at(ap)
        loses_questions_for_promises(ap, monkeypatch)
        await pair.fail_over()
        loses_questions_for_promises(pair.us, monkeypatch)
        await write(pair.us, b"five")
        await ended(pair, order)
        assert order.status == "failed", order
        assert "region us acts under region epoch 17" in order.error
        await all_show(pair, 5)
        assert pair.us.node.role.acting
        assert not [event for event in recorded if isinstance(event, TakeoverBegun)]


async def test_INV_FOP2_a_switch_ends_where_another_region_was_promised_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ap has reached the last tidemark, and asks for the region epochs that are known, as it promises one to us."""
    async with region_pair(tmp_path, 4, names=NAMES) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        await all_show(pair, 3)
        driver = ap.node.failover
        statuses, promised = driver.outlook.statuses, next_region_epoch([8], 1)

        async def promising() -> dict[str, SiteStatus]:
            told = await statuses()
            await driver.record(PromiseGiven(promised, "us"))
            return told

        monkeypatch.setattr(driver.outlook, "statuses", promising)
        recorded = events_at(ap)
        switch = await ended(pair, ap.node.operations.begin_switch())
        assert switch.status == "failed", switch
        assert "region us was promised region epoch 17" in switch.error
        assert not [event for event in recorded if isinstance(event, TakeoverBegun)]
        await pair.until(lambda: pair.eu.node.role.acting, "eu takes writes again")


async def test_INV_FS8_a_planned_switch_is_given_up_where_another_epoch_is_followed_than_was_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a restart finds: a takeover that was recorded behind the last tidemark of eu, at a mirror of us."""
    async with region_pair(tmp_path, 5, names=NAMES) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        await all_show(pair, 3)
        final = ap.node.tidemarks.claim().point
        await pair.take_over(planned=True)
        await write(pair.us, b"four")
        await all_show(pair, 4)
        assert final < ap.node.tidemarks.claim().point
        loses_questions_for_promises(pair.us, monkeypatch)
        began = TakeoverBegun(
            region_epoch=next_region_epoch([17], 2), old_region="eu", operation_id="op", planned=True,
            forced=False, final=(final.region_epoch, final.number),
        )  # fmt: skip
        await ap.node.failover.record(began)
        await pair.until(lambda: ap.node.failover.state.takeover is None, "its takeover ends")
        assert ap.phase is Phase.FENCED, "it was given up"
        assert f"not from the final {TidemarkPoint(*began.final)}" in ap.node.failover.state.reason  # type: ignore[misc]
        await write(pair.us, b"five")
        await all_show(pair, 5)


async def test_INV_FD7_a_region_is_drained_for_one_candidate_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A switch to ap, which lags. 2. A switch to us: it would be told that eu is drained, and lose that by the end of the first."""
    async with region_pair(tmp_path, 6, names=NAMES) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        await all_show(pair, 3)
        copies_nothing_from_eu(monkeypatch, "ap")
        pair.fabric.drop("eu", "ap")
        await write(pair.eu, b"four")
        first = ap.node.operations.begin_switch()
        await pair.until(lambda: pair.eu.phase is Phase.DRAINING, "eu is drained")
        second = await ended(pair, pair.us.node.operations.begin_switch())
        assert second.status == "failed", second
        assert f"drains for region ap, operation {first.operation_id}" in second.error
        assert pair.eu.phase is Phase.DRAINING
        await ended(pair, first)
        assert first.status == "failed", first
        await pair.until(lambda: pair.eu.node.role.acting, "eu takes writes again")
        await pair.take_over(planned=True)
        assert shown(pair.us) == 4
