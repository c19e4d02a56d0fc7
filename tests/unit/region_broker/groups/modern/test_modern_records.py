"""Records of the new protocol: bytes written by hand from Kafka's schemas, and damage."""

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from region_broker.groups.modern.records import (
    ClassicMember,
    Current,
    GroupEpoch,
    MemberMetadata,
    ModernValue,
    PartitionMetadata,
    ResolvedRegex,
    Target,
    TargetEpoch,
    TopicShape,
    decode_value,
    encode_value,
)
from region_broker.groups.modern.states import MemberState
from region_broker.groups.records import (
    LedgerRecordError,
    ModernKey,
    ModernKind,
    decode_key,
    encode_modern_key,
)

T1, T2 = UUID(int=1), UUID(int=2)
PARTS = {T1: frozenset((0, 300)), T2: frozenset((7,))}
PARTS_BYTES = (
    b"\x03"
    + T1.bytes + b"\x03" + struct.pack(">ii", 0, 300) + b"\0"
    + T2.bytes + b"\x02" + struct.pack(">i", 7) + b"\0"
)  # fmt: skip

GOLDEN: dict[ModernKind, tuple[ModernValue, bytes]] = {
    ModernKind.GROUP_EPOCH: (GroupEpoch(9), b"\0\0\0\0\0\x09\0"),
    ModernKind.TARGET_EPOCH: (TargetEpoch(3), b"\0\0\0\0\0\x03\0"),
    ModernKind.PARTITION_METADATA: (
        PartitionMetadata({"ab": TopicShape(T1, 5)}),
        b"\0\0\x02" + T1.bytes + b"\x03ab\0\0\0\x05\x01\0\0",
    ),
    ModernKind.TARGET: (Target(PARTS), b"\0\0" + PARTS_BYTES + b"\0"),
    ModernKind.CURRENT: (
        Current(
            member_epoch=4,
            previous_epoch=-1,
            state=MemberState.UNRELEASED_PARTITIONS,
            assigned=PARTS,
            revoking={},
        ),
        b"\0\0" + struct.pack(">iib", 4, -1, 2) + PARTS_BYTES + b"\x01\0",
    ),
    ModernKind.MEMBER: (
        MemberMetadata(
            instance_id="i",
            client_id="c",
            client_host="/h",
            topic_names=("a", "b"),
            topic_regex="r",
            rebalance_timeout_ms=5,
            classic=ClassicMember(7, (("range", b"\1\2"),)),
        ),
        # .. and one tagged field, tag 0, 17 bytes: present, time-out, one protocol
        b"\0\0\x02i\0\x02c\x03/h\x03\x02a\x02b\x02r\0\0\0\x05\0\x01\x00\x11\x01\0\0\0\x07\x02\x06range\x03\1\2\0\0",
    ),
    ModernKind.REGEX: (
        ResolvedRegex(("a",), 2, 3),
        b"\0\0\x02\x02a" + struct.pack(">qq", 2, 3) + b"\0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", list(ModernKind))
def test_values_have_Kafkas_bytes(kind: ModernKind) -> None:
    value, raw = GOLDEN[kind]
    assert encode_value(value) == raw
    assert decode_value(kind, raw) == value


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (ModernKey(ModernKind.GROUP_EPOCH, "g"), b"\0\x03\0\x01g"),
        (ModernKey(ModernKind.PARTITION_METADATA, "g"), b"\0\x04\0\x01g"),
        (ModernKey(ModernKind.MEMBER, "g", "m"), b"\0\x05\0\x01g\0\x01m"),
        (ModernKey(ModernKind.TARGET_EPOCH, "g"), b"\0\x06\0\x01g"),
        (ModernKey(ModernKind.TARGET, "g", "m"), b"\0\x07\0\x01g\0\x01m"),
        (ModernKey(ModernKind.CURRENT, "g", "m"), b"\0\x08\0\x01g\0\x01m"),
        (ModernKey(ModernKind.REGEX, "g", "r.*"), b"\0\x10\0\x01g\0\x03r.*"),
    ],
)
def test_keys_have_Kafkas_bytes(key: ModernKey, raw: bytes) -> None:
    assert encode_modern_key(key) == raw
    assert decode_key(raw) == key


def test_a_member_of_the_new_protocol_has_no_tags() -> None:
    raw = encode_value(MemberMetadata(client_id="c"))
    assert raw.endswith(b"\0")
    assert decode_value(ModernKind.MEMBER, raw) == MemberMetadata(client_id="c")


def test_an_unknown_tagged_field_is_passed_over() -> None:
    """Kafka 4.1 adds a hash of the topics to the group's record (tag 0)."""
    raw = b"\0\0\0\0\0\x09\x01\x00\x08" + bytes(8)
    assert decode_value(ModernKind.GROUP_EPOCH, raw) == GroupEpoch(9)


@pytest.mark.parametrize("kind", list(ModernKind))
def test_damage_is_never_passed_over(kind: ModernKind) -> None:
    _, raw = GOLDEN[kind]
    for cut in range(len(raw)):
        with pytest.raises(LedgerRecordError):
            decode_value(kind, raw[:cut])
    with pytest.raises(LedgerRecordError, match="too many"):
        decode_value(kind, raw + b"x")
    with pytest.raises(LedgerRecordError, match="version"):
        decode_value(kind, b"\0\1" + raw[2:])


def test_an_unknown_state_of_a_member_stops_the_load() -> None:
    raw = b"\0\0" + struct.pack(">iib", 4, 3, 9) + b"\x01\x01\0"
    with pytest.raises(LedgerRecordError, match="state 9"):
        decode_value(ModernKind.CURRENT, raw)


TEXT = st.text(max_size=200)
NAMES = st.lists(TEXT, max_size=3).map(tuple)
UUIDS = st.uuids()
PARTITIONS = st.dictionaries(UUIDS, st.frozensets(st.integers(0, 2**31 - 1), min_size=1))
INTS = st.integers(-(2**31), 2**31 - 1)
VALUES = st.one_of(
    st.builds(
        MemberMetadata,
        instance_id=st.none() | TEXT,
        rack_id=st.none() | TEXT,
        client_id=TEXT,
        client_host=TEXT,
        topic_names=NAMES,
        topic_regex=st.none() | TEXT,
        rebalance_timeout_ms=INTS,
        assignor=st.none() | TEXT,
        classic=st.none()
        | st.builds(
            ClassicMember, INTS, st.lists(st.tuples(TEXT, st.binary()), max_size=3).map(tuple)
        ),
    ).map(lambda value: (ModernKind.MEMBER, value)),
    st.builds(
        Current,
        member_epoch=INTS,
        previous_epoch=INTS,
        state=st.sampled_from(MemberState),
        assigned=PARTITIONS,
        revoking=PARTITIONS,
    ).map(lambda value: (ModernKind.CURRENT, value)),
    st.builds(ResolvedRegex, NAMES, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)).map(
        lambda value: (ModernKind.REGEX, value)
    ),
    st.builds(
        PartitionMetadata, st.dictionaries(TEXT, st.builds(TopicShape, UUIDS, INTS), max_size=3)
    ).map(lambda value: (ModernKind.PARTITION_METADATA, value)),
)


@given(VALUES)
def test_what_is_written_is_read(pair: tuple[ModernKind, ModernValue]) -> None:
    kind, value = pair
    assert decode_value(kind, encode_value(value)) == value
