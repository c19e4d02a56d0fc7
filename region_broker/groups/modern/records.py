"""Values of `__consumer_offsets` for groups of the new protocol, in Kafka 4.0's layouts (version 0).

INV-NV1  decode_value(kind, encode_value(x)) == x for every value
INV-NV2  a tagged field that this build does not know is passed over, as Kafka does: a later version
         may add one; anything else that is not understood is a `LedgerRecordError`
Sets are written in order, so that equal values have equal bytes.

Flexible encoding (KIP-482): lengths as unsigned varints plus one, zero for null, tagged fields at
the end of each struct. Source: `group-coordinator/src/main/resources/common/message`.
Not here: the keys (`groups.records`), what the records mean (`state`).
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import Partitions
from region_broker.groups.modern.states import MemberState
from region_broker.groups.records import (
    LedgerRecordError,
    ModernKind,
    Reader,
    flexible_bytes,
    varint,
)

VALUE_VERSION: Final = 0
_CLASSIC_TAG: Final = 0
_I8: Final = struct.Struct(">b")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_NO_TAGS: Final = b"\0"


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """ConsumerGroupMetadataValue."""

    group_epoch: int


@dataclass(frozen=True, slots=True)
class TopicShape:
    """One topic as the group last saw it."""

    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """ConsumerGroupPartitionMetadataValue: the subscribed topics that exist, by name."""

    topics: dict[str, TopicShape]


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What a member of the classic protocol brought to a group of the new one."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """ConsumerGroupMemberMetadataValue: who a member is and what it subscribes to."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: tuple[str, ...] = ()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """ConsumerGroupTargetAssignmentMetadataValue."""

    assignment_epoch: int


@dataclass(frozen=True, slots=True)
class Target:
    """ConsumerGroupTargetAssignmentMemberValue: what a member shall have."""

    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """ConsumerGroupCurrentMemberAssignmentValue: what a member has, and must give back."""

    member_epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions
    revoking: Partitions


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """ConsumerGroupRegularExpressionValue: the topics a pattern stood for at an image's version."""

    topic_names: tuple[str, ...]
    image_version: int
    timestamp_ms: int


ModernValue: TypeAlias = (
    GroupEpoch | PartitionMetadata | MemberMetadata | TargetEpoch | Target | Current | ResolvedRegex
)


# --- writing ------------------------------------------------------------------------------------


def _text(text: str | None) -> bytes:
    return varint(0) if text is None else flexible_bytes(text.encode())


def _array(parts: Iterable[bytes]) -> bytes:
    written = list(parts)
    return varint(len(written) + 1) + b"".join(written)


def _partitions(partitions: Partitions) -> bytes:
    return _array(
        topic_id.bytes + _array(map(_I32.pack, sorted(partitions[topic_id]))) + _NO_TAGS
        for topic_id in sorted(partitions)
    )


def _metadata(value: PartitionMetadata) -> bytes:
    return _array(
        shape.topic_id.bytes
        + _text(name)
        + _I32.pack(shape.partition_count)
        + _array(())
        + _NO_TAGS
        for name, shape in sorted(value.topics.items())
    )


def _member(value: MemberMetadata) -> bytes:
    fields = (
        _text(value.instance_id),
        _text(value.rack_id),
        _text(value.client_id),
        _text(value.client_host),
        _array(map(_text, value.topic_names)),
        _text(value.topic_regex),
        _I32.pack(value.rebalance_timeout_ms),
        _text(value.assignor),
    )
    return b"".join(fields)


def _classic_tags(classic: ClassicMember | None) -> bytes:
    if classic is None:
        return _NO_TAGS
    protocols = _array(
        _text(name) + flexible_bytes(raw) + _NO_TAGS for name, raw in classic.protocols
    )
    # A nullable struct is led by 1 (KIP-893).
    raw = _I8.pack(1) + _I32.pack(classic.session_timeout_ms) + protocols + _NO_TAGS
    return varint(1) + varint(_CLASSIC_TAG) + varint(len(raw)) + raw


def _body(value: ModernValue) -> bytes:
    match value:
        case GroupEpoch(number) | TargetEpoch(number):
            return _I32.pack(number)
        case PartitionMetadata():
            return _metadata(value)
        case MemberMetadata():
            return _member(value)
        case Target(partitions):
            return _partitions(partitions)
        case Current():
            head = _I32.pack(value.member_epoch) + _I32.pack(value.previous_epoch)
            state = _I8.pack(value.state.value)
            return head + state + _partitions(value.assigned) + _partitions(value.revoking)
        case ResolvedRegex():
            tail = _I64.pack(value.image_version) + _I64.pack(value.timestamp_ms)
            return _array(map(_text, value.topic_names)) + tail


def encode_value(value: ModernValue) -> bytes:
    """Return the value as it stands in the ledger, version first."""
    tags = _classic_tags(value.classic) if isinstance(value, MemberMetadata) else _NO_TAGS
    return _I16.pack(VALUE_VERSION) + _body(value) + tags


# --- reading ------------------------------------------------------------------------------------


class _FlexibleReader(Reader):
    """Reads what KIP-482 writes."""

    __slots__ = ()

    def i8(self) -> int:
        return int(_I8.unpack(self.take(1))[0])

    def count(self) -> range:
        size = self.varint() - 1
        if size < 0:
            raise LedgerRecordError("offsets ledger: an array is null that may not be")
        return range(size)

    def strings(self) -> tuple[str, ...]:
        return tuple(self.flexible_string() for _ in self.count())

    def partitions(self) -> Partitions:
        found: dict[UUID, frozenset[int]] = {}
        for _ in self.count():
            topic_id = self.uuid()
            found[topic_id] = frozenset(self.i32() for _ in self.count())
            self.tags()
        return found


def _read_metadata(reader: _FlexibleReader) -> PartitionMetadata:
    topics = {}
    for _ in reader.count():
        topic_id, name, count = reader.uuid(), reader.flexible_string(), reader.i32()
        for _ in reader.count():  # racks: not used since 4.0
            reader.i32()
            reader.strings()
            reader.tags()
        reader.tags()
        topics[name] = TopicShape(topic_id, count)
    return PartitionMetadata(topics)


def _read_member(reader: _FlexibleReader) -> MemberMetadata:
    member = MemberMetadata(  # arguments are read in the order of the record's fields
        instance_id=reader.flexible_text(),
        rack_id=reader.flexible_text(),
        client_id=reader.flexible_string(),
        client_host=reader.flexible_string(),
        topic_names=reader.strings(),
        topic_regex=reader.flexible_text(),
        rebalance_timeout_ms=reader.i32(),
        assignor=reader.flexible_text(),
    )
    raw = reader.tags().get(_CLASSIC_TAG)
    return member if raw is None else replace(member, classic=_read_classic(raw))


def _read_classic(raw: bytes) -> ClassicMember | None:
    reader = _FlexibleReader(raw, "classic member")
    if reader.i8() < 0:
        return None
    session_timeout_ms = reader.i32()
    protocols = []
    for _ in reader.count():
        name = reader.flexible_string()
        protocols.append((name, reader.take(len(reader.count()))))
        reader.tags()
    reader.tags()
    reader.end()
    return ClassicMember(session_timeout_ms, tuple(protocols))


def _read_current(reader: _FlexibleReader) -> Current:
    epochs = reader.i32(), reader.i32()
    number = reader.i8()
    try:
        state = MemberState(number)
    except ValueError as error:
        raise LedgerRecordError(
            f"offsets ledger: member state {number} is unknown; "
            "run the Tidemark version that wrote this data folder"
        ) from error
    return Current(
        member_epoch=epochs[0],
        previous_epoch=epochs[1],
        state=state,
        assigned=reader.partitions(),
        revoking=reader.partitions(),
    )


_READ: Final[dict[ModernKind, Callable[[_FlexibleReader], ModernValue]]] = {
    ModernKind.GROUP_EPOCH: lambda reader: GroupEpoch(reader.i32()),
    ModernKind.PARTITION_METADATA: _read_metadata,
    ModernKind.MEMBER: _read_member,
    ModernKind.TARGET_EPOCH: lambda reader: TargetEpoch(reader.i32()),
    ModernKind.TARGET: lambda reader: Target(reader.partitions()),
    ModernKind.CURRENT: _read_current,
    ModernKind.REGEX: lambda reader: ResolvedRegex(reader.strings(), reader.i64(), reader.i64()),
}
assert set(_READ) == set(ModernKind), "a kind of record cannot be read"


def decode_value(kind: ModernKind, raw: bytes) -> ModernValue:
    """Return the value; raises `LedgerRecordError`."""
    reader = _FlexibleReader(raw, f"value of key version {kind.value}")
    reader.version(VALUE_VERSION)
    value = _READ[kind](reader)
    if kind is not ModernKind.MEMBER:  # its own tags are read with it
        reader.tags()
    reader.end()
    return value
