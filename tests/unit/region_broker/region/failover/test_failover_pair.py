"""Failover, switch and return of two regions with real disks, sockets, logs and links."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from geo_replicator.failover import Phase
from geo_replicator.failover_events import PromiseGiven, TakeoverAbandoned, TakeoverBegun
from geo_replicator.lineage import TidemarkPoint
from idempotency.identity import RegionEpoch
from idempotency.ledger_records import TransactionKey, TxnStatus, decode_key
from region_broker.controller.metadata_commands import RecordLineage
from region_broker.controller.metadata_image import (
    OFFSETS_LEDGER,
    TIDEMARK_LEDGER,
    TRANSACTION_LEDGER,
    LineageEntry,
)
from region_broker.ledgers.images import LedgerImages
from region_broker.partitions.partition import Partition
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Record, build_batch
from region_broker.region.failover.messages import AskDrain, AskPromise, SiteStatus
from region_broker.region.failover.operations import Operation, OperationRefused
from region_broker.region.failover.steps.fenced import may_reclaim
from region_broker.region.peers.protocol import PeerMessage
from tests.fixtures.failover_regions import Pair, Site, fail_over
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


async def succeeded(site: Site, operation: Operation) -> None:
    await site.ended(operation)
    assert operation.status == "succeeded", (operation.error, operation.steps)


async def test_the_mirror_takes_over_after_the_primary_died(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    await fail_over(pair.us)
    assert pair.us.role.acting
    assert pair.us.role.region_epoch == 17
    assert b"first" in pair.us.values()
    assert await pair.us.write("second") > 0
    assert pair.us.ledger.calls[-1] == "adopt"
    assert pair.us.groups.calls == ["load", "clamp"]


async def test_what_the_primary_had_beyond_the_cut_is_quarantined_when_it_returns(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    lost_at = await pair.eu.write("lost", producer_id=4711, sequence=0)
    decided_at = pair.eu.ledger.decide("pay-1", 4712, TxnStatus.PREPARE_COMMIT)
    await pair.eu.ledger.shard(0).wait_committed(decided_at + 1)
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    await pair.us.write("after")
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    (losses,) = await pair.eu.operations.losses()
    assert [lost.transactional_id for lost in losses.transactions] == ["pay-1"]
    assert [(r.producer_id, r.first_offset, r.record_count) for r in losses.records] == [
        (4711, lost_at, 1)
    ]
    assert losses.statement is not None
    assert losses.unexplained == ()
    await pair.eu.shows("after")
    assert b"lost" not in pair.eu.values()
    assert pair.eu.raw() == pair.us.raw()


async def test_an_image_of_the_ledger_beyond_the_cut_is_void_when_the_primary_returns(
    pair: Pair,
) -> None:
    images = {
        site: LedgerImages(site.table, RealDisk(), SystemClock()) for site in (pair.eu, pair.us)
    }
    for made in images.values():
        made.step_bytes = 200

    async def decide(name: str) -> None:
        for number in range(5):
            pair.eu.ledger.decide(f"{name}-{number}", 4712 + number, TxnStatus.EMPTY)
        shard = pair.eu.ledger.shard(0)
        await shard.wait_committed(shard.log_end_offset)

    await pair.eu.write("zero")
    await pair.reached("zero")
    await decide("before")
    assert await images[pair.eu].renew(0)
    end = pair.eu.ledger.shard(0).high_watermark
    await pair.us.ledger.shard(0).wait_committed(end)
    assert await images[pair.us].renew(0)
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    await decide("lost")
    assert await images[pair.eu].renew(0)
    beyond = await images[pair.eu].newest(pair.eu.ledger.shard(0))
    assert beyond is not None
    await pair.eu.kill()
    await pair.us.start()
    mirrored = pair.us.ledger.shard(0)
    assert mirrored.high_watermark < beyond.head.end_offset
    await fail_over(pair.us)
    await pair.us.write("after")
    await pair.eu.start()
    await pair.eu.shows("after")
    for site in (pair.eu, pair.us):
        shard = site.ledger.shard(0)
        found = await LedgerImages(site.table, RealDisk(), SystemClock()).newest(shard)
        assert found is not None
        assert found.head.end_offset < beyond.head.end_offset
        names = {decode_key(key) for _, key, _ in found.rows}
        assert TransactionKey("before-0") in names
        assert TransactionKey("lost-0") not in names


async def test_a_planned_switch_loses_nothing_and_goes_back_again(pair: Pair) -> None:
    written = [f"value-{number}" for number in range(20)]
    for number, value in enumerate(written):
        await pair.eu.write(value, number=number % 2)
    operation = pair.us.operations.begin_switch()
    await succeeded(pair.us, operation)
    assert operation.writes_paused_ms >= 0
    assert pair.us.ledger.drained == [RegionEpoch(8)]  # its producers go on (T22)
    shown = pair.us.values(0) + pair.us.values(1)
    assert all(value.encode() in shown for value in written)
    await pair.eu.until(Phase.MIRRORING)
    assert await pair.eu.operations.losses() == [] or all(
        losses.transaction_count == 0 and losses.plain_record_count == 0
        for losses in await pair.eu.operations.losses()
    )
    await pair.us.write("from us")
    back = pair.eu.operations.begin_switch()
    await succeeded(pair.eu, back)
    assert pair.eu.role.region_epoch == 24
    assert b"from us" in pair.eu.values()
    await pair.us.until(Phase.MIRRORING)


async def test_a_failover_while_the_primary_is_reachable_drains_it_first(pair: Pair) -> None:
    await pair.eu.write("first")
    operation = pair.us.operations.begin_failover(confirmed=True)
    await succeeded(pair.us, operation)
    assert b"first" in pair.us.values()
    assert operation.statement is not None
    assert operation.statement.planned
    assert not pair.eu.role.acting
    await pair.eu.until(Phase.MIRRORING)


async def test_a_failover_without_the_operators_word_is_refused(pair: Pair) -> None:
    with pytest.raises(OperationRefused, match="confirm"):
        pair.us.operations.begin_failover(confirmed=False)
    assert pair.us.driver.state.phase is Phase.MIRRORING


async def test_a_region_that_missed_its_replacement_does_not_act(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    await fail_over(pair.us)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    assert not pair.eu.role.acting
    assert pair.eu.metadata.image.main_domain.acting_region == "us"
    assert pair.eu.metadata.image.main_domain.region_epoch == 17


async def test_primary_acts_again_after_a_restart_that_nobody_noticed(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    await pair.eu.write("second")
    await pair.reached("second")


async def test_a_switch_that_the_mirror_cannot_follow_rolls_back_to_acting(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    before = pair.us.tidemarks.claim()
    monkeypatch.setattr(pair.us.tidemarks, "claim", lambda: before)
    impatient = dataclasses.replace(pair.us.driver.settings, switch_timeout_ms=300)
    monkeypatch.setattr(pair.us.operations, "_settings", impatient)
    await pair.eu.write("second")
    operation = await pair.us.ended(pair.us.operations.begin_switch())
    assert operation.status == "failed"
    assert "takes writes again" in operation.error
    await pair.eu.until(Phase.ACTING)
    await pair.eu.write("third")
    assert pair.us.driver.state.phase is Phase.MIRRORING


async def test_a_switch_from_a_region_that_is_lost_names_the_failover(pair: Pair) -> None:
    """Nobody knows that a region which does not answer takes writes."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    operation = await pair.us.ended(pair.us.operations.begin_switch())
    assert operation.status == "failed"
    assert "It takes writes again" not in operation.error
    assert operation.error.endswith("if it is lost: tidemark region failover --to us")
    assert pair.us.driver.state.phase is Phase.MIRRORING


async def test_a_lineage_of_thousands_of_logs_still_fits_a_handshake(pair: Pair) -> None:
    """A handshake answer carries the positions of every log, once per takeover."""
    positions = {f"{number:032x}/0": number for number in range(20_000)}
    entry = LineageEntry(
        region_epoch=RegionEpoch(17),
        acting_region="us",
        base_region_epoch=RegionEpoch(8),
        base_number=1,
        positions=positions,
    )
    await pair.us.metadata.apply(RecordLineage(domain="main", entry=entry))
    await pair.eu.driver.parts.peers.handshake_with_all(timeout_ms=5_000)
    assert pair.eu.driver.outlook.hellos["us"].lineage == (entry,)


async def test_a_commit_that_ends_behind_the_last_tidemark_of_a_drain_stops_the_switch(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that passed the gate before the drain may be decided after its last tidemark."""
    await pair.eu.write("first")
    drain = pair.eu.answers.drain

    async def decide_behind(message: AskDrain) -> TidemarkPoint:
        point = await drain(message)
        decided_at = pair.eu.ledger.decide("pay-1", 4712, TxnStatus.PREPARE_COMMIT)
        await pair.eu.ledger.shard(0).wait_committed(decided_at + 1)
        return point

    monkeypatch.setattr(pair.eu.answers, "drain", decide_behind)
    operation = await pair.us.ended(pair.us.operations.begin_switch())
    assert operation.status == "failed"
    assert "takes writes again" in operation.error
    await pair.eu.until(Phase.ACTING)
    await pair.us.until(Phase.MIRRORING)
    assert pair.eu.partition(0, TRANSACTION_LEDGER).high_watermark > 0
    assert await pair.eu.operations.losses() == []
    monkeypatch.undo()
    await succeeded(pair.us, pair.us.operations.begin_switch())


async def test_a_loss_statement_names_what_was_copied_but_not_synced_yet(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied bytes below the log end but above the high watermark are waited for."""
    await pair.eu.write("first")
    await pair.reached("first")
    before = pair.us.tidemarks.claim()
    monkeypatch.setattr(pair.us.tidemarks, "claim", lambda: before)
    ledger = pair.eu.ledger.shard(0)
    at = pair.eu.ledger.decide("pay-1", 4712, TxnStatus.PREPARE_COMMIT)
    await ledger.wait_committed(at + 1)
    mirror = pair.us.ledger.shard(0)
    await until(lambda: mirror.log_end_offset > at, "it is copied")
    statement = await pair.us.operations.statement()
    assert [each.transactional_id for each in statement.transactions] == ["pay-1"]


async def test_T31_primary_acts_again_when_its_promise_was_lost_and_the_candidate_gave_up(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would act otherwise: the primary keeps its promise, and the candidate never learned of it."""
    await pair.eu.write("first")
    ask_all = pair.us.driver.parts.peers.ask_all

    async def lose_promises(
        message: PeerMessage, answer_type: type[PeerMessage], *, timeout_ms: int
    ) -> tuple[Mapping[str, PeerMessage], Mapping[str, str]]:
        answers, missing = await ask_all(message, answer_type, timeout_ms=timeout_ms)
        if isinstance(message, AskPromise) and message.planned:
            return {}, dict.fromkeys(answers, "the answer was lost")
        return answers, missing

    monkeypatch.setattr(pair.us.driver.parts.peers, "ask_all", lose_promises)
    operation = await pair.us.ended(pair.us.operations.begin_switch())
    assert operation.status == "failed"
    await pair.eu.until(Phase.ACTING)
    assert pair.eu.role.region_epoch == 24
    await pair.eu.write("second")
    await pair.us.until(Phase.MIRRORING)
    await pair.reached("second")
    assert b"first" in pair.eu.values()
    monkeypatch.undo()
    await succeeded(pair.us, pair.us.operations.begin_switch())


async def test_T31_primary_does_not_act_again_while_the_candidate_is_away(pair: Pair) -> None:
    """Whoever was promised may have begun to act: only its own word says that it did not."""
    await pair.eu.write("first")
    await pair.reached("first")
    event = PromiseGiven(region_epoch=RegionEpoch(17), candidate="us")
    await pair.us.kill()
    await pair.eu.driver.record(event)
    await pair.eu.until(Phase.FENCED)
    statuses = await pair.eu.driver.outlook.statuses()
    assert statuses == {}
    assert not await may_reclaim(pair.eu.driver.outlook, pair.eu.driver.state, statuses)
    await pair.us.start()
    statuses = await pair.eu.driver.outlook.statuses()
    assert not await may_reclaim(pair.eu.driver.outlook, pair.eu.driver.state, statuses)
    await until(lambda: "none is about to" in pair.eu.role.reason_not_acting, "eu says what it is")
    assert "tidemark region failover --to" in pair.eu.role.reason_not_acting
    await pair.us.driver.record(
        TakeoverBegun(RegionEpoch(17), "eu", "op-1", planned=False, forced=True)
    )
    await pair.eu.until(Phase.MIRRORING)


async def test_INV_FS5_what_was_promised_to_who_may_act_yet_keeps_the_primary_from_acting_again(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.driver.record(
        TakeoverBegun(RegionEpoch(17), "eu", "op-1", planned=False, forced=False)
    )
    await pair.eu.driver.record(PromiseGiven(region_epoch=RegionEpoch(17), candidate="us"))
    await pair.us.driver.record(PromiseGiven(region_epoch=RegionEpoch(24), candidate="eu"))
    outlook, state = pair.eu.driver.outlook, pair.eu.driver.state
    statuses = await outlook.statuses()
    assert statuses["us"].promised_epoch == 24
    assert not await may_reclaim(outlook, replace(state, abandoned_epoch=RegionEpoch(23)), statuses)
    assert await may_reclaim(outlook, replace(state, abandoned_epoch=RegionEpoch(24)), statuses)


async def test_INV_CL9_a_tidemark_that_is_durable_behind_a_promise_keeps_nobody_from_acting_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The last tidemark is appended, its sync under way. 2. The primary stands still for a promise. 3. The mirror reaches it."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    before = pair.eu.tidemarks.claim().point
    ledger, waits = pair.eu.partition(0, TIDEMARK_LEDGER), asyncio.Event()

    async def wait_committed(partition: Partition, offset: int) -> None:
        if partition is ledger:
            waits.set()
            await asyncio.Event().wait()
        await committed(partition, offset)

    committed = Partition.wait_committed
    monkeypatch.setattr(Partition, "wait_committed", wait_committed)
    pair.eu.ledger.answers.set()
    await pair.eu.write("second")
    await waits.wait()
    await pair.us.shows("second")
    monkeypatch.undo()
    assert pair.eu.tidemarks.claim().point == before, "it waits for its own sync"
    await pair.eu.driver.record(PromiseGiven(region_epoch=RegionEpoch(17), candidate="us"))
    begun = TakeoverBegun(RegionEpoch(17), "eu", "op-1", planned=False, forced=False)
    await pair.us.driver.record(begun)
    await pair.us.driver.record(TakeoverAbandoned("the answer was lost"))
    await until(lambda: pair.eu.role.serving is None, "it stands still")
    assert before < pair.eu.tidemarks.claim().point == pair.us.tidemarks.claim().point
    await pair.eu.until(Phase.ACTING)


@pytest.mark.parametrize("work", ["a record", "a commit", "a group's offsets"])
async def test_INV_FS5_primary_takes_over_from_itself_only_if_nothing_acknowledged_lies_behind_its_last_tidemark(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    """1. No round ends any more. 2. The primary acknowledges work, and promises. 3. The candidate gives up. To act
    again would cut it off."""
    await pair.eu.write("first")
    await pair.reached("first")
    stuck = asyncio.Event()

    async def never_entered(_round: int) -> Mapping[int, object]:
        stuck.set()
        return await asyncio.Future()

    monkeypatch.setattr(pair.eu.ledger, "enter_round", never_entered)
    if work == "a record":
        await pair.eu.write("the round that begins for this never ends")
        await stuck.wait()
        await pair.eu.write("behind the last tidemark")
    elif work == "a commit":
        pair.eu.ledger.decide("pay-1", 4712, TxnStatus.PREPARE_COMMIT)
    else:
        pair.eu.partition(0, OFFSETS_LEDGER).writer.append_ledger(build_batch([Record(b"k", b"v")]))
    await pair.eu.driver.record(PromiseGiven(region_epoch=RegionEpoch(17), candidate="us"))
    begun = TakeoverBegun(RegionEpoch(17), "eu", "op-1", planned=False, forced=False)
    await pair.us.driver.record(begun)
    await pair.us.driver.record(TakeoverAbandoned("the answer was lost"))
    outlook = pair.eu.driver.outlook
    statuses = await outlook.statuses()
    assert statuses["us"].highest_epoch_known == 17
    assert not await may_reclaim(outlook, pair.eu.driver.state, statuses)


async def test_an_operation_that_was_overtaken_by_a_promise_fails_and_the_node_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. An epoch is chosen. 2. Another region is promised a higher one. 3. The takeover is recorded."""
    next_epoch = pair.us.operations._next_epoch

    async def overtaken(statuses: Mapping[str, SiteStatus]) -> int:
        epoch = await next_epoch(statuses)
        await pair.us.driver.record(
            PromiseGiven(region_epoch=RegionEpoch(epoch + 7), candidate="eu")
        )
        return epoch

    monkeypatch.setattr(pair.us.operations, "_next_epoch", overtaken)
    operation = await pair.us.ended(pair.us.operations.begin_switch())
    assert operation.status == "failed"
    assert pair.us.driver.running
    assert pair.us.driver.state.phase is Phase.FENCED
