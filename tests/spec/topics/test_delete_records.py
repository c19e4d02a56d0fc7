"""DeleteRecords: through the wire, through restarts, on a mirror (T14) and through a takeover.

Sources: KIP-107, Kafka ReplicaManager.deleteRecordsOnLocalLog (errors), UnifiedLog.maybeIncrementLogStartOffset;
tidemarks.md T14.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from geo_replicator.failover import Phase
from idempotency.record_batch import iter_headers
from region_broker.records.batches import Record, build_batch, iter_records
from tests.fixtures.failover_regions import ORDERS, Pair, Site, fail_over
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture
from tests.fixtures.waiting import until

NONE, OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_TOPIC, INVALID_REQUEST = 0, 1, 3, 17, 42
HIGH_WATERMARK = -1


def delete_of(offset: int, name: str = "t", index: int = 0) -> dict[str, Any]:
    part = {"partition_index": index, "offset": offset}
    return {"topics": [{"name": name, "partitions": [part]}], "timeout": 5000}


async def delete(client: RawClient, offset: int, *args: Any, version: int = 2) -> tuple[int, int]:
    answer = await client.call(21, version, delete_of(offset, *args))
    row = answer.topics[0].partitions[0]
    return row.error_code, row.low_watermark


async def listed(client: RawClient, timestamp: int) -> tuple[int, int]:
    part = {"partition_index": 0, "timestamp": timestamp}
    answer = await client.call(2, 7, {"replica_id": -1, "isolation_level": 0,
                                      "topics": [{"name": "t", "partitions": [part]}]})  # fmt: skip
    row = answer.topics[0].partitions[0]
    return row.offset, row.timestamp


async def fetched(client: RawClient, offset: int) -> tuple[int, int, list[int]]:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    answer = await client.call(1, 11, {
        "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [],
        "topics": [{"topic": "t", "partitions": [part]}], "rack_id": ""})  # fmt: skip
    row = answer.responses[0].partitions[0]
    offsets = [
        record.offset
        for position, header in iter_headers(row.records)
        for record in iter_records(row.records[position : position + header.size_bytes])
    ]
    return row.error_code, row.log_start_offset, offsets


async def write(fixture: WireFixture, *times_ms: int) -> None:
    """Append one batch with a record for each time."""
    records = [Record(None, b"v", timestamp_ms=time_ms) for time_ms in times_ms]
    partition = fixture.partition("t")
    await partition.wait_committed(partition.writer.append(build_batch(records)).next_offset)


@pytest.mark.parametrize("version", range(3))
async def test_KIP107_log_start_moves_and_readers_begin_there(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await write(fixture, 1000, 4000, 2000)
        await write(fixture, 3000)
        assert await delete(client, 2, version=version) == (NONE, 2)
        assert await listed(client, -2) == (2, -1)
        assert (await fetched(client, 1))[0] == OUT_OF_RANGE
        error, log_start, offsets = await fetched(client, 2)
        # The batch comes whole (its bytes do not change); clients drop what lies below their offset.
        assert (error, log_start, offsets) == (NONE, 2, [0, 1, 2, 3])
        assert await listed(client, 2500) == (3, 3000)  # not 1: that record is deleted
        assert await listed(client, -3) == (3, 3000)
        assert await delete(client, 1, version=version) == (NONE, 2), "it never goes down"
        assert await delete(client, HIGH_WATERMARK, version=version) == (NONE, 4)
        assert await fetched(client, 4) == (NONE, 4, [])
        await write(fixture, 5000)
        assert (await fetched(client, 4))[2] == [4]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ((3,), OUT_OF_RANGE),
        ((-2,), OUT_OF_RANGE),
        ((0, "nope"), UNKNOWN_TOPIC),
        ((0, "t", 5), UNKNOWN_TOPIC),
        ((0, "__ledger"), INVALID_TOPIC),
    ],
)
async def test_KIP107_bad_orders_are_refused(tmp_path: Path, asked: Any, error: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        await fixture.internal_topic("__ledger")
        client = await fixture.connect()
        await write(fixture, 1, 2)
        assert await delete(client, *asked) == (error, -1)
        assert fixture.partition("t").log_start_offset == 0


async def test_one_request_names_a_bounded_number_of_partitions(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        parts = [{"partition_index": index, "offset": 0} for index in range(20_001)]
        answer = await client.call(21, 2, {"topics": [{"name": "t", "partitions": parts}],
                                           "timeout": 1})  # fmt: skip
        assert {row.error_code for row in answer.topics[0].partitions} == {INVALID_REQUEST}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


def numbers(site: Site) -> list[int]:
    """Return the offsets of the visible batches of partition 0."""
    return [header.base_offset for _, header in iter_headers(site.values())]


# Holds INV-HDR1, INV-LOS1.
async def test_KIP107_deletion_survives_a_restart(pair: Pair) -> None:
    for text in ("a", "b", "c"):
        await pair.eu.write(text)
    assert await pair.eu.partition().retention.delete_records(2) == 2
    await pair.us.kill()
    await pair.eu.kill()
    await pair.eu.start()
    assert pair.eu.partition().log_start_offset == 2
    assert pair.eu.partition().kept_from == 0


async def test_T14_a_mirror_follows_the_log_start_of_its_reached_tidemark(pair: Pair) -> None:
    for text in ("a", "b", "c"):
        await pair.eu.write(text)
    await pair.reached("c")
    assert await pair.eu.partition().retention.delete_records(2) == 2
    # Nothing more is written: the moved log start is news by itself.
    await until(lambda: pair.us.partition().log_start_offset == 2)
    assert numbers(pair.us) == [2]
    assert pair.us.raw() == pair.eu.raw()
    await pair.us.kill()
    await pair.us.start()
    assert pair.us.partition().log_start_offset == 2
    await pair.eu.kill()
    await fail_over(pair.us)
    assert numbers(pair.us) == [2]


async def test_T14_a_mirror_that_is_behind_copies_on_through_what_the_primary_deleted(
    pair: Pair,
) -> None:
    await pair.eu.write("a")
    await pair.reached("a")
    await pair.us.kill()
    for text in ("b", "c", "d"):
        await pair.eu.write(text)
    assert await pair.eu.partition().retention.delete_records(3) == 3
    await pair.us.start()
    await until(lambda: pair.us.partition().log_start_offset == 3)
    assert pair.us.raw() == pair.eu.raw()
    assert pair.us.partition().log_end_offset == 4


async def test_T14_an_order_beyond_the_cut_is_void_after_a_takeover(pair: Pair) -> None:
    for text in ("a", "b"):
        await pair.eu.write(text)
    await pair.reached("b")
    await pair.us.kill()
    await pair.eu.write("c")
    assert await pair.eu.partition().retention.delete_records(HIGH := 3) == HIGH
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    assert numbers(pair.us) == [0, 1], "no tidemark that was reached knows of the deletion"
    await pair.us.write("d")
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    await until(lambda: b"d" in pair.eu._shown())
    assert numbers(pair.eu) == [0, 1, 2]
    assert [tail.first_offset for tail in pair.eu.quarantine.tails() if tail.topic == ORDERS] == [2]


async def test_T14_a_cut_takes_back_the_order_beyond_it_and_not_those_that_tidemarks_know(
    pair: Pair,
) -> None:
    for text in ("a", "b", "c"):
        await pair.eu.write(text)
    await pair.reached("c")
    assert await pair.eu.partition().retention.delete_records(2) == 2
    await until(lambda: pair.us.partition().log_start_offset == 2)
    await pair.us.kill()
    await pair.eu.write("d")
    assert await pair.eu.partition().retention.delete_records(4) == 4
    await pair.eu.kill()
    await pair.us.start()
    await fail_over(pair.us)
    assert numbers(pair.us) == [2]
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    # Nothing more is written: the log is in no tidemark's news.
    await until(lambda: pair.eu.partition().log_start_offset == 2)
    assert numbers(pair.eu) == [2]
