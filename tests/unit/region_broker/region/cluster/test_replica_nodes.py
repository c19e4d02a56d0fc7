"""One leader and its followers: real logs, group commits and peer ports on a simulated loop, network and disk."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from region_broker.controller.cluster_commands import ChangeInSync
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.log.failures import NotLeader
from tests.fixtures.node_logs import Topic, batch
from tests.fixtures.replica_nodes import LAG_MS, ReplicaNode, ReplicaRegion, bytes_of, state_of
from tests.simulation.simulated_loop import run_simulated

Life: TypeAlias = Callable[[ReplicaRegion], Awaitable[None]]


def unsure(_command: ChangeInSync) -> None:
    raise MetadataInDoubt("nobody knows")


async def hears_of_it(node: ReplicaNode, offset: int) -> None:
    with pytest.raises(NotLeader):
        await node.partition().wait_committed(offset)


def live(life: Life, seed: int = 1, *, partitions: int = 1) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            region = ReplicaRegion(tasks, seed, topics=[Topic(partition_count=partitions)])
            await life(region)
            for node in region.nodes.values():
                if node.runs:
                    await node.kill()

    run_simulated(main(), seed)


def test_followers_have_the_same_bytes_and_what_is_committed_is_durable_on_all() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        for _ in range(20):
            end = await one.produce(batch(3))
            assert min(node.partition().durable_end for node in (one, two, three)) >= end
        await region.until(
            lambda: two.partition().high_watermark == three.partition().high_watermark == 60,
            "HW is told",
        )
        assert bytes_of(one.partition()) == bytes_of(two.partition()) == bytes_of(three.partition())
        assert state_of(one.partition()) == state_of(two.partition()) == state_of(three.partition())

    live(life)


def test_a_follower_whose_disk_stands_still_holds_hw_back_until_it_is_taken_out() -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        three.runner.goes.clear()
        begun_ms = region.clock.monotonic_ms()
        end = await one.produce(batch())
        took_ms = region.clock.monotonic_ms() - begun_ms
        assert LAG_MS <= took_ms < LAG_MS + 1_000
        assert region.in_sync() == {1, 2}
        assert three.partition().durable_end < end <= two.partition().durable_end
        assert three.partition().high_watermark < end
        three.runner.goes.set()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it comes back")
        assert three.partition().durable_end >= end

    live(life)


def test_a_dead_follower_is_taken_out_at_once() -> None:
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
