"""One batch that lies in very many aborted transactions, in each of many partitions: what one reading names is bounded.

Who gets less goes on behind that, as where a request's bytes are used up; what is given out is given out with all that was aborted (C38).
"""

from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.pieces import drained
from idempotency.record_batch import ControlType, iter_headers
from region_broker.handlers.fetch import reading
from region_broker.limits import PIECE_ELEMENTS
from region_broker.records.batches import Origin
from region_broker.wire.codec.fast_paths.fetch import FetchAnswer, FetchedRow, pieces_of_answer
from tests.fixtures.kafka_port import WireFixture, wire_fixture
from tests.fixtures.node_logs import append_marker, batch

PARTITIONS, PRODUCERS = 4, 3
PLAIN = PRODUCERS
"""The offset of a batch that is in no transaction, behind the data and before the aborts of some that are."""
ABORTED = [(producer, producer) for producer in range(PRODUCERS)]


async def filled(some: WireFixture) -> None:
    """Make partitions that have a plain batch among transactions that are all aborted."""
    await some.topic("t", PARTITIONS)
    for index in range(PARTITIONS):
        partition = some.partition("t", index)
        for producer in range(PRODUCERS):
            origin = Origin(ProducerId(producer), ProducerEpoch(0), SequenceNumber(0), transactional=True)  # fmt: skip
            partition.writer.append(batch(origin=origin))
        partition.writer.append(batch())
        ends = [
            append_marker(
                partition, producer_id=producer, producer_epoch=0, control_type=ControlType.ABORT,
                coordinator_epoch=1, decision=None, timestamp_ms=1,
            ).next_offset
            for producer in range(PRODUCERS)
        ]  # fmt: skip
        await partition.wait_committed(ends[-1])


def wanted(*indexes: int, max_bytes: int = 55 << 20, isolation_level: int = 1) -> dict[str, Any]:
    """Return a Fetch of that plain batch."""
    rows = [{"partition": index, "fetch_offset": PLAIN, "partition_max_bytes": 1} for index in indexes]  # fmt: skip
    return {"max_wait": 0, "min_bytes": 1, "max_bytes": max_bytes, "isolation_level": isolation_level, "forgotten_topics_data": [],
            "topics": [{"topic": "t", "partitions": rows}]}  # fmt: skip


async def given(client: Any, version: int, asked: dict[str, Any]) -> list[int]:
    """Return which partitions a Fetch gave records of; each with all that was aborted, the others with nothing."""
    answer = await client.call(1, version, asked)
    found = []
    for row in answer.responses[0].partitions:
        assert (row.error_code, row.high_watermark) == (0, PLAIN + 1 + PRODUCERS)
        aborted = [(int(each.producer_id), each.first_offset) for each in row.aborted_transactions or ()]  # fmt: skip
        if row.records:
            assert [header.base_offset for _, header in iter_headers(row.records)][:1] == [PLAIN]
            assert aborted == (ABORTED if asked["isolation_level"] else [])
            found.append(row.partition_index)
        else:
            assert aborted == []
    return found


@pytest.mark.parametrize("version", [11, 12])
async def test_INV_FRD4_the_partitions_of_one_fetch_share_how_many_aborts_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(reading, "READ_ABORTED_MAX", PRODUCERS + 1)
    async with wire_fixture(tmp_path) as some:
        await filled(some)
        client = await some.connect()
        one = wanted(*range(PARTITIONS))
        one["topics"][0]["partitions"] = [{**row, "partition_max_bytes": 1 << 20} for row in one["topics"][0]["partitions"]]  # fmt: skip
        assert await given(client, version, one) == [0, 1]
        one["topics"][0]["partitions"] = one["topics"][0]["partitions"][2:]
        assert await given(client, version, one) == [2, 3]
        one["isolation_level"] = 0
        assert await given(client, version, one) == [2, 3], "nobody asks for aborts there"


async def test_INV_FRD4_INV_H9_the_first_partition_is_served_however_many_aborts_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_ABORTED_MAX", 1)
    async with wire_fixture(tmp_path) as some:
        await filled(some)
        client = await some.connect()
        for index in range(PARTITIONS):
            assert await given(client, 12, wanted(index, (index + 1) % PARTITIONS)) == [index]


async def test_INV_FRD4_aborts_that_are_named_count_as_bytes_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ABORTED_ENTRY_BYTES", 1 << 10)
    async with wire_fixture(tmp_path) as some:
        await filled(some)
        client = await some.connect()
        asked = wanted(0, 1, max_bytes=3 << 10)
        for row in asked["topics"][0]["partitions"]:
            row["partition_max_bytes"] = 1 << 20
        assert await given(client, 12, asked) == [0]
        asked["isolation_level"] = 0
        assert await given(client, 12, asked) == [0, 1]


@pytest.mark.parametrize("version", [11, 12])
def test_INV_FRD4_what_names_many_aborts_is_written_in_pieces(version: int) -> None:
    aborted = [(number, number) for number in range(PIECE_ELEMENTS)]
    rows = [FetchedRow(index, 0, 1, 1, 0, aborted, b"r") for index in range(PARTITIONS)]
    writing = pieces_of_answer(version, 1, FetchAnswer(0, 0, [("t", rows)]))
    pieces = sum(1 for _ in writing)
    assert pieces == PARTITIONS
    few = [FetchedRow(index, 0, 1, 1, 0, (), b"r") for index in range(PARTITIONS)]
    assert sum(1 for _ in pieces_of_answer(version, 1, FetchAnswer(0, 0, [("t", few)]))) == 0
    assert len(drained(pieces_of_answer(version, 1, FetchAnswer(0, 0, [("t", rows)])))) > PARTITIONS * 16 * PIECE_ELEMENTS  # fmt: skip
