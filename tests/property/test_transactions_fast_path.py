"""AddPartitionsToTxn and EndTxn on their fast paths say what kio says, for any bytes."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from idempotency.identity import TopicName, TopicPartition
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.codec.bounded import DecodeRefused
from region_broker.wire.codec.entities import read_entity
from region_broker.wire.codec.fast_paths import transactions
from tests.fixtures.drawn_bodies import INT32, INT64, TEXT, mutated
from tests.fixtures.kafka_port import body_of
from tests.fixtures.plain_requests import add_of_kio, end_of_kio, read_by_kio

INT16 = st.integers(-(2**15), 2**15 - 1)


def ends(version: int) -> st.SearchStrategy[bytes]:
    """EndTxn requests, written by kio."""
    fields = st.fixed_dictionaries(
        {"transactional_id": TEXT, "producer_id": INT64, "producer_epoch": INT16,
         "committed": st.booleans()}
    )  # fmt: skip
    return fields.map(lambda values: body_of(26, version, values))


def adds(version: int) -> st.SearchStrategy[bytes]:
    """AddPartitionsToTxn requests, written by kio."""
    topic = st.fixed_dictionaries(
        {"name": TEXT | st.just("t"), "partitions": st.lists(INT32, max_size=4).map(tuple)}
    )
    fields = st.fixed_dictionaries(
        {"v3_and_below_transactional_id": TEXT, "v3_and_below_producer_id": INT64,
         "v3_and_below_producer_epoch": INT16,
         "v3_and_below_topics": st.lists(topic, max_size=3).map(tuple)}
    )  # fmt: skip
    return fields.map(lambda values: body_of(24, version, values))


def read_end(version: int, body: bytes) -> Any:
    return end_of_kio(read_entity(26, version, memoryview(body)))


def read_add(version: int, body: bytes) -> Any:
    return add_of_kio(read_entity(24, version, memoryview(body)))


@given(st.data(), st.integers(0, 5))
def test_INV_BT3_an_end_is_read_as_kio_reads_it(data: st.DataObject, version: int) -> None:
    body = data.draw(ends(version))
    expected = end_of_kio(read_by_kio(26, version, body))
    assert read_end(version, body) == expected
    short = version < 3 or len(expected[0].encode()) < 127
    assert transactions.plain_end(version, memoryview(body)) == (expected if short else None)


@given(st.data(), st.integers(0, 2))
def test_INV_BT3_a_plain_add_is_read_as_kio_reads_it(data: st.DataObject, version: int) -> None:
    body = data.draw(adds(version))
    found = transactions.plain_add(version, memoryview(body))
    expected = add_of_kio(read_by_kio(24, version, body))
    assert read_add(version, body) == expected
    topics = read_entity(24, version, memoryview(body)).v3_and_below_topics
    if topics and all(topic.partitions for topic in topics):
        assert found == expected
    else:
        assert found is None


@given(st.data(), st.integers(0, 5))
def test_INV_BT3_what_is_refused_or_read_otherwise_is_never_read_on_the_fast_path(
    data: st.DataObject, version: int
) -> None:
    for strategy, newest, read, of_kio in (
        (ends, 5, transactions.plain_end, read_end),
        (adds, 3, transactions.plain_add, read_add),
    ):
        written = data.draw(strategy(min(version, newest)))
        body = data.draw(st.composite(mutated)(written))
        found = read(version, memoryview(body))
        if found is None:
            continue
        try:
            expected = of_kio(version, body)
        except DecodeRefused:
            expected = None
        assert found == expected


@given(INT32, st.sampled_from([0, 47, 51, 90]), st.integers(0, 5), INT64, INT16)
def test_INV_BT4_an_answer_to_end_txn_is_what_the_general_writer_writes(
    correlation_id: int, error_code: int, version: int, producer_id: int, producer_epoch: int
) -> None:
    fields = {
        "error_code": error_code, "producer_id": producer_id, "producer_epoch": producer_epoch,
    }  # fmt: skip
    expected = bytes(encode_response(26, version, correlation_id, fields))
    pair = (producer_id, producer_epoch)
    assert transactions.end_answer(version, correlation_id, error_code, pair) == expected


@given(INT32, st.lists(st.tuples(TEXT, INT32, st.sampled_from([0, 3, 48])), max_size=5))
def test_INV_BT4_an_answer_to_add_partitions_is_what_the_general_writer_writes(
    correlation_id: int, errors: list[tuple[str, int, int]]
) -> None:
    topics: dict[str, list[dict[str, int]]] = {}
    for name, number, code in errors:
        row = {"partition_index": number, "partition_error_code": code}
        topics.setdefault(name, []).append(row)
    fields = {
        "results_by_topic_v3_and_below": [
            {"name": name, "results_by_partition": rows} for name, rows in topics.items()
        ]
    }
    rows = [(TopicPartition(TopicName(name), number), code) for name, number, code in errors]
    for version in range(3):
        expected = bytes(encode_response(24, version, correlation_id, fields))
        assert transactions.add_answer(correlation_id, rows) == expected
