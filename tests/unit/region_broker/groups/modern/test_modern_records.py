"""Records of the new protocol: keys written by hand from Kafka's schemas, and damage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from region_broker.groups.modern.records import (
    ClassicMember,
    Current,
    MemberMetadata,
    ModernValue,
    PartitionMetadata,
    ResolvedRegex,
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
from tests.unit.region_broker.groups.kafkas_values import MODERN_VALUES


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


# Holds INV-NV2.
@pytest.mark.parametrize("kind", list(ModernKind))
def test_damage_is_never_passed_over(kind: ModernKind) -> None:
    _, raw = MODERN_VALUES[kind]
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


# Holds INV-NV1.
@given(VALUES)
def test_what_is_written_is_read(pair: tuple[ModernKind, ModernValue]) -> None:
    kind, value = pair
    assert decode_value(kind, encode_value(value)) == value


def test_KIP848_states_of_members_have_Kafkas_numbers() -> None:
    assert {state.name: state.value for state in MemberState} == {
        "STABLE": 0, "UNREVOKED_PARTITIONS": 1, "UNRELEASED_PARTITIONS": 2,
    }  # fmt: skip
