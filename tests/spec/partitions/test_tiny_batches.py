"""Logs of very many tiny batches: what one step looks at is bounded, whatever a reader asks for (hostile-input: Fetch).

A reader gets less than it asked for and goes on behind that, as it does at the end of a segment (C38).
"""

from pathlib import Path
from typing import Any

import pytest

from idempotency.record_batch import iter_headers
from region_broker.handlers.fetch import reading
from region_broker.limits import READ_BATCHES_MAX
from region_broker.log.failures import CorruptRange
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.node_logs import Fixture, batch, fixture

TINY = batch(size_bytes=0)
UNCOMMITTED = Isolation.READ_UNCOMMITTED


def filled(count: int) -> Fixture:
    some = fixture()
    for _ in range(count):
        some.partition.writer.append(TINY)
    some.sync()
    return some


def test_INV_PT14_a_reading_gives_out_so_many_batches_and_goes_on_behind_them() -> None:
    count = READ_BATCHES_MAX + 3
    some = filled(count)
    reader = some.partition.reader
    found = reader.fetch(0, 55 << 20, UNCOMMITTED)
    assert (len(found.data), found.next_offset) == (READ_BATCHES_MAX * len(TINY), READ_BATCHES_MAX)
    rest = reader.fetch(found.next_offset, 55 << 20, UNCOMMITTED)
    assert (len(rest.data), rest.next_offset) == (3 * len(TINY), count)
    for data in (reader.read_raw(0, 55 << 20), reader.read_replica(0, 55 << 20)[0]):
        assert len(data) == READ_BATCHES_MAX * len(TINY)


def test_INV_PT14_what_is_damaged_behind_is_told_when_it_is_read() -> None:
    some = filled(8)
    some.disk.damage(some.folder / f"{0:020d}.log", 4 * len(TINY) + 65)
    reader = some.partition.reader
    found = reader.fetch(0, 1 << 20, UNCOMMITTED, batches_max=4)
    assert (len(found.data), found.next_offset) == (4 * len(TINY), 4)
    assert reader.corrupt_reads == 0
    with pytest.raises(CorruptRange):
        reader.fetch(4, 1 << 20, UNCOMMITTED, batches_max=4)
    found = reader.fetch(2, 1 << 20, UNCOMMITTED, batches_max=4)
    assert found.next_offset == 4


def wanted(offsets: dict[int, int]) -> dict[str, Any]:
    rows = [{"partition": index, "fetch_offset": offset, "partition_max_bytes": 55 << 20}
            for index, offset in offsets.items()]  # fmt: skip
    return {"max_wait": 0, "min_bytes": 1, "max_bytes": 55 << 20, "forgotten_topics_data": [],
            "topics": [{"topic": "t", "partitions": rows}]}  # fmt: skip


async def test_INV_FRD3_the_partitions_of_one_fetch_share_what_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_BATCHES_MAX", 6)
    async with wire_fixture(tmp_path) as some:
        await some.topic("t", 3)
        for index in range(3):
            for _ in range(4):
                some.partition("t", index).writer.append(TINY)
            await some.partition("t", index).wait_committed(4)
        client = await some.connect()
        offsets, counts = dict.fromkeys(range(3), 0), []
        while min(offsets.values()) < 4:
            answer = await client.call(1, 12, wanted(offsets))
            rows = answer.responses[0].partitions
            assert [row.error_code for row in rows] == [0, 0, 0]
            assert [row.high_watermark for row in rows] == [4, 4, 4]
            got = [len(list(iter_headers(row.records or b""))) for row in rows]
            counts.append(got)
            for index, count in enumerate(got):
                offsets[index] += count
        assert counts == [[4, 2, 0], [0, 2, 4]]
