"""The guarded readers on hand-written bytes: layouts are those of the Kafka protocol guide and KIP-482."""

import struct
from datetime import timedelta
from typing import Any

import pytest

from idempotency.pieces import drained
from region_broker.wire.codec import guard
from region_broker.wire.codec.bounded import DecodeRefused, write_uvarint
from region_broker.wire.codec.entities import entity_pieces, read_entity, request_schema
from region_broker.wire.codec.guard import check, compile_plan
from region_broker.wire.headers import HeaderError, read_header

# One topic: nil id, name "t", no tags; auto creation, no authorised operations, no tags.
TOPIC = bytes(16) + b"\x02t\x00"
METADATA_BODY = b"\x02" + TOPIC + b"\x01\x00\x00"
# Fetch v12 up to its tags: replica 0, waits, bytes, session of 0, no topics, nothing forgotten, rack "".
FETCH_BODY = bytes(25) + b"\x01\x01\x01"


def read(key: int, version: int, body: bytes) -> Any:
    """Return what both readers read in `body`."""
    request = read_entity(key, version, memoryview(body))
    assert drained(entity_pieces(key, version, memoryview(body))) == request  # INV-WP1
    return request


def refuse(key: int, version: int, body: bytes, match: str | None = None) -> None:
    """Let both readers refuse `body`."""
    with pytest.raises(DecodeRefused, match=match):
        read_entity(key, version, memoryview(body))
    with pytest.raises(DecodeRefused, match=match):
        drained(entity_pieces(key, version, memoryview(body)))


def test_a_body_is_read_as_the_protocol_guide_lays_it_out() -> None:
    request = read(3, 12, METADATA_BODY)
    assert [(topic.topic_id, topic.name) for topic in request.topics] == [(None, "t")]
    assert request.allow_auto_topic_creation
    assert not request.include_topic_authorized_operations


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff\xff\xff\xff\x0f", id="array of 4 billion"),
        pytest.param(b"\x80\x80\x80\x80\x80\x00\x01\x00\x00", id="overlong varint"),
        pytest.param(b"\x03" + TOPIC + b"\x01\x00\x00", id="array longer than the body"),
        pytest.param(b"\x02" + bytes(16) + b"\x7ft\x00\x01\x00\x00", id="string past the end"),
        pytest.param(b"\x02" + bytes(16) + b"\x02\xff\x00\x01\x00\x00", id="string of no text"),
        pytest.param(b"\x02" + TOPIC + b"\x02\x00\x00", id="boolean of 2"),
        pytest.param(METADATA_BODY[:-1], id="cut off"),
        pytest.param(METADATA_BODY + bytes(4), id="more than librdkafka's three spare bytes"),
        pytest.param(METADATA_BODY[:-1] + b"\x01\x63\x05abc", id="tag past the end"),
        pytest.param(METADATA_BODY[:-1] + b"\x02\x63\x00\x63\x00", id="tag twice"),
        pytest.param(METADATA_BODY[:-1] + b"\x7f", id="more tags than bytes"),
        pytest.param(b"", id="empty"),
    ],
)
def test_hostile_flexible_body_is_refused(body: bytes) -> None:
    refuse(3, 12, body)


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
    refuse(3, 4, body)


def test_librdkafkas_spare_bytes_are_passed_over() -> None:
    assert read(3, 12, METADATA_BODY + bytes(3)) == read(3, 12, METADATA_BODY)


def test_INV_WG2_unknown_tags_are_passed_over_at_every_level() -> None:
    tagged_topic = bytes(16) + b"\x02t\x01\x63\x02hi"
    body = b"\x02" + tagged_topic + b"\x01\x00\x02\x63\x00\x64\x01!"
    assert read(3, 12, body) == read(3, 12, METADATA_BODY)


def test_INV_WG2_known_tag_keeps_its_value_beside_unknown_ones() -> None:
    cluster_id = b"\x00\x03\x03ab"  # tag 0 of Fetch v12
    assert read(1, 12, FETCH_BODY + b"\x02" + cluster_id + b"\x63\x01!").cluster_id == "ab"
    assert read(1, 12, FETCH_BODY + b"\x00").cluster_id is None


def test_INV_WG2_known_tag_that_does_not_fill_its_size_is_refused() -> None:
    refuse(1, 12, FETCH_BODY + b"\x01\x00\x04\x03abX", "fill")


def test_INV_WG1_a_known_tag_ends_where_it_says() -> None:
    refuse(1, 12, FETCH_BODY + b"\x01\x00\x02\x03ab", "left")


def test_a_request_is_kios_frozen_class() -> None:
    request = read(1, 12, FETCH_BODY + b"\x00")
    assert request.max_wait == timedelta(0)
    with pytest.raises(AttributeError):
        request.max_bytes = 1
    assert type(request)(**{name: getattr(request, name) for name in request.__slots__}) == request


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_varints_as_in_the_protobuf_guide(value: int, encoded: str) -> None:
    assert write_uvarint(value).hex() == encoded


def guarded(key: int, version: int, body: bytes) -> bytes:
    """Return what the guard alone hands on to kio."""
    return bytes(check(compile_plan(request_schema(key, version).entity), memoryview(body)))


SOUND = [
    pytest.param(3, 12, METADATA_BODY, id="Metadata"),
    pytest.param(3, 4, b"\0\0\0\1\0\1t\1", id="Metadata of the old kind"),
    pytest.param(1, 12, FETCH_BODY + b"\1\0\3\3ab", id="Fetch with a known tag"),
    pytest.param(10, 0, b"\0\1g", id="FindCoordinator: a string at the end"),
    pytest.param(
        24, 0, b"\0\1t" + bytes(10) + b"\0\0\0\1\0\1a\0\0\0\2" + bytes(8),
        id="AddPartitionsToTxn: an array of numbers at the end",
    ),
    pytest.param(14, 0, b"\0\1g" + bytes(4) + b"\0\0" + b"\0\0\0\1\0\1m\0\0\0\1x", id="SyncGroup: bytes at the end"),
    pytest.param(75, 0, b"\1\0\0\0\1\xff\0", id="DescribeTopicPartitions: no cursor"),
    pytest.param(75, 0, b"\1\0\0\0\1\1\2t\0\0\0\0\0\0", id="DescribeTopicPartitions: a cursor"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "version", "body"), SOUND)
def test_INV_WG1_the_guard_itself_refuses_what_ends_too_early_or_too_late(
    key: int, version: int, body: bytes
) -> None:
    assert guarded(key, version, body) == body
    for wrong in (*(body[:end] for end in range(len(body))), body + b"\0"):
        with pytest.raises(DecodeRefused):
            guarded(key, version, wrong)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        pytest.param(10, 0, b"\xff\xff", id="string"),
        pytest.param(10, 3, b"\0\0\0", id="compact string"),
        pytest.param(24, 0, b"\0\1t" + bytes(10) + b"\xff\xff\xff\xff", id="array"),
        pytest.param(10, 4, b"\0\0\0", id="compact array"),
    ],
)
def test_INV_WG1_the_guard_itself_refuses_a_null_where_a_value_is_required(
    key: int, version: int, body: bytes
) -> None:
    with pytest.raises(DecodeRefused):
        guarded(key, version, body)


def test_INV_WG2_a_known_tag_that_lost_an_unknown_one_says_its_new_size() -> None:
    replica_state = b"\0\0\0\7" + bytes(8)  # tag 1 of Fetch v15: a struct with tags of its own
    front = FETCH_BODY[4:]  # without the replica, which is in the struct now
    cut = guarded(1, 15, front + b"\1\1\x11" + replica_state + b"\1\x63\2hi")
    assert cut == front + b"\1\1\x0d" + replica_state + b"\0"
    assert read(1, 15, cut).replica_state.replica_id == 7


def test_INV_WG4_elements_are_counted_over_all_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = b"\0\1a\0\0\0\2" + bytes(8)
    body = b"\0\1t" + bytes(10) + b"\0\0\0\2" + 2 * topic
    monkeypatch.setattr(guard, "ARRAY_ELEMENTS_MAX", 6)
    assert guarded(24, 0, body) == body
    monkeypatch.setattr(guard, "ARRAY_ELEMENTS_MAX", 5)
    refuse(24, 0, body, "array of 2")


def compact(size_bytes: int) -> bytes:
    """Return a compact string of so many bytes (KIP-482)."""
    return write_uvarint(size_bytes + 1) + b"x" * size_bytes


@pytest.mark.parametrize(
    ("key", "version", "front", "back"),
    [
        pytest.param(10, 3, b"", b"\0\0", id="FindCoordinator"),
        pytest.param(10, 4, b"\0\2", b"\0", id="FindCoordinator: in an array"),
        pytest.param(12, 4, b"", b"\0\0\0\1\2m\0\0", id="Heartbeat"),
        pytest.param(22, 3, b"", bytes(4) + bytes(10) + b"\0", id="InitProducerId: may be null"),
        pytest.param(0, 9, b"", b"\0\1\0\0\0\1\1\0", id="Produce"),
    ],
)
def test_INV_WG7_a_compact_string_is_no_longer_than_one_of_the_old_kind(
    key: int, version: int, front: bytes, back: bytes
) -> None:
    """The coordinator of a group with an id of 90 MB was looked for in one step of 66 s."""
    assert read(key, version, front + compact(32_767) + back) is not None
    refuse(key, version, front + compact(32_768) + back)


def test_INV_WG7_a_tagged_string_is_no_longer_than_another() -> None:
    def tagged(size_bytes: int) -> bytes:
        value = compact(size_bytes)
        return FETCH_BODY + b"\1\0" + write_uvarint(len(value)) + value

    assert len(read(1, 12, tagged(32_767)).cluster_id) == 32_767
    refuse(1, 12, tagged(32_768))


def test_INV_WG7_bytes_and_records_are_no_strings() -> None:
    data = compact(40_000)
    assert len(read(36, 2, data + b"\0").auth_bytes) == 40_000  # SaslAuthenticate
    batch = b"\0\1\0\0\0\1\2\2t\2" + bytes(4) + data + b"\0\0\0"
    assert len(read(0, 9, b"\0" + batch).topic_data[0].partition_data[0].records) == 40_000


def tags(count: int) -> bytes:
    """Return a section of so many tagged fields that nobody knows, without values (KIP-482)."""
    return write_uvarint(count) + b"".join(write_uvarint(99 + at) + b"\0" for at in range(count))


def test_INV_WG6_a_structure_has_few_tagged_fields() -> None:
    """Each distinct tag of 2 bytes took some 150 of memory: a request of 100 MiB ended the node."""
    assert read(3, 12, METADATA_BODY[:-1] + tags(50)) == read(3, 12, METADATA_BODY)
    refuse(3, 12, METADATA_BODY[:-1] + tags(51), "51 tagged fields")


def test_INV_WG6_tagged_fields_count_as_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    body = METADATA_BODY[:-1] + tags(4)
    monkeypatch.setattr(guard, "ARRAY_ELEMENTS_MAX", 5)  # one topic, four fields
    assert guarded(3, 12, body) == METADATA_BODY
    monkeypatch.setattr(guard, "ARRAY_ELEMENTS_MAX", 4)
    refuse(3, 12, body, "4 tagged fields")


def test_INV_WG6_a_header_has_few_tagged_fields() -> None:
    front = struct.pack(">hhih", 18, 3, 7, -1)  # ApiVersions v3, no client id
    assert read_header(memoryview(front + tags(50)), flexible=True).body_start > len(front)
    with pytest.raises(HeaderError, match="51 tagged fields"):
        read_header(memoryview(front + tags(51)), flexible=True)
