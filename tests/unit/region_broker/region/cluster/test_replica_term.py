"""One leader epoch on real partitions: what it counts as durable, which logs it leads, and whether it is sure to lead (INV-RTM5)."""

import asyncio

from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_image import Leadership
from region_broker.region.cluster.replica_term import SURE_MS, LeaderTerm, TermParts
from region_broker.replication.effects import ProposeInSync
from region_broker.replication.events import FollowerConnected, FollowerReport
from region_broker.replication.leading import LeadingSettings
from tests.fixtures.cluster_images import member
from tests.fixtures.node_logs import LEADER_EPOCH, ManualClock, batch, fixture

ONE, TWO, THREE = map(member, (1, 2, 3))


def nothing(*_: object) -> None:
    """Do nothing."""


def row(leader_epoch: LeaderEpoch, *in_sync: int) -> Leadership:
    members = tuple(map(member, in_sync))
    return Leadership(leader=ONE, leader_epoch=leader_epoch, in_sync=members, version=4)


def term(
    clock: ManualClock, *in_sync: int, leader_epoch: LeaderEpoch = LeaderEpoch(9),
    proposed: list[ProposeInSync] | None = None,
) -> LeaderTerm:  # fmt: skip
    def propose(_term: LeaderTerm, proposal: ProposeInSync) -> None:
        if proposed is not None:
            proposed.append(proposal)

    parts = TermParts(
        me=ONE, clock=clock, settings=LeadingSettings(), min_in_sync_of=lambda _: 1, propose=propose, was_cut=nothing
    )  # fmt: skip
    return LeaderTerm(parts, row(leader_epoch, *in_sync))


def test_INV_RTM5_whoever_begins_to_lead_is_sure_for_a_while_and_no_longer() -> None:
    clock = ManualClock()
    leads = term(clock, 1, 2)
    clock.now_ms += SURE_MS
    assert leads.is_sure()
    clock.now_ms += 1
    assert not leads.is_sure(), "it has heard nobody in this leader epoch"


def test_INV_RTM5_who_is_not_in_sync_makes_nobody_sure_and_a_leader_alone_is() -> None:
    clock = ManualClock()
    leads = term(clock, 1, 2)
    clock.now_ms += SURE_MS + 1
    leads._heard_ms[THREE] = clock.now_ms
    assert not leads.is_sure(), "another one may have been elected, and THREE may be behind it"
    leads._heard_ms[TWO] = clock.now_ms
    assert leads.is_sure()
    assert term(clock, 1).is_sure()


def leads_under(leader_epoch: LeaderEpoch = LEADER_EPOCH, *in_sync: int) -> LeaderTerm:
    return term(ManualClock(), *(in_sync or (1,)), leader_epoch=leader_epoch)


async def turn() -> None:
    """Let a turn of the loop pass, in which what is durable is told."""
    await asyncio.sleep(0)


async def test_INV_RPL1_who_begins_to_lead_counts_nothing_that_its_own_disk_has_not() -> None:
    """A follower that copied records, and is elected before its disk has them."""
    some = fixture()
    some.partition.writer.append(batch(3))
    leads = leads_under()
    leads.reconcile(some.partitions)
    assert (some.partition.log_end_offset, some.partition.high_watermark) == (3, 0)
    assert not leads.is_settled, "some of them may be acknowledged, by the leader before (R6)"
    some.sync()
    await turn()
    assert some.partition.high_watermark == 3
    assert leads.is_settled


async def test_INV_RTM3_a_log_that_was_opened_again_is_led_and_the_former_one_is_not() -> None:
    """Copied anew (INV-CAN1): the same log, with other bytes."""
    former, present = fixture(), fixture()
    leads = leads_under()
    leads.reconcile(former.partitions)
    leads.reconcile(present.partitions)
    key = present.partition.key
    assert leads.logs[key] is present.partition
    for count in (2, 3):
        former.partition.writer.append(batch(count))
    former.sync()
    await turn()
    assert leads.core.durable_end(key) == 0, "what another log's disk has"
    assert (former.partition.high_watermark, present.partition.high_watermark) == (0, 0)
    former.partition.truncate_to(2)
    assert not leads.is_over, "nor does it matter where that one is cut"
    present.partition.writer.append(batch(1))
    present.sync()
    await turn()
    assert present.partition.high_watermark == 1


async def test_INV_RTM3_what_was_durable_in_the_turn_before_a_log_was_opened_again_is_not_counted() -> (
    None
):
    former, present = fixture(), fixture()
    leads = leads_under()
    leads.reconcile(former.partitions)
    former.partition.writer.append(batch(5))
    former.sync()
    leads.reconcile(present.partitions)
    await turn()
    assert leads.core.durable_end(present.partition.key) == 0


async def test_INV_RPL9_that_a_log_has_stopped_is_known_before_anybody_is_taken_in() -> None:
    proposed: list[ProposeInSync] = []
    some = fixture(partition_count=2)
    leads = term(ManualClock(), 1, leader_epoch=LEADER_EPOCH, proposed=proposed)
    leads.reconcile(some.partitions)
    some.partitions[1].stop("its disk has failed")
    leads.reconcile(some.partitions)
    leads.tell(FollowerConnected(TWO, 1, LEADER_EPOCH))
    leads.tell(FollowerReport(TWO, 1, LEADER_EPOCH, {some.partition.key: 0}))
    assert not proposed, "it may lack what was committed in the log that has stopped"


async def test_INV_RPL11_what_was_agreed_on_stands_in_its_leader_epoch_and_in_no_other() -> None:
    some = fixture()
    some.partition.writer.append(batch(3))
    some.sync()
    key = some.partition.key
    leads = leads_under(LEADER_EPOCH, 1, 2)
    leads.reconcile(some.partitions)
    some.partition.commits.agree_on_start(2)
    leads.end()
    anew = leads.anew(row(LEADER_EPOCH, 1, 2))
    anew.reconcile(some.partitions)
    assert (anew.core.low_watermark(key), some.partition.commits.agreed_start) == (2, 2)
    anew.end()
    later = leads_under(LeaderEpoch(LEADER_EPOCH + 1), 1, 2)
    later.reconcile(some.partitions)
    assert (later.core.low_watermark(key), some.partition.commits.agreed_start) == (0, 0)
