"""Lookups by time that are meant to hurt: bombs in the log, and very many of them (hostile-input: compression)."""

import threading
from pathlib import Path
from typing import Any

import pytest

from region_broker.handlers.dispatch.registry import Api, ApiTable
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import ARRAY_ELEMENTS_MAX, LOOKUPS_MAX
from region_broker.log.segment import BatchAtTime
from region_broker.partitions import time_lookup
from region_broker.records.batches import Record, build_batch
from region_broker.records.compression import Codec
from tests.fixtures.kafka_port import body_of, wire_fixture
from tests.unit.region_broker.log.test_cleaning_odd_batches import NOW_MS, UNREADABLE


def asked(count: int, timestamp: int) -> dict[str, object]:
    item = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    return {"replica_id": -1, "isolation_level": 0,
            "topics": [{"name": "t", "partitions": [item] * count}]}  # fmt: skip


@pytest.mark.parametrize("timestamp", [-3, 2_000])
async def test_INV_TL1_compressed_records_are_not_looked_at_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamp: int
) -> None:
    looked_in: list[int] = []
    real = time_lookup.position_in

    def noted(found: BatchAtTime, timestamp_ms: int, start: int) -> object:
        looked_in.append(threading.get_ident())
        return real(found, timestamp_ms, start)

    monkeypatch.setattr(time_lookup, "position_in", noted)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        records = [Record(None, bytes(1000), (), 1_000 + index) for index in range(1_001)]
        fixture.partition("t").writer.append(build_batch(records, codec=Codec.ZSTD))
        await fixture.partition("t").wait_committed(1_001)
        client = await fixture.connect()
        (row,) = (await client.call(2, 7, asked(1, timestamp))).topics[0].partitions
        assert (row.error_code, row.offset, row.timestamp) == (0, 1_000, 2_000)
    assert len(looked_in) == 1  # INV-TL2: the bisection of KIP-734 unpacks nothing
    assert looked_in[0] != threading.get_ident()


@pytest.mark.parametrize(
    "name", ["an offset far behind its end", "a time that does not fit 64 bits"]
)
async def test_INV_WB3_a_lookup_answers_no_offset_or_time_that_only_a_producers_bytes_claim(
    tmp_path: Path, name: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.partition("t").writer.append(UNREADABLE[name])
        await fixture.partition("t").wait_committed(1)
        client = await fixture.connect()
        (row,) = (await client.call(2, 7, asked(1, NOW_MS))).topics[0].partitions
        assert (row.error_code, row.offset, row.timestamp) == (0, 0, NOW_MS)


async def test_one_request_looks_up_a_bounded_number_of_partitions(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client, other = await fixture.connect(), await fixture.connect()
        client.send(2, 7, asked(LOOKUPS_MAX + 1, -3))
        assert await client.closed()
        (row,) = (await other.call(2, 7, asked(1, -3))).topics[0].partitions
        assert (row.error_code, row.offset) == (0, -1)


async def test_one_request_holds_a_bounded_number_of_elements(tmp_path: Path) -> None:
    """OffsetFetch's plain numbers: the cheapest elements to send."""
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        numbers = list(range(ARRAY_ELEMENTS_MAX + 1))
        topics = [{"name": "t", "partition_indexes": numbers}]
        asked_offsets = {"groups": [{"group_id": "g", "topics": topics}], "require_stable": False}
        assert len(body_of(9, 8, asked_offsets)) > ARRAY_ELEMENTS_MAX
        client.send(9, 8, asked_offsets)
        assert await client.closed()


async def test_INV_HW1_requests_behind_a_large_one_wait_for_it(tmp_path: Path) -> None:
    """The large request is read in pieces; what was sent behind it on its connection begins after it."""
    begun: list[tuple[int, int]] = []

    async def noted(ctx: RequestContext, request: Any) -> dict[str, Any]:
        begun.append((ctx.connection_id, len(request.topics)))
        return {"topics": []}

    table = ApiTable.of(Api(2, "ListOffsets", range(7, 8), noted))
    async with wire_fixture(tmp_path, table=table) as fixture:
        client, other = await fixture.connect(), await fixture.connect()
        many = {"name": "t", "partitions": []}
        for count in (20_000, 1, 2, 3_000, 3):
            client.send(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [many] * count})
        await client.receive(2, 7)
        first = begun[0][0]
        other.send(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": []})
        await other.receive(2, 7)
        for _ in range(4):
            await client.receive(2, 7)
    assert [count for connection, count in begun if connection == first] == [20_000, 1, 2, 3_000, 3]
