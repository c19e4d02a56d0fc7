"""Answers from dicts: kio reads back what our writers wrote, for every version served."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from region_broker.wire.codec.answers import encode_response, top_level_error
from region_broker.wire.codec.struct_writers import MissingField
from region_broker.wire.codec.value_writers import value_writer
from tests.fixtures.kafka_port import parse_answer

TOPIC_ID = UUID(int=5)
PARTITION = {
    "index": 1, "error_code": 0, "base_offset": 7, "log_append_time": -1, "log_start_offset": 2,
}  # fmt: skip


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_answer_in_every_version(version: int) -> None:
    values = {
        "responses": [{"name": "t", "topic_id": TOPIC_ID, "partition_responses": [PARTITION]}],
        "throttle_time": 12,
    }
    correlation_id, answer = parse_answer(0, version, bytes(encode_response(0, version, 9, values)))
    row = answer.responses[0].partition_responses[0]
    assert (correlation_id, answer.throttle_time) == (9, timedelta(milliseconds=12))
    assert (row.index, row.base_offset, row.log_append_time) == (1, 7, None)
    if version >= 5:
        assert row.log_start_offset == 2
    if version >= 13:
        assert answer.responses[0].topic_id == TOPIC_ID
    else:
        assert answer.responses[0].name == "t"


def test_B11_offset_that_nobody_gave_is_never_sent_as_0() -> None:
    with pytest.raises(MissingField, match="base_offset"):
        encode_response(0, 9, 1, {
            "responses": [{"name": "t", "partition_responses": [{"index": 0, "error_code": 0}]}]
        })  # fmt: skip


@pytest.mark.parametrize("version", range(5))
def test_KIP511_api_versions_answer_has_header_version_0_always(version: int) -> None:
    payload = encode_response(18, version, 3, {"error_code": 0, "api_keys": []})
    # Correlation id, then the error code at once: no tag byte of a flexible header.
    assert bytes(payload[:6]) == b"\x00\x00\x00\x03\x00\x00"


def test_tagged_fields_are_written_only_when_they_differ_from_their_default() -> None:
    plain: dict[str, Any] = {"error_code": 0, "api_keys": []}
    assert encode_response(18, 3, 1, plain).endswith(b"\x00\x00\x00\x00\x00")
    _, answer = parse_answer(
        18, 3, bytes(encode_response(18, 3, 1, plain | {"finalized_features_epoch": 8}))
    )
    assert answer.finalized_features_epoch == 8


def test_error_for_a_whole_answer_where_it_has_a_place() -> None:
    fields = top_level_error(22, 4, 15)
    assert fields is not None
    _, answer = parse_answer(22, 4, bytes(encode_response(22, 4, 1, fields)))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (15, -1, -1)
    assert top_level_error(8, 8, 15) is None  # OffsetCommit has errors per partition only


@pytest.mark.parametrize(("text", "said"), [("x" * 32_767, "x" * 32_767), ("x" + "é" * 16_384, "x" + "é" * 16_383)])  # fmt: skip
def test_INV_WVW1_a_text_that_no_string_of_an_old_version_holds_is_cut(
    text: str, said: str
) -> None:
    """A reason names what was asked for, which has 32,767 bytes itself; the request failed with a traceback in the log."""
    out = bytearray()
    value_writer("string", flexible=False)(out, text)
    assert bytes(out) == len(said.encode()).to_bytes(2, "big") + said.encode()
