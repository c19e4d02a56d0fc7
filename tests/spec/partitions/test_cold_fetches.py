"""Fetches of what memory does not hold, over a real socket: a thread reads it in, and nothing else changes for a client.

INV-CO1, INV-FRD2; order of answers by Kafka's protocol guide: a connection's answers come in the order of its requests.
"""

import asyncio
import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from region_broker.limits import YIELD_ROWS
from region_broker.log.failures import ColdRange
from region_broker.records.batches import Record, build_batch
from region_broker.wire.codec.fast_paths.fetch import FetchedRow
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture
from tests.fixtures.page_cache import (
    answered_from_disk,
    answered_from_memory,
    drop_pages,
)

FETCH, API_VERSIONS = 1, 18
VERSION = 12
BATCHES = 20
WITHOUT_A_TASK, WITH_A_TASK = 4, YIELD_ROWS + 1


def request(count: int, *, wait_ms: int = 0, bytes_min: int = 1) -> dict[str, Any]:
    """Return a fetch of `count` partitions from their beginning."""
    wanted = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        for index in range(count)
    ]
    return {
        "max_wait": wait_ms, "min_bytes": bytes_min, "max_bytes": 50 << 20, "session_id": 0, "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": wanted}], "forgotten_topics_data": [],
    }  # fmt: skip


async def filled(fixture: WireFixture, count: int) -> list[bytes]:
    """Make a topic and fill some partitions of it; return what lies in each."""
    await fixture.topic("t", count)
    parts = [fixture.partition("t", index) for index in range(count)]
    for number in range(BATCHES):
        for part in parts[:WITHOUT_A_TASK]:
            part.writer.append(build_batch([Record(None, bytes([number]) * 9000)]))
    for part in parts:
        await part.wait_committed(part.log_end_offset)
        part.log.durability.sync_now()
    return [bytes(part.reader.read_raw(0, 1 << 20)) for part in parts]


def records_of(answer: Any) -> list[bytes]:
    return [bytes(row.records or b"") for topic in answer.responses for row in topic.partitions]


@pytest.mark.parametrize("count", [WITHOUT_A_TASK, WITH_A_TASK])
async def test_INV_CO1_a_fetch_of_what_is_not_in_memory_is_read_in_by_a_thread(
    tmp_path: Path, count: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        expected = await filled(fixture, count)
        cold_reads = fixture.services.partitions.cold_reads
        client = await fixture.connect()
        fetch = partial(client.call, FETCH, VERSION, request(count))
        assert records_of(await answered_from_memory(tmp_path, cold_reads, fetch)) == expected
        assert records_of(await answered_from_disk(tmp_path, cold_reads, fetch)) == expected
        assert cold_reads.waited_count == 0


@pytest.mark.parametrize("count", [WITHOUT_A_TASK, WITH_A_TASK])
async def test_answers_come_in_order_while_something_is_read_in(tmp_path: Path, count: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        expected = await filled(fixture, count)
        client = await fixture.connect()
        for _ in range(2):
            drop_pages(tmp_path)
            sent = [
                (FETCH, VERSION, client.send(FETCH, VERSION, request(count))),
                (API_VERSIONS, 0, client.send(API_VERSIONS, 0, {})),
                (FETCH, VERSION, client.send(FETCH, VERSION, request(count))),
            ]
            for key, version, correlation_id in sent:
                found_id, answer = await client.receive(key, version)
                assert found_id == correlation_id
                if key == FETCH:
                    assert records_of(answer) == expected


@pytest.mark.parametrize("count", [WITHOUT_A_TASK, WITH_A_TASK])
async def test_INV_FRD2_nothing_that_was_found_waits_for_the_collector(
    tmp_path: Path, count: int
) -> None:
    """Cycles on this path kept a gigabyte: the collector comes seldom."""
    async with wire_fixture(tmp_path) as fixture:
        await filled(fixture, count)
        client = await fixture.connect()
        await client.call(FETCH, VERSION, request(count))
        drop_pages(tmp_path)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await client.call(FETCH, VERSION, request(count))
            gc.collect()
            kept = [each for each in gc.garbage if isinstance(each, ColdRange | FetchedRow)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert kept == []


async def test_C38_bytes_min_counts_what_is_not_in_memory(tmp_path: Path) -> None:
    """A fetch that waits for many bytes, far behind the end, is answered: nobody reads the disk to count them."""
    async with wire_fixture(tmp_path) as fixture:
        expected = await filled(fixture, 1)
        drop_pages(tmp_path)
        client = await fixture.connect()
        asked = request(1, wait_ms=60_000, bytes_min=50_000)
        assert records_of(await client.call(FETCH, VERSION, asked)) == expected


async def test_a_client_that_leaves_while_something_is_read_in_harms_nobody(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        expected = await filled(fixture, WITHOUT_A_TASK)
        for _ in range(3):
            drop_pages(tmp_path)
            leaving: RawClient = await fixture.connect()
            leaving.send(FETCH, VERSION, request(WITHOUT_A_TASK))
            await leaving.writer.drain()
            leaving.writer.close()
            await asyncio.sleep(0)
        client = await fixture.connect()
        answer = await client.call(FETCH, VERSION, request(WITHOUT_A_TASK))
        assert records_of(answer) == expected
