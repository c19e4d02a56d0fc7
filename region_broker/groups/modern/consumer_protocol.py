"""What consumers of the classic protocol say inside JoinGroup and hear inside SyncGroup.

Bytes that are no subscription or assignment are a `MalformedProtocol`, never a guess; what a later version adds behind
the known fields is passed over.

ConsumerProtocolSubscription v0-3 and ConsumerProtocolAssignment v0-3 (`clients/.../common/message`).
Not here: who is told what (`classic_members`).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from region_broker.groups.field_reader import FieldReader
from region_broker.groups.modern.assignors.assignment import merged
from region_broker.limits import CLASSIC_TOPICS_MAX

PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


class MalformedProtocol(ValueError):
    """A subscription or assignment cannot be read."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants; `owned` is what it has still (v1+, cooperative assignors)."""

    version: int
    topic_names: tuple[str, ...]
    owned: Mapping[str, frozenset[int]] = field(default_factory=dict)
    rack_id: str | None = None


class _Cursor(FieldReader):
    """Running out of bytes is a `MalformedProtocol`."""

    __slots__ = ()

    @override
    def _short(self, text: str) -> ValueError:
        return MalformedProtocol(text)

    def string(self) -> str | None:
        size_bytes = self.i16()
        try:
            return None if size_bytes < 0 else self.take(size_bytes).decode()
        except UnicodeDecodeError as error:
            raise MalformedProtocol("a name is not UTF-8") from error

    def name(self) -> str:
        text = self.string()
        if text is None:
            raise MalformedProtocol("a name is null")
        return text

    def topic_names(self) -> tuple[str, ...]:
        """Return the topics of a subscription (INV-NN1)."""
        count = self.i32()
        if not 0 <= count <= CLASSIC_TOPICS_MAX:
            raise MalformedProtocol(f"{count} topics, of {CLASSIC_TOPICS_MAX} allowed")
        return tuple(self.name() for _ in range(count))

    def skip_bytes(self) -> None:
        size_bytes = self.i32()
        if size_bytes > 0:
            self.take(size_bytes)

    def partitions(self) -> dict[str, frozenset[int]]:
        return merged((self.name(), self.numbers()) for _ in range(self.i32()))

    def numbers(self) -> Sequence[int]:
        count = max(self.i32(), 0)
        return struct.unpack(f">{count}i", self.take(4 * count))


def read_topic_names(raw: bytes) -> tuple[str, ...]:
    """Return the topics of a subscription, whatever follows them; raises `MalformedProtocol`."""
    cursor = _Cursor(raw)
    version = cursor.i16()
    if version < 0:
        raise MalformedProtocol(f"version {version}")
    return cursor.topic_names()


def version_said(raw: bytes) -> int:
    """Return the version that a member speaks in a subscription, whatever else is in it: 0 where it says none."""
    said: int = _I16.unpack_from(raw)[0] if len(raw) >= _I16.size else 0
    return max(said, 0)


def read_subscription(raw: bytes) -> Subscription:
    """Return a member's subscription; raises `MalformedProtocol`."""
    cursor = _Cursor(raw)
    version = cursor.i16()
    if version < 0:
        raise MalformedProtocol(f"version {version}")
    names = cursor.topic_names()
    cursor.skip_bytes()
    owned = cursor.partitions() if version >= 1 else {}
    if version >= 2:
        cursor.i32()  # the generation that gave what is owned
    rack_id = cursor.string() if version >= 3 else None
    return Subscription(version, names, owned, rack_id)


def read_assignment(raw: bytes) -> Mapping[str, frozenset[int]]:
    """Return the partitions of an assignment by topic name; raises `MalformedProtocol`."""
    if not raw:
        return {}
    cursor = _Cursor(raw)
    if cursor.i16() < 0:
        raise MalformedProtocol("the version is negative")
    return cursor.partitions()


def write_assignment(version: int, partitions: Mapping[str, frozenset[int]]) -> bytes:
    """Return an assignment that a client which sent `version` can read."""
    out = [_I16.pack(min(version, VERSION_MAX)), _I32.pack(len(partitions))]
    for name in sorted(partitions):
        encoded = name.encode()
        held = sorted(partitions[name])
        out += [_I16.pack(len(encoded)), encoded, _I32.pack(len(held)), *map(_I32.pack, held)]
    out.append(_I32.pack(-1))  # no user data
    return b"".join(out)
