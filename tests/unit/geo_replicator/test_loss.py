"""Loss statements and losses: what is named, what stays open, and whether the two agree."""

from uuid import UUID

import msgspec
import pytest

from geo_replicator.counted_losses import Quarantined, count_losses
from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from geo_replicator.link.topic_changes import TopicChanges
from geo_replicator.loss import (
    LogBound,
    LossStatement,
    Takeover,
    make_statement,
)
from geo_replicator.tail import GroupCommit, Tail, TailDecision
from geo_replicator.topology import MirrorTopic
from idempotency.identity import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.record_batch import CONTROL_BIT
from tests.fixtures.kernel_batches import data
from tests.fixtures.tails import TailBatch, TailCommit, tail_of

ORDERS, LEDGER, OFFSETS = (LogKey(UUID(int=number), number - 1) for number in (1, 2, 3))
TP = TopicPartition(TopicName("orders"), 0)
CUT = Cut(TidemarkPoint(RegionEpoch(8), 5), {ORDERS: 10, LEDGER: 100}, published_wall_ms=4_000)


def decision(offset: int, status: TxnStatus, name: str = "pay-1") -> TailDecision:
    record = TransactionRecord(
        transactional_id=name,
        producer_id=ProducerId(4711),
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=ProducerEpoch(3),
        last_producer_epoch=ProducerEpoch(2),
        timeout_ms=60_000,
        status=status,
        partitions=(TP,),
        last_update_ms=5_000,
        start_ms=4_500,
        stamp=Round(77),
    )
    return TailDecision(shard=1, leader_epoch=LeaderEpoch(8 << 16), offset=offset, record=record)


def batch(offset: int, *, transactional: bool = False, producer_id: int = 4711) -> TailBatch:
    header = data(
        offset, sequence=offset, count=2, producer_id=producer_id, producer_epoch=3,
        transactional=transactional,
    )  # fmt: skip
    return TailBatch(ORDERS, "orders", header)


def bounds(copied: int, copied_ledger: int) -> list[LogBound]:
    return [
        LogBound(topic="orders", topic_id=ORDERS.topic_id.hex, partition=0, cut=10, copied_end=copied),
        LogBound(
            topic="__transaction_state", topic_id=LEDGER.topic_id.hex, partition=1, cut=100,
            copied_end=copied_ledger,
        ),
    ]  # fmt: skip


def statement(tail: Tail, *, planned: bool = False) -> LossStatement:
    takeover = Takeover("main", "eu", "us", RegionEpoch(17), planned, 250)
    return make_statement(takeover, CUT, bounds(14, 102), tail, now_wall_ms=4_300)


def test_a_statement_says_its_age_and_what_is_open() -> None:
    stated = statement(tail_of([], []))
    assert (stated.tidemark_number, stated.age_ms) == (5, 300)
    assert "250 ms ago" in stated.open_bound
    assert statement(tail_of([], []), planned=True).open_bound.startswith("nothing")


# Holds INV-LO2.
def test_commit_decisions_beyond_the_cut_are_named_and_nothing_else() -> None:
    tail = tail_of(
        [batch(10, transactional=True), batch(12, producer_id=-1)],
        [
            decision(100, TxnStatus.ONGOING),
            decision(101, TxnStatus.PREPARE_COMMIT),
            decision(102, TxnStatus.COMPLETE_COMMIT),
            decision(103, TxnStatus.PREPARE_ABORT, "pay-2"),
        ],
    )
    stated = statement(tail)
    assert [lost.transactional_id for lost in stated.transactions] == ["pay-1"]
    assert stated.transactions[0].decision.offset == 101
    assert stated.transactions[0].decision.stamp == 77
    assert [(found.first_offset, found.last_offset) for found in stated.plain] == [(12, 13)]
    assert stated.plain_record_count == 2


# Holds INV-AL2.
def test_INV_LO3_a_batch_across_the_cut_was_never_in_the_history_that_the_statement_speaks_of() -> (
    None
):
    """Its region was restored from an older copy, and wrote others at the offsets that the base has (T33)."""
    for first, explained in ((9, True), (7, False)):
        tail = tail_of([batch(first), batch(first + 2)], [])
        losses = count_losses(
            Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail),
            statement(tail_of([], [])),
        )
        assert (losses.unexplained == ()) is explained, losses.unexplained
        assert losses.plain_record_count == 4


def test_losses_join_ranges_of_one_producer_and_tell_committed_from_not() -> None:
    marker = TailBatch(ORDERS, "orders", data(14)._replace(attributes=CONTROL_BIT))
    tail = tail_of(
        [batch(10, transactional=True), batch(12, transactional=True), marker],
        [decision(101, TxnStatus.PREPARE_COMMIT)],
    )
    losses = count_losses(Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail), None)
    (found,) = losses.records
    assert (found.first_offset, found.last_offset, found.record_count) == (10, 13, 4)
    assert (found.first_sequence, found.last_sequence) == (10, 13)
    assert found.committed is True
    assert losses.transactional_record_count == 4
    assert losses.unexplained == ()


def test_losses_that_a_true_statement_explains() -> None:
    known = tail_of([batch(10)], [decision(101, TxnStatus.PREPARE_COMMIT)])
    stated = statement(known)
    # At the primary there was one more decision that never arrived: it is behind copied_end.
    primary = tail_of(
        [batch(10)],
        [decision(101, TxnStatus.PREPARE_COMMIT), decision(105, TxnStatus.PREPARE_COMMIT, "pay-9")],
    )
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, primary), stated
    )
    assert losses.transaction_count == 2
    assert losses.named_count == 1
    assert [lost.transactional_id for lost in losses.not_arrived] == ["pay-9"]
    assert losses.not_arrived_count == 1
    assert losses.unexplained == ()


def test_a_statement_that_kept_silent_is_found_out() -> None:
    silent = statement(tail_of([], []))
    primary = tail_of([batch(8)], [decision(101, TxnStatus.PREPARE_COMMIT)])
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, primary), silent
    )
    assert len(losses.unexplained) == 2
    covered = tail_of([], [decision(99, TxnStatus.PREPARE_COMMIT)])
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, covered), silent
    )
    assert "covered the ledger to 100" in losses.unexplained[0]


def test_a_topic_of_a_user_whose_name_begins_like_the_ledgers_is_not_taken_for_it() -> None:
    known = tail_of([], [decision(101, TxnStatus.PREPARE_COMMIT)])
    takeover = Takeover("main", "eu", "us", RegionEpoch(17), False, 250)
    other = LogBound(
        topic="__transaction_state_archive",
        topic_id="ff" * 16,
        partition=1,
        cut=500,
        copied_end=500,
    )
    stated = make_statement(takeover, CUT, [*bounds(14, 102), other], known, now_wall_ms=4_300)
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, known), stated
    )
    assert (losses.named_count, losses.unexplained) == (1, ())


def test_a_statement_that_named_what_was_not_lost_is_found_out() -> None:
    stated = statement(tail_of([batch(10), batch(12)], [decision(101, TxnStatus.PREPARE_COMMIT)]))
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail_of([batch(10)], [])),
        stated,
    )
    assert [text.split(" was ")[0].split(" were ")[0] for text in losses.unexplained] == [
        f"commit of pay-1 at {stated.transactions[0].decision}",
        "records 10..13 of orders-0",
    ]
    assert losses.named_count == 0


def test_plain_records_that_were_copied_and_not_named_are_found_out() -> None:
    stated = statement(tail_of([batch(10)], []))
    primary = tail_of([batch(10), batch(12, producer_id=99), batch(14, producer_id=7)], [])
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, primary), stated
    )
    # 14 is where the copy ended: what begins there never arrived.
    assert losses.unexplained == (
        "orders-0 from 12 is lost and had been copied, but the statement did not name it",
    )


@pytest.mark.parametrize(
    ("region", "complete"), [("us", True), ("ap", True), ("eu", False)],
    ids=["the candidate", "another mirror", "still cutting"],
)  # fmt: skip
def test_only_the_whole_tail_of_the_lost_region_must_hold_all_that_was_named(
    region: str, complete: bool
) -> None:
    stated = statement(tail_of([], [decision(101, TxnStatus.PREPARE_COMMIT)]))
    part = Quarantined(
        "main", RegionEpoch(17), region, RegionEpoch(8), 5, tail_of([], []), complete=complete
    )
    assert count_losses(part, stated).unexplained == ()
    whole = Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail_of([], []))
    assert len(count_losses(whole, stated).unexplained) == 1


def test_a_statement_too_long_to_list_is_compared_by_its_count() -> None:
    both = [decision(100, TxnStatus.PREPARE_COMMIT), decision(101, TxnStatus.PREPARE_COMMIT)]
    stated = statement(tail_of([], both))
    cut_short = msgspec.structs.replace(stated, transactions=stated.transactions[:1])
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail_of([], both)), cut_short
    )
    assert (losses.named_count, losses.unexplained) == (2, ())
    fewer = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail_of([], both[:1])),
        cut_short,
    )
    assert fewer.unexplained == ("2 commits were stated, 1 of those that are lost had been copied",)


def test_INV_LO4_tails_that_overlap_are_counted_by_what_they_hold() -> None:
    other = batch(12)
    other = TailBatch(other.log, other.topic, other.header._replace(crc=99))
    twice = tail_of(
        [batch(10), batch(12), batch(14), batch(12), other],
        [decision(101, TxnStatus.PREPARE_COMMIT), decision(101, TxnStatus.PREPARE_COMMIT)],
        told_twice={ORDERS},
    )
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, twice), None
    )
    assert losses.plain_record_count == 8
    assert [(found.first_offset, found.last_offset) for found in losses.records] == [
        (10, 15),
        (12, 13),
    ]
    assert losses.transaction_count == 1


@pytest.mark.parametrize(("region", "exact"), [("eu", True), ("ap", False)])
def test_INV_LO3_only_the_lost_regions_own_tail_is_all_that_there_was(
    region: str, exact: bool
) -> None:
    stated = statement(tail_of([batch(10)], []))
    losses = count_losses(
        Quarantined("main", RegionEpoch(17), region, RegionEpoch(8), 5, tail_of([batch(10)], [])),
        stated,
    )
    assert losses.exact is exact


def test_INV_LO8_after_a_planned_switch_an_empty_tail_is_all_that_there_was() -> None:
    stated = msgspec.structs.replace(statement(tail_of([], [])), planned=True)

    def exact(tail: Tail, statement: LossStatement) -> bool:
        return count_losses(
            Quarantined("main", RegionEpoch(17), "us", RegionEpoch(8), 5, tail, exact=False),
            statement,
        ).exact

    assert exact(tail_of([], [decision(101, TxnStatus.COMPLETE_COMMIT)]), stated)
    assert not exact(tail_of([], []), msgspec.structs.replace(stated, planned=False))
    assert not exact(tail_of([], [], unreadable=["orders-0: damaged"]), stated)
    for tail in (
        tail_of([batch(10)], []),
        tail_of([], [decision(101, TxnStatus.PREPARE_COMMIT)]),
        tail_of([], [], commits=[committing(20, 40)]),
    ):
        assert not exact(tail, stated), "that should not be, and is told"


def test_statements_survive_json() -> None:
    stated = statement(tail_of([batch(10)], [decision(101, TxnStatus.PREPARE_COMMIT)]))
    assert msgspec.json.decode(msgspec.json.encode(stated), type=LossStatement) == stated


def committing(
    offset: int, at: int, *, transactional: bool = False, producer_id: int = -1, group_id: str = "g"
) -> TailCommit:
    header = data(
        offset, sequence=0, count=1, producer_id=producer_id, producer_epoch=3,
        transactional=transactional,
    )  # fmt: skip
    return TailCommit(OFFSETS, header, GroupCommit(group_id, "orders", 0, at))


def test_INV_LO4_lost_offset_commits_are_counted_once_by_group_and_those_of_lost_transactions() -> (
    None
):
    in_doubt = committing(
        23, 70, transactional=True, producer_id=9
    )  # of a transaction that was not decided
    commits = [
        committing(20, 40), committing(21, 50), in_doubt,
        committing(24, 60, transactional=True, producer_id=4711), committing(25, 5, group_id="a"),
        committing(21, 50),  # a second tail holds it too
    ]  # fmt: skip
    tail = tail_of([], [decision(101, TxnStatus.PREPARE_COMMIT)], commits, told_twice={OFFSETS})
    stated = statement(tail)
    assert [(lost.group_id, lost.commit_count, lost.last_offset) for lost in stated.offsets] == [
        ("a", 1, 5), ("g", 3, 60)
    ]  # fmt: skip
    assert stated.offset_commit_count == 4
    losses = count_losses(Quarantined("main", RegionEpoch(17), "eu", RegionEpoch(8), 5, tail), None)
    assert (losses.offsets, losses.offset_commit_count) == (stated.offsets, 4)
    assert "config" in stated.open_bound


def test_changes_of_topics_that_wait_for_a_tidemark_are_told() -> None:
    def topic(number: int, name: str, partition_count: int) -> MirrorTopic:
        return MirrorTopic(UUID(int=number), name, partition_count)

    changes = TopicChanges(growing=(topic(1, "grows", 4),))
    changes.delete([topic(2, "goes", 2)], 9)
    changes.shrink([topic(3, "shrinks", 1)], 9)
    assert [(undone.topic, undone.change) for undone in changes.waiting()] == [
        ("goes", "deleted"), ("grows", "grown to 4 partitions"), ("shrinks", "shrunk to 1 partitions")
    ]  # fmt: skip
    for drop in changes.due(9):
        changes.done(drop)
    changes.grown(UUID(int=1), 4)
    assert changes.waiting() == []


def test_INV_LO6_an_accepted_loss_names_the_diverged_tails_of_that_region_within_its_bounds_only() -> (
    None
):
    stated = msgspec.structs.replace(statement(tail_of([], [])), accepted=True)
    old, log = stated.from_region, ORDERS
    (bound,) = [b for b in stated.bounds if b.topic_id == log.topic_id.hex]
    inside = (bound.cut, bound.copied_end - 1)
    assert bound.cut < bound.copied_end
    assert all(stated.names_diverged(old, log, offset) for offset in inside)
    for offset in (bound.cut - 1, bound.copied_end):
        assert not stated.names_diverged(old, log, offset)
    assert not stated.names_diverged(stated.to_region, log, bound.cut)
    assert not stated.names_diverged(old, LogKey(log.topic_id, 9), bound.cut)
    unaccepted = msgspec.structs.replace(stated, accepted=False)
    assert not unaccepted.names_diverged(old, log, bound.cut), "an ordinary takeover (INV-LO5)"
