"""Fetch under a memory budget: nothing is read while it is full, nothing is lost, nobody is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from idempotency.pieces import Pieces
from region_broker.handlers.fetch import reading
from region_broker.handlers.fetch.reading import Read, Reading
from region_broker.limits import MIB, REQUEST_COST_MIN, ROW_COST
from region_broker.log.failures import ColdRange
from region_broker.ports import turn_budget
from region_broker.records.batches import Record, build_batch
from region_broker.wire.memory_budget import MemoryBudget, Share
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture
from tests.fixtures.waiting import until

SIZE_BYTES = 100_000


async def written(fixture: WireFixture, count: int) -> RawClient:
    await fixture.topic("t")
    for _ in range(count):
        fixture.partition("t").writer.append(build_batch([Record(b"k", bytes(SIZE_BYTES))]))
    await fixture.partition("t").wait_committed(count)
    return await fixture.connect()


def asked(max_wait: int) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 * MIB}
    return {"max_wait": max_wait, "min_bytes": 1, "max_bytes": 50 * MIB,
            "topics": [{"topic": "t", "partitions": [partition]}],
            "forgotten_topics_data": []}  # fmt: skip


async def test_full_budget_answers_empty_when_the_wait_is_over(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await written(fixture, 1)
        memory = fixture.services.memory
        memory.hold(Share(), memory.left_bytes)
        (row,) = (await client.call(1, 12, asked(20))).responses[0].partitions
        assert (row.error_code, row.high_watermark, row.records) == (0, 1, b"")


async def test_INV_MB4_parts_of_requests_keep_nobody_from_reading(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await written(fixture, 1)
        memory, parts_bytes = fixture.services.memory, 300 * MIB
        memory.hold(Share(), parts_bytes, parts_bytes)
        (row,) = (await client.call(1, 12, asked(30_000))).responses[0].partitions
        assert len(row.records) > SIZE_BYTES


async def test_waiting_fetch_is_served_once_there_is_room(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await written(fixture, 1)
        memory, holder = fixture.services.memory, Share()
        memory.hold(holder, memory.left_bytes)
        client.send(1, 12, asked(30_000))
        await asyncio.sleep(0.01)
        memory.hold(holder, 0)
        _, answer = await client.receive(1, 12)
        assert len(answer.responses[0].partitions[0].records) > SIZE_BYTES


async def test_one_answer_takes_half_of_what_is_left_at_most(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await written(fixture, 20)
        memory: MemoryBudget = fixture.services.memory
        memory.hold(Share(), memory.left_bytes - MIB)
        (row,) = (await client.call(1, 12, asked(0))).responses[0].partitions
        assert SIZE_BYTES < len(row.records) <= MIB // 2


async def test_INV_FRD6_who_has_gone_while_it_was_read_for_him_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "FETCH_STEP_BYTES", 1)
    read = Reading.read

    def stopped_half_way(self: Reading) -> Pieces[list[Read] | ColdRange]:
        pieces = read(self)
        next(pieces)
        while True:
            yield

    async with wire_fixture(tmp_path) as fixture:
        client = await written(fixture, 1)
        await fixture.topic("u")
        memory = fixture.services.memory
        topics = [{"topic": name, "partitions": asked(0)["topics"][0]["partitions"]} for name in ("t", "u")]  # fmt: skip
        monkeypatch.setattr(Reading, "read", stopped_half_way)
        client.send(1, 12, asked(0) | {"topics": topics})
        await until(lambda: memory.held_bytes > SIZE_BYTES)
        client.writer.close()
        await until(lambda: memory.held_bytes == 0)


async def test_INV_FRD7_one_append_that_ends_many_waits_has_few_of_them_read_in_one_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers, read = [0], Reading.read

    def counted(self: Reading) -> Pieces[list[Read] | ColdRange]:
        readers[-1] += 1
        return read(self)

    def tick() -> None:
        readers.append(0)
        asyncio.get_running_loop().call_soon(tick)

    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        clients = [await fixture.connect() for _ in range(20)]
        for client in clients:
            client.send(1, 12, asked(30_000))
        await until(lambda: len(fixture.services.deadlines) == len(clients))
        monkeypatch.setattr(turn_budget, "TURN_COST_MAX", 3 * (ROW_COST + REQUEST_COST_MIN))
        monkeypatch.setattr(Reading, "read", counted)
        tick()
        fixture.partition("t").writer.append(build_batch([Record(b"k", b"v")]))
        for client in clients:
            _, answer = await client.receive(1, 12)
            assert answer.responses[0].partitions[0].records
        assert sum(readers) == len(clients)
        assert max(readers) == 3
