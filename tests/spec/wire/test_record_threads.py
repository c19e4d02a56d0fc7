"""Batches that take long to look into: few at once, by threads that nobody else waits for (INV-RTH1; hostile-input: bombs)."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from idempotency.record_batch import BatchHeader, Buffer
from region_broker.limits import RECORD_THREADS
from region_broker.log.segment import BatchAtTime
from region_broker.partitions import record_rules, time_lookup
from region_broker.partitions.record_threads import RecordThreads
from region_broker.records.batch_rewrite import recompressed
from region_broker.records.batches import Record, build_batch
from region_broker.records.compression import Codec
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.waiting import until
from tests.simulation.kafka_client import produce_request
from tests.spec.wire.test_hostile_lookups import asked


async def test_INV_RTH1_few_are_looked_into_at_once_and_nothing_else_waits_for_them() -> None:
    threads, go_on = RecordThreads(), threading.Event()
    begun: list[int] = []

    def long(number: int) -> int:
        begun.append(number)
        assert go_on.wait(60)
        return number

    works = [threads.run(partial(long, number)) for number in range(2 * RECORD_THREADS + 2)]
    try:
        await until(lambda: len(begun) >= RECORD_THREADS)
        for _ in range(20):  # what logins, syncs and deletions use
            await asyncio.to_thread(int)
        assert begun == list(range(RECORD_THREADS))
        works[-1].cancel()  # its connection is gone before its turn
        await asyncio.sleep(0)  # the loop hands that on in its next turn
    finally:
        go_on.set()
    assert await asyncio.gather(*works[:-1]) == list(range(2 * RECORD_THREADS + 1))
    threads.close()
    assert 2 * RECORD_THREADS + 1 not in begun


async def test_INV_RTH1_batches_are_recompressed_and_searched_by_those_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked: list[str] = []
    position_in = time_lookup.position_in

    def note_recompressed(
        batch: Buffer, header: BatchHeader, codec: Codec, *, level: int | None
    ) -> bytes:
        worked.append(threading.current_thread().name)
        return recompressed(batch, header, codec, level=level)

    def note_position(found: BatchAtTime, timestamp_ms: int, start: int) -> object:
        worked.append(threading.current_thread().name)
        return position_in(found, timestamp_ms, start)

    monkeypatch.setattr(record_rules, "recompressed", note_recompressed)
    monkeypatch.setattr(time_lookup, "position_in", note_position)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"compression.type": "zstd"})
        client = await fixture.connect()
        batch = build_batch([Record(None, bytes(9_000), timestamp_ms=-1)], codec=Codec.GZIP)
        answer = await client.call(0, 9, produce_request("t", {0: batch}))
        assert answer.responses[0].partition_responses[0].error_code == 0
        (row,) = (await client.call(2, 7, asked(1, 0))).topics[0].partitions
        assert row.error_code == 0
        fixture.partition("t").writer.append(
            build_batch([Record(None, b"v", (), 5_000)], codec=Codec.ZSTD)
        )
        await fixture.partition("t").wait_committed(2)
        (row,) = (await client.call(2, 7, asked(1, 4_000))).topics[0].partitions
        assert (row.error_code, row.offset) == (0, 1)
    assert [name.rpartition("_")[0] for name in worked] == ["records", "records"]
