"""T19, T21, T25, T26 and T31: the terms that a region acts in, and what waits for them, on real logs, links and disks."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from geo_replicator.failover import Phase
from geo_replicator.failover_events import Adopted, EntryRecord, Event, PromiseGiven
from geo_replicator.lineage import Cut, LineageEntry, TidemarkPoint
from geo_replicator.tail import Tail, TailDecision
from idempotency.identity import LeaderEpoch, RegionEpoch, Round
from idempotency.ledger_records import TxnStatus
from region_broker.controller.metadata_commands import TakeLeaderEpoch
from region_broker.region.failover.messages import AskDrain
from region_broker.region.failover.steps.recording import as_image_entry
from region_broker.region.peers.protocol import PeerRefused
from tests.fixtures.coordinator import record
from tests.fixtures.failover_regions import Entered, Pair, fail_over
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


# Holds INV-PT8.
async def test_PT8_a_mirror_tells_the_leader_epoch_of_the_term_of_an_idle_log_too(
    pair: Pair,
) -> None:
    """KIP-320: a client that comes from the region that took over knows that epoch, and must not see it go back."""
    await pair.eu.write("first")
    await pair.reached("first")
    pair.us.operations.begin_switch()
    await pair.us.until(Phase.ACTING)
    await pair.eu.until(Phase.MIRRORING)
    at_us, at_eu = pair.us.partition(), pair.eu.partition()
    assert at_us.sight.leader_epoch == 17 << 16 | 1
    await until(
        lambda: at_eu.sight.leader_epoch == at_us.sight.leader_epoch, "the mirror knows the term"
    )
    assert (
        at_eu.epoch_end_offset(LeaderEpoch(17 << 16 | 1))
        == at_us.epoch_end_offset(LeaderEpoch(17 << 16 | 1))
        == (17 << 16 | 1, 1)
    )
    await pair.eu.kill()
    await pair.eu.start()
    at_eu = pair.eu.partition()
    await until(
        lambda: at_eu.sight.leader_epoch == at_us.sight.leader_epoch,
        "a restarted mirror knows it, too",
    )


async def test_T19_the_counter_grows_only_when_a_region_acts_and_begins_anew_with_a_region_epoch(
    pair: Pair,
) -> None:
    """A crash loop of a mirror uses nothing up, and neither does a long life."""
    await pair.eu.write("first")
    await pair.reached("first")
    assert pair.eu.partition().sight.leader_epoch == 8 << 16 | 1
    for _ in range(2):
        await pair.us.kill()
        await pair.us.start()
    assert pair.us.metadata.image.last_leader_epoch == -1
    await pair.eu.kill()
    await fail_over(pair.us)
    assert pair.us.partition().sight.leader_epoch == 17 << 16 | 1
    # Taken durably before anything is written under it: a start that wrote nothing has used it up, too (T1).
    assert pair.us.metadata.image.last_leader_epoch == 17 << 16 | 1
    await pair.us.kill()
    await pair.us.start()
    await until(lambda: pair.us.role.acting, "us acts again")
    assert pair.us.partition().sight.leader_epoch == 17 << 16 | 2
    assert pair.us.metadata.image.last_leader_epoch == 17 << 16 | 2


async def test_T19_a_region_without_leader_epochs_says_so_and_can_be_taken_over(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.metadata.apply(TakeLeaderEpoch(LeaderEpoch(8 << 16 | 0xFFFF)))
    await pair.eu.kill()
    await pair.eu.start()
    await until(lambda: "failover" in pair.eu.role.reason_not_acting, "eu says what to do")
    assert "65535" in pair.eu.role.reason_not_acting
    await fail_over(pair.us)
    assert b"first" in pair.us.values()
    await pair.eu.until(Phase.MIRRORING)


async def test_T25_a_tidemark_beyond_a_later_base_is_not_claimed_by_whoever_has_not_cut_yet(
    pair: Pair,
) -> None:
    """H15: us acted from an earlier tidemark, and said so; it dies, and an operator lets eu act again."""
    await pair.eu.write("first")
    early = await pair.eu.role.final_round()
    base = pair.eu.tidemarks.claim()
    await pair.eu.write("declared lost")
    await pair.eu.role.final_round()
    assert pair.eu.driver.outlook.claim().point > early
    entry = LineageEntry(RegionEpoch(17), "us", base.point, base.positions, 1)
    hello = msgspec.structs.replace(
        pair.us.driver.hello(),
        region_epoch=17,
        acting_region="us",
        lineage=(as_image_entry(EntryRecord.of(entry)),),
    )
    pair.eu.driver.outlook.hellos["us"] = hello
    claimed = pair.eu.driver.outlook.claim()
    assert (claimed.point, claimed.positions) == (base.point, dict(base.positions))


async def test_T26_readers_ahead_of_the_cut_wait_until_their_groups_have_rejoined(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    assert not pair.eu.partition().readers_ahead
    await pair.eu.kill()
    await fail_over(pair.us)
    assert pair.us.partition().readers_ahead
    await pair.us.kill()
    await pair.us.start()
    await pair.us.until(Phase.ACTING)
    await until(lambda: pair.us.role.acting, "us acts again")
    assert pair.us.partition().readers_ahead
    await pair.us.kill()
    pair.us.settings = replace(pair.us.settings, readers_ahead_ms=0, handshake_interval_ms=1)
    await pair.us.start()
    await until(lambda: pair.us.role.acting, "us acts again")
    await until(lambda: not pair.us.partition().readers_ahead, "nobody is waited for any more")


async def test_T21_a_candidate_acts_only_once_a_tidemark_of_its_own_is_published(
    pair: Pair,
) -> None:
    """Rounds are held until it acts without one, or has had the time to."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    durable, append = asyncio.Event(), pair.us.journal.append

    async def noting(event: Event) -> None:
        await append(event)
        if isinstance(event, Adopted):
            published.append(pair.us.tidemarks.claim().point)
            durable.set()

    published: list[TidemarkPoint] = []
    pair.us.journal.append = noting  # type: ignore[method-assign]
    enter_round = pair.us.ledger.enter_round

    async def late(number: int, /) -> Mapping[int, Entered]:
        for _ in range(50):
            if not durable.is_set():
                await asyncio.sleep(0.001)
        return await enter_round(Round(number))

    pair.us.ledger.enter_round = late  # type: ignore[method-assign]
    await fail_over(pair.us)
    assert [point.region_epoch for point in published] == [17]


# Holds INV-FD5.
@pytest.mark.parametrize("left", [True, False])
async def test_T22_a_region_that_promised_is_no_drained_one_unless_its_last_tidemark_covers_all(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    """A failover to us was given up behind the promise; then a switch to it is ordered."""
    await pair.eu.driver.record(PromiseGiven(RegionEpoch(17), "us"))
    tail = Tail()
    if left:
        tail.take_decision(TailDecision(0, LeaderEpoch(1), 0, record(TxnStatus.EMPTY, 0)))

    async def beyond(_cut: Cut) -> Tail:
        return tail

    monkeypatch.setattr(pair.eu.answers, "_tail_beyond", beyond)
    message = AskDrain(operation_id="o", to_region="us", timeout_ms=60_000)
    if left:
        with pytest.raises(PeerRefused, match="only a failover"):
            await pair.eu.answers.drain(message)
    else:
        assert await pair.eu.answers.drain(message) == pair.eu.driver.outlook.known_claim().point


# Holds INV-FD5.
@pytest.mark.parametrize("status", [TxnStatus.PREPARE_COMMIT, TxnStatus.EMPTY, TxnStatus.ONGOING])
async def test_T31_a_drain_publishes_again_for_work_that_ended_behind_its_last_tidemark(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, status: TxnStatus
) -> None:
    """EndTxn passed the gate, the gate closed, the last round was taken, the decision was logged behind it.

    The same for a pair that InitProducerId gave out, and for a partition that joined: after the switch the client goes on
    with them (T22).
    """
    final_round, points = pair.eu.role.final_round, list[TidemarkPoint]()

    async def followed_by_a_decision() -> TidemarkPoint:
        points.append(await final_round())
        if len(points) == 1:
            decided_at = pair.eu.ledger.decide("t", 7, status)
            await pair.eu.ledger.shard(0).wait_committed(decided_at + 1)
        return points[-1]

    monkeypatch.setattr(pair.eu.role, "final_round", followed_by_a_decision)
    point = await pair.eu.answers.drain(
        AskDrain(operation_id="o", to_region="us", timeout_ms=60_000)
    )
    assert len(points) == 2
    assert point == points[1] > points[0]
