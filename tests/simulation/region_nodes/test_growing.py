"""A region of one node grows to three while it takes transactions, with a kill in the middle of any step (`tidemark cluster node add`)."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from region_broker.node import growing_node
from region_broker.wire.server import KafkaServer
from tests.simulation.kafka_client import Connection, Reader
from tests.simulation.region_cluster import Member
from tests.simulation.region_nodes.growing import TOPIC, GrowingRegion, Writer
from tests.simulation.test_region_of_three import everything_equal, values_at

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


@asynccontextmanager
async def growing(
    folder: Path, seed: int, **settings: Any
) -> AsyncIterator[tuple[GrowingRegion, list[Writer]]]:
    """Run a region of one node that two clients write to; `settings` stand in all configuration files."""
    region = GrowingRegion(folder, seed, **settings)
    try:
        await region.start()
        await region.first.node.topics.create_topic(TOPIC, 2, {})
        writers = [Writer(region, f"writer-{at}") for at in range(2)]
        async with asyncio.TaskGroup() as tasks:
            for writer in writers:
                tasks.create_task(writer.run())
            await region.until(lambda: all(len(w.committed) >= 3 for w in writers), "writes")
            yield region, writers
            for writer in writers:
                writer.closed.set()
    finally:
        await region.stop()


async def more_written(region: GrowingRegion, writers: list[Writer], count: int = 3) -> None:
    before = [len(writer.committed) for writer in writers]
    await region.until(
        lambda: all(len(w.committed) >= had + count for w, had in zip(writers, before, strict=True)),
        "more is written",
    )  # fmt: skip


async def close(region: GrowingRegion, writers: list[Writer]) -> None:
    """End the writers, and hold what is there against what was answered: nothing lost, doubled, halved or out of order."""
    for writer in writers:
        writer.closed.set()
        await region.until(lambda writer=writer: writer._connection is None, "it has left")  # type: ignore[misc]
    leader = await region.until_led()
    connection = await Connection.open(region.fabric.site("ender"), leader.kafka_port)
    for writer in writers:  # what was left open is aborted
        await connection.init_producer_id(writer._name)
    connection.close()
    values = [value.decode() for value in await values_at(region, leader)]
    counts = Counter(values)
    for writer in writers:
        found = [number for number in range(writer.begun) if counts[f"{writer._name} {number}"]]
        assert {*writer.committed} <= {*found}, "acknowledged and lost"
        assert {counts[f"{writer._name} {number}"] for number in found} == {2}, "halved or doubled"


async def grow(region: GrowingRegion) -> Member:
    await region.add(2, region.first)
    await region.until(lambda: region.first.leads and region.first.has_turned, "it has turned")  # fmt: skip
    await region.add(3, region.first)
    for node_id in (2, 3):
        await region.grower(node_id).start()
    return await region.joined(3)


async def test_INV_GRN2_INV_GRN3_no_client_meets_an_error_when_a_region_of_one_node_gets_more(
    tmp_path: Path,
) -> None:
    async with growing(tmp_path, 1) as (region, writers):
        await region.first.node.topics.create_topic("idle", 1, {})
        patient = await Connection.open(region.fabric.site("reader"), region.first.kafka_port)
        reader = Reader("idle", 1, committed=True)

        async def read() -> None:
            while True:
                await reader.read(patient, wait_ms=25_000)

        reading = asyncio.get_running_loop().create_task(read())
        await more_written(region, writers)
        first_node = region.first.node
        await more_written(region, writers)
        await grow(region)
        await more_written(region, writers)
        assert region.first.node is not first_node
        former = list(first_node.storage.partitions)
        assert former
        assert all(partition.log.content.closed for partition in former), "it holds no file"
        assert [writer.errors for writer in writers] == [[], []]
        assert [writer.connections for writer in writers] == [1, 1]
        assert not reading.done()
        reading.cancel()
        await close(region, writers)
        await everything_equal(region)


async def test_INV_GRN3_nothing_is_begun_before_the_next_node_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the time is over that requests are held for: who has resigned, and closed its logs, answers nobody."""
    begun: list[bool] = []
    release = KafkaServer.release

    def noted(server: KafkaServer) -> None:
        node = region.first.process.node
        begun.append(node is not None and node.kafka is server and not node.role.acting)
        release(server)

    monkeypatch.setattr(growing_node, "HELD_MS_MAX", -1)
    monkeypatch.setattr(KafkaServer, "release", noted)
    region = GrowingRegion(tmp_path, 6)
    try:
        await region.start()
        await region.add(2, region.first)
        await region.until(lambda: region.first.has_turned and region.first.leads, "turned")  # fmt: skip
        assert begun == [True]
    finally:
        await region.stop()


async def test_INV_NHO1_who_waits_for_others_is_told_to_ask_again_on_the_same_connection(
    tmp_path: Path,
) -> None:
    """A member waits for the others of its group: nobody lets these in meanwhile, so it is answered as by a coordinator that moves."""
    region = GrowingRegion(tmp_path, 5)
    try:
        await region.start()
        site = region.fabric.site("members")
        first, second = [await Connection.open(site, region.first.kafka_port) for _ in range(2)]
        joined = await first.call(11, 3, join_request())
        assert joined.error_code == ErrorCode.none
        second.send(11, 3, join_request())
        await asyncio.sleep(1)
        await region.add(2, region.first)
        answered = await second.receive(11, 3)
        assert answered.error_code == ErrorCode.not_coordinator
        await region.until(lambda: region.first.has_turned and region.first.leads, "turned")
        assert (await second.call(11, 3, join_request("another"))).error_code == ErrorCode.none
        first.close()
        second.close()
    finally:
        await region.stop()


def join_request(group: str = "group") -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout": 30_000, "rebalance_timeout": 60_000, "member_id": "",
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    }  # fmt: skip


async def test_INV_CNN6_a_fourth_node_is_known_to_all_that_run_and_joins(tmp_path: Path) -> None:
    async with growing(tmp_path, 4) as (region, writers):
        leader = await grow(region)
        lives = [node.node for node in region.nodes.values() if node.runs]
        follower = next(node for node in region.nodes.values() if node.runs and node is not leader)
        told = await region.add(4, follower)
        assert (told["turns"], told["nodes"]) == (False, [1, 2, 3, 4])
        assert awaited(follower) == [4], "it has not come yet"
        await more_written(region, writers)
        await region.grower(4).start()
        await region.joined(4)
        assert awaited(follower) == []
        await more_written(region, writers)
        assert [node.node for node in region.nodes.values() if node.runs][:3] == lives
        assert [writer.errors for writer in writers] == [[], []]
        await close(region, writers)


async def test_INV_CLO4_a_node_that_was_added_by_mistake_is_taken_back_while_it_copies(
    tmp_path: Path,
) -> None:
    async with growing(tmp_path, 5, catch_up_sent_bytes_per_s=1) as (region, writers):
        await region.add(2, region.first)
        second = region.grower(2)
        await second.start()
        await region.until(lambda: "connected" in copying_of(region, 2), "it copies")
        await more_written(region, writers)
        row = copying_of(region, 2)
        assert row["connected"], "INV-RPA5: it has one byte per second"
        assert row["bytes_behind"] > 0 < row["records_behind"]
        assert not row["in_sync"]
        await second.stop()
        operating = region.first.node.operating
        assert operating is not None
        await region.until(lambda: copying_of(region, 2)["fenced"], "it is not heard")
        await region.first.as_process(operating.order("remove", 2, dry_run=False, confirmed=False))
        assert copying_of(region, 2) == {}
        await more_written(region, writers)
        assert [writer.errors for writer in writers] == [[], []]
        await close(region, writers)


def awaited(node: Member) -> list[int]:
    """Return which nodes were added and have not come, as a node tells."""
    operating = node.node.operating
    assert operating is not None
    return [row["node_id"] for row in operating.describe()["awaited"]]


def copying_of(region: GrowingRegion, node_id: int) -> dict[str, Any]:
    """Return what the first node tells of another one; nothing of one that it does not know."""
    operating = region.first.node.operating
    rows = operating.describe()["nodes"] if operating is not None and region.first.leads else []
    told = [row for row in rows if row["node_id"] == node_id]
    return {key: value for row in told for key, value in row.items() if value is not None}


async def test_INV_GRN1_what_was_added_outlives_a_restart_of_every_node_with_its_old_file(
    tmp_path: Path,
) -> None:
    async with growing(tmp_path, 2) as (region, writers):
        await grow(region)
        for node_id in (1, 2, 3):
            await region.grower(node_id).stop()
        for node_id in (1, 2, 3):
            await region.grower(node_id).begin()
        await region.joined(3)
        told = [len(region.grower(node_id).config().own.nodes) for node_id in (1, 2, 3)]
        assert told == [1, 2, 3], "each has the file that it had"
        await more_written(region, writers)
        await close(region, writers)


async def test_T36_a_node_that_was_started_often_is_whole_when_its_region_grows(
    tmp_path: Path,
) -> None:
    async with growing(tmp_path, 3) as (region, writers):
        for _ in range(3):
            await region.first.stop()
            await region.first.start()
        await grow(region)
        await more_written(region, writers)
        await close(region, writers)


@pytest.mark.parametrize("seed", range(10, 13))
async def test_INV_NAD3_a_kill_at_any_moment_of_the_growth_loses_nothing_and_the_order_may_be_repeated(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with growing(tmp_path, seed) as (region, writers):
        first = region.first
        adding = asyncio.get_running_loop().create_task(region.add(2, first))
        await asyncio.sleep(chance.choice([0.0, 0.002, 0.01, 0.05]) * chance.random())
        if chance.random() < 0.7:
            await asyncio.sleep(chance.random() * 0.4)
        await first.kill(power=chance if chance.random() < 0.5 else None)
        adding.cancel()
        await asyncio.wait([adding])
        await first.start()
        await region.until(lambda: first.leads, "it takes writes again")
        await region.add(2, first)  # whatever became of the first order
        await region.until(lambda: first.leads and first.has_turned, "it is one of several")  # fmt: skip
        await region.grower(2).start()
        await region.add(3, first)
        await asyncio.sleep(chance.random() * 0.2)
        await first.kill(power=chance if chance.random() < 0.5 else None)
        await region.grower(3).begin()
        await first.start()
        await region.joined(3)
        await more_written(region, writers)
        await close(region, writers)
        await everything_equal(region)
