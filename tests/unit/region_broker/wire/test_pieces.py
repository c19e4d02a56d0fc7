"""Large requests and answers in pieces: the same as at once, with pauses in between (INV-WP1, INV-WP2, INV-WK4)."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from kio.static.constants import EntityType

from idempotency.pieces import Pieces
from region_broker.limits import ARRAY_ELEMENTS_MAX, ELEMENTS_AT_ONCE_MAX, PIECE_ELEMENTS
from region_broker.wire.codec import answers
from region_broker.wire.codec.answers import (
    AnswerTooLarge,
    encode_response,
    has_many_rows,
    response_pieces,
)
from region_broker.wire.codec.bounded import DecodeRefused, ManyElements, write_uvarint
from region_broker.wire.codec.entities import entity_pieces
from region_broker.wire.codec.requests import decode_request, request_pieces
from tests.fixtures.kafka_port import body_of, build, parse_answer, schema

MANY = 2 * ELEMENTS_AT_ONCE_MAX


def run(pieces: Pieces[Any]) -> tuple[Any, int]:
    """Return the result of `pieces`, and how often they paused."""
    pauses = 0
    try:
        while True:
            next(pieces)
            pauses += 1
    except StopIteration as done:
        return done.value, pauses


def offset(index: int) -> dict[str, Any]:
    return {"partition_index": index, "current_leader_epoch": 3, "timestamp": -1}


LIST_OFFSETS = {"replica_id": -1, "isolation_level": 1}
FLAGS = {"include_topic_authorized_operations": True}
REQUESTS: dict[str, tuple[int, int, Mapping[str, Any]]] = {
    "many partitions of a topic": (2, 7, LIST_OFFSETS | {
        "topics": [{"name": "t", "partitions": [offset(i) for i in range(MANY)]}]}),
    "many topics": (2, 5, LIST_OFFSETS | {
        "topics": [{"name": f"t{i}", "partitions": [offset(i)]} for i in range(MANY)]}),
    "topics by id": (3, 12, FLAGS | {"allow_auto_topic_creation": False, "topics": [
        {"topic_id": UUID(int=i + 1), "name": None} for i in range(MANY)]}),
    "many names": (15, 5, {"groups": [f"g{i}" for i in range(MANY)], "include_authorized_operations": True}),
    "many names of an old version": (15, 0, {"groups": [f"g{i}" for i in range(MANY)]}),
    "groups, topics, numbers": (9, 8, {"require_stable": True, "groups": [
        {"group_id": f"g{i}", "topics": [{"name": "t", "partition_indexes": [1, 2, i]}]} for i in range(MANY)]}),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_INV_WP1_a_large_request_read_in_pieces_is_the_request(name: str) -> None:
    key, version, values = REQUESTS[name]
    body = memoryview(body_of(key, version, values))
    with pytest.raises(ManyElements):
        decode_request(key, version, body)
    request, pauses = run(request_pieces(key, version, body))
    assert request == build(schema(key, version, EntityType.request), values)
    assert pauses >= MANY // PIECE_ELEMENTS  # INV-WP2
    for damaged in (body[:-1], bytes(body) + b"\x01" * 4):
        with pytest.raises(DecodeRefused):
            run(request_pieces(key, version, memoryview(damaged)))


def tagged(count: int) -> bytes:
    """Return a section of 50 tagged fields that nobody knows, behind each of `count` batches of a Produce for one topic."""
    tags = b"\x32" + b"".join(bytes((number, 0)) for number in range(50))
    rows = write_uvarint(count + 1) + count * (bytes(5) + tags)
    return b"\0\0\1\0\0\0\1\2\2t" + rows + b"\0\0"


def test_INV_WG6_tagged_fields_of_a_produce_request_are_read_in_pieces() -> None:
    """990 batches with 50 each held the event loop for 0.12 s: as elements they are 50,000."""
    body = memoryview(tagged(990))
    with pytest.raises(ManyElements):
        decode_request(0, 9, body)
    request, pauses = run(request_pieces(0, 9, body))
    assert len(request.topics[0].batches) == 990
    assert pauses >= 990 * 50 // PIECE_ELEMENTS


def test_INV_WG6_tagged_fields_of_a_produce_request_are_as_many_as_of_any_other() -> None:
    count = ARRAY_ELEMENTS_MAX // 51
    for read in (entity_pieces, request_pieces):
        run(read(0, 9, memoryview(tagged(count))))
        with pytest.raises(DecodeRefused):
            run(read(0, 9, memoryview(tagged(count + 1))))


def test_INV_WP2_tagged_fields_are_read_in_pieces_as_elements_are() -> None:
    tags = b"\x32" + b"".join(bytes((number, 0)) for number in range(50))
    topics = write_uvarint(MANY // 2 + 1) + MANY // 2 * (bytes(16) + b"\2t" + tags)
    request, pauses = run(request_pieces(3, 12, memoryview(topics + b"\1\0\0")))
    assert len(request.topics) == MANY // 2
    assert pauses >= MANY // 2 * 50 // PIECE_ELEMENTS


def test_INV_WG5_what_claims_more_elements_than_there_are_is_refused_at_once() -> None:
    claimed = b"\xff\xff\x03"  # 65,534 names, a byte each at least, in a body of three bytes
    with pytest.raises(DecodeRefused):
        decode_request(15, 5, memoryview(claimed))


def test_elements_beyond_the_limit_are_refused_in_pieces_too() -> None:
    body = body_of(
        15, 5, {"groups": [""] * (ARRAY_ELEMENTS_MAX + 1), "include_authorized_operations": True}
    )
    with pytest.raises(DecodeRefused):
        run(request_pieces(15, 5, memoryview(body)))


def large_answer() -> dict[str, Any]:
    rows = [{"partition_index": i, "error_code": 0, "timestamp": -1, "offset": i, "leader_epoch": 1}
            for i in range(MANY)]  # fmt: skip
    return {
        "topics": [{"name": "few", "partitions": rows[:1]}, {"name": "many", "partitions": rows}]
    }


@pytest.mark.parametrize("version", [1, 5, 7])
def test_an_answer_in_pieces_is_the_answer(version: int) -> None:
    fields = large_answer()
    assert has_many_rows(fields)
    assert not has_many_rows({"topics": fields["topics"][:1]})
    payload, pauses = run(response_pieces(2, version, 9, fields))
    assert payload == encode_response(2, version, 9, fields)
    assert pauses >= MANY // PIECE_ELEMENTS
    correlation_id, answer = parse_answer(2, version, bytes(payload))
    assert correlation_id == 9
    assert [row.offset for row in answer.topics[1].partitions] == list(range(MANY))


def test_INV_WK4_an_answer_beyond_the_limit_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RESPONSE_BYTES_MAX", 20_000)
    with pytest.raises(AnswerTooLarge):
        encode_response(2, 7, 9, large_answer())
    begun: list[None] = []
    with pytest.raises(AnswerTooLarge):
        begun.extend(response_pieces(2, 7, 9, large_answer()))
    assert 0 < len(begun) < MANY // PIECE_ELEMENTS, "given up once it is too long, not at its end"
