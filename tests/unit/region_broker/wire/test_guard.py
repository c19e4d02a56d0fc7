"""The guard on hand-written bytes: layouts are those of the Kafka protocol guide and KIP-482."""

import pytest
from kio.static.constants import EntityType

from region_broker.wire.codec.guard import GuardError, check, compile_plan, write_uvarint
from region_broker.wire.codec.messages import DecodeRefused, decode_request
from tests.wire_world import schema

METADATA_12 = compile_plan(schema(3, 12, EntityType.request))
METADATA_4 = compile_plan(schema(3, 4, EntityType.request))
FETCH_12 = compile_plan(schema(1, 12, EntityType.request))

# One topic: nil id, name "t", no tags; auto creation, no authorised operations, no tags.
TOPIC = bytes(16) + b"\x02t\x00"
METADATA_BODY = b"\x02" + TOPIC + b"\x01\x00\x00"


def test_sound_body_is_returned_as_it_is() -> None:
    body = memoryview(METADATA_BODY)
    assert check(METADATA_12, body) is body


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff\xff\xff\xff\x0f", id="array of 4 billion"),
        pytest.param(b"\x80\x80\x80\x80\x80\x00\x01\x00\x00", id="overlong varint"),
        pytest.param(b"\x03" + TOPIC + b"\x01\x00\x00", id="array longer than the body"),
        pytest.param(b"\x02" + bytes(16) + b"\x7ft\x00\x01\x00\x00", id="string past the end"),
        pytest.param(METADATA_BODY[:-1], id="cut off"),
        pytest.param(METADATA_BODY + bytes(4), id="more than librdkafka's three spare bytes"),
        pytest.param(METADATA_BODY[:-1] + b"\x01\x63\x05abc", id="tag past the end"),
        pytest.param(METADATA_BODY[:-1] + b"\x02\x63\x00\x63\x00", id="tag twice"),
        pytest.param(METADATA_BODY[:-1] + b"\x7f", id="more tags than bytes"),
        pytest.param(b"", id="empty"),
    ],
)
def test_hostile_flexible_body_is_refused(body: bytes) -> None:
    with pytest.raises(GuardError):
        check(METADATA_12, memoryview(body))
    with pytest.raises(DecodeRefused):
        decode_request(3, 12, memoryview(body))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x7f\xff\xff\xff\x01", id="array of 2 billion"),
        pytest.param(b"\xff\xff\xff\xfe\x01", id="array of -2"),
        pytest.param(b"\x00\x00\x00\x01\x7f\xfft\x01", id="string past the end"),
        pytest.param(b"\x00\x00\x00\x01\xff\xff\x01", id="null name"),
        pytest.param(b"\x00\x00\x00", id="half a length"),
    ],
)
def test_hostile_legacy_body_is_refused(body: bytes) -> None:
    with pytest.raises(GuardError):
        check(METADATA_4, memoryview(body))


def test_unknown_tags_are_cut_out_at_every_level() -> None:
    tagged_topic = bytes(16) + b"\x02t\x01\x63\x02hi"
    body = b"\x02" + tagged_topic + b"\x01\x00\x02\x63\x00\x64\x01!"
    assert bytes(check(METADATA_12, memoryview(body))) == METADATA_BODY


def test_known_tag_keeps_its_value_beside_unknown_ones() -> None:
    # Fetch v12: tag 0 is the cluster id.
    rest = bytes(4) * 2 + bytes(4) + bytes(4) + b"\x00" + bytes(8) + b"\x01\x01\x01"
    known = b"\x00\x03\x03ab"
    body = rest + b"\x02" + known + b"\x63\x01!"
    assert bytes(check(FETCH_12, memoryview(body))) == rest + b"\x01" + known


def test_known_tag_that_does_not_fill_its_size_is_refused() -> None:
    rest = bytes(4) * 2 + bytes(4) + bytes(4) + b"\x00" + bytes(8) + b"\x01\x01\x01"
    with pytest.raises(GuardError, match="fill"):
        check(FETCH_12, memoryview(rest + b"\x01\x00\x04\x03abX"))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_varints_as_in_the_protobuf_guide(value: int, encoded: str) -> None:
    assert write_uvarint(value).hex() == encoded
