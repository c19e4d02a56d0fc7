"""T18-T23, T25-T27 and T31 for two regions, each on real logs, links and disks unless it is a pure rule."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from geo_replicator.directory import next_region_epoch
from geo_replicator.effects import Diverged
from geo_replicator.failover import Phase
from geo_replicator.failover_events import (
    Adopted,
    CutChosen,
    Event,
    HigherEpochLearned,
    LogsCut,
    PromiseGiven,
    ReturnBegun,
    Returned,
    TakeoverBegun,
)
from geo_replicator.lineage import (
    EMPTY_CUT,
    Cut,
    LineageEntry,
    LogKey,
    TidemarkPoint,
    lowest_base,
)
from geo_replicator.ports import LogHalted
from geo_replicator.quarantine import CutCause, Provenance
from idempotency.identity import (
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import TxnStatus
from region_broker.controller.metadata_image import OFFSETS_LEDGER, TIDEMARK_LEDGER
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.region.failover import log_surgery
from region_broker.region.failover.log_surgery import DivergedLogs, key_of
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.failover.steps import effects
from region_broker.region.failover.steps.effects import FailoverSteps
from region_broker.region.failover.steps.own_terms import OwnTerms
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.ports import RegionLog, Term
from tests.fixtures.failover_regions import ORDERS, Pair, Site, fail_over
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


def begin(site: Site) -> str:
    return site.operations.begin_failover(confirmed=True).operation_id


def hang_after(site: Site, event_type: type[Event]) -> asyncio.Event:
    """Let the journal hang right after an event of that type is durable; set the returned event then."""
    durable = asyncio.Event()
    append = site.journal.append

    async def hanging(event: Event) -> None:
        await append(event)
        if isinstance(event, event_type):
            durable.set()
            await asyncio.Event().wait()

    site.journal.append = hanging  # type: ignore[method-assign]
    return durable


async def wait(durable: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await durable.wait()


# Holds INV-FA3, INV-FS2.
@pytest.mark.parametrize("step", [TakeoverBegun, CutChosen, LogsCut, Adopted])
async def test_T18_a_candidate_killed_after_any_step_goes_on_where_it_was(
    pair: Pair, step: type[Event]
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    durable = hang_after(pair.us, step)
    begin(pair.us)
    await wait(durable)
    assert not pair.us.role.acting
    await pair.us.kill()
    await pair.us.start()
    await pair.us.until(Phase.ACTING)
    assert pair.us.role.region_epoch == 17
    assert b"first" in pair.us.values()
    await pair.us.write("second")
    assert len(pair.us.metadata.image.main_domain.lineage) == 1


# Holds INV-FA3.
@pytest.mark.parametrize("step", [HigherEpochLearned, ReturnBegun, Returned])
async def test_T18_a_returning_region_killed_after_any_step_goes_on_where_it_was(
    pair: Pair, step: type[Event]
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    await pair.eu.write("lost")
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    durable = await _start_hanging(pair.eu, step)
    await wait(durable)
    assert not pair.eu.role.acting
    await pair.eu.kill()
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    tails = [tail for tail in pair.eu.quarantine.tails() if tail.topic == ORDERS]
    assert [(tail.first_offset, tail.last_offset) for tail in tails] == [(1, 1)]
    assert b"lost" in b"".join(pair.eu.quarantine.chunks(tails[0]))


async def _start_hanging(site: Site, step: type[Event]) -> asyncio.Event:
    made: list[asyncio.Event] = []
    site.on_built = lambda built: made.append(hang_after(built, step))
    await site.start()
    site.on_built = None
    return made[0]


# Holds INV-LS2.
async def test_T18_a_cut_killed_between_two_logs_goes_on_and_moves_nothing_twice(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    for number in range(2):
        await pair.eu.write("lost", number=number)
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    moved = asyncio.Event()

    def hang_in_second_move(built: Site) -> None:
        move_in, count = built.quarantine.move_in, 0

        async def hanging(*args: object) -> object:
            nonlocal count
            count += 1
            if count == 2:
                moved.set()
                await asyncio.Event().wait()
            return await move_in(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(built.quarantine, "move_in", hanging)

    pair.eu.on_built = hang_in_second_move
    await pair.eu.start()
    pair.eu.on_built = None
    await wait(moved)
    await pair.eu.kill()
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    tails = [tail for tail in pair.eu.quarantine.tails() if tail.topic == ORDERS]
    assert sorted((tail.partition, tail.first_offset) for tail in tails) == [(0, 1), (1, 0)]


def test_T19_the_epoch_of_a_candidate_is_above_all_known_and_its_own() -> None:
    assert next_region_epoch([8], 1) == 2 << 3 | 1
    assert next_region_epoch([8, 17], 0) == 3 << 3
    assert next_region_epoch([8], 1) != next_region_epoch([8], 2)


# Holds INV-LS1.
async def test_T20_every_log_ends_at_its_position_and_the_tail_is_in_quarantine_first(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    cut_logs: list[TopicPartition] = []
    truncate = Partition.truncate_to

    def watched(partition: Partition, offset: int, *, settles: bool) -> None:
        tails = pair.us.quarantine.tails()
        place = partition.tp.topic, partition.tp.partition
        (tail,) = [tail for tail in tails if (tail.topic, tail.partition) == place]
        assert (tail.first_offset, tail.last_offset + 1) == (offset, partition.log_end_offset)
        cut_logs.append(partition.tp)
        truncate(partition, offset, settles=settles)

    cut = pair.us.tidemarks.claim()
    shards = [pair.us.ledger.shard(number) for number in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "truncate_to", watched)
        durable = hang_after(pair.us, LogsCut)
        begin(pair.us)
        await wait(durable)
    for log in pair.us.table:
        key = LogKey(log.topic_id, log.tp.partition)
        assert log.log_end_offset == cut.position_of(key), log.tp
    # L is the offset of the ROUND record: each shard had at least that one beyond the cut.
    assert sorted(cut_logs) == [shard.tp for shard in shards]
    assert pair.us.partition(0, TIDEMARK_LEDGER).log_end_offset == cut.position_of(
        LogKey(pair.us.partition(0, TIDEMARK_LEDGER).topic_id, 0)
    )


# Holds INV-SO7.
async def test_T20_nobody_copies_from_a_region_that_has_not_cut_its_own_logs_yet(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The candidate waits for a region that does not answer; another one has heard of the lineage, and is cut
    already."""
    await pair.eu.write("first")
    await pair.reached("first")
    caplog.set_level(logging.INFO)
    peers, all_answered = pair.us.driver.parts.peers, asyncio.Event()
    handshake_with_all = peers.handshake_with_all

    async def waiting_for_a_third(*, timeout_ms: int) -> Sequence[str]:
        answered = await handshake_with_all(timeout_ms=timeout_ms)
        await all_answered.wait()
        return answered

    monkeypatch.setattr(peers, "handshake_with_all", waiting_for_a_third)
    begin(pair.us)
    await pair.us.until(Phase.CUTTING)
    await pair.eu.until(Phase.MIRRORING)
    shard, cut_end = pair.eu.ledger.shard(0), pair.eu.ledger.shard(0).log_end_offset
    assert cut_end < pair.us.ledger.shard(0).log_end_offset  # rounds behind the cut are still there
    await until(lambda: "cuts its logs to where" in caplog.text or shard.log_end_offset > cut_end)
    assert shard.log_end_offset == cut_end
    all_answered.set()
    await pair.us.until(Phase.ACTING)
    await pair.us.write("second")
    await pair.eu.shows("second")


# Holds INV-LS4.
async def test_T20_nobody_copies_a_log_that_is_cut_late(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It had stopped as the others were cut, and can be read again when the region goes on."""
    await pair.eu.write("first")
    await pair.reached("first")
    caplog.set_level(logging.INFO)
    late, cut_logs, own_term = asyncio.Event(), log_surgery.cut_logs, OwnTerms.take
    uncut = pair.us.ledger.shard(0)

    async def all_but_one(logs: Iterable[RegionLog], *others: Any) -> list[Provenance]:
        chosen = [log for log in logs if late.is_set() or log is not uncut]
        return await cut_logs(chosen, *others)

    async def held(terms: OwnTerms, region_epoch: RegionEpoch) -> Term:
        await late.wait()
        return await own_term(terms, region_epoch)

    monkeypatch.setattr(effects, "cut_logs", all_but_one)
    monkeypatch.setattr(OwnTerms, "take", held)
    begin(pair.us)
    await pair.us.until(Phase.ADOPTING)
    await pair.eu.until(Phase.MIRRORING)
    shard, cut_end = pair.eu.ledger.shard(0), pair.eu.ledger.shard(0).log_end_offset
    assert cut_end < uncut.log_end_offset
    await until(lambda: "cuts its logs to where" in caplog.text or shard.log_end_offset > cut_end)
    assert shard.log_end_offset == cut_end
    late.set()
    await pair.us.until(Phase.ACTING)
    await pair.us.write("second")
    await pair.eu.shows("second")


async def fenced_with_a_late_cut(pair: Pair) -> Cut:
    """Let us act with one log uncut, which had stopped, promise itself away, and be killed; return where it took over."""
    await pair.eu.write("first")
    await pair.reached("first")
    cut = pair.us.tidemarks.claim()
    await pair.stop_tidemarks()
    await pair.eu.write("beyond", number=1)
    late = pair.us.partition(1)
    await until(lambda: late.high_watermark == 1, "it is copied")
    late.stop("a bit is flipped")
    await pair.eu.kill()
    await fail_over(pair.us)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    promised = hang_after(pair.eu, CutChosen)
    begin(pair.eu)
    await wait(promised)
    await pair.us.until(Phase.FENCED)
    await pair.us.kill()
    return cut


# Holds INV-LS4.
async def test_T20_a_candidate_copies_nothing_uncut_from_a_region_that_is_fenced_for_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of it had stopped as it cut the others; it has promised the next candidate, and is started again."""
    cut = await fenced_with_a_late_cut(pair)
    cut_logs, may_cut = log_surgery.cut_logs, asyncio.Event()

    async def held(*given: Any) -> list[Provenance]:
        await may_cut.wait()
        return await cut_logs(*given)

    monkeypatch.setattr(effects, "cut_logs", held)
    await pair.us.start()
    await pair.us.until(Phase.FENCED)
    late = pair.us.partition(1)
    assert (late.log_end_offset, cut.position_of(key_of(late))) == (1, 0)
    with pytest.raises(PeerRefused, match="cuts its logs to where region epoch 17 begins"):
        pair.us.source._admit(RegionEpoch(17), "eu")
    may_cut.set()
    await until(lambda: late.log_end_offset == 0, "the log is cut")
    pair.us.source._admit(RegionEpoch(17), "eu")
    (tail,) = [tail for tail in pair.us.quarantine.tails() if tail.topic == ORDERS]
    assert (tail.partition, tail.first_offset, tail.last_offset) == (1, 0, 0)


# Holds INV-LS4.
async def test_T20_nobody_copies_a_late_log_of_a_region_that_takes_over_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not cut that log yet; the others still know it as the one that acts."""
    await fenced_with_a_late_cut(pair)

    async def never(*_given: Any) -> list[Provenance]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(effects, "cut_logs", never)
    monkeypatch.setattr(FailoverSteps, "collect_promises", never)
    await pair.us.start()
    await pair.us.until(Phase.FENCED)
    begin(pair.us)
    await pair.us.until(Phase.FENCING)
    assert pair.us.partition(1).log_end_offset == 1
    with pytest.raises(PeerRefused, match="cuts its logs to where region epoch 17 begins"):
        pair.us.source._admit(RegionEpoch(17), "ap")


# Holds INV-LS4.
async def test_T20_a_disk_that_is_full_at_a_late_cut_ends_no_region_that_stands_fenced(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves nothing of the log, says why, and cuts it when there is room."""
    await fenced_with_a_late_cut(pair)
    full = True
    move_in = QuarantineStore.move_in

    async def moved(store: QuarantineStore, *given: Any) -> Provenance:
        if full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return await move_in(store, *given)

    monkeypatch.setattr(QuarantineStore, "move_in", moved)
    await pair.us.start()
    await pair.us.until(Phase.FENCED)
    await until(lambda: "no space left" in caplog.text, "it says why")
    assert pair.us.driver.running
    assert pair.us.driver.cut_is_owed()
    full = False
    await until(lambda: not pair.us.driver.cut_is_owed(), "the log is cut")
    assert pair.us.partition(1).log_end_offset == 0


# Holds INV-RR1.
async def test_T21_writes_open_after_ledgers_groups_and_the_first_tidemark(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    durable = hang_after(pair.us, Adopted)
    begin(pair.us)
    await wait(durable)
    assert not pair.us.role.acting
    assert pair.us.ledger.calls == ["adopt"]
    assert pair.us.groups.calls == ["load", "clamp"]
    assert pair.us.tidemarks.claim().point.region_epoch == 17


async def test_T21_transactions_open_in_partitions_are_handed_to_adoption(pair: Pair) -> None:
    origin = Origin(ProducerId(4711), ProducerEpoch(0), SequenceNumber(0), transactional=True)
    batch = build_batch([Record(None, b"half")], origin=origin)
    outcome = pair.eu.partition().writer.append(batch)
    await pair.eu.partition().wait_committed(outcome.next_offset)
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    await fail_over(pair.us)
    ((tp, found),) = pair.us.ledger.adopted[0]
    assert tp == TopicPartition(TopicName(ORDERS), 0)
    assert (found.producer_id, found.first_offset) == (4711, outcome.base_offset)


async def test_T22_a_plain_idempotent_producer_may_leave_one_gap_below_the_cut(pair: Pair) -> None:
    await pair.eu.write("first", producer_id=4711, sequence=0)
    await pair.reached("first")
    await pair.eu.kill()
    await fail_over(pair.us)
    first_again = build_batch(
        [Record(None, b"first")],
        origin=Origin(ProducerId(4711), ProducerEpoch(0), SequenceNumber(0)),
    )
    assert pair.us.partition().writer.append(first_again).verdict is AppendVerdict.DUPLICATE
    assert pair.us.partition().writer.append(first_again).base_offset == 0
    # Sequence 1 was acknowledged at the primary and never arrived: the gap is taken once.
    third = build_batch(
        [Record(None, b"third")],
        origin=Origin(ProducerId(4711), ProducerEpoch(0), SequenceNumber(2)),
    )
    assert pair.us.partition().writer.append(third).verdict is AppendVerdict.APPENDED
    fifth = build_batch(
        [Record(None, b"fifth")],
        origin=Origin(ProducerId(4711), ProducerEpoch(0), SequenceNumber(4)),
    )
    assert pair.us.partition().writer.append(fifth).verdict is AppendVerdict.OUT_OF_ORDER_SEQUENCE


async def test_T23_a_returning_region_keeps_nothing_beyond_the_base(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    await pair.eu.write("lost")
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    await pair.us.write("instead")
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    await pair.eu.shows("instead")
    for number in range(2):
        assert pair.eu.raw(number) == pair.us.raw(number)


# Holds INV-LN3.
def test_T23_a_region_several_epochs_behind_cuts_to_the_lowest_base() -> None:
    log = LogKey(UUID(int=1), 0)
    entries = (
        LineageEntry(RegionEpoch(17), "us", TidemarkPoint(RegionEpoch(8), 7), {log: 70}),
        LineageEntry(RegionEpoch(26), "ap", TidemarkPoint(RegionEpoch(8), 5), {log: 50}),
    )
    assert lowest_base(entries).position_of(log) == 50
    assert lowest_base(entries).point == TidemarkPoint(RegionEpoch(8), 5)


async def test_T25_the_lineage_is_stored_at_both_regions(pair: Pair) -> None:
    operation = pair.us.operations.begin_switch()
    await pair.us.until(Phase.ACTING)
    await pair.eu.until(Phase.MIRRORING)
    assert operation.region_epoch == 17
    assert pair.us.metadata.image.main_domain == pair.eu.metadata.image.main_domain


async def test_T26_groups_are_clamped_to_the_ends_of_the_cut_logs_before_writes_open(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.kill()
    durable = hang_after(pair.us, Adopted)
    begin(pair.us)
    await wait(durable)
    assert not pair.us.role.acting
    (ends,) = pair.us.groups.clamped
    assert ends[TopicPartition(TopicName(ORDERS), 0)] == 1
    assert ends[TopicPartition(TopicName(ORDERS), 1)] == 0
    assert TopicPartition(TopicName(OFFSETS_LEDGER), 0) in ends


# Holds INV-FD3.
async def test_T31_a_primary_region_that_learns_of_a_higher_epoch_fences_itself_at_once(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    hello = pair.us.driver.hello()
    higher = type(hello)(
        cluster_id=hello.cluster_id,
        region="us",
        node_id=2,
        region_epoch=RegionEpoch(17),
        acting_region="us",
    )
    pair.eu.driver.learn(higher)
    assert not pair.eu.role.acting
    await pair.eu.until(Phase.FENCED)


# Holds INV-FD4.
async def test_T24_a_region_that_promised_does_not_act_after_a_restart(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    durable = hang_after(pair.us, TakeoverBegun)
    pair.us.operations.begin_switch()
    await wait(durable)
    await pair.us.kill()
    await pair.us.start()  # it asks for its promise, planned, while the primary is still drained
    await pair.us.until(Phase.ACTING)
    assert pair.eu.driver.state.promise.region_epoch == 17
    await pair.eu.until(Phase.MIRRORING)


async def test_T31_a_region_that_promised_in_vain_takes_over_from_itself_and_loses_nothing(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    # The candidate asks by force, gets its promise, and dies for good.
    durable = hang_after(pair.us, TakeoverBegun)
    await pair.eu.driver.record(PromiseGiven(RegionEpoch(17), "us"))
    await pair.us.kill()
    assert not durable.is_set()
    await pair.eu.until(Phase.FENCED)
    assert not pair.eu.role.acting
    await fail_over(pair.eu)
    assert pair.eu.role.region_epoch == 24
    assert b"first" in pair.eu.values()
    assert all(losses.plain_record_count == 0 for losses in await pair.eu.operations.losses())
    await pair.us.start()
    await pair.us.until(Phase.MIRRORING)
    await pair.eu.write("second")
    await pair.us.shows("second")


async def test_T31_writes_under_way_when_a_region_is_fenced_are_not_acknowledged(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.eu.driver.record(PromiseGiven(RegionEpoch(17), "us"))
    await pair.eu.until(Phase.FENCED)
    await until(lambda: not pair.eu.partition().is_leader, "it is fenced: it stands still")
    late = build_batch([Record(None, b"late")])
    assert pair.eu.partition().writer.append(late).verdict is AppendVerdict.NOT_LEADER
    assert b"first" in pair.eu.values()


async def test_T31_a_tail_is_a_loss_of_the_takeover_that_cut_it_off_not_of_a_later_one(
    pair: Pair,
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    await pair.eu.write("lost")
    decided_at = pair.eu.ledger.decide("pay-1", 4712, TxnStatus.PREPARE_COMMIT)
    await pair.eu.ledger.shard(0).wait_committed(decided_at + 1)
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    await pair.us.write("instead")
    # The second takeover: a promise in vain, so `us` takes over from itself, far beyond the first base.
    await pair.us.driver.record(PromiseGiven(RegionEpoch(24), "eu"))
    await pair.us.until(Phase.FENCED)
    await fail_over(pair.us)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    (losses,) = await pair.eu.operations.losses()
    assert losses.lineage_epoch == 17
    assert losses.unexplained == ()
    assert (losses.plain_record_count, losses.not_arrived_count) == (1, 1)


def _is_killed(_offset: int, *, settles: bool) -> None:
    assert not settles
    raise OSError("killed")


async def test_INV_LO5_a_tail_that_diverged_is_no_loss_of_the_takeover_that_is_followed(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    for value in ("lost-1", "lost-2"):
        await pair.eu.write(value)
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    await pair.us.write("of the new primary")
    await pair.eu.start()
    await pair.eu.shows("of the new primary")
    log = pair.eu.partition()
    killed = QuarantineStore(RealDisk(), pair.eu.folder / "quarantine")
    diverged, before = (
        DivergedLogs(lambda: pair.eu.table, store, pair.eu._cut_reason, lambda: EMPTY_CUT)
        for store in (pair.eu.quarantine, killed)
    )
    parted = Diverged(key_of(log), log.sight.leader_epoch, 1, log.log_end_offset)
    with monkeypatch.context() as patched:
        patched.setattr(log, "truncate_to", _is_killed)
        with pytest.raises(LogHalted, match="killed"):
            await before.diverged([parted])  # a life that ended between quarantine and cut
    assert pair.eu.quarantine.diverged_records == 0
    await diverged.diverged([parted])
    assert pair.eu.quarantine.diverged_records == parted.mirror_end_offset - 1
    assert "copied here, and region us does not hold them" in caplog.text
    by_cause = {losses.cause: losses for losses in await pair.eu.operations.losses()}
    assert by_cause[CutCause.LINEAGE].plain_record_count == 2
    assert by_cause[CutCause.LINEAGE].unexplained == ()
    assert by_cause[CutCause.DIVERGENCE].plain_record_count == 1
    assert by_cause[CutCause.DIVERGENCE].statement is None
    kept = b"".join(
        chunk for tail in pair.eu.quarantine.tails() for chunk in pair.eu.quarantine.chunks(tail)
    )
    assert all(value in kept for value in (b"lost-1", b"lost-2", b"of the new primary"))


async def test_T25_a_takeover_begun_again_names_what_the_one_that_was_given_up_cut_off(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    stuck = asyncio.Event()

    async def never_entered(_round: int) -> object:
        stuck.set()
        return await asyncio.Future()

    monkeypatch.setattr(pair.eu.ledger, "enter_round", never_entered)
    await pair.eu.write("copied, and under no tidemark")
    await stuck.wait()
    decided_at = pair.eu.ledger.decide("pay-1", 4712, TxnStatus.PREPARE_COMMIT)
    await pair.eu.ledger.shard(0).wait_committed(decided_at + 1)
    await until(lambda: pair.us.partition().log_end_offset == 2, "the record is copied")
    await until(lambda: pair.us.ledger.shard(0).log_end_offset > decided_at, "so is the decision")
    await pair.eu.kill()

    async def never_adopted(_effect: object) -> object:
        return await asyncio.Future()

    monkeypatch.setattr(pair.us.driver.steps, "adopt", never_adopted)
    begin(pair.us)
    await pair.us.until(Phase.ADOPTING)
    assert pair.us.partition().log_end_offset == 1
    await pair.us.driver.record(PromiseGiven(RegionEpoch(24), "eu"))
    await pair.us.until(Phase.FENCED)
    monkeypatch.undo()
    statement = await pair.us.operations.statement()
    assert [lost.transactional_id for lost in statement.transactions] == ["pay-1"]
    assert [(lost.first_offset, lost.last_offset) for lost in statement.plain] == [(1, 1)]
    await fail_over(pair.us)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    (losses,) = await pair.eu.operations.losses()
    assert (losses.lineage_epoch, losses.unexplained, losses.named_count) == (17, (), 1)


async def test_INV_QS3_a_tail_that_the_disk_changed_does_not_hide_the_others(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.us.kill()
    for number in range(2):
        await pair.eu.write("lost", number=number)
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    (whole,) = await pair.eu.operations.losses()
    assert (whole.plain_record_count, whole.exact) == (2, True)
    folders = (pair.eu.folder / "quarantine").rglob("*.batches")
    spoilt = next(
        path for path in folders if path.parent.name.endswith("-0") and b"lost" in path.read_bytes()
    )
    spoilt.write_bytes(spoilt.read_bytes()[:-1])
    pair.eu.operations._losses.clear()
    (losses,) = await pair.eu.operations.losses()
    assert losses.plain_record_count == 1
    assert not losses.exact
    assert len(losses.unreadable) == 1
