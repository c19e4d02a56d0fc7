"""Where the leading node cuts a log that others copy: its term begins anew under the same leader epoch (INV-RTM4)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from geo_replicator.lineage import Lineage, LineageEntry, TidemarkPoint
from geo_replicator.quarantine import Provenance
from idempotency.fencing import leader_epoch as epoch_of
from idempotency.identity import (
    LeaderEpoch,
    LogKey,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    SequenceNumber,
)
from idempotency.record_batch import ControlType
from region_broker.controller.cluster_commands import ChangeInSync
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.log.failures import NotLeader
from region_broker.partitions.parts.retention import Due
from region_broker.records.batches import Origin
from region_broker.region.failover.quarantine_store import QuarantineDamaged, ReadBatches
from tests.fixtures.kernel_batches import stamp
from tests.fixtures.node_logs import Topic, append_marker, batch
from tests.fixtures.replica_nodes import LAG_MS, ReplicaNode, ReplicaRegion, bytes_of, state_of
from tests.simulation.simulated_loop import SimulatedLoop, run_simulated

Life: TypeAlias = Callable[[ReplicaRegion], Awaitable[None]]
PRIMARY = epoch_of(RegionEpoch(1), 1)
"""A leader epoch of the region that is mirrored."""
NEXT_PRIMARY = epoch_of(RegionEpoch(2), 1)


def live(life: Life, seed: int = 1, *, partitions: int = 1) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            region = ReplicaRegion(tasks, seed, topics=[Topic(partition_count=partitions)])
            await life(region)
            for node in region.nodes.values():
                if node.runs:
                    await node.kill()

    run_simulated(main(), seed)


def mirrored(
    base_offset: int, count: int, leader_epoch: LeaderEpoch, size_bytes: int = 20
) -> bytes:
    """Return a batch as the primary region has it."""
    data = bytearray(batch(count, size_bytes=size_bytes))
    stamp(data, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return bytes(data)


def mirror(node: ReplicaNode) -> None:
    """Let the node that leads mirror another region, as its role would."""
    node.region.mirrors = True
    for partition in node.table:
        partition.become_mirror()


def link(
    node: ReplicaNode,
    count: int,
    leader_epoch: LeaderEpoch = PRIMARY,
    number: int = 0,
    size_bytes: int = 20,
) -> int:
    """Append what a link brings; return the log's end."""
    partition = node.partition(number)
    data = mirrored(partition.log_end_offset, count, leader_epoch, size_bytes)
    return partition.writer.append_mirrored(data)


async def all_have(region: ReplicaRegion, end: int, number: int = 0) -> None:
    """Wait until all nodes that run have a log up to `end`, committed, and the same bytes and state."""
    nodes = [node for node in region.nodes.values() if node.runs]
    await region.until(
        lambda: all(node.partition(number).high_watermark == end for node in nodes), f"HW is {end}"
    )
    assert len({bytes_of(node.partition(number)) for node in nodes}) == 1
    assert len({state_of(node.partition(number)) for node in nodes}) == 1


def test_what_a_link_appends_at_the_leader_is_copied_committed_and_shown_up_to_the_cut() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        mirror(one)
        two.runner.goes.clear()
        end = link(one, 5)
        partition = one.partition()
        partition.show_up_to(end, end)
        await region.until(lambda: partition.commits.durable_end == end, "it is durable here")
        await region.until(lambda: three.partition().commits.durable_end == end, "and at node 3")
        assert (partition.high_watermark, partition.sight.visible_end) == (0, 0)
        two.runner.goes.set()
        await partition.wait_committed(end)
        assert partition.sight.visible_end == end
        link(one, 2)
        await all_have(region, end + 2)
        assert partition.sight.visible_end == end, "no more than the cut"

    live(life)


def test_INV_RTM4_a_follower_that_is_connected_compares_again_before_it_copies_on() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        mirror(one)
        link(one, 4)
        await all_have(region, 4)
        for node in (one, two):
            node.runner.goes.clear()
        link(one, 6)
        await region.until(lambda: two.partition().log_end_offset == 10, "it is copied")
        one.partition().truncate_to(4)
        one.runner.goes.set()
        two.runner.goes.set()
        link(one, 8, NEXT_PRIMARY, size_bytes=33)
        assert one.partition().high_watermark == 4
        await all_have(region, 12)
        assert region.in_sync() == {1, 2, 3}

    live(life)


def test_INV_RTM4_what_was_reported_before_a_cut_commits_nothing_after_it() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        mirror(one)
        one.runner.goes.clear()
        link(one, 10)
        await region.until(
            lambda: (
                two.partition().commits.durable_end == three.partition().commits.durable_end == 10
            ),
            "the followers are durable first",
        )
        await region.clock.sleep_ms(50)  # and have said so
        region.fabric.hush("n1", "n2")
        one.partition().truncate_to(0)
        one.runner.goes.set()
        link(one, 7, NEXT_PRIMARY)
        await region.clock.sleep_ms(500)
        assert one.partition().commits.durable_end == 7
        assert one.partition().high_watermark == 0, "node 2 has none of it"
        region.fabric.heal("n1", "n2")
        await all_have(region, 7)

    live(life)


def test_INV_RLD1_a_connection_from_before_a_cut_copies_and_reports_nothing_more() -> None:
    """Questions are under way on slow connections when a log is cut: they speak of the log as it was."""

    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start()
        mirror(one)
        link(one, 6)
        await all_have(region, 6)
        region.fabric.delay_ms_max = 40.0
        for number in range(20):
            three.runner.goes.clear()
            kept, epoch = one.partition().log_end_offset, LeaderEpoch(NEXT_PRIMARY + 2 * number)
            link(one, 4, epoch)
            await region.clock.sleep_ms(region.random.randrange(150))
            one.partition().truncate_to(kept)
            end = link(one, 4, LeaderEpoch(epoch + 1), size_bytes=50)
            three.runner.goes.set()
            await all_have(region, end)

    live(life)


@pytest.mark.parametrize("seed", range(6))
def test_INV_RTM4_a_log_that_is_cut_again_and_again_is_the_same_everywhere_in_the_end(
    seed: int,
) -> None:
    """The tail is never committed: node 3's disk stands still while it grows."""

    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start()
        mirror(one)
        link(one, 3)
        link(one, 3, number=1)
        await all_have(region, 3)
        await all_have(region, 3, 1)
        node, chance = region.nodes[3], region.random
        for number in range(8):
            node.runner.goes.clear()
            which, epoch = chance.randrange(2), LeaderEpoch(NEXT_PRIMARY + number)
            log = one.partition(which)
            kept = log.log_end_offset
            link(one, chance.randrange(1, 5), epoch, which)
            await region.clock.sleep_ms(chance.randrange(100))
            log.truncate_to(kept)
            end = link(one, chance.randrange(1, 5), LeaderEpoch(epoch + 1), which, size_bytes=50)
            if chance.random() < 0.3:
                region.fabric.drop("n1", "n2")
            node.runner.goes.set()
            await all_have(region, end, which)
        assert region.in_sync() == {1, 2, 3}

    live(life, seed, partitions=2)


def test_INV_RTM4_a_follower_that_was_away_while_a_log_was_cut_has_the_same_in_the_end() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start()
        mirror(one)
        link(one, 3)
        await all_have(region, 3)
        one.runner.goes.clear()
        link(one, 5)
        await region.until(lambda: three.partition().commits.durable_end == 8, "node 3 has it")
        await three.kill()
        one.partition().truncate_to(3)
        one.runner.goes.set()
        end = link(one, 9, NEXT_PRIMARY)
        await one.partition().wait_committed(end)
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is back")
        await all_have(region, end)

    live(life)


def test_INV_RTM4_who_is_elected_after_a_cut_has_what_was_committed_after_it() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        mirror(one)
        link(one, 3)
        await all_have(region, 3)
        one.runner.goes.clear()
        link(one, 5)
        await region.until(lambda: two.partition().commits.durable_end == 8, "node 2 has it")
        one.partition().truncate_to(3)
        one.runner.goes.set()
        end = link(one, 2, NEXT_PRIMARY)
        await one.partition().wait_committed(end)
        await one.kill()
        region.fence(1)
        region.elect(2)
        mirror(two)
        await two.leading.until_committed()
        assert two.partition().high_watermark == end
        end = link(two, 2, NEXT_PRIMARY)
        await one.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync")
        await all_have(region, end)

    live(life)


def test_INV_RTM4_an_emptied_log_goes_on_elsewhere_at_followers_too() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, _ = await region.start()
        mirror(one)
        one.partition().start_at(50)
        await asyncio.sleep(0)
        assert one.partition().high_watermark == 50, "a log is committed up to where it starts"
        await region.until(
            lambda: all(node.partition().log_end_offset == 50 for node in region.nodes.values()),
            "all start at 50",
        )
        link(one, 3)
        await all_have(region, 53)

    live(life)


def test_INV_RTM4_the_term_begins_anew_once_for_all_cuts_of_a_turn() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start()
        mirror(one)
        for number in range(3):
            link(one, 3, number=number)
        await region.clock.sleep_ms(100)
        former = one.leading._term
        assert former is not None
        one.partition(0).commit_up_to(1)
        terms = []
        for number in range(3):
            one.partition(number).truncate_to(0)
            terms.append(one.leading._term)
        assert terms == [former] * 3
        assert former.is_over
        await asyncio.sleep(0)
        assert one.leading._term is not former
        anew = one.leading._term
        await asyncio.sleep(0)
        assert one.leading._term is anew

    live(life, partitions=3)


def test_INV_RLD5_who_waits_until_all_is_committed_waits_on_where_a_log_is_cut() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for node in (two, three):
            node.runner.goes.clear()
        one.append(batch(3))
        await region.until(lambda: two.partition().log_end_offset == 3, "it is copied")
        region.fence(1)
        region.elect(2)
        mirror(two)
        waiting = region.tasks.create_task(two.leading.until_committed())
        await region.clock.sleep_ms(50)
        two.partition().truncate_to(0)
        await region.clock.sleep_ms(50)
        end = link(two, 2, NEXT_PRIMARY)
        for node in (two, three):
            node.runner.goes.set()
        await waiting
        await two.partition().wait_committed(end)

    live(life)


def test_INV_RLD5_who_waits_hears_of_the_end_where_another_node_leads_after_the_cut() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        one.append(batch(3))
        for node in (two, three):
            node.runner.goes.clear()
        await region.until(lambda: two.partition().log_end_offset == 3, "it is copied")
        region.fence(1)
        region.elect(2)
        waiting = region.tasks.create_task(_hears_of_the_end(two))
        await region.clock.sleep_ms(10)
        two.partition().truncate_to(0)
        region.elect(3)
        await waiting
        for node in (two, three):
            node.runner.goes.set()

    live(life)


async def _hears_of_the_end(node: ReplicaNode) -> None:
    with pytest.raises(NotLeader):
        await node.leading.until_committed()


def test_INV_RPL10_a_proposal_under_way_at_a_cut_counts_until_it_is_known() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start()
        mirror(one)
        await three.kill()
        link(one, 3)
        await region.until(lambda: region.in_sync() == {1, 2}, "it is out")
        region.answer_proposal = _unsure
        await three.start()
        asked = len(region.proposals)
        await region.until(lambda: len(region.proposals) > asked, "it is to come in")
        three.runner.goes.clear()
        hw = one.partition().high_watermark
        link(one, 3)
        one.partition().truncate_to(hw)
        end = link(one, 4, NEXT_PRIMARY)
        await region.clock.sleep_ms(300)
        assert one.partition().high_watermark == hw, "node 3 may be in sync"
        region.answer_proposal = lambda _: None
        three.runner.goes.set()
        await all_have(region, end)

    live(life)


def _unsure(_command: ChangeInSync) -> None:
    raise MetadataInDoubt("nobody knows")


def test_log_starts_that_move_at_the_leader_of_a_mirror_move_at_followers_back_too() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        mirror(one)
        for _ in range(5):
            link(one, 2)
        await all_have(region, 10)
        one.partition().retention.forget_below(6)
        await region.until(
            lambda: two.partition().log_start_offset == three.partition().log_start_offset == 6,
            "the start is told",
        )
        await three.kill()
        one.partition().retention.take_back_start(0)
        await region.until(lambda: two.partition().log_start_offset == 0, "and that it is void")
        await three.start()
        await region.until(lambda: three.partition().log_start_offset == 0, "in a new session, too")

    live(life)


def _starts(region: ReplicaRegion) -> list[int]:
    return [each.partition().log_start_offset for each in region.nodes.values() if each.runs]


def test_INV_RTM4_INV_RPL11_a_start_that_followers_had_before_it_went_back_answers_no_order() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start()
        mirror(one)
        for _ in range(5):
            link(one, 2)
        await all_have(region, 10)
        one.partition().retention.forget_below(6)
        await region.until(lambda: _starts(region) == [6, 6, 6], "the start is told")
        await region.clock.sleep_ms(50)
        one.partition().retention.take_back_start(0)
        await region.until(lambda: _starts(region) == [0, 0, 0], "and that it is void")
        region.mirrors = False
        one.partition().become_leader(NEXT_PRIMARY)
        await one.partition().retention.delete_records(4)
        assert one.partition().retention.low_watermark == 0
        await one.partition().retention.wait_deleted(4)
        assert _starts(region) == [4, 4, 4]

    live(life)


def test_INV_RTM4_INV_RPL11_a_start_that_went_back_keeps_nobody_out_of_sync() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        one.append(batch(10))
        await all_have(region, 10)
        await one.partition().retention.delete_records(6)
        await one.partition().retention.wait_deleted(6)
        region.elect(2)
        mirror(two)
        await region.clock.sleep_ms(100)
        two.partition().retention.take_back_start(0)
        await region.until(lambda: _starts(region) == [0, 0, 0], "it went back")
        await region.clock.sleep_ms(3 * LAG_MS)
        assert region.in_sync() == {1, 2, 3}
        await three.kill()
        await region.until(lambda: region.in_sync() == {1, 2}, "it is out")
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "and comes in again")

    live(life)


def test_INV_RTM4_a_start_that_does_not_go_back_ends_no_term() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start()
        mirror(one)
        link(one, 10)
        await all_have(region, 10)
        one.partition().retention.forget_below(6)
        term = one.leading._present()
        one.partition().retention.take_back_start(6)
        one.partition().retention.take_back_start(8)
        assert one.leading._present() is term

    live(life)


def test_INV_RPL11_what_was_answered_of_a_log_stands_where_another_one_is_cut() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for number in (0, 1):
            one.append(batch(7), number)
            one.append(batch(3), number)
        for number in (0, 1):
            await all_have(region, 10, number)
            await one.partition(number).retention.delete_records(6)
            await one.partition(number).retention.wait_deleted(6)
        region.answer_proposal = _unsure
        for node in (two, three):
            await node.kill()
        await one.partition().retention.delete_records(8)
        waiting = region.tasks.create_task(one.partition().retention.wait_deleted(8))
        one.partition(1).truncate_to(7)
        await region.clock.sleep_ms(10)
        lows = [one.partition(number).retention.low_watermark for number in (0, 1)]
        assert lows == [6, 0]
        region.answer_proposal = lambda _: None
        for node in (two, three):
            await node.start()
        await waiting
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync")
        assert _starts(region) == [8, 8, 8]

    live(life, partitions=2)


@pytest.mark.parametrize("after_ms", range(1, 16))
def test_INV_RPF8_INV_RPL11_an_order_that_one_follower_alone_has_answers_none_of_the_next_leader(
    after_ms: int,
) -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        one.append(batch(10))
        await all_have(region, 10)
        two.partition().retention.forget_below(6)  # of a leader that is lost
        await one.kill()
        region.fence(1)
        region.elect(3)
        await region.clock.sleep_ms(after_ms)
        await three.partition().retention.delete_records(4)
        waiting = region.tasks.create_task(three.partition().retention.wait_deleted(4))
        least = 4
        while least >= 4:
            least = min(_starts(region)) if waiting.done() else 4
            await region.clock.sleep_ms(1)
            if waiting.done() and _starts(region) == [4, 4]:
                break
        assert least == 4

    live(life)


def test_who_leads_a_mirror_forgets_no_transaction_that_readers_were_not_shown() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start()
        origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0), transactional=True)
        await one.produce(batch(2, origin=origin))
        append_marker(
            one.partition(), producer_id=7, producer_epoch=0, control_type=ControlType.COMMIT, coordinator_epoch=1,
            decision=None, timestamp_ms=1_000_000,
        )  # fmt: skip
        await one.produce(batch())
        mirror(one)
        partition = one.partition()
        partition.show_up_to(2, 0)
        partition.retention.maintain(Due(now_ms=1, monotonic_ms=1, producer_expiration_ms=1_000))
        assert partition.sight.visible_end >= partition.state.forgotten_below
        partition.show_up_to(3, 3)
        assert partition.sight.last_stable_offset == 3

    live(life)


# -- below what was committed ----------------------------------------------------------------------


def kept_by(node: ReplicaNode) -> list[tuple[int, int, str]]:
    return [
        (tail.first_offset, tail.last_offset, tail.cause.value) for tail in node.quarantine.tails()
    ]


def test_INV_RFN5_a_mirrors_follower_cuts_below_hw_with_the_tail_in_quarantine() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        mirror(one)
        link(one, 4)
        link(one, 6, number=1)
        link(one, 6)
        await all_have(region, 10)
        await all_have(region, 6, 1)
        one.partition().truncate_to(4)  # the primary region has another history
        end = link(one, 9, NEXT_PRIMARY)
        await all_have(region, end)
        assert kept_by(two) == kept_by(three) == [(4, 9, "divergence")]
        assert two.quarantine.diverged_records == 6
        assert not two.table.failures()
        assert two.partition(1).log_end_offset == 6, "no other log is touched"
        assert region.in_sync() == {1, 2, 3}

    live(life, partitions=2)


def test_INV_RFN5_INV_RCT1_a_quarantine_without_room_is_tried_again_and_holds_no_other_log() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        mirror(one)
        link(one, 4)
        await all_have(region, 4)
        is_full = True

        def no_room(node: ReplicaNode) -> None:
            if is_full and node is two:
                raise OSError("no room")

        region.before_cut = no_room
        one.partition().truncate_to(0)
        end = link(one, 2, NEXT_PRIMARY)
        other = link(one, 3, number=1)
        await region.until(lambda: two.partition(1).log_end_offset == other, "the other is copied")
        await region.clock.sleep_ms(1_500)
        two.logs_changed()
        assert two.following.state()["logs"] == 1, "what is being cut is in no session"
        assert (two.partition().log_end_offset, kept_by(two)) == (4, [])
        is_full = False
        await all_have(region, end)
        assert kept_by(two) == [(0, 3, "divergence")]

    live(life, partitions=2)


def test_INV_RCT2_who_is_elected_cuts_no_more_by_the_former_leaders_log() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        mirror(one)
        link(one, 4)
        await all_have(region, 4)
        is_full = True

        def no_room(_node: ReplicaNode) -> None:
            if is_full:
                raise OSError("no room")

        region.before_cut = no_room
        one.partition().truncate_to(0)
        await region.until(lambda: two.partition().key in two.following._cuts, "it is to be cut")
        await one.kill()
        region.fence(1)
        region.elect(2)
        is_full = False
        mirror(two)
        await region.clock.sleep_ms(3_000)
        assert (two.partition().log_end_offset, kept_by(two)) == (4, [])
        end = link(two, 1)
        await all_have(region, end)
        assert kept_by(three) == []

    live(life)


async def cut_on_a_slow_disk(region: ReplicaRegion) -> SimulatedLoop:
    """Be where node 2 has cut its log from 4 to 2, and its disk has not made that durable yet; give the loop, whose threads are slow now."""
    one, two, _ = await region.start()
    mirror(one)
    link(one, 2)
    link(one, 2)
    await all_have(region, 4)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)

    def slow_from_now_on(operation: str, _path: Path) -> None:
        if operation == "truncate":
            loop.job_s_max = 60.0

    two.disk.fault = slow_from_now_on
    one.partition().truncate_to(2)
    link(one, 1, NEXT_PRIMARY)
    await region.until(lambda: two.partition().log.content.unsettled is not None, "it is cut")
    await one.kill()
    region.fence(1)
    return loop


def test_INV_CTJ2_who_is_elected_while_its_log_is_cut_on_a_slow_disk_goes_on_behind_the_cut() -> (
    None
):
    """Its former leader's cut is given up; the thread that makes it durable has not ended."""

    async def life(region: ReplicaRegion) -> None:
        loop = await cut_on_a_slow_disk(region)
        two, three = region.nodes[2], region.nodes[3]
        region.elect(2)
        mirror(two)
        assert two.partition().log.content.unsettled is not None
        end = link(two, 3)
        await two.kill(power=True)
        loop.job_s_max = 0.002
        await two.start()
        assert two.partition().failed is None
        assert 2 <= two.partition().log_end_offset <= end
        assert kept_by(two) == [(2, 3, "divergence")]
        assert three.partition().failed is None

    live(life)


def test_INV_RCT1_a_log_whose_cut_is_given_up_is_in_no_session_before_its_thread_has_ended() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        await cut_on_a_slow_disk(region)
        two, three = region.nodes[2], region.nodes[3]
        region.elect(3)
        mirror(three)
        end = link(three, 1)
        while two.partition().log.content.unsettled is not None:
            assert two.following.state()["logs"] == 0
            await region.clock.sleep_ms(100)
        await region.until(lambda: two.partition().log_end_offset == end, "it is copied on")
        assert two.partition().failed is None

    live(life)


def test_INV_RFN5_a_log_whose_tail_is_not_readable_stops_and_is_not_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        mirror(one)
        link(one, 4)
        await all_have(region, 4)

        async def damaged(_provenance: Provenance, _read: ReadBatches) -> Provenance:
            raise QuarantineDamaged("not whole")

        monkeypatch.setattr(two.quarantine, "move_in", damaged)
        one.partition().truncate_to(0)
        await region.until(lambda: two.partition().failed is not None, "it stops")
        assert "it is not cut at 0" in str(two.partition().failed)
        assert two.partition().log_end_offset == 4

    live(life)


# -- by the lineage --------------------------------------------------------------------------------


def takes_over(region: ReplicaRegion, base: int, *numbers: int) -> None:
    """Let the metadata have that region `us` took over where these logs end at `base`."""
    region.lineage = Lineage(
        (
            LineageEntry(
                RegionEpoch(9), "us", TidemarkPoint(RegionEpoch(8), 3),
                {LogKey(region.topics[0].topic_id, number): base for number in numbers},
            ),
        )
    )  # fmt: skip
    for node in region.nodes.values():
        if node.runs:
            node.leading.image_changed(region.image)


@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("leader_is_first", [False, True])
def test_INV_RLD6_a_takeover_cuts_all_nodes_before_any_copies_on(
    mirrors: bool, leader_is_first: bool
) -> None:
    """The leader of a region that takes over asks the others before it cuts: its followers have cut long before."""

    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        await one.produce(batch(4))
        await one.produce(batch(6))
        await all_have(region, 10)
        mirror(one)
        region.mirrors = mirrors
        takes_over(region, 4, 0)
        waiting = region.tasks.create_task(one.leading.until_committed())
        steps = [one.cuts.run, two.cut_and_follow, three.cut_and_follow]
        for step in steps if leader_is_first else reversed(steps):
            await step()
            await region.clock.sleep_ms(700)
        await waiting
        ends = [node.partition().log_end_offset for node in (one, two, three)]
        assert ends == [4, 4, 4]
        assert not two.table.failures()
        assert not three.table.failures()
        end = link(one, 3, epoch_of(RegionEpoch(9), 1))
        await all_have(region, end)
        assert kept_by(one) == kept_by(two) == kept_by(three) == [(4, 9, "lineage")]
        assert region.in_sync() == {1, 2, 3}

    live(life)


def test_INV_RLD6_nobody_is_served_who_has_not_cut_by_the_same_takeovers() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        await one.produce(batch(4))
        await one.produce(batch(6))
        await all_have(region, 10)
        mirror(one)
        region.mirrors = False
        takes_over(region, 4, 0)
        await one.cuts.run()
        await three.cut_and_follow()
        await region.clock.sleep_ms(1_000)
        assert two.partition().log_end_offset == 10, "it waits for its own cut"
        assert two.partition().failed is None
        await two.cut_and_follow()
        end = link(one, 3, epoch_of(RegionEpoch(9), 1))
        await all_have(region, end)

    live(life)
