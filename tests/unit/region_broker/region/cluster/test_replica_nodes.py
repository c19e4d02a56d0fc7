"""One leader and its followers: real logs, group commits and peer ports on a simulated loop, network and disk."""

import errno
import os
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.pieces import drained
from idempotency.record_batch import ControlType
from region_broker.controller.cluster_commands import ChangeInSync
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.log.failures import NotLeader
from region_broker.log.indexes.log_start import LOG_START_NAME
from region_broker.log.log_config import FlushPolicy, NodeLogConfig
from region_broker.partitions.admission import AppendVerdict
from region_broker.records.batches import Origin
from region_broker.region.cluster.replica_following import TICK_MS
from region_broker.region.cluster.replica_leading import LeadingParts, ReplicaLeading
from region_broker.region.cluster.replica_messages import ReplicaFetch
from region_broker.region.cluster.replica_readers import ReplicaReaders
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import NodeSession
from region_broker.replication.following import FETCHES_IN_FLIGHT
from tests.fixtures.node_logs import TOPIC_ID, Topic, append_marker, batch
from tests.fixtures.region_nodes import standing_of
from tests.fixtures.replica_nodes import (
    LAG_MS,
    ReplicaNode,
    ReplicaRegion,
    bytes_of,
    live,
    state_of,
)
from tests.simulation.disk import SimulatedDisk
from tests.simulation.simulated_loop import LoopClock


def unsure(_command: ChangeInSync) -> None:
    raise MetadataInDoubt("nobody knows")


async def hears_of_it(node: ReplicaNode, offset: int) -> None:
    with pytest.raises(NotLeader):
        await node.partition().wait_committed(offset)


def test_followers_have_the_same_bytes_and_what_is_committed_is_durable_on_all() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for _ in range(20):
            end = await one.produce(batch(3))
            assert min(node.partition().commits.durable_end for node in (one, two, three)) >= end
        await region.until(
            lambda: two.partition().high_watermark == three.partition().high_watermark == 60,
            "HW is told",
        )
        assert bytes_of(one.partition()) == bytes_of(two.partition()) == bytes_of(three.partition())
        assert state_of(one.partition()) == state_of(two.partition()) == state_of(three.partition())

    live(life)


class TickClock(LoopClock):
    """Counts how often somebody waits for as long as a follower does between two looks at the time."""

    def __init__(self) -> None:
        self.ticks = 0

    async def sleep_ms(self, duration_ms: float) -> None:
        self.ticks += duration_ms == TICK_MS
        await super().sleep_ms(duration_ms)


def test_INV_RFN7_followers_that_have_all_are_not_woken_by_the_clock() -> None:
    async def life(region: ReplicaRegion) -> None:
        region.clock = clock = TickClock()
        one, two, three = await region.start()
        await one.produce(batch(3))
        await clock.sleep_ms(2_000)
        before = clock.ticks
        await clock.sleep_ms(10_000)
        assert clock.ticks == before
        await one.kill()  # whoever waits to connect again is woken
        await clock.sleep_ms(1_000)
        assert clock.ticks > before
        region.elect(2)
        await two.produce(batch(2))
        await region.until(lambda: three.partition().log_end_offset == 5, "it follows on")
        await clock.sleep_ms(2_000)
        before = clock.ticks
        await clock.sleep_ms(10_000)
        assert clock.ticks == before

    live(life)


def test_INV_RSN3_a_backlog_much_larger_than_one_answer_is_copied() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start()
        await three.kill()
        for number in range(30):
            await one.produce(batch(1, size_bytes=600_000), number % 2)
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        for number in range(2):
            assert bytes_of(three.partition(number)) == bytes_of(one.partition(number))

    live(life, partitions=2)


def test_INV_PL6_a_follower_whose_disk_stands_still_holds_hw_back_until_it_is_taken_out() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        three.runner.goes.clear()
        begun_ms = region.clock.monotonic_ms()
        end = await one.produce(batch())
        took_ms = region.clock.monotonic_ms() - begun_ms
        assert LAG_MS <= took_ms < LAG_MS + 1_000
        assert region.in_sync() == {1, 2}
        assert three.partition().commits.durable_end < end <= two.partition().commits.durable_end
        assert three.partition().high_watermark < end
        three.runner.goes.set()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it comes back")
        assert three.partition().commits.durable_end >= end

    live(life)


def test_INV_RLD2_a_dead_follower_is_taken_out_at_once() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start()
        await three.kill()
        begun_ms = region.clock.monotonic_ms()
        await one.produce(batch())
        assert region.clock.monotonic_ms() - begun_ms < LAG_MS / 4
        assert region.in_sync() == {1, 2}
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it comes back")
        assert bytes_of(three.partition()) == bytes_of(one.partition())

    live(life)


@pytest.mark.parametrize("power", [False, True])
def test_nothing_committed_is_lost_with_a_leader_and_what_was_not_is_cut(power: bool) -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        committed = await one.produce(batch(5))
        kept = bytes_of(one.partition())
        region.answer_proposal = unsure  # it reaches the metadata no more
        region.fabric.cut("n1", "n2")
        region.fabric.cut("n1", "n3")
        one.append(batch(7, size_bytes=33))  # nobody else has it
        await region.clock.sleep_ms(50)
        assert one.partition().high_watermark == committed
        await one.kill(power=power)
        region.fabric.heal("n1", "n2")
        region.fabric.heal("n1", "n3")
        region.answer_proposal = lambda _: None
        region.fence(1)
        epoch = region.elect(2)
        await two.leading.until_committed()
        end = await two.produce(batch(2))
        assert bytes_of(two.partition()).startswith(kept)
        await one.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync again")
        assert one.partition().log_end_offset == end
        assert bytes_of(one.partition()) == bytes_of(two.partition()) == bytes_of(three.partition())
        assert state_of(one.partition()) == state_of(two.partition()) == state_of(three.partition())
        assert one.partition().log.epochs.latest == epoch

    live(life)


def test_a_deposed_leader_commits_nothing_and_its_waiters_hear_of_it() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        committed = await one.produce(batch())
        region.fabric.hush("n1", "n2")
        region.fabric.hush("n1", "n3")
        outcome = one.append(batch())
        waiting = region.tasks.create_task(hears_of_it(one, outcome.next_offset))
        await region.clock.sleep_ms(20)
        region.elect(2)
        await two.leading.until_committed()
        await waiting
        await two.produce(batch(2, size_bytes=50))
        region.fabric.heal("n1", "n2")
        region.fabric.heal("n1", "n3")
        await region.until(
            lambda: (
                one.partition().high_watermark == committed + 2 and region.in_sync() == {1, 2, 3}
            ),
            "it follows",
        )
        assert bytes_of(one.partition()) == bytes_of(two.partition())

    live(life)


def test_INV_RLD1_nothing_is_short_with_enough_in_sync_and_acks_all_is_refused_with_fewer() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start(topic_configs={"min.insync.replicas": "2"})
        assert not one.leading.is_short(one.partition())
        await three.kill()
        await one.produce(batch())
        assert not one.leading.is_short(one.partition())
        before = one.partition().high_watermark
        await two.kill()
        await region.until(lambda: region.in_sync() == {1}, "nobody else is in sync")
        assert one.leading.is_short(one.partition())
        one.append(batch())
        await region.clock.sleep_ms(500)
        assert one.partition().high_watermark == before, "INV-RPL3"
        await two.start()
        await region.until(lambda: one.partition().high_watermark == before + 1, "HW goes on")
        assert not one.leading.is_short(one.partition())

    live(life)


def test_INV_TLC6_who_had_one_node_may_have_acknowledged_on_that_one_alone() -> None:
    """1. A region of one node is failed over from. 2. It returns, grows, and cuts that node's logs. 3. The node falls."""

    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start(topic_configs={"min.insync.replicas": "2"})
        leading = ReplicaLeading(
            LeadingParts(
                me=one.member, partitions=one.table, clock=region.clock, image=lambda: region.image, propose=region.propose,
                min_in_sync=lambda: 2,
            )
        )  # fmt: skip
        assert leading.acknowledged_on() == 2
        founded = region.image
        for grown in ({"grown_to": 3}, {"node_start_count": 1}):  # the latter at feature level 1
            region.image = msgspec.structs.replace(founded, **grown)
            assert leading.acknowledged_on() == 1

    live(life)


def test_INV_RLD2_a_request_that_begins_behind_the_end_of_its_connection_is_refused() -> None:
    """1. A follower's fetch is read. 2. Its connection ends. 3. The task that answers the fetch begins."""

    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        leadership = region.image.leadership
        assert leadership is not None
        asks = ReplicaFetch(leader_epoch=leadership.leader_epoch, bytes_max=1_000, wait_ms_max=0)
        session = NodeSession(999, "two", standing_of(two.member).hello(), lambda: None)
        session.end()
        with pytest.raises(PeerRefused) as refused:
            await one.leading.fetch(session, asks, memoryview(b""))
        assert refused.value.code == "connection-ended"

    live(life)


def test_INV_RTM2_who_leads_no_more_moves_no_hw_and_waiters_for_the_begin_hear_of_it() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for node in (two, three):
            node.runner.goes.clear()
        one.append(batch())
        await region.until(lambda: two.partition().log_end_offset == 1, "it is copied")
        region.fence(1)
        region.elect(2)
        waiting = region.tasks.create_task(hears_of_the_end(two))
        await region.clock.sleep_ms(50)
        before = two.partition().high_watermark
        two.leading.end()
        two.runner.goes.set()
        three.runner.goes.set()
        await waiting
        await region.clock.sleep_ms(300)
        assert two.partition().high_watermark == before

    live(life)


async def hears_of_the_end(node: ReplicaNode) -> None:
    with pytest.raises(NotLeader):
        await node.leading.until_committed()


def test_an_emptied_folder_is_another_member_and_copies_everything() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start()
        for _ in range(5):
            await one.produce(batch(4, size_bytes=300))
        await three.kill()
        await one.produce(batch(4))
        await region.until(lambda: region.in_sync() == {1, 2}, "it is out")
        region.fence(3)
        three.disk, three.folder, three.life = SimulatedDisk(), 2, 0
        region.lives_begin_at[3] = 5
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        assert three.member in region.leadership.in_sync
        assert state_of(three.partition()) == state_of(one.partition())
        assert bytes_of(three.partition()) == bytes_of(one.partition())

    live(life)


def test_topics_are_made_grow_and_go_while_others_are_copied() -> None:
    async def life(region: ReplicaRegion) -> None:
        nodes = one, two, three = await region.start()
        await one.produce(batch())
        other = Topic(partition_count=2, topic_id=UUID(int=77), name="late")
        two.open(other)  # a follower may hear of it first
        await region.clock.sleep_ms(700)
        one.open(other)
        three.open(other)
        region.topics.append(other)
        await one.produce(batch(2), number=1, topic=1)
        assert (
            bytes_of(two.partition(1, 1))
            == bytes_of(three.partition(1, 1))
            == bytes_of(one.partition(1, 1))
            != b""
        )
        grown = Topic(partition_count=3, topic_id=other.topic_id, name="late")
        region.topics[1] = grown
        for node in nodes:
            node.open(grown)
        await one.produce(batch(2), number=2, topic=1)
        assert bytes_of(three.partition(2, 1)) == bytes_of(one.partition(2, 1))
        for node in (one, three, two):
            node.table.drop_topic(other.topic_id)
            node.logs_changed()
            await region.clock.sleep_ms(20)
        await one.produce(batch())
        assert region.in_sync() == {1, 2, 3}
        assert not two.table.failures()

    live(life)


def test_a_log_that_the_leader_deletes_from_its_beginning_starts_there_on_followers() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start(
            topic_configs={"segment.bytes": "4096", "retention.ms": "-1"}
        )
        for _ in range(60):
            await one.produce(batch(2, size_bytes=200))
        await three.kill()
        await one.partition().retention.delete_records(70)
        await region.until(lambda: two.partition().log_start_offset == 70, "the start is told")
        drained(one.table.upkeep.maintain(lambda _: None))
        assert one.partition().kept_from > 0
        for _ in range(5):
            await one.produce(batch(2, size_bytes=200))
        assert two.partition().kept_from <= 70
        three.disk = SimulatedDisk()  # it lacks what was deleted meanwhile
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        assert three.partition().kept_from == one.partition().kept_from
        assert three.partition().log_start_offset == 70
        assert bytes_of(three.partition()) == bytes_of(one.partition())

    live(life)


async def acknowledged(node: ReplicaNode, offset: int) -> None:
    await node.partition().retention.delete_records(offset)
    await node.partition().retention.wait_deleted(offset)


def test_INV_RPL11_an_order_to_delete_is_acknowledged_once_all_in_sync_have_it() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for _ in range(3):
            await one.produce(batch())
        await acknowledged(one, 2)
        starts = {node.partition().log_start_offset for node in (one, two, three)}
        assert starts == {2}
        assert one.partition().retention.low_watermark == 2
        await acknowledged(one, 1)
        await three.kill(power=True)
        await acknowledged(one, 3)
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        assert three.partition().log_start_offset == 3

    live(life)


def test_INV_RPL12_INV_RPF9_INV_RFN6_a_node_whose_disk_refuses_a_log_start_is_not_waited_for() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for _ in range(3):
            await one.produce(batch())

        def refuse(operation: str, path: Path) -> None:
            if path.name == LOG_START_NAME and operation == "write_file_atomic":
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

        two.disk.fault = refuse
        begun_ms = region.clock.monotonic_ms()
        await acknowledged(one, 2)
        assert region.clock.monotonic_ms() - begun_ms < LAG_MS, "it says that its log has stopped"
        assert region.in_sync() == {1, 3}
        assert three.partition().log_start_offset == 2
        assert two.partition().failed is not None

    live(life)


def test_INV_RSN4_what_memory_has_not_is_read_in_by_a_thread() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start(topic_configs={"segment.bytes": "16384"})
        await three.kill()
        for _ in range(100):
            await one.produce(batch(3, size_bytes=500))
        one.disk.forget_by_chance(region.random, 0.8)
        await three.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync")
        assert one.table.cold_reads.warmed_count > 0
        assert bytes_of(three.partition()) == bytes_of(one.partition())

    live(life)


def test_producers_and_open_transactions_are_the_same_on_followers_also_after_a_cut() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        nodes = one, two, three
        origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0), transactional=True)
        await one.produce(batch(2, origin=origin))
        await one.produce(
            batch(3, origin=Origin(ProducerId(8), ProducerEpoch(1), SequenceNumber(0)))
        )
        assert len({state_of(node.partition()) for node in nodes}) == 1
        region.answer_proposal = unsure
        region.fabric.cut("n1", "n2")
        region.fabric.cut("n1", "n3")
        one.append(
            batch(1, origin=msgspec.structs.replace(origin, base_sequence=SequenceNumber(2)))
        )
        one.append(
            batch(
                1,
                origin=Origin(
                    ProducerId(9), ProducerEpoch(0), SequenceNumber(0), transactional=True
                ),
            )
        )
        region.answer_proposal = lambda _: None
        region.elect(3)
        await three.leading.until_committed()
        await three.produce(
            batch(5, origin=msgspec.structs.replace(origin, base_sequence=SequenceNumber(2)))
        )
        append_marker(
            three.partition(), producer_id=7, producer_epoch=0, control_type=ControlType.ABORT, coordinator_epoch=1,
            decision=None, timestamp_ms=1_000_000,
        )  # fmt: skip
        region.fabric.heal("n1", "n2")
        region.fabric.heal("n1", "n3")
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all follow")
        await three.produce(batch())
        assert len({state_of(node.partition()) for node in nodes}) == 1
        aborted = [node.partition().log.aborted_in(0, 20, 20) for node in nodes]
        assert aborted[0] == aborted[1] == aborted[2] != []

    live(life)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_committed_outlives_any_one_node_without_power_again_and_again(seed: int) -> None:
    async def life(region: ReplicaRegion) -> None:
        await region.start()
        chance = region.random
        acknowledged: list[tuple[int, int, bytes]] = []
        leader = region.leader
        for number in range(12):
            leader = region.leader
            for _ in range(chance.randrange(1, 6)):
                which = chance.randrange(2)
                data = batch(
                    chance.randrange(1, 4),
                    size_bytes=chance.randrange(1, 400),
                    at_ms=number * 1_000,
                )
                base = leader.append(data, which).base_offset
                if chance.random() < 0.6:
                    await leader.partition(which).wait_committed(base + 1)
                    found = leader.partition(which).reader.read_replica(base, 1).data
                    acknowledged.append((which, base, bytes(found)))
            victim = region.nodes[chance.randrange(1, 4)]
            await victim.kill(power=chance.random() < 0.7)
            if victim is leader:
                region.fence(victim.node_id)
                others = sorted(region.in_sync() - {victim.node_id})
                region.elect(chance.choice(others))
                await region.leader.leading.until_committed()
            await region.clock.sleep_ms(chance.randrange(0, 300))
            await victim.start()
            await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync again")
            leader = region.leader
            for which, base, data in acknowledged:
                assert bytes(leader.partition(which).reader.read_replica(base, 1)[0]) == data
        # One that was away for a moment may not have been missed yet: it is to copy again before all are compared.
        await region.until(
            lambda: (
                region.in_sync() == {1, 2, 3}
                and all(
                    node.following.is_connected
                    for node in region.nodes.values()
                    if node is not leader
                )
            ),
            "all are in sync, and copy",
        )
        for which in range(2):
            ends = {node.partition(which).log_end_offset for node in region.nodes.values()}
            await leader.produce(batch(), which)
            assert len({bytes_of(node.partition(which)) for node in region.nodes.values()}) == 1, (
                ends
            )
            assert len({state_of(node.partition(which)) for node in region.nodes.values()}) == 1

    live(life, seed, partitions=2)


def test_INV_RSN1_INV_RSN2_an_append_is_copied_at_once_and_may_be_durable_elsewhere_first() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        await region.clock.sleep_ms(20)  # their fetches wait
        one.runner.goes.clear()
        begun_ms = region.clock.monotonic_ms()
        one.append(batch())
        await region.until(
            lambda: (
                two.partition().commits.durable_end == three.partition().commits.durable_end == 1
            ),
            "it is durable there",
        )
        assert region.clock.monotonic_ms() - begun_ms < 50
        await region.clock.sleep_ms(100)
        assert (one.partition().commits.durable_end, one.partition().high_watermark) == (0, 0)
        one.runner.goes.set()
        await region.until(lambda: two.partition().high_watermark == 1, "HW is told")
        assert region.clock.monotonic_ms() - begun_ms < 300

    live(life)


def test_INV_RLD4_a_change_of_which_nobody_knows_is_asked_for_again_and_counts_until_then() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, three = await region.start()
        asked = len(region.proposals)
        region.answer_proposal = unsure
        await three.kill()
        outcome = one.append(batch())
        await region.until(
            lambda: len(region.proposals) == asked + 3, "it is asked for again and again"
        )
        assert one.partition().high_watermark < outcome.next_offset, "node 3 may be in the set"
        assert {each.expected_version for each in region.proposals[asked:]} == {
            region.leadership.version
        }
        region.answer_proposal = lambda _: None
        await one.partition().wait_committed(outcome.next_offset)
        assert region.in_sync() == {1, 2}

    live(life)


class AppendsAgain:
    """A `CommitListener` that appends the next batch in the step in which the one before is committed."""

    def __init__(self, node: ReplicaNode, left: int) -> None:
        self._node, self.left = node, left
        self.error: Exception | None = None

    def committed(self) -> None:
        self.left -= 1
        if self.left > 0:
            outcome = self._node.append(batch())
            self._node.partition().commits.notify(outcome.next_offset, self)

    def not_committed(self, error: Exception) -> None:
        self.error = error


@pytest.mark.parametrize("policy", list(FlushPolicy))
def test_INV_RTM1_INV_RFN1_who_hears_of_a_commit_may_write_in_the_same_step(
    policy: FlushPolicy,
) -> None:
    async def life(region: ReplicaRegion) -> None:
        region.config = NodeLogConfig(flush_policy=policy, journal_bytes=0, flush_interval_ms=5)
        one, two, _ = await region.start()
        again = AppendsAgain(one, 30)
        again.committed()
        await region.until(lambda: again.left == 0, "all are committed")
        assert again.error is None
        await region.until(lambda: two.partition().high_watermark == 29, "HW is told")

    live(life)


def test_INV_RTM3_a_log_that_stops_at_the_leader_holds_up_no_other() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        await one.produce(batch(), 1)
        one.partition(1).stop("its disk is played to fail")
        await one.produce(batch(), 0)
        region.fabric.drop("n1", "n2")  # and in a new session
        await one.produce(batch(), 0)
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync")
        assert (
            bytes_of(two.partition(0)) == bytes_of(three.partition(0)) == bytes_of(one.partition(0))
        )
        assert not one.leading.is_short(one.partition(1))
        assert two.table.failures() == {}

    live(life, partitions=2)


def test_INV_RFN4_a_log_that_stops_at_a_follower_costs_it_its_place_and_no_other_log() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        two.partition(1).stop("its disk is played to fail")
        await one.produce(batch(), 0)
        assert region.in_sync() == {1, 2, 3}
        await one.produce(batch(), 1)
        assert region.in_sync() == {1, 3}
        await one.produce(batch(), 0)
        await region.until(
            lambda: bytes_of(two.partition(0)) == bytes_of(one.partition(0)), "it is copied on"
        )

    live(life, partitions=2)


def test_INV_RFN2_a_follower_takes_no_clients_writes_and_shows_nothing() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        await one.produce(batch(3))
        await region.until(lambda: two.partition().high_watermark == 3, "HW is told")
        assert two.partition().writer.append(batch()).verdict is AppendVerdict.NOT_LEADER
        assert two.partition().sight.visible_end == 0
        assert not two.partition().sight.is_known
        region.fence(1)
        region.elect(2)
        assert one.partition().writer.append(batch()).verdict is AppendVerdict.NOT_LEADER
        assert two.partition().sight.visible_end == 3
        assert one.partition().sight.visible_end == 0

    live(life)


@pytest.mark.parametrize("seed", range(4))
def test_INV_RFN3_connections_that_break_again_and_again_leave_the_same_bytes(seed: int) -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for _ in range(40):
            one.append(
                batch(2, size_bytes=region.random.randrange(1, 3_000)), region.random.randrange(2)
            )
            if region.random.random() < 0.3:
                region.fabric.drop("n1", region.random.choice(["n2", "n3"]))
            await region.clock.sleep_ms(region.random.randrange(0, 12))
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync")
        for number in range(2):
            await one.produce(batch(), number)
            assert (
                bytes_of(two.partition(number))
                == bytes_of(three.partition(number))
                == bytes_of(one.partition(number))
            )

    live(life, seed, partitions=2)


def test_INV_RLN1_two_fetches_are_under_way_while_nothing_happens_and_answers_are_taken_in_order() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        region.fabric.delay_ms_max = 60.0
        for number in range(30):
            one.append(batch(1 + number % 3, size_bytes=1_000))
            await region.clock.sleep_ms(3)
        await region.until(
            lambda: two.partition().log_end_offset == one.partition().log_end_offset,
            "all is copied",
        )
        assert bytes_of(two.partition()) == bytes_of(one.partition())
        line = two.following._line
        assert line is not None
        assert line._client is not None
        await region.clock.sleep_ms(100)
        assert len(line._client._waiting) == FETCHES_IN_FLIGHT

    live(life)


def test_INV_RTM5_a_leader_that_hears_nobody_in_sync_is_not_sure_to_lead() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        await region.clock.sleep_ms(5_000)
        assert one.leading.is_sure(), "idle followers are heard"
        assert not two.leading.is_sure()
        region.fabric.mute("n1", "n2")
        await region.clock.sleep_ms(2_000)
        assert one.leading.is_sure(), "the other one is"
        region.fabric.mute("n1", "n3")
        await region.until(lambda: not one.leading.is_sure(), "nobody is heard", within_ms=1_500)
        region.fabric.unmute("n1", "n3")
        await region.until(one.leading.is_sure, "one is heard again", within_ms=20_000)
        await two.kill()
        await three.kill()
        await region.until(lambda: region.in_sync() == {1}, "nobody else can lead")
        assert one.leading.is_sure()

    live(life)


def test_INV_RTM5_a_follower_that_has_just_left_makes_nobody_sure() -> None:
    """1. A leader is reached by followers, and not by its quorum. 2. One of them is elected, and the others follow that one."""

    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        await region.clock.sleep_ms(5_000)
        region.answer_proposal = unsure
        await two.kill()
        assert one.leading.is_sure(), "the other one is there"
        await three.kill()
        await region.until(lambda: not one.leading.is_sure(), "nobody follows it", within_ms=200)

    live(life)


def test_INV_RTM5_a_term_that_begins_anew_makes_nobody_sure() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, _, _ = await region.start()
        region.answer_proposal = unsure
        region.fabric.mute("n1", "n2")
        region.fabric.mute("n1", "n3")
        await region.until(lambda: not one.leading.is_sure(), "nobody is heard", within_ms=1_500)
        end = one.partition().log_end_offset
        one.append(batch())
        one.partition().truncate_to(end)
        await region.clock.sleep_ms(10)
        assert not one.leading.is_sure()

    live(life)


def test_INV_RLN2_a_leader_that_does_not_answer_is_left() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        await one.produce(batch())
        assert two.following.state()["connected"]
        assert (two.following.state()["logs"], two.following.state()["logs_behind"]) == (1, 0)
        region.fabric.mute("n1", "n2")
        await region.until(
            lambda: "did not answer" in str(two.following.state()["last_error"]),
            "it gives up, and says why",
            within_ms=12_000,
        )
        assert not two.following.state()["connected"]
        region.fabric.unmute("n1", "n2")
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is back")

    live(life)


def test_INV_PTC1_an_append_costs_nothing_more_while_nobody_copies() -> None:
    async def life(region: ReplicaRegion) -> None:
        one = region.node(1)
        await one.start()
        before = one.partition().log.listener.on_dirty
        region.elect(1)
        assert one.partition().log.listener.on_dirty == before == one.commits.mark_dirty
        two = region.node(2)
        await two.start()
        await region.until(lambda: region.in_sync() == {1, 2}, "both are in sync")
        assert one.partition().log.listener.on_dirty != before
        await two.kill()
        await one.produce(batch())
        assert one.partition().log.listener.on_dirty == before

    live(life)


def test_a_log_that_parts_from_the_leaders_below_hw_stops_and_is_not_cut() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        await one.produce(batch(4))
        await region.until(lambda: two.partition().high_watermark == 4, "HW is told")
        kept = bytes_of(two.partition())
        one.partition().truncate_to(0)  # a disk that lied
        one.append(batch(2, size_bytes=77))
        region.fabric.drop("n1", "n2")
        await region.until(lambda: two.partition().failed is not None, "it stops")
        assert "what lies below 4 was committed" in str(two.partition().failed)
        assert two.disk.file_size(two.table.folder_of(TOPIC_ID, 0) / f"{0:020d}.log") == len(kept)
        assert two.following.disputed == {two.partition().key}, "INV-CAN3: nobody puts it aside"

    live(life)


def test_INV_RFN6_a_log_that_does_not_run_is_told_to_the_next_leader_after_a_time_of_following_nobody() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        _, two, three = await region.start()
        two.partition().stop("for a test")
        two.logs_changed()
        await region.until(lambda: 2 not in region.in_sync(), "it says so")
        two.following.stop()
        region.fence(1)
        region.elect(3)
        two.take_role()
        await region.until(
            lambda: three.leading.standings().get(two.member, {}).get("logs_stopped") == 1,
            "and says it again to another one",
        )

    live(life, partitions=2)


def test_INV_RFN6_a_session_that_is_to_compare_anew_ends_and_another_one_copies_on() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, _ = await region.start()
        former = two.following._line
        assert former is not None
        two.following.compare_anew("for a test")
        assert two.following._line is not former
        await region.until(
            lambda: two.following._line is not None and two.following._line.is_let_in, "it is back"
        )
        present = two.following._line
        assert present is not None
        assert present.session > former.session
        await one.produce(batch())
        await region.until(lambda: two.partition().log_end_offset == 1, "it copies on")

    live(life)


def test_INV_RRD2_readers_are_shown_nothing_in_the_step_in_which_the_metadata_change() -> None:
    async def life(region: ReplicaRegion) -> None:
        _, two, _ = await region.start()
        may = True
        readers = two.following.readers = ReplicaReaders(lambda _leader, _epoch: may)
        leadership = region.leadership
        assert leadership.leader is not None
        readers.begin(leadership.leader, leadership.leader_epoch)
        readers.heard(region.clock.monotonic_ms(), acts=True)
        assert readers.is_open
        may = False
        two.following.image_changed()
        assert not readers.is_open

    live(life)


def test_a_new_leader_counts_nothing_as_committed_that_another_one_in_sync_lacks() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        three.runner.goes.clear()
        one.append(batch())
        await region.until(
            lambda: two.partition().commits.durable_end == 1, "it is durable at one of two"
        )
        region.fence(1)
        region.elect(2)
        await region.clock.sleep_ms(200)
        assert (two.partition().high_watermark, two.partition().commits.durable_end) == (0, 1)
        three.runner.goes.set()
        await two.leading.until_committed()
        assert two.partition().high_watermark == three.partition().commits.durable_end == 1

    live(life)


class Ends:
    """A `CommitListener` that ends the leader epoch in the step in which it hears of a commit."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self.heard = False

    def committed(self) -> None:
        self.heard = True
        self._node.leading.end()

    def not_committed(self, error: Exception) -> None:
        raise error


def test_INV_RTM2_nothing_moves_in_the_rest_of_the_step_in_which_a_leader_ends() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for node in (two, three):
            await node.kill()
        await region.until(lambda: region.in_sync() == {1}, "nobody else is in sync")
        ends = Ends(one)
        for number in range(2):
            one.append(batch(), number)
            one.partition(number).commits.notify(1, ends)
        await region.until(lambda: ends.heard, "one of both is committed")
        await region.clock.sleep_ms(50)
        assert sorted(one.partition(number).high_watermark for number in range(2)) == [0, 1]

    live(life, partitions=2)
