"""What the fast path of Fetch reads and writes is what kio reads and writes, in every version, for any bytes."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from idempotency.pieces import drained
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, PIECE_ELEMENTS
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.codec.bounded import DecodeRefused
from region_broker.wire.codec.entities import entity_pieces, read_entity
from region_broker.wire.codec.fast_paths import fetch
from region_broker.wire.codec.fast_paths.fetch import FetchAnswer, FetchedRow
from region_broker.wire.codec.fast_paths.leaders import Endpoint
from tests.fixtures.drawn_bodies import INT32, INT64, TEXT, mutated, outcome
from tests.fixtures.kafka_port import answer_body_of, body_of
from tests.fixtures.plain_requests import fetch_of_fast_path, fetch_of_kio, read_by_kio

VERSIONS = st.sampled_from(list(fetch.VERSIONS))
_BY_ID = range(13, 19)
_NO_HIGH_WATERMARK = 2**63 - 1


def keys(version: int) -> st.SearchStrategy[Any]:
    return st.none() | st.uuids() if version in _BY_ID else TEXT


@st.composite
def bodies(draw: st.DrawFn, version: int, *, tagged: bool = True) -> bytes:
    """Draw a Fetch request, written by kio."""
    key = "topic_id" if version in _BY_ID else "topic"
    part: dict[str, st.SearchStrategy[Any]] = {
            "partition": INT32, "fetch_offset": INT64, "partition_max_bytes": INT32,
            "current_leader_epoch": INT32, "last_fetched_epoch": INT32, "log_start_offset": INT64}  # fmt: skip
    if tagged and draw(st.booleans()):
        part |= {
            "replica_directory_id": st.none() | st.uuids(),
            "high_watermark": st.just(_NO_HIGH_WATERMARK) | INT64,
        }
    topics = st.fixed_dictionaries(
        {
            key: keys(version),
            "partitions": st.lists(st.fixed_dictionaries(part), max_size=3).map(tuple),
        }
    )
    forgotten = st.fixed_dictionaries(
        {key: keys(version), "partitions": st.lists(INT32, max_size=3).map(tuple)}
    )
    values = {
        "replica_id": draw(st.just(-1) | INT32), "max_wait": draw(INT32), "min_bytes": draw(INT32),
        "max_bytes": draw(INT32), "isolation_level": draw(st.integers(-128, 127)),
        "session_id": draw(INT32), "session_epoch": draw(INT32), "rack_id": draw(TEXT),
        "topics": draw(st.lists(topics, max_size=3)),
        "forgotten_topics_data": draw(st.lists(forgotten, max_size=3)),
    }  # fmt: skip
    if tagged and version >= 12 and draw(st.booleans()):
        values["cluster_id"] = draw(st.none() | TEXT)
    if tagged and version >= 15 and draw(st.booleans()):
        values["replica_state"] = {"replica_id": draw(INT32), "replica_epoch": draw(INT64)}
    return body_of(1, version, values)


@given(st.data(), VERSIONS)
def test_INV_BFE1_a_whole_request_is_read_as_kio_reads_it(
    data: st.DataObject, version: int
) -> None:
    body = memoryview(data.draw(bodies(version)))
    expected = fetch_of_kio(version, read_by_kio(1, version, body))
    assert fetch_of_kio(version, read_entity(1, version, body)) == expected
    assert fetch_of_fast_path(fetch.read_request(version, body)) == expected


@given(st.data(), VERSIONS)
def test_INV_BFE1_a_plain_request_needs_no_general_reader(
    data: st.DataObject, version: int
) -> None:
    body = memoryview(data.draw(bodies(version, tagged=False)))
    found = fetch._plain(version, body)
    assert found is not None
    assert fetch_of_fast_path(found) == fetch_of_kio(version, read_entity(1, version, body))


@given(st.data(), VERSIONS)
def test_INV_BFE1_what_the_general_reader_refuses_is_refused(
    data: st.DataObject, version: int
) -> None:
    body = memoryview(data.draw(st.composite(mutated)(data.draw(bodies(version)))))
    expected = outcome(
        lambda: read_entity(1, version, body),
        lambda: entity_pieces(1, version, body),
        lambda request: fetch_of_kio(version, request),
    )
    found = outcome(
        lambda: fetch.read_request(version, body),
        lambda: fetch.request_pieces(version, body),
        fetch_of_fast_path,
    )
    assert found == expected


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_INV_BFE1_a_request_that_ends_early_is_refused(version: int) -> None:
    key = {"topic_id": UUID(int=7)} if version in _BY_ID else {"topic": "t"}
    part = {"partition": 7, "fetch_offset": 1, "partition_max_bytes": 2}
    values = {"max_wait": 1, "min_bytes": 1, "max_bytes": 1, "rack_id": "rack",
              "topics": [{**key, "partitions": (part,)}], "forgotten_topics_data": [{**key, "partitions": (1,)}]}  # fmt: skip
    body = body_of(1, version, values)
    fetch.read_request(version, memoryview(body))
    for size in range(len(body)):
        with pytest.raises(DecodeRefused):
            fetch.read_request(version, memoryview(body[:size]))


@pytest.mark.parametrize("version", [4, 6, 8, 11, 12, 16])
def test_INV_BFE1_many_partitions_are_read_in_pieces(version: int) -> None:
    key = {"topic_id": None} if version in _BY_ID else {"topic": "t"}
    part = {"partition": 7, "fetch_offset": 1, "partition_max_bytes": 2}
    topic = {**key, "partitions": (part,) * (ELEMENTS_AT_ONCE_MAX + 1)}
    values = {"max_wait": 1, "min_bytes": 1, "max_bytes": 1, "topics": [topic], "forgotten_topics_data": ()}  # fmt: skip
    body = memoryview(body_of(1, version, values))
    request = outcome(
        lambda: fetch.read_request(version, body),
        lambda: fetch.request_pieces(version, body),
        fetch_of_fast_path,
    )
    assert request[7][0][1] == [(7, -1, 1, 2)] * (ELEMENTS_AT_ONCE_MAX + 1)


@pytest.mark.parametrize("count", [2**28, 2**31 - 1])
@pytest.mark.parametrize("version", [4, 12])
def test_INV_BH1_nothing_is_allocated_by_a_claim(version: int, count: int) -> None:
    values = {"max_wait": 1, "min_bytes": 1, "max_bytes": 1, "topics": (), "forgotten_topics_data": ()}  # fmt: skip
    whole = body_of(1, version, values)
    claim = count.to_bytes(4, "big") if version < 12 else b"\xff\xff\xff\xff\x07"
    with pytest.raises(DecodeRefused):
        fetch.read_request(version, memoryview(whole[: 17 if version < 7 else 25] + claim))


rows = st.lists(
    st.builds(
        FetchedRow,
        partition=INT32,
        error_code=st.sampled_from([0, 1, 3, 74]),
        high_watermark=INT64,
        last_stable_offset=INT64,
        log_start_offset=INT64,
        aborted=st.none() | st.lists(st.tuples(INT64, INT64), max_size=3),
        records=st.binary(max_size=130) | st.just(b"r" * 20_000),
        leader=st.none() | st.tuples(st.integers(0, 9), INT32),
        diverging=st.none() | st.tuples(INT32, INT64),
        preferred=st.just(-1) | INT32,
    ),
    max_size=3,
)


def fields_of(version: int, row: FetchedRow) -> dict[str, Any]:
    """Return a row as the general writer takes it."""
    aborted = None
    if row.aborted is not None:
        aborted = [{"producer_id": pid, "first_offset": first} for pid, first in row.aborted]
    fields: dict[str, Any] = {
        "partition_index": row.partition, "error_code": ErrorCode(row.error_code),
        "high_watermark": row.high_watermark, "last_stable_offset": row.last_stable_offset,
        "log_start_offset": row.log_start_offset, "aborted_transactions": aborted, "records": row.records,
    }  # fmt: skip
    if row.leader is not None and version >= 12:
        fields["current_leader"] = {"leader_id": row.leader[0], "leader_epoch": row.leader[1]}
    if row.diverging is not None and version >= 12:
        fields["diverging_epoch"] = {"epoch": row.diverging[0], "end_offset": row.diverging[1]}
    if version >= 11:
        fields["preferred_read_replica"] = row.preferred
    return fields


@given(
    st.data(),
    VERSIONS,
    INT32,
    st.lists(st.builds(Endpoint, INT32, TEXT, st.integers(0, 65535)), max_size=3),
)
def test_INV_BFE2_an_answer_has_kios_bytes(
    data: st.DataObject, version: int, correlation_id: int, endpoints: list[Endpoint]
) -> None:
    topics = data.draw(st.lists(st.tuples(keys(version), rows), max_size=3))
    if version < 16:
        endpoints = []
    answer = FetchAnswer(data.draw(st.sampled_from([0, 70])), data.draw(INT32), topics, endpoints)
    found = bytes(
        fetch.answer(version, correlation_id, answer)
    )  # large parts are buffers of their own (INV-WGA1)
    key = "topic_id" if version in _BY_ID else "topic"
    fields: dict[str, Any] = {
        "responses": [
            {key: name, "partitions": [fields_of(version, row) for row in named]}
            for name, named in topics
        ],
        "session_id": answer.session_id,
        "error_code": ErrorCode(answer.error_code),
    }
    if endpoints:
        fields["node_endpoints"] = [endpoint._asdict() for endpoint in endpoints]
    assert found == encode_response(1, version, correlation_id, fields)
    header = 5 if version >= 12 else 4
    assert found[header:] == answer_body_of(1, version, fields | {"throttle_time": 0})


def test_an_answer_of_many_rows_is_written_in_pieces() -> None:
    many = [FetchedRow(index) for index in range(3 * PIECE_ELEMENTS)]
    pieces = fetch.pieces_of_answer(16, 1, FetchAnswer(0, 0, [(None, many)]))
    pauses = sum(1 for _ in pieces)
    assert pauses == 3
    assert drained(fetch.pieces_of_answer(16, 1, FetchAnswer(0, 0, [(None, many)])))


def test_the_nil_topic_id_is_none() -> None:
    values = {"max_wait": 1, "min_bytes": 1, "max_bytes": 1, "forgotten_topics_data": (),
              "topics": [{"topic_id": None, "partitions": ()}]}  # fmt: skip
    assert fetch.read_request(13, memoryview(body_of(1, 13, values))).topics[0][0] is None
