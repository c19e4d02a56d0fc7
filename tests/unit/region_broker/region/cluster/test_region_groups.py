"""The replica groups at the nodes of a region while leaders are spread: real logs, group commits and peer ports (ADR 53)."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.cluster_commands import ChangeGroupInSync, FenceNode
from region_broker.controller.cluster_image import GroupNumber
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, LineageEntry
from region_broker.log.failures import NotLeader
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.region.cluster.replica_line import FETCH_WAIT_MS
from region_broker.region.cluster.replica_messages import (
    CheckedReplicaLogs,
    CheckReplicaLogs,
    ReplicaFetch,
    ReplicaFetched,
)
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import REPLICA
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import NodeSession
from tests.fixtures.cluster_images import life as life_of
from tests.fixtures.node_logs import Topic, batch
from tests.fixtures.region_nodes import standing_of
from tests.fixtures.replica_nodes import bytes_of, state_of
from tests.fixtures.spread_nodes import (
    SpreadNode,
    SpreadRegion,
    group_elected,
    in_sync_in_all,
)
from tests.simulation.simulated_loop import run_simulated

Life: TypeAlias = Callable[[SpreadRegion], Awaitable[None]]
SPREAD = Topic(partition_count=6)
KEPT = Topic(topic_id=UUID(int=77, version=4), name="kept", partition_count=2)


def live(life: Life, seed: int = 1) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            region = SpreadRegion(tasks, seed, topics=[SPREAD, KEPT])
            await life(region)
            for node in region.running:
                await node.kill()

    run_simulated(main(), seed)


async def three(region: SpreadRegion) -> tuple[SpreadNode, SpreadNode, SpreadNode]:
    """Start three nodes, whose leaders are spread."""
    await region.start()
    region.spread()
    await region.until_spread()
    return region.node(1), region.node(2), region.node(3)


def number_in(region: SpreadRegion, group: int) -> int:
    """Return the first partition of the spread topic that is in a group."""
    return next(n for n in range(6) if region.image.group_of(partition(region, 1, n).key) == group)


def partition(region: SpreadRegion, node_id: int, number: int, topic: int = 0) -> Partition:
    return region.node(node_id).partition(number, topic)


async def written(region: SpreadRegion, node_id: int, number: int, records: int = 3) -> int:
    """Write to a log at the node that leads it; return its end once that is committed."""
    node = region.node(node_id)
    assert node.takes_writes(node.partition(number))
    return await node.produce(batch(records), number)


def in_sync_in(region: SpreadRegion, group: int) -> set[int]:
    row = region.image.leadership_in(group)
    return set() if row is None else {each.node_id for each in row.in_sync}


async def became_of(work: Coroutine[Any, Any, int]) -> int | NotLeader:
    """Return what a write came to."""
    try:
        return await work
    except NotLeader as error:
        return error


async def equal(region: SpreadRegion, number: int, topic: int = 0) -> None:
    """Return once a log is the same everywhere, and known to be committed."""
    logs = [node.partition(number, topic) for node in region.running]
    await region.until(
        lambda: len({(p.high_watermark, p.log_end_offset) for p in logs}) == 1, "it is copied"
    )
    assert len({bytes_of(each) for each in logs}) == 1
    if logs[0].log_end_offset:  # a leader epoch without a record is its leader's alone (INV-E3)
        assert len({state_of(each) for each in logs}) == 1


def test_INV_RGR1_each_log_is_led_by_the_node_that_the_metadata_name_and_copied_by_all() -> None:
    async def life(region: SpreadRegion) -> None:
        await region.start()
        before = [await region.node(1).produce(batch(2), number) for number in range(6)]
        spread = region.spread()
        await region.until_spread()
        for number in range(6):
            row = region.image.leadership_of(partition(region, 1, number).key)
            assert row is not None
            assert row.leader is not None
            end = await written(region, row.leader.node_id, number)
            assert end == before[number] + 3
            leaders = [each for each in (1, 2, 3) if partition(region, each, number).is_leader]
            assert leaders == [row.leader.node_id]
            await equal(region, number)
            assert partition(region, 1, number).written_epoch == row.leader_epoch
        assert {row.leader for row in spread.groups.values()} == {
            region.node(2).member,
            region.node(3).member,
        }
        await region.node(1).produce(batch(), 0, topic=1)
        await equal(region, 0, topic=1)

    live(life)


def test_INV_RGR1_a_main_leaders_waiters_hear_that_the_outcome_is_unknown_where_a_log_goes_to_a_data_group() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        await region.start()
        one = region.node(1)
        region.fabric.hush("n1", "n2")
        region.fabric.hush("n1", "n3")
        waiting = [region.tasks.create_task(became_of(one.produce(batch(), n))) for n in range(6)]
        await asyncio.sleep(0.02)
        region.spread()
        for _ in range(5):
            await asyncio.sleep(0)
        for number, each in enumerate(waiting):
            apart = one.groups.apart(one.partition(number).key) is not None
            assert each.done() == apart
            if apart:
                assert isinstance(each.result(), NotLeader)
        region.fabric.heal("n1", "n2")
        region.fabric.heal("n1", "n3")
        await region.until_spread()
        await asyncio.wait(waiting)
        for number in range(6):
            await equal(region, number)

    live(life)


def test_INV_RGR2_in_the_step_in_which_the_spread_ends_nobody_leads_what_was_apart() -> None:
    async def life(region: SpreadRegion) -> None:
        _, two, _ = await three(region)
        number = number_in(region, 1)
        region.fabric.hush("n2", "n1")
        region.fabric.hush("n2", "n3")
        waiting = region.tasks.create_task(became_of(two.produce(batch(), number)))
        await asyncio.sleep(0.02)
        region.gather(1)
        assert not two.groups.any_open
        assert two.groups.leads_under(two.partition(number).key) is None
        assert not two.partition(number).is_leader
        assert isinstance(await waiting, NotLeader)
        region.fabric.heal("n2", "n1")
        region.fabric.heal("n2", "n3")
        await region.until(lambda: region.node(1).acts, "the main leader has all")
        for each in range(6):
            assert region.node(1).takes_writes(partition(region, 1, each))
            await region.node(1).produce(batch(), each)
            await equal(region, each)

    live(life)


def test_INV_PT9_who_leads_a_data_group_no_more_tells_no_reader_that_its_logs_end_where_they_begin() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        _, two, _ = await three(region)
        number = number_in(region, 1)
        await written(region, 2, number)
        log, told = two.partition(number), list[tuple[bool, int]]()

        def read() -> None:
            told.append((log.sight.is_known, log.sight.last_stable_offset))

        log.watchers.add(read)
        read()
        region.gather(1)
        read()
        assert not log.is_leader
        assert told[0] == (True, 3)
        assert (True, 0) not in told

    live(life)


def test_INV_RGR2_a_former_main_leader_that_is_alone_in_sync_commits_nothing_of_what_comes_back() -> (
    None
):
    """It would count its own disk alone: what the data leader's in-sync set has not, too."""

    async def life(region: SpreadRegion) -> None:
        one, two, three_ = await three(region)
        number = number_in(region, 1)
        main = region.image.leadership
        assert main is not None
        alone = structs.replace(main, in_sync=(one.member,), version=main.version + 1)
        region.becomes(
            structs.replace(region.image, leadership=alone, version=region.image.version + 1)
        )
        three_.runner.goes.clear()
        two.append(batch(4), number)
        await region.until(lambda: one.partition(number).commits.durable_end == 4, "it is copied")
        assert one.partition(number).high_watermark == 0, "the third one lacks it"
        assert region.image.spread is not None
        row = structs.replace(alone, leader_epoch=region.image.last_leader_epoch + 1)
        region.becomes(structs.replace(region.image, spread=None, leadership=row, version=region.image.version + 1,
                                       last_leader_epoch=row.leader_epoch))  # fmt: skip
        assert one.partition(number).high_watermark == 0
        assert number not in [key.partition for key in one.groups.following._logs]
        three_.runner.goes.set()

    live(life)


def test_INV_RGR3_a_leader_epoch_of_a_group_is_led_in_once_and_who_cannot_lead_says_so() -> None:
    async def life(region: SpreadRegion) -> None:
        _, two, _ = await three(region)
        key = two.partition(number_in(region, 1)).key
        assert two.groups.trouble() is None
        two.groups.end()  # the main group begins anew, under the same leadership
        two.groups.follow(region.leadership.leader, region.leadership.leader_epoch)
        assert two.groups.leads_under(key) is None
        assert not two.partition(key.partition).is_leader
        assert "cannot" in (two.groups.trouble() or "")
        region.becomes(group_elected(region.image, 1, two.member))
        await region.until_spread()
        assert two.groups.leads_under(key) == region.image.last_leader_epoch
        assert two.groups.trouble() is None

    live(life)


def test_INV_RGR10_INV_RGR12_what_two_nodes_hold_together_is_brought_together_where_the_main_leader_is_gone_for_good() -> (
    None
):
    """INV-RLD8: neither of both may lead all logs (INV-SPR2), and who led them is the only one in sync in every group, and does not come back."""

    async def life(region: SpreadRegion) -> None:
        one, two, three_ = await three(region)
        number = number_in(region, 1)
        region.fabric.cut("n2", "n3")
        await region.until(lambda: in_sync_in(region, 1) == {1, 2}, "2 goes on without 3")
        await region.until(lambda: in_sync_in(region, 2) == {1, 3}, "3 goes on without 2")
        end = await written(region, 2, number)
        await one.kill()
        region.change(FenceNode(1, region.image.nodes[1].life))
        assert region.leadership.leader is None
        assert in_sync_in_all(region.image) == (one.member,)
        assert two.groups.open_groups == [1]
        region.fabric.heal("n2", "n3")
        everybody = {1, 2, 3}
        await region.until(lambda: in_sync_in(region, 1) == everybody, "2 takes 3 in")
        await region.until(lambda: in_sync_in(region, 2) == everybody, "3 takes 2 in")
        assert three_.partition(number).commits.durable_end >= end
        region.gather(3)
        await region.until(lambda: three_.acts and region.in_sync() == {2, 3}, "3 leads all logs")
        assert bytes_of(two.partition(number)) == bytes_of(three_.partition(number)) != b""
        assert three_.partition(number).high_watermark == end

    live(life)


def test_INV_RGR3_a_former_life_of_the_process_leads_no_group() -> None:
    async def life(region: SpreadRegion) -> None:
        _, two, _ = await three(region)
        node = structs.replace(region.image.nodes[2], life=life_of(2, 9))
        image = group_elected(region.image, 1, two.member)
        region.becomes(structs.replace(image, nodes={**image.nodes, 2: node}))
        await asyncio.sleep(0.1)
        assert not two.groups.any_open
        assert [each.leads for each in two.groups._data.values()] == [None, None]

    live(life)


def test_INV_RGR4_another_leader_of_a_group_goes_on_with_all_that_was_committed() -> None:
    async def life(region: SpreadRegion) -> None:
        _, two, three_ = await three(region)
        number = number_in(region, 1)
        end = await written(region, 2, number)
        kept = bytes_of(two.partition(number))
        region.fabric.hush("n2", "n1")
        region.fabric.hush("n2", "n3")
        lost = region.tasks.create_task(became_of(two.produce(batch(9, size_bytes=70), number)))
        await asyncio.sleep(0.02)
        region.becomes(group_elected(region.image, 1, three_.member))
        assert isinstance(await lost, NotLeader)
        assert not two.partition(number).is_leader
        region.fabric.heal("n2", "n1")
        region.fabric.heal("n2", "n3")
        await region.until_spread()
        assert three_.groups.open_groups == [1, 2]
        assert await written(region, 3, number, 2) >= end + 2
        await equal(region, number)
        assert bytes_of(two.partition(number)).startswith(kept)

    live(life)


def test_INV_PT9_who_leads_a_group_no_more_tells_no_reader_where_its_logs_end() -> None:
    """1. It led, and showed all. 2. Another one leads. 3. A Fetch that came meanwhile is read: as a mirror that has shown nothing it would say
    that the log ends where it begins."""

    async def life(region: SpreadRegion) -> None:
        _, two, three_ = await three(region)
        number = number_in(region, 1)
        end = await written(region, 2, number)
        log = two.partition(number)
        told = set[tuple[bool, bool]]()

        def read() -> None:
            told.add((log.sight.is_known, log.sight.last_stable_offset == end))

        read()
        assert told == {(True, True)}
        log.watchers.add(read)
        region.becomes(group_elected(region.image, 1, three_.member))
        await region.until(lambda: not log.is_leader, "it leads no more")
        read()
        assert (True, False) not in told
        assert not any(
            map(log.sight.knows_end, (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED))
        )

    live(life)


def test_INV_RGR5_a_group_opens_once_all_that_is_older_is_committed_and_while_the_region_acts() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        await region.start()
        two = region.node(2)
        region.node(1).runner.goes.clear()
        region.node(3).runner.goes.clear()
        for number in range(6):
            region.node(1).append(batch(5), number)
        await region.until(
            lambda: all(two.partition(n).log_end_offset == 5 for n in range(6)), "it is copied"
        )
        region.spread()
        await asyncio.sleep(0.2)
        assert not two.groups.any_open
        assert any(two.partition(number).is_leader for number in range(6))
        region.node(1).runner.goes.set()
        region.node(3).runner.goes.set()
        await region.until_spread()
        domain = structs.replace(region.image.domains["main"], acting_region="us")
        two.image = structs.replace(region.image, domains={"main": domain})
        two.groups._image = two.image
        assert not two.groups.any_open
        domain = structs.replace(domain, acting_region="eu", region_epoch=RegionEpoch(16))
        two.groups._image = structs.replace(region.image, domains={"main": domain})
        assert not two.groups.any_open
        two.groups._image = region.image
        assert two.groups.any_open

    live(life)


def test_INV_RGR6_a_data_leader_has_the_groups_in_sync_set_changed_and_no_other() -> None:
    async def life(region: SpreadRegion) -> None:
        one, _, three_ = await three(region)
        number = number_in(region, 1)
        await three_.kill()
        await written(region, 2, number)
        assert region.image.spread is not None
        assert region.image.spread.groups[1].in_sync == (one.member, region.node(2).member)
        proposals = [each for each in region.proposals if isinstance(each, ChangeGroupInSync)]
        assert {each.group for each in proposals} == {1}
        await three_.start()
        await region.until(
            lambda: all(
                three_.member in (row.in_sync if row else ())
                for row in map(region.image.leadership_in, (0, 1))
            ),
            "it is in sync again",
        )

    live(life)


def test_INV_RGR6_a_connection_is_of_one_term_whatever_the_group() -> None:
    async def life(region: SpreadRegion) -> None:
        one, two, three_ = await three(region)
        region.becomes(group_elected(region.image, 2, two.member))
        await region.until_spread()
        client = await NodeClient.connect(region.network_of(three_), region.addresses[two.member])
        serving = region.tasks.create_task(client.run())
        await client.handshake(standing_of(three_.member, life=life_of(3)), REPLICA)
        assert region.image.spread is not None
        first, second = (row.leader_epoch for row in region.image.spread.groups.values())
        await client.call(
            CheckReplicaLogs(leader_epoch=first, lineage=one.cuts.digest), CheckedReplicaLogs
        )
        with pytest.raises(PeerRefused, match="compare again"):
            await client.call(
                CheckReplicaLogs(leader_epoch=second, lineage=one.cuts.digest), CheckedReplicaLogs
            )
        client.close()
        await serving

    live(life)


def test_a_topic_that_is_made_meanwhile_begins_in_its_groups_on_all_nodes() -> None:
    async def life(region: SpreadRegion) -> None:
        await three(region)
        made = Topic(topic_id=UUID(int=78, version=4), name="made", partition_count=3)
        spread = region.image.spread
        assert spread is not None
        topics = tuple(sorted((*spread.topics, made.topic_id)))
        image = structs.replace(
            region.image,
            spread=structs.replace(spread, topics=topics),
            version=region.image.version + 1,
        )
        region.topics.append(made)
        region.image = image
        for node in region.running:
            node.hear(image)
            node.table.open_topic(made)
            node.logs_changed()
            for number in range(3):
                log = node.partition(number, 2)
                row = image.leadership_of(log.key)
                assert row is not None
                if node.groups.is_main(log.key) and row.leader == node.member:
                    log.become_leader(row.leader_epoch)  # as `TopicRegistry` does
                assert log.is_leader == (row.leader == node.member)
        for number in range(3):
            leader = next(each for each in region.running if each.partition(number, 2).is_leader)
            await leader.produce(batch(), number, 2)
            await equal(region, number, 2)

    live(life)


def test_INV_RGR2_another_lineage_ends_all_data_groups_in_that_step() -> None:
    async def life(region: SpreadRegion) -> None:
        await three(region)
        entry = LineageEntry(
            region_epoch=RegionEpoch(16),
            acting_region="eu",
            base_region_epoch=RegionEpoch(8),
            base_number=1,
        )
        domain = structs.replace(
            region.image.domains[DEFAULT_DOMAIN], lineage=(entry,), region_epoch=entry.region_epoch
        )
        # No command does that while leaders are spread (INV-SPR8).
        region.becomes(
            structs.replace(
                region.image, version=region.image.version + 1, domains={DEFAULT_DOMAIN: domain}
            )
        )
        assert not any(node.groups.any_open for node in region.running)
        assert not any(each.leads for node in region.running for each in node.groups._data.values())

    live(life)


def test_INV_RGR2_a_takeover_before_leaders_are_spread_keeps_nobody_from_copying_data_groups() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        await region.start()
        domain = region.image.domains[DEFAULT_DOMAIN]
        entry = LineageEntry(
            region_epoch=domain.region_epoch,
            acting_region="eu",
            base_region_epoch=RegionEpoch(8),
            base_number=1,
        )
        # The main leader leads on, in the same leader epoch.
        region.becomes(
            structs.replace(
                region.image,
                version=region.image.version + 1,
                domains={DEFAULT_DOMAIN: structs.replace(domain, lineage=(entry,))},
            )
        )
        region.spread()
        await region.until_spread()
        assert [node.groups.followed_count for node in region.running] == [2, 2, 2]

    live(life)


def test_INV_RGR9_a_producer_may_leave_its_gap_at_the_data_leader_below_the_base_of_a_takeover() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        await region.start()
        two = region.node(2)
        for number in range(6):
            await region.node(1).produce(batch(4), number)
        domain = region.image.domains[DEFAULT_DOMAIN]
        positions = {two.partition(number).key.encode(): 3 for number in range(6)}
        entry = LineageEntry(
            region_epoch=domain.region_epoch, acting_region="eu", base_region_epoch=RegionEpoch(1), base_number=1, positions=positions,
        )  # fmt: skip
        domain = structs.replace(domain, lineage=(entry,))
        region.becomes(
            structs.replace(
                region.image, domains={DEFAULT_DOMAIN: domain}, version=region.image.version + 1
            )
        )
        await region.until(
            lambda: two.driver.follows and two.groups._on is not None, "it follows by that lineage"
        )
        region.spread()
        await region.until_spread()
        for number in range(6):
            log = two.partition(number)
            assert log.state._gap_below == (3 if log.is_leader else 0)

    live(life)


def test_a_leader_with_a_stopped_log_and_one_that_hears_of_one_ask_for_gathering() -> None:
    async def life(region: SpreadRegion) -> None:
        one, two, three_ = await three(region)
        number = number_in(region, 1)
        three_.partition(number).stop("its disk failed")
        three_.groups.logs_changed()
        await region.until(lambda: two.groups.trouble() is not None, "it is heard of")
        assert one.groups.trouble() is None
        two.groups.is_damaged = lambda key: key == two.partition(number).key
        assert "is damaged" in (two.groups.trouble() or "")
        two.partition(number).stop("its disk failed")
        assert "has stopped at node 2" in (two.groups.trouble() or "")

    live(life)


def test_INV_SPD2_a_leader_without_room_asks_for_gathering() -> None:
    """1. Its disk is nearly full. 2. What it leads takes no writes, though the other nodes have room.

    The leader of the main group, too: it has another one elected then (INV-NRP6).
    """

    async def life(region: SpreadRegion) -> None:
        for node in (await three(region))[:2]:
            _nearly_full(node)
            assert "takes no writes" in (node.groups.trouble() or "")
            node.table.room.note(1_000, 500)
            assert node.groups.trouble() is None

    live(life)


def test_INV_SPD2_leaders_are_not_spread_by_one_without_room_and_those_of_a_follower_do_not_count() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        await region.start()
        one, two = region.node(1), region.node(2)
        for node in (one, two):
            _nearly_full(node)
        assert "takes no writes" in (one.groups.trouble() or "")
        assert two.groups.trouble() is None

    live(life)


def _nearly_full(node: SpreadNode) -> None:
    node.table.room.free_bytes_min = 100
    node.table.room.note(1_000, 50)


def test_INV_NRP3_a_node_that_has_lost_a_log_leads_no_data_group_and_says_so() -> None:
    async def life(region: SpreadRegion) -> None:
        await region.start()
        two, three_ = region.node(2), region.node(3)
        two.groups._parts = dataclasses.replace(two.groups._parts, may_lead=lambda: False)
        spread = region.spread()
        assert [row.leader for row in spread.groups.values()] == [two.member, three_.member]
        await region.until(lambda: bool(three_.groups.open_groups), "the other one leads its group")
        assert not any(log.is_leader for log in two.groups._parts.partitions)
        assert "cannot: it has lost a log" in (two.groups.trouble() or "")

    live(life)


def test_INV_SPK1_a_main_leader_says_which_of_its_own_logs_is_in_trouble() -> None:
    async def life(region: SpreadRegion) -> None:
        await region.start()
        one, two = region.node(1), region.node(2)
        two.partition(0).stop("its disk failed")
        two.groups.logs_changed()
        assert two.groups.trouble() is None, "it leads none"
        await region.until(lambda: one.groups.trouble() is not None, "it is heard of")
        assert "1 logs have stopped at node 2" in (one.groups.trouble() or "")
        one.partition(1).stop("its disk failed")
        assert "has stopped at node 1" in (one.groups.trouble() or "")
        one.groups.end()
        assert one.groups.trouble() is None, "it leads no more"

    live(life)


def test_nothing_is_made_where_leaders_are_not_spread() -> None:
    async def life(region: SpreadRegion) -> None:
        await region.start()
        assert all(not node.groups._data for node in region.running)
        assert all(node.groups.trouble() is None for node in region.running)
        key = partition(region, 1, 0).key
        assert region.node(1).groups.apart(key) is None
        assert region.node(1).groups._main_logs() is None

    live(life)


def test_INV_GUP3_INV_RGR3_a_data_leader_that_gives_up_lets_its_logs_go_until_the_metadata_have_another_row() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        _, two, _ = await three(region)
        number = number_in(region, 1)
        log, group = two.partition(number), GroupNumber(1)
        leader_epoch = two.groups.led()[group].leads
        assert leader_epoch is not None
        for other in ("n1", "n3"):
            region.fabric.hush("n2", other)
        waiting = region.tasks.create_task(became_of(two.produce(batch(), number)))
        await asyncio.sleep(0.02)
        two.groups.give_up(group, LeaderEpoch(leader_epoch - 1))
        assert group in two.groups.led(), "that one was over"
        two.groups.give_up(group, leader_epoch)
        assert isinstance(await waiting, NotLeader)
        assert not log.is_leader
        assert two.groups.led() == {}
        two.hear(region.image)
        assert not log.is_leader, "the metadata name it still"
        assert "cannot" in str(two.groups.trouble()), "so leaders are gathered (INV-SPD2)"
        for other in ("n1", "n3"):
            region.fabric.heal("n2", other)
        region.becomes(group_elected(region.image, group, two.member))
        await region.until(lambda: two.takes_writes(log), "it leads under another leader epoch")
        await written(region, 2, number)
        await equal(region, number)

    live(life)


def test_INV_RPL13_a_connection_of_the_main_leader_that_breaks_and_comes_back_gathers_nobody() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        await three(region)
        number = number_in(region, 1)
        await written(region, 2, number)
        region.proposals.clear()
        region.fabric.drop("n1", "n2")
        await written(region, 2, number)  # HW waited for it (INV-SPR10)
        assert not any(
            isinstance(each, ChangeGroupInSync) and each.group == 1 for each in region.proposals
        )
        assert region.image.spread is not None
        assert in_sync_in(region, 1) == {1, 2, 3}
        await equal(region, number)

    live(life)


def test_INV_RGR11_data_groups_take_no_writes_while_the_main_leader_says_that_its_gate_is_shut() -> (
    None
):
    async def life(region: SpreadRegion) -> None:
        one, two, three_ = await three(region)
        number = number_in(region, 1)
        await written(region, 2, number)
        region.fabric.hush("n2", "n3")
        waiting = region.tasks.create_task(became_of(two.produce(batch(), number)))
        one.close_gate("another region says that this one runs elsewhere")
        await region.until(
            lambda: not (two.groups.takes_writes or three_.groups.takes_writes), "both hear it"
        )
        assert not two.takes_writes(two.partition(number))
        assert two.groups.is_open(two.partition(number)), "reads and markers go on"
        region.fabric.cut("n1", "n2")
        await region.until(lambda: not two.following.is_connected, "the connection is lost")
        assert not two.groups.takes_writes, "it was the last word"
        region.fabric.heal("n1", "n2")
        region.fabric.heal("n2", "n3")
        assert not isinstance(await waiting, NotLeader), "what was appended before goes on"
        one.acts = True
        one.leading.gate_moved()
        await region.until(lambda: two.groups.takes_writes, "it hears that the gate is open")
        await written(region, 2, number)
        one.close_gate("again")
        await region.until(lambda: not two.groups.takes_writes, "it is shut")
        await region.until(
            lambda: all(in_sync_in(region, group) == {1, 2, 3} for group in range(3)), "all is well"
        )
        region.fabric.cut("n2", "n3")
        region.gather(3)
        await region.until(lambda: region.node(3).acts, "another one leads all logs")
        region.spread()
        assert two.groups.takes_writes, "that word was of another leader epoch"

    live(life)


def test_INV_RSN9_data_leaders_hear_of_the_gate_before_the_fetch_that_waits_is_due() -> None:
    async def life(region: SpreadRegion) -> None:
        one, two, _ = await three(region)
        for takes_writes in (False, True):
            await asyncio.sleep(FETCH_WAIT_MS * 5.2 / 1000)
            began_ms = region.clock.monotonic_ms()
            one.acts = takes_writes
            one.leading.gate_moved()
            await region.until(lambda: two.groups.takes_writes is one.acts, "it hears it")
            assert region.clock.monotonic_ms() - began_ms < FETCH_WAIT_MS / 5, "simulated time"

    live(life)


def test_INV_RGR11_without_a_word_of_the_main_leader_data_groups_take_writes() -> None:
    async def life(region: SpreadRegion) -> None:
        _, two, _ = await three(region)
        region.fabric.cut("n1", "n2")
        await region.until(lambda: not two.following.is_connected, "the connection is lost")
        assert two.groups.takes_writes

    live(life)


def test_INV_RGR11_an_older_main_leader_does_not_say_that_its_gate_is_shut() -> None:
    said = msgspec.msgpack.decode(msgspec.msgpack.encode(ReplicaFetched(parts=())))
    del said["takes_writes"]
    assert msgspec.convert(said, ReplicaFetched).takes_writes


def test_INV_RLD7_a_fetch_that_is_begun_when_its_connection_has_ended_is_refused() -> None:
    async def life(region: SpreadRegion) -> None:
        one, two, _ = await three(region)
        session = NodeSession(99, "n2", standing_of(two.member).hello(), lambda: None)
        session.end()
        main = region.image.leadership
        assert main is not None
        fetch = ReplicaFetch(leader_epoch=main.leader_epoch, bytes_max=1, wait_ms_max=0)
        with pytest.raises(PeerRefused):
            await one.leading.fetch(session, fetch, memoryview(b""))

    live(life)
