"""Rules T1-T9 and T17 of the tidemark protocol, each named by the tests that hold it.

T2, T3 and T5 run against the real coordinator and real logs; the rest against the pure cores. Expected
values are the rules' own words (docs/INVARIANTS.md, section tidemarks).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from geo_replicator.cut_rounds import AnswerVerdict, Collection, LogAnswer, RoundPhase, RoundsCore
from geo_replicator.effects import (
    CollectPositions,
    EnterRound,
    PublishTidemark,
    RecordTerm,
    ReleaseRound,
)
from geo_replicator.events import (
    IntervalChanged,
    PositionsCollected,
    ShardEntered,
    SomethingChanged,
    TermRecorded,
    TidemarkDurable,
    TimePassed,
)
from geo_replicator.lineage import LogKey
from geo_replicator.tidemark import LogPosition
from geo_replicator.topology import LedgerTopics
from idempotency.decision import round_of
from idempotency.identity import CoordinatorEpoch, ProducerEpoch, ProducerId, Round, SequenceNumber
from idempotency.ledger_records import TransactionKey, decode_key, decode_transaction_value
from idempotency.record_batch import ControlType, iter_headers, read_marker
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.records.batches import Origin, Record, build_batch
from tests.fixtures.coordinator_driver import listed
from tests.fixtures.linked_regions import SHARD_COUNT, Site, running, tp
from tests.fixtures.node_logs import append_marker
from tests.fixtures.waiting import until

TERM = CoordinatorEpoch(8 << 16 | 1)
LEDGERS = LedgerTopics(UUID(int=1), UUID(int=2))
P0, P1 = LogKey(UUID(int=10), 0), LogKey(UUID(int=10), 1)


def core() -> RoundsCore:
    """A cut leader of two shards, which begins its term."""
    made = RoundsCore(term=TERM, shard_count=2, interval_ms=50)
    assert made.start() == [RecordTerm(TERM)]
    return made


def entered(number: int, shard: int, offset: int = 7, *, holds: bool = False) -> ShardEntered:
    return ShardEntered(round_of(TERM, number), shard, TERM, offset, holds)


def publish(made: RoundsCore, number: int, *, now_ms: int, holds: bool = False) -> None:
    """Take a core from ENTER of round `number` to its tidemark."""
    made.step(entered(number, 0), now_ms=now_ms)
    effects = made.step(entered(number, 1, holds=holds), now_ms=now_ms)
    assert effects[-1] == CollectPositions(round_of(TERM, number))
    made.step(PositionsCollected(round_of(TERM, number)), now_ms=now_ms)
    made.step(TidemarkDurable(round_of(TERM, number)), now_ms=now_ms)


# T1, T4: the cut leader.


# Holds INV-RD1.
def test_T1_nothing_is_sent_before_the_own_term_record_is_below_hw() -> None:
    made = core()
    assert made.step(SomethingChanged(urgent=True), now_ms=0) == []
    assert made.step(TimePassed(), now_ms=10_000) == []
    assert made.step(TermRecorded(), now_ms=10_000) == [EnterRound(Round(TERM << 32 | 1))]


# Holds INV-RD2.
def test_T1_a_later_term_has_higher_rounds_and_no_number_is_driven_again() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    publish(made, 1, now_ms=0)
    assert made.step(SomethingChanged(urgent=True), now_ms=0) == [EnterRound(Round(TERM << 32 | 2))]
    assert round_of(TERM + 1, 1) > round_of(TERM, 2**32 - 1)


# Holds INV-RD3.
def test_T1_only_rounds_started_and_closed_in_this_term_are_published() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    old = ShardEntered(round_of(TERM - 1, 1), 0, CoordinatorEpoch(TERM - 1), 3)
    assert made.step(old, now_ms=1) == []
    made.step(entered(1, 1), now_ms=1)
    assert made.closed_count == 0


def test_T4_closed_when_all_shards_entered_then_release_then_collect() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    assert made.step(entered(1, 0, offset=5), now_ms=1) == []
    number = round_of(TERM, 1)
    assert made.step(entered(1, 1, offset=9), now_ms=2) == [
        ReleaseRound(number),
        CollectPositions(number),
    ]
    assert made.step(PositionsCollected(number), now_ms=3) == [
        PublishTidemark(number, {0: 5, 1: 9})
    ]


# Holds INV-RD3, INV-RD4.
def test_T4_missing_shard_abandons_the_round_which_is_released_and_never_published() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    made.step(entered(1, 0), now_ms=1)
    assert made.wake_at_ms == 250
    assert made.step(TimePassed(), now_ms=249) == []
    assert made.step(TimePassed(), now_ms=250) == [ReleaseRound(round_of(TERM, 1))]
    assert made.step(entered(1, 1), now_ms=251) == []
    later = made.step(TimePassed(), now_ms=10_000)
    assert later == [EnterRound(round_of(TERM, 2))]
    assert (made.closed_count, made.abandoned_count) == (0, 1)


def test_T4_time_out_is_four_times_the_usual_closing_time_when_that_is_longer() -> None:
    made = core()
    now_ms = 0
    made.step(TermRecorded(), now_ms=now_ms)
    for number in range(1, 60):
        publish(made, number, now_ms=now_ms + 200)
        now_ms += 2_000
        made.step(SomethingChanged(), now_ms=now_ms)
    assert made.wake_at_ms is not None
    assert 790 <= made.wake_at_ms - now_ms <= 800


def rest_after(
    made: RoundsCore, numbers: range, started_ms: int, *, holds: bool
) -> tuple[int, int]:
    """Drive rounds that each take 20 ms to close; return the last rest and the start of the next, in ms."""
    rest_ms = 0
    for number in numbers:
        publish(made, number, now_ms=started_ms + 20, holds=holds)
        assert made.step(SomethingChanged(), now_ms=started_ms + 21) == []
        assert made.wake_at_ms is not None
        rest_ms = made.wake_at_ms - started_ms
        started_ms = made.wake_at_ms
        assert made.step(TimePassed(), now_ms=started_ms) == [
            EnterRound(round_of(TERM, number + 1))
        ]
    return rest_ms, started_ms


# Holds INV-RD6.
def test_T4_rounds_rest_at_least_the_interval_and_ten_usual_closing_times() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    rest_ms, _ = rest_after(made, range(1, 61), 0, holds=True)
    assert 199 <= rest_ms <= 200


def test_T4_rounds_that_hold_nobody_rest_three_usual_closing_times() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    rest_ms, started_ms = rest_after(made, range(1, 61), 0, holds=False)
    assert 59 <= rest_ms <= 60
    rest_ms, started_ms = rest_after(made, range(61, 62), started_ms, holds=True)
    assert 199 <= rest_ms <= 200
    rest_ms, started_ms = rest_after(made, range(62, 77), started_ms, holds=False)
    assert 199 <= rest_ms <= 200, "one that held stands for a while"
    rest_ms, _ = rest_after(made, range(77, 78), started_ms, holds=False)
    assert 59 <= rest_ms <= 60


def test_T4_a_round_that_was_given_up_is_taken_for_one_that_held() -> None:
    """Who did not answer did not say that it holds nobody."""
    made = core()
    made.step(TermRecorded(), now_ms=0)
    _, started_ms = rest_after(made, range(1, 61), 0, holds=False)
    given_up = made.step(TimePassed(), now_ms=started_ms + 250)
    assert given_up == [ReleaseRound(round_of(TERM, 61))]
    assert made.wake_at_ms is not None
    assert 480 <= made.wake_at_ms - started_ms <= 490  # ten times 20 + (250 - 20) / 8


def test_a_phase_that_does_not_follow_by_the_table_is_a_mistake_of_ours() -> None:
    made = core()
    with pytest.raises(AssertionError):
        made._go_to(RoundPhase.PUBLISHING)


def test_T4_one_slow_closing_counts_for_an_eighth() -> None:
    """A disk that hiccups for 100 ms must not keep mirrors without a tidemark for a second."""
    made = core()
    made.step(TermRecorded(), now_ms=0)
    publish(made, 1, now_ms=100)
    assert made.step(SomethingChanged(), now_ms=101) == []
    assert made.wake_at_ms == 125


def test_T4_a_process_that_stood_still_in_a_round_does_not_rest_ten_times_as_long() -> None:
    """Stopped for 10 s in mid-round, the primary published nothing for 100 s: all that would have been lost."""
    made = core()
    made.step(TermRecorded(), now_ms=0)
    publish(made, 1, now_ms=10_000)
    made.step(SomethingChanged(), now_ms=10_001)
    assert made.phase is RoundPhase.ENTERING
    assert made.wake_at_ms is not None
    assert made.wake_at_ms - 10_001 <= 2_000


def test_T4_shards_that_always_need_longer_than_the_least_hold_get_it() -> None:
    """Rounds given up teach, too: else a disk of 300 ms would end tidemarks for good."""
    made = core()
    made.step(TermRecorded(), now_ms=0)
    started_ms = 0
    for number in range(1, 100):
        assert made.wake_at_ms is not None
        if made.wake_at_ms - started_ms > 300:
            made.step(entered(number, 0), now_ms=started_ms + 300)
            made.step(entered(number, 1), now_ms=started_ms + 300)
            break
        made.step(TimePassed(), now_ms=started_ms + 250)
        started_ms += 10_000
        made.step(TimePassed(), now_ms=started_ms)
    assert made.closed_count == 1
    assert made.abandoned_count < 10


# Holds INV-RD6.
def test_T4_no_change_no_round() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    publish(made, 1, now_ms=1)
    assert made.wake_at_ms is None
    assert made.step(TimePassed(), now_ms=1_000_000) == []


def test_T4_who_waits_does_not_wait_for_the_interval() -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    publish(made, 1, now_ms=20)
    assert made.step(SomethingChanged(urgent=True), now_ms=21) == [EnterRound(round_of(TERM, 2))]


# Holds INV-RD6.
@pytest.mark.parametrize(("interval_ms", "due_ms"), [(500, 500), (30, 30), (1, 2)])
def test_T4_a_changed_interval_counts_from_the_last_round_on(interval_ms: int, due_ms: int) -> None:
    made = core()
    made.step(TermRecorded(), now_ms=0)
    publish(made, 1, now_ms=2)  # 10 times an eighth of 2 ms is what the disk needs
    assert made.step(SomethingChanged(), now_ms=2) == []
    assert made.wake_at_ms == 50
    made.step(IntervalChanged(interval_ms), now_ms=2)
    if due_ms > 2:
        assert made.wake_at_ms == due_ms
        assert made.step(TimePassed(), now_ms=due_ms - 1) == []
        made.step(TimePassed(), now_ms=due_ms)
    assert made.round == round_of(TERM, 2)


@pytest.mark.parametrize("begun", [False, True])
def test_T4_an_interval_may_change_in_every_phase(begun: bool) -> None:
    made = core()
    made.step(IntervalChanged(10), now_ms=0)
    made.step(TermRecorded(), now_ms=0)
    assert made.phase is RoundPhase.ENTERING, "the first round waits for nothing"
    if begun:
        made.step(IntervalChanged(70), now_ms=0)
    publish(made, 1, now_ms=1)
    made.step(SomethingChanged(), now_ms=1)
    assert made.wake_at_ms == (70 if begun else 10)


# T2, T3, T5, T8: with the real coordinator.


@asynccontextmanager
async def primary_site(folder: Path) -> AsyncIterator[Site]:
    """A primary region with its coordinator loaded, and no cut leader: the tests drive the rounds."""
    site = Site(folder, "primary")
    async with running() as tasks:
        site.start(tasks)
        leader = await site.act(tasks)
        await until(lambda: leader.published.number > 0, what="the first tidemark")
        for task in asyncio.all_tasks():
            if "CutLeader.run" in repr(task.get_coro()):
                task.cancel()
                await asyncio.wait([task])
        await site.create_topic("orders", 2)
        yield site


async def write_one(site: Site, transactional_id: str, number: int = 0) -> tuple[int, int]:
    """Begin a transaction and write one record; return producer id and epoch."""
    made = await site.coordinator.clients.init_producer_id(transactional_id, 60_000)
    orders = tp("orders", number)
    await site.coordinator.clients.add_partitions(
        transactional_id, made.producer_id, made.producer_epoch, [orders], implicit=False
    )
    origin = Origin(made.producer_id, made.producer_epoch, SequenceNumber(0), transactional=True)
    outcome = site.partition("orders", number).writer.append(
        build_batch([Record(None, b"x", timestamp_ms=1)], origin=origin)
    )
    assert outcome.verdict is AppendVerdict.APPENDED
    await site.partition("orders", number).wait_committed(outcome.next_offset)
    return made.producer_id, made.producer_epoch


def markers_in(partition: Partition) -> list[tuple[int, ControlType, Round]]:
    """Return (offset, type, stamp) of all markers below HW."""
    data = partition.reader.read_raw(partition.log_start_offset, 1 << 20)
    found = []
    for start, header in iter_headers(data):
        if header.is_control:
            marker = read_marker(data[start : start + header.size_bytes])
            assert marker.decision is not None
            found.append((header.base_offset, marker.control_type, marker.decision.stamp))
    return found


def decisions_in(site: Site) -> list[tuple[str, int, int, Round | None]]:
    """Return (transactional id, shard, offset, stamp) of every PREPARE record in the ledger."""
    ledger = PartitionTransactionLog(site.partitions, site.clock, SHARD_COUNT)
    found = []
    for shard in range(SHARD_COUNT):
        for position, key, value in ledger.replay(shard):
            named = decode_key(key)
            if not isinstance(named, TransactionKey) or value is None:
                continue
            record = decode_transaction_value(named.transactional_id, value)
            if record.status.is_prepared:
                found.append((named.transactional_id, shard, position.offset, record.stamp))
    return found


async def test_T2_decisions_below_L_have_a_lower_stamp_and_those_above_have_the_round(
    tmp_path: Path,
) -> None:
    async with primary_site(tmp_path) as site:
        producer_id, epoch = await write_one(site, "before")
        await site.coordinator.clients.end_txn(
            "before", ProducerId(producer_id), ProducerEpoch(epoch), True, 1
        )
        later_id, later_epoch = await write_one(site, "after", 1)
        number = round_of(TERM, 100)
        answers = await site.coordinator.rounds.enter_round(number)
        await site.coordinator.clients.end_txn(
            "after", ProducerId(later_id), ProducerEpoch(later_epoch), True, 1
        )
        decisions = decisions_in(site)
        assert {name for name, _, _, _ in decisions} == {"before", "after"}
        for name, shard, offset, stamp in decisions:
            assert (offset < answers[shard].ledger_offset) == (name == "before")
            assert stamp is not None
            assert (stamp < number) == (name == "before")
            assert name == "before" or stamp == number


async def test_T2_a_repeated_enter_is_answered_with_the_same_L(tmp_path: Path) -> None:
    async with primary_site(tmp_path) as site:
        first = await site.coordinator.rounds.enter_round(round_of(TERM, 100))
        again = await site.coordinator.rounds.enter_round(round_of(TERM, 100))
        assert {shard: answer.ledger_offset for shard, answer in first.items()} == {
            shard: answer.ledger_offset for shard, answer in again.items()
        }
        assert sorted(first) == [0, 1]
        assert await site.coordinator.rounds.enter_round(round_of(TERM, 99)) == {}


async def test_T3_commit_markers_of_the_round_wait_for_its_release(tmp_path: Path) -> None:
    async with primary_site(tmp_path) as site:
        producer_id, epoch = await write_one(site, "held")
        number = round_of(TERM, 100)
        await site.coordinator.rounds.enter_round(number)
        await site.coordinator.clients.end_txn(
            "held", ProducerId(producer_id), ProducerEpoch(epoch), True, 1
        )
        for _ in range(200):
            await asyncio.sleep(0)
        assert markers_in(site.partition("orders")) == []
        assert site.partition("orders").sight.last_stable_offset == 0
        site.coordinator.rounds.release(number)
        await until(lambda: len(markers_in(site.partition("orders"))) == 1, what="the marker")
        assert markers_in(site.partition("orders")) == [(1, ControlType.COMMIT, number)]


async def test_T3_entering_the_next_round_frees_the_older_stamps(tmp_path: Path) -> None:
    async with primary_site(tmp_path) as site:
        producer_id, epoch = await write_one(site, "held")
        await site.coordinator.rounds.enter_round(round_of(TERM, 100))
        await site.coordinator.clients.end_txn(
            "held", ProducerId(producer_id), ProducerEpoch(epoch), True, 1
        )
        await site.coordinator.rounds.enter_round(round_of(TERM, 101))
        await until(lambda: len(markers_in(site.partition("orders"))) == 1, what="the marker")


async def test_T5_abort_markers_are_not_held_and_do_not_stop_D(tmp_path: Path) -> None:
    async with primary_site(tmp_path) as site:
        producer_id, epoch = await write_one(site, "aborted")
        number = round_of(TERM, 100)
        await site.coordinator.rounds.enter_round(number)
        await site.coordinator.clients.end_txn(
            "aborted", ProducerId(producer_id), ProducerEpoch(epoch), False, 1
        )
        partition = site.partition("orders")
        await until(lambda: len(markers_in(partition)) == 1, what="the abort marker")
        assert partition.state.first_commit_marker(number) is None


# Holds INV-TK2.
async def test_T6_a_marker_sent_again_is_confirmed_without_a_second_one(tmp_path: Path) -> None:
    async with primary_site(tmp_path) as site:
        producer_id, epoch = await write_one(site, "twice")
        await site.coordinator.clients.end_txn(
            "twice", ProducerId(producer_id), ProducerEpoch(epoch), True, 1
        )
        site.coordinator.rounds.release(Round(listed(site.coordinator)[0].stamp or 0))
        await until(lambda: len(markers_in(site.partition("orders"))) == 1, what="the marker")
        decision = next(
            record.decision
            for record in listed(site.coordinator)
            if record.transactional_id == "twice"
        )
        outcome = append_marker(
            site.partition("orders"),
            producer_id=producer_id,
            producer_epoch=epoch,
            control_type=ControlType.COMMIT,
            coordinator_epoch=TERM,
            decision=decision,
            timestamp_ms=1,
        )
        assert outcome.verdict is AppendVerdict.MARKER_ALREADY_APPLIED


async def test_T7_first_commit_marker_of_a_round_is_found_in_the_partition(tmp_path: Path) -> None:
    async with primary_site(tmp_path) as site:
        producer_id, epoch = await write_one(site, "marked")
        number = round_of(TERM, 100)
        await site.coordinator.rounds.enter_round(number)
        site.coordinator.rounds.release(number)
        await site.coordinator.clients.end_txn(
            "marked", ProducerId(producer_id), ProducerEpoch(epoch), True, 1
        )
        await until(lambda: len(markers_in(site.partition("orders"))) == 1, what="the marker")
        state = site.partition("orders").state
        assert state.first_commit_marker(number) == 1
        assert state.first_commit_marker(round_of(TERM, 101)) is None


# T9: collecting D.


def answer(**changes: int | None) -> LogAnswer:
    facts: dict[str, int | None] = {
        "leader_epoch": TERM,
        "leader_epoch_start_offset": 0,
        "high_watermark": 10,
        "log_start_offset": 0,
        "first_commit_marker": None,
    } | changes
    return LogAnswer(key=P0, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(("marker", "cut_offset"), [(None, 10), (4, 4), (10, 10), (12, 10)])
def test_T9_D_is_the_smaller_of_hw_and_the_first_commit_marker(
    marker: int | None, cut_offset: int
) -> None:
    collection = Collection(Round(1), {P0: TERM})
    assert collection.take(answer(first_commit_marker=marker)) is AnswerVerdict.TAKEN
    assert collection.positions == {P0: LogPosition(cut_offset, 0)}


# Holds INV-RD5.
def test_T9_leader_whose_hw_does_not_cover_its_epochs_start_is_asked_again() -> None:
    """H5: a leader just elected has a lagging HW."""
    collection = Collection(Round(1), {P0: TERM})
    late = answer(high_watermark=9, leader_epoch_start_offset=10)
    assert collection.take(late) is AnswerVerdict.NOT_READY
    assert collection.missing == (P0,)


def test_T9_deposed_leader_does_not_count_and_newer_metadata_is_noticed() -> None:
    """H5b."""
    collection = Collection(Round(1), {P0: TERM})
    assert collection.take(answer(leader_epoch=TERM - 1)) is AnswerVerdict.DEPOSED
    assert collection.take(answer(leader_epoch=TERM + 1)) is AnswerVerdict.NEWER_METADATA
    assert collection.missing == (P0,)


def test_T9_every_log_of_the_metadata_must_answer() -> None:
    collection = Collection(Round(1), {P0: TERM, P1: TERM})
    collection.take(answer())
    assert collection.missing == (P1,)


# T17: what a mirror shows.


async def test_T17_lso_and_aborted_list_know_only_markers_below_D(tmp_path: Path) -> None:
    """H10: the marker was copied but lies above D: the transaction is still open for readers."""
    async with primary_site(tmp_path / "primary") as primary:
        producer_id, epoch = await write_one(primary, "straddles")
        await primary.coordinator.clients.end_txn(
            "straddles", ProducerId(producer_id), ProducerEpoch(epoch), False, 1
        )
        source = primary.partition("orders")
        await until(lambda: len(markers_in(source)) == 1, what="the abort marker")
        mirror = Site(tmp_path / "mirror", "mirror")
        (first, _) = mirror.partitions.open_topic(primary.metadata.image.topics["orders"])
        first.become_mirror()
        first.writer.append_mirrored(source.reader.read_raw(0, 1 << 20))
        await mirror.group_commit.sync_group()
        assert first.high_watermark == 2
        first.show_up_to(1, 1)
        assert (first.sight.visible_end, first.sight.last_stable_offset) == (1, 0)
        assert first.log.aborted_in(0, 1, first.sight.visible_end) == []
        first.show_up_to(2, 2)
        assert (first.sight.visible_end, first.sight.last_stable_offset) == (2, 2)
        assert [txn.producer_id for txn in first.log.aborted_in(0, 2, 2)] == [producer_id]


async def test_T17_showing_never_goes_down(tmp_path: Path) -> None:
    async with primary_site(tmp_path) as site:
        await site.produce("orders", b"a", b"b")
        partition = site.partition("orders")
        partition.become_mirror()
        partition.show_up_to(2, 2)
        partition.show_up_to(1, 1)
        assert partition.sight.visible_end == 2
