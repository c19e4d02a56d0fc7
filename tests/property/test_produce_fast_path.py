"""What is read and written on the fast path of Produce is what kio reads and writes, in every version, for any
bytes."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from region_broker.limits import ARRAY_ELEMENTS_MAX, ELEMENTS_AT_ONCE_MAX, PIECE_ELEMENTS
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.codec.bounded import DecodeRefused, ManyElements, write_uvarint
from region_broker.wire.codec.entities import entity_pieces, read_entity
from region_broker.wire.codec.fast_paths import produce
from region_broker.wire.codec.fast_paths.leaders import Endpoint
from region_broker.wire.codec.fast_paths.produce import ProducedRow, ProduceRequest
from tests.fixtures.drawn_bodies import INT32, INT64, TEXT, mutated, outcome
from tests.fixtures.kafka_port import answer_body_of, body_of
from tests.fixtures.plain_requests import produce_of_fast_path, produce_of_kio, read_by_kio

PRODUCE_VERSIONS = st.sampled_from(list(produce.VERSIONS))

sent_batches = st.lists(
    st.fixed_dictionaries(
        {"index": INT32, "records": st.none() | st.binary(max_size=200) | st.just(b"r" * 20_000)}
    ),
    max_size=3,
).map(tuple)


@st.composite
def produce_bodies(draw: st.DrawFn, version: int) -> bytes:
    """Draw a Produce request, written by kio."""
    topics = [
        {
            "name" if version < 13 else "topic_id": draw(TEXT if version < 13 else st.none() | st.uuids()),
            "partition_data": draw(sent_batches),
        }
        for _ in range(draw(st.integers(0, 3)))
    ]  # fmt: skip
    values = {
        "transactional_id": draw(st.none() | TEXT),
        "acks": draw(st.integers(-(2**15), 2**15 - 1)),
        "timeout": draw(INT32),
        "topic_data": topics,
    }
    return body_of(0, version, values)


def in_pieces(version: int, body: bytes) -> tuple[ProduceRequest, int]:
    """Return a request read in pieces, and how many pauses there were."""
    pieces = produce.request_pieces(version, memoryview(body))
    pauses = 0
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            return done.value, pauses
        pauses += 1


@given(st.data(), PRODUCE_VERSIONS)
def test_INV_BP1_a_whole_produce_request_is_read_as_kio_reads_it(
    data: st.DataObject, version: int
) -> None:
    body = memoryview(data.draw(produce_bodies(version)))
    expected = produce_of_kio(read_by_kio(0, version, body))
    assert produce_of_kio(read_entity(0, version, body)) == expected
    assert produce_of_fast_path(produce.read_request(version, body)) == expected


@given(st.data(), PRODUCE_VERSIONS)
def test_INV_BP1_what_the_general_reader_refuses_is_refused(
    data: st.DataObject, version: int
) -> None:
    body = data.draw(st.composite(mutated)(data.draw(produce_bodies(version))))
    view = memoryview(body)
    expected = outcome(
        lambda: read_entity(0, version, view),
        lambda: entity_pieces(0, version, view),
        produce_of_kio,
    )
    found = outcome(
        lambda: produce.read_request(version, view),
        lambda: produce.request_pieces(version, view),
        produce_of_fast_path,
    )
    assert found == expected


@pytest.mark.parametrize("version", [8, 9])
def test_INV_WG4_elements_are_counted_over_all_arrays(version: int) -> None:
    """Each array alone would pass."""
    batch = {"index": 0, "records": None}
    half = ARRAY_ELEMENTS_MAX // 2 + 1
    topics = [{"name": "t", "partition_data": (batch,) * half}] * 2
    values = {"transactional_id": None, "acks": 1, "timeout": 1}
    too_many = body_of(0, version, {**values, "topic_data": topics})
    with pytest.raises(DecodeRefused):
        in_pieces(version, too_many)
    passing = body_of(0, version, {**values, "topic_data": topics[:1]})
    request, pauses = in_pieces(version, passing)
    assert len(request.topics[0].batches) == half
    assert pauses == (half + 1) // PIECE_ELEMENTS


@pytest.mark.parametrize("version", [8, 9])
def test_INV_WG5_many_elements_are_not_read_at_once(version: int) -> None:
    batch = {"index": 0, "records": None}
    topic = {"name": "t", "partition_data": (batch,) * (ELEMENTS_AT_ONCE_MAX - 1)}
    values = {"transactional_id": None, "acks": 1, "timeout": 1}
    one = body_of(0, version, {**values, "topic_data": [topic]})
    assert produce.read_request(version, memoryview(one)) == in_pieces(version, one)[0]
    with pytest.raises(ManyElements):
        produce.read_request(
            version, memoryview(body_of(0, version, {**values, "topic_data": [topic] * 2}))
        )


@pytest.mark.parametrize("count", [2**28, 2**35 - 2])
def test_INV_BH1_nothing_is_allocated_by_a_claim(count: int) -> None:
    body = b"\0" + b"\xff\xff" + b"\0\0\0\x01" + write_uvarint(count + 1) + b"\2t\1\0\0"
    with pytest.raises(DecodeRefused):
        produce.read_request(9, memoryview(body))


produced_rows = st.lists(
    st.builds(
        ProducedRow,
        partition=INT32,
        error_code=st.sampled_from([0, 3, 7, 87]),
        base_offset=INT64,
        log_append_time_ms=st.just(-1) | st.integers(0, 2**42),
        log_start_offset=INT64,
        text=st.none() | TEXT,
        bad_records=st.lists(INT32, max_size=3).map(tuple),
        leader=st.none() | st.tuples(st.integers(0, 9), INT32),
    ),
    max_size=3,
)


def fields_of(row: ProducedRow, version: int) -> dict[str, Any]:
    """Return a row as the general writer takes it."""
    leader = {}
    if row.leader is not None and version >= 10:
        leader["current_leader"] = {"leader_id": row.leader[0], "leader_epoch": row.leader[1]}
    return leader | {
        "index": row.partition, "error_code": ErrorCode(row.error_code), "base_offset": row.base_offset,
        "log_append_time": row.log_append_time_ms, "log_start_offset": row.log_start_offset,
        "error_message": row.text,
        "record_errors": [
            {"batch_index": index, "batch_index_error_message": None} for index in row.bad_records
        ],
    }  # fmt: skip


def kio_row(row: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return a row as kio's classes take it."""
    time_ms = row["log_append_time"]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    time = None if time_ms < 0 else epoch + timedelta(milliseconds=time_ms)
    return {**row, "log_append_time": time}


@given(
    st.data(), PRODUCE_VERSIONS, INT32,
    st.lists(st.builds(Endpoint, INT32, TEXT, st.integers(0, 65535), st.none() | TEXT), max_size=2),
)  # fmt: skip
def test_INV_BP1_a_produce_answer_has_kios_bytes(
    data: st.DataObject, version: int, correlation_id: int, endpoints: list[Endpoint]
) -> None:
    keys: Any = TEXT if version < 13 else st.none() | st.uuids()
    topics = data.draw(st.lists(st.tuples(keys, produced_rows), max_size=3))
    if version < 10:  # who leads is told since then
        endpoints = []
        topics = [(key, [row._replace(leader=None) for row in rows]) for key, rows in topics]
    name = "name" if version < 13 else "topic_id"
    responses = [
        {name: key, "partition_responses": [fields_of(row, version) for row in rows]}
        for key, rows in topics
    ]
    named = {"node_endpoints": [each._asdict() for each in endpoints]} if endpoints else {}
    found = bytes(produce.answer(version, correlation_id, topics, endpoints))
    assert found == encode_response(0, version, correlation_id, {"responses": responses} | named)
    for topic in responses:
        rows = [kio_row(row, version) for row in topic["partition_responses"]]
        topic["partition_responses"] = rows
    header = 5 if version >= 9 else 4
    assert found[header:] == answer_body_of(
        0, version, {"responses": responses, "throttle_time": 0} | named
    )


def test_the_nil_topic_id_is_none() -> None:
    body = body_of(0, 13, {"transactional_id": None, "acks": 1, "timeout": 1,
                           "topic_data": [{"topic_id": UUID(int=0), "partition_data": ()}]})  # fmt: skip
    assert produce.read_request(13, memoryview(body)).topics[0].key is None
