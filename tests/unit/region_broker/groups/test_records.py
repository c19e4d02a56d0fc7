"""Kafka's own layouts, byte by byte, and hostile bytes."""

from uuid import UUID

import pytest

from idempotency.identity import LeaderEpoch
from idempotency.pieces import drained
from region_broker.groups.modern.consumer_protocol import MalformedProtocol, topic_names_said
from region_broker.groups.records import (
    GroupKey,
    GroupValue,
    LedgerRecordError,
    MemberValue,
    OffsetKey,
    OffsetValue,
    Reader,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    varint,
)
from region_broker.wire.cooperative_yield import CooperativeYield
from tests.unit.region_broker.groups.fakes import tp

MEMBER = MemberValue("m-1", "inst", "cl", "/h", 60_000, 10_000, b"sub", b"asg")
GROUP = GroupValue("consumer", 7, "range", "m-1", 99, (MEMBER,))


def test_offset_commit_key_v1_layout() -> None:
    expected = b"\x00\x01" + b"\x00\x01g" + b"\x00\x06orders" + b"\x00\x00\x00\x03"
    assert encode_offset_key(OffsetKey("g", tp(3))) == expected
    assert decode_key(expected) == OffsetKey("g", tp(3))


def test_offset_commit_value_v3_layout() -> None:
    value = OffsetValue(258, LeaderEpoch(5), "md", 1)
    expected = b"\x00\x03" + bytes(6) + b"\x01\x02" + b"\x00\x00\x00\x05" + b"\x00\x02md"
    expected += bytes(7) + b"\x01"
    assert encode_offset_value(value) == expected
    assert decode_offset_value(expected) == value


def test_offset_commit_value_v4_layout() -> None:
    """Flexible: a compact string, and one tagged field with number 0 for the topic's id."""
    topic_id = UUID(int=77)
    value = OffsetValue(258, LeaderEpoch(5), "md", 1, topic_id)
    expected = b"\x00\x04" + bytes(6) + b"\x01\x02" + b"\x00\x00\x00\x05" + b"\x03md"
    expected += bytes(7) + b"\x01"
    assert encode_offset_value(value) == expected + b"\x01\x00\x10" + topic_id.bytes
    assert decode_offset_value(encode_offset_value(value)) == value
    nameless = OffsetValue(258, LeaderEpoch(5), "md", 1)
    assert decode_offset_value(expected + b"\x00") == nameless
    assert decode_offset_value(expected + b"\x01\x00\x10" + bytes(16)) == nameless
    assert decode_offset_value(expected + b"\x01\x07\x01x") == nameless, (
        "a later field is passed over"
    )
    for wrong in (b"", b"\x01\x00\x02xy", b"\x00\x00"):
        with pytest.raises(LedgerRecordError):
            decode_offset_value(expected + wrong)


def test_group_metadata_key_v2_layout() -> None:
    assert encode_group_key(GroupKey("gr")) == b"\x00\x02\x00\x02gr"
    assert decode_key(b"\x00\x02\x00\x02gr") == GroupKey("gr")


def test_group_metadata_value_v3_layout() -> None:
    expected = (
        b"\x00\x03" + b"\x00\x08consumer" + b"\x00\x00\x00\x07" + b"\x00\x05range" + b"\x00\x03m-1"
        + bytes(7) + b"\x63" + b"\x00\x00\x00\x01"
        + b"\x00\x03m-1" + b"\x00\x04inst" + b"\x00\x02cl" + b"\x00\x02/h"
        + b"\x00\x00\xea\x60" + b"\x00\x00\x27\x10"
        + b"\x00\x00\x00\x03sub" + b"\x00\x00\x00\x03asg"
    )  # fmt: skip
    assert encode_group_value(GROUP) == expected
    assert decode_group_value(expected) == GROUP


def test_empty_group_has_null_protocol_and_leader() -> None:
    value = GroupValue("consumer", 8, None, None, 1)
    assert b"\xff\xff\xff\xff" in encode_group_value(value)
    assert decode_group_value(encode_group_value(value)) == value


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_short_value_is_refused_not_skipped(cut: int) -> None:
    raw = encode_group_value(GROUP)
    with pytest.raises(LedgerRecordError):
        decode_group_value(raw[:-cut])


@pytest.mark.parametrize(
    "raw", [None, b"", b"\x00", b"\x00\x09\x00\x01g", b"\x00\x02\xff\xff", b"\x00\x02\x00\x01gg"]
)
def test_a_key_that_nobody_knows_is_refused(raw: bytes | None) -> None:
    with pytest.raises(LedgerRecordError):
        decode_key(raw)


def test_a_newer_value_names_the_version() -> None:
    with pytest.raises(LedgerRecordError, match="version 5"):
        decode_offset_value(b"\x00\x05" + bytes(20))


@pytest.mark.parametrize(
    ("number", "raw"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")]
)
def test_KIP482_an_unsigned_varint_has_seven_bits_a_byte_and_no_byte_too_many(
    number: int, raw: bytes
) -> None:
    assert varint(number) == raw


@pytest.mark.parametrize("size", [b"\xff\xfe", b"\x80\x00", b"\x7f\xff"])
def test_a_size_that_leads_back_or_beyond_the_end_is_refused(size: bytes) -> None:
    """A subscription is a client's bytes: one that leads back would be read for ever."""
    with pytest.raises(MalformedProtocol):
        drained(topic_names_said(b"\x00\x00" + b"\x00\x00\x00\x01" + size, CooperativeYield()))


def test_a_reader_never_goes_back() -> None:
    reader = Reader(b"abcd", "a test")
    assert reader.take(2) == b"ab"
    for size_bytes in (-1, 3):
        with pytest.raises(LedgerRecordError):
            reader.take(size_bytes)
    assert reader.take(2) == b"cd"
