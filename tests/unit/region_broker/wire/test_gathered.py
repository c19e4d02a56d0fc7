"""Answers in several buffers: their bytes, their sizes, their throttle time, and that what is large is not copied (INV-WGA1)."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from region_broker.ports.network import Buffer
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.codec.fast_paths import fetch
from region_broker.wire.codec.fast_paths.fetch import FetchAnswer, FetchedRow
from region_broker.wire.codec.gathered import (
    LARGE_PART_BYTES,
    GatheredAnswer,
    gathered,
    parts_of,
)
from region_broker.wire.codec.throttle_times import throttle_told_ms, with_throttle
from region_broker.wire.connection import Connection, Peer
from tests.fixtures.kafka_port import parse_answer

_LARGE = LARGE_PART_BYTES
SIZES = st.sampled_from([0, 1, 7, _LARGE - 1, _LARGE, _LARGE + 1, 3 * _LARGE])


@given(st.lists(SIZES, max_size=12))
def test_INV_WGA1_it_has_the_bytes_of_its_parts(sizes: list[int]) -> None:
    parts = [bytes([number]) * size for number, size in enumerate(sizes)]
    whole = b"".join(parts)
    found = gathered(parts)
    assert (bytes(found), len(found)) == (whole, len(whole))
    assert isinstance(found, GatheredAnswer) == any(size >= _LARGE for size in sizes)


def test_INV_WGA1_what_is_large_is_no_copy_and_what_is_small_is_joined() -> None:
    large: list[Buffer] = [bytearray(_LARGE), memoryview(bytes(_LARGE + 1))]
    parts = parts_of(gathered([b"a", b"b", large[0], b"c", b"", b"d", large[1]]))
    assert [len(part) for part in parts] == [2, _LARGE, 2, _LARGE + 1]
    assert parts[1] is large[0]
    assert parts[3] is large[1]
    assert isinstance(gathered([b"a"] * 9), bytes)


def a_fetch(version: int) -> tuple[FetchAnswer, Buffer]:
    """Return an answer with large and small rows, and the bytes that the general writer makes of it."""
    key = "topic_id" if version >= 13 else "topic"
    name = None if version >= 13 else "t"
    sizes = (200_000, 0, 50, _LARGE)
    rows = [FetchedRow(index, records=b"r" * size) for index, size in enumerate(sizes)]
    fields = {
        "responses": [{
            key: name,
            "partitions": [{
                "partition_index": row.partition, "error_code": ErrorCode.none, "high_watermark": -1,
                "last_stable_offset": -1, "log_start_offset": -1, "aborted_transactions": None, "records": row.records,
            } for row in rows],
        }],
        "session_id": 9,
        "error_code": ErrorCode.none,
    }  # fmt: skip
    return FetchAnswer(0, 9, [(name, rows)]), encode_response(1, version, 7, fields)


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_INV_WGA1_INV_BFE2_a_large_fetch_is_what_the_general_writer_writes(version: int) -> None:
    answer, written = a_fetch(version)
    found = fetch.answer(version, 7, answer)
    assert isinstance(found, GatheredAnswer)
    assert bytes(found) == written


@pytest.mark.parametrize("version", fetch.VERSIONS)
def test_INV_WTT1_its_throttle_time_is_all_that_changes(version: int) -> None:
    answer, _ = a_fetch(version)
    found = fetch.answer(version, 7, answer)
    assert throttle_told_ms(1, version, found) == 0
    told = with_throttle(1, version, found, 1_234)
    assert throttle_told_ms(1, version, told) == 1_234
    pairs = zip(parts_of(told)[1:], parts_of(found)[1:], strict=True)
    assert all(part is before for part, before in pairs)
    before = parse_answer(1, version, bytes(found))
    time = timedelta(milliseconds=1_234)
    assert parse_answer(1, version, bytes(told)) == (7, replace(before[1], throttle_time=time))


def test_INV_WGA1_a_connection_sends_the_parts_behind_their_length() -> None:
    core = Connection(Peer(1, "127.0.0.1:1"))
    frame = bytes(
        [0, 1, 0, 4, 0, 0, 0, 7, 0, 0]
    )  # a Fetch, version 4, correlation id 7, a client id of no bytes
    core.receive(len(frame).to_bytes(4) + frame)
    slot = core.next_request()
    assert slot is not None
    large = bytes(_LARGE)
    core.finish(slot, gathered([b"front", large, b"end"]))
    held_bytes = len(b"front") + _LARGE + len(b"end")
    assert core.held_bytes == len(frame) + held_bytes
    buffers = core.take_answers()
    assert buffers == [held_bytes.to_bytes(4), b"front", large, b"end"]
    assert buffers[2] is large
    core.sent()
    assert core.held_bytes == 0
