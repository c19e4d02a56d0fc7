"""Keys and values of `__consumer_offsets`, in Kafka's own layouts, so that its tools can read them.

INV-GR2  a record that cannot be understood stops the load of its shard; it is never skipped (C22)
decode(encode(x)) == x for every key and value.

OffsetCommitKey v1 / OffsetCommitValue v3 and v4, GroupMetadataKey v2 / GroupMetadataValue v3 (group coordinator of
Kafka, `coordinator-key/value` schemas): big endian, non-flexible strings and arrays. OffsetCommitValue v4 is flexible
(KIP-482: lengths as unsigned varints plus one, tagged fields at the end); the topic's id is its tagged field 0, which
readers that do not know it pass over (KIP-915). What is committed to a topic without a known id is v3.
Not here: batches (`region_broker.records.batches`), what the records mean (`offsets`), the values of
groups of the new protocol (`modern.records`).
"""

import struct
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final
from uuid import UUID

from typing_extensions import override

from idempotency.identity import LeaderEpoch, TopicName, TopicPartition
from region_broker.groups.field_reader import FieldReader

OFFSET_KEY_VERSION: Final = 1
OFFSET_VALUE_VERSION: Final = 3
OFFSET_VALUE_VERSION_BY_ID: Final = 4
GROUP_KEY_VERSION: Final = 2
GROUP_VALUE_VERSION: Final = 3
_TOPIC_ID_TAG: Final = 0

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


class LedgerRecordError(ValueError):
    """A key or value of the offsets ledger is damaged or of a newer version."""


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Group `group_id`'s place in one partition."""

    group_id: str
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The metadata of one group."""

    group_id: str


@unique
class ModernKind(IntEnum):
    """What a record says of a group of the new protocol; the number is Kafka's key version."""

    GROUP_EPOCH = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


_MODERN_KINDS: Final = frozenset(ModernKind)
NAMELESS: Final = (
    ModernKind.GROUP_EPOCH,
    ModernKind.PARTITION_METADATA,
    ModernKind.TARGET_EPOCH,
)


@dataclass(frozen=True, slots=True)
class ModernKey:
    """A record of a group of the new protocol; `name` is a member id, or a pattern of topics."""

    kind: ModernKind
    group_id: str
    name: str = ""


Key = OffsetKey | GroupKey | ModernKey


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """A committed offset: the next record to read; `leader_epoch` -1 if the client said none.

    `topic_id` says of which topic, as another one may have its name later; None: it was not known.
    """

    committed_offset: int
    leader_epoch: LeaderEpoch
    metadata: str
    commit_timestamp_ms: int
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class MemberValue:
    """One member as persisted: `subscription` is its metadata for the selected protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A group at the completion of a generation; `members` is empty for an empty group."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberValue, ...] = ()


def _string(text: str) -> bytes:
    raw = text.encode()
    return _I16.pack(len(raw)) + raw


def _nullable_string(text: str | None) -> bytes:
    return _I16.pack(-1) if text is None else _string(text)


def _bytes(raw: bytes) -> bytes:
    return _I32.pack(len(raw)) + raw


_ONE_BYTE: Final = tuple(bytes((number,)) for number in range(0x80))


def varint(number: int) -> bytes:
    """Return an unsigned varint (KIP-482)."""
    if number <= 0x7F:  # nearly all: lengths of names
        return _ONE_BYTE[number]
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def flexible_bytes(raw: bytes) -> bytes:
    """Return bytes, or the bytes of a string, as KIP-482 writes them."""
    return varint(len(raw) + 1) + raw


class Reader(FieldReader):
    """Reads one key or value in order; every failure is a `LedgerRecordError`."""

    __slots__ = ("_what",)

    def __init__(self, buffer: bytes, what: str) -> None:
        super().__init__(buffer)
        self._what = what

    @override
    def _short(self, text: str) -> ValueError:
        return LedgerRecordError(
            f"{self._what}: {text}; the record is damaged: restore this partition from a mirror"
        )

    def nullable_string(self) -> str | None:
        size_bytes = self.i16()
        if size_bytes == -1:
            return None
        try:
            return self.take(size_bytes).decode()
        except UnicodeDecodeError as error:
            raise LedgerRecordError(f"{self._what}: a string is not UTF-8") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise LedgerRecordError(f"{self._what}: a string is null that may not be")
        return text

    def blob(self) -> bytes:
        return self.take(self.i32())

    def varint(self) -> int:
        position = self._position
        if position < len(self._raw) and self._raw[position] < 0x80:  # nearly all: lengths of names
            self._position = position + 1
            return self._raw[position]
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 28:
                raise LedgerRecordError("offsets ledger: a varint of over 5 bytes")

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def flexible_text(self) -> str | None:
        size_bytes = self.varint() - 1
        if size_bytes < 0:
            return None
        try:
            return self.take(size_bytes).decode()
        except UnicodeDecodeError as error:
            raise LedgerRecordError("offsets ledger: a string is not UTF-8") from error

    def flexible_string(self) -> str:
        text = self.flexible_text()
        if text is None:
            raise LedgerRecordError("offsets ledger: a string is null that may not be")
        return text

    def tags(self) -> dict[int, bytes]:
        return {self.varint(): self.take(self.varint()) for _ in range(self.varint())}

    def version(self, *expected: int) -> int:
        found = self.i16()
        if found not in expected:
            raise LedgerRecordError(
                f"{self._what}: version {found}, this build reads {' and '.join(map(str, expected))}; "
                "run the Tidemark version that wrote this data folder"
            )
        return found

    def end(self) -> None:
        if self._position != len(self._raw):
            raise LedgerRecordError(f"{self._what}: {len(self._raw)} bytes, too many")


def encode_offset_key(key: OffsetKey) -> bytes:
    """Return OffsetCommitKey v1."""
    return b"".join(
        (
            _I16.pack(OFFSET_KEY_VERSION),
            _string(key.group_id),
            _string(key.tp.topic),
            _I32.pack(key.tp.partition),
        )
    )


_TOPIC_ID_HEAD: Final = (
    varint(1) + varint(_TOPIC_ID_TAG) + varint(16)
)  # one tag: its number and its size


def encode_group_key(key: GroupKey) -> bytes:
    """Return GroupMetadataKey v2."""
    return _I16.pack(GROUP_KEY_VERSION) + _string(key.group_id)


def encode_modern_key(key: ModernKey) -> bytes:
    """Return the key of that kind: ConsumerGroupMetadataKey, ConsumerGroupMemberMetadataKey, .."""
    head = _I16.pack(key.kind) + _string(key.group_id)
    return head if key.kind in NAMELESS else head + _string(key.name)


def _read_modern_key(reader: Reader, kind: ModernKind) -> ModernKey:
    group_id = reader.string()
    return ModernKey(kind, group_id, "" if kind in NAMELESS else reader.string())


def decode_key(raw: bytes | None) -> Key:
    """Return the key; raises `LedgerRecordError`."""
    if raw is None:
        raise LedgerRecordError("offsets ledger: a record without a key")
    reader = Reader(raw, "key of the offsets ledger")
    version = reader.i16()
    key: Key
    if version == OFFSET_KEY_VERSION:
        group_id, topic = reader.string(), TopicName(reader.string())
        key = OffsetKey(group_id, TopicPartition(topic, reader.i32()))
    elif version == GROUP_KEY_VERSION:
        key = GroupKey(reader.string())
    elif version in _MODERN_KINDS:
        key = _read_modern_key(reader, ModernKind(version))
    else:
        raise LedgerRecordError(
            f"offsets ledger: key version {version} is unknown; "
            "run the Tidemark version that wrote this data folder"
        )
    reader.end()
    return key


def encode_offset_value(value: OffsetValue) -> bytes:
    """Return OffsetCommitValue, v4 with the topic's id, v3 without one."""
    at, epoch = _I64.pack(value.committed_offset), _I32.pack(value.leader_epoch)
    time_ms = _I64.pack(value.commit_timestamp_ms)
    if value.topic_id is None:
        head = _I16.pack(OFFSET_VALUE_VERSION)
        return b"".join((head, at, epoch, _string(value.metadata), time_ms))
    head, metadata = _I16.pack(OFFSET_VALUE_VERSION_BY_ID), value.metadata.encode()
    return b"".join((
        head, at, epoch, flexible_bytes(metadata), time_ms, _TOPIC_ID_HEAD, value.topic_id.bytes
    ))  # fmt: skip


def decode_offset_value(raw: bytes) -> OffsetValue:
    """Return the committed offset; raises `LedgerRecordError`."""
    reader = Reader(raw, "committed offset")
    if reader.version(OFFSET_VALUE_VERSION, OFFSET_VALUE_VERSION_BY_ID) == OFFSET_VALUE_VERSION:
        value = OffsetValue(reader.i64(), LeaderEpoch(reader.i32()), reader.string(), reader.i64())
    else:
        parts = reader.i64(), LeaderEpoch(reader.i32()), reader.flexible_string(), reader.i64()
        value = OffsetValue(*parts, _topic_id(reader.tags().get(_TOPIC_ID_TAG)))
    reader.end()
    return value


def _topic_id(raw: bytes | None) -> UUID | None:
    if raw is None:
        return None
    if len(raw) != 16:
        raise LedgerRecordError(f"committed offset: a topic id of {len(raw)} bytes")
    return UUID(bytes=raw) if any(raw) else None


def _encode_member(member: MemberValue) -> bytes:
    return b"".join(
        (
            _string(member.member_id),
            _nullable_string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _I32.pack(member.rebalance_timeout_ms),
            _I32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    )


def encode_group_value(value: GroupValue) -> bytes:
    """Return GroupMetadataValue v3."""
    head = (
        _I16.pack(GROUP_VALUE_VERSION),
        _string(value.protocol_type),
        _I32.pack(value.generation),
        _nullable_string(value.protocol_name),
        _nullable_string(value.leader),
        _I64.pack(value.state_timestamp_ms),
        _I32.pack(len(value.members)),
    )
    return b"".join((*head, *(_encode_member(member) for member in value.members)))


def _read_member(reader: Reader) -> MemberValue:
    return MemberValue(
        member_id=reader.string(),
        instance_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        rebalance_timeout_ms=reader.i32(),
        session_timeout_ms=reader.i32(),
        subscription=reader.blob(),
        assignment=reader.blob(),
    )


def decode_group_value(raw: bytes) -> GroupValue:
    """Return the group; raises `LedgerRecordError`."""
    reader = Reader(raw, "group metadata")
    reader.version(GROUP_VALUE_VERSION)
    value = GroupValue(
        protocol_type=reader.string(),
        generation=reader.i32(),
        protocol_name=reader.nullable_string(),
        leader=reader.nullable_string(),
        state_timestamp_ms=reader.i64(),
        members=tuple(_read_member(reader) for _ in range(reader.i32())),
    )
    reader.end()
    return value
