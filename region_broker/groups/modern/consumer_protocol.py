"""What consumers of the classic protocol say inside JoinGroup and hear inside SyncGroup.

Bytes that are no subscription or assignment are a `MalformedProtocol`, never a guess; what a later version adds behind
the known fields is passed over.

INV-NCP1 what a member says is read a few rows at a time, and has CLASSIC_TOPICS_MAX rows and CLASSIC_PARTITIONS_MAX partitions at most: a MiB of
         rows with empty names takes half a second, and whoever reads a group can have it read again and again
ConsumerProtocolSubscription v0-3 and ConsumerProtocolAssignment v0-3 (`clients/.../common/message`).
Not here: who is told what (`classic_members`).
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from idempotency.pieces import Pieces
from region_broker.groups.field_reader import FieldReader
from region_broker.limits import CLASSIC_PARTITIONS_MAX, CLASSIC_TOPICS_MAX
from region_broker.wire.cooperative_yield import CooperativeYield

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

    def row_count(self, least: int) -> int:
        """Return how many topics follow (INV-NN1)."""
        count = self.i32()
        if not least <= count <= CLASSIC_TOPICS_MAX:
            raise MalformedProtocol(f"{count} topics, of {CLASSIC_TOPICS_MAX} allowed")
        return count

    def topic_names(self, yielding: CooperativeYield) -> Pieces[tuple[str, ...]]:
        """Return the topics of a subscription."""
        names: list[str] = []
        for _ in range(self.row_count(0)):
            if yielding.due():
                yield
            names.append(self.name())
        return tuple(names)

    def skip_bytes(self) -> None:
        size_bytes = self.i32()
        if size_bytes > 0:
            self.take(size_bytes)

    def partitions(self, yielding: CooperativeYield) -> Pieces[dict[str, frozenset[int]]]:
        """Return the partitions of each topic, all that its rows name: there may be several of one."""
        found: dict[str, set[int]] = {}
        left = CLASSIC_PARTITIONS_MAX
        for _ in range(self.row_count(-1)):  # -1: a null array
            if yielding.due():
                yield
            name, numbers = self.name(), self.numbers(left)
            left -= len(numbers)
            found.setdefault(name, set()).update(numbers)
        return {name: frozenset(each) for name, each in found.items()}

    def numbers(self, count_max: int) -> Sequence[int]:
        count = max(self.i32(), 0)
        if count > count_max:
            raise MalformedProtocol(f"more than {CLASSIC_PARTITIONS_MAX} partitions")
        return struct.unpack(f">{count}i", self.take(4 * count))


def topic_names_said(raw: bytes, yielding: CooperativeYield) -> Pieces[tuple[str, ...]]:
    """Return the topics of a subscription, whatever follows them; raises `MalformedProtocol`."""
    cursor = _Cursor(raw)
    version = cursor.i16()
    if version < 0:
        raise MalformedProtocol(f"version {version}")
    return (yield from cursor.topic_names(yielding))


def topic_count_said(raw: bytes) -> int:
    """Return how many topics a subscription or an assignment says that it has, before it is read: 0 where it says nothing."""
    said: int = _I32.unpack_from(raw, _I16.size)[0] if len(raw) >= _I16.size + _I32.size else 0
    return max(said, 0)


def version_said(raw: bytes) -> int:
    """Return the version that a member speaks in a subscription, whatever else is in it: 0 where it says none."""
    said: int = _I16.unpack_from(raw)[0] if len(raw) >= _I16.size else 0
    return max(said, 0)


def subscription_said(raw: bytes, yielding: CooperativeYield) -> Pieces[Subscription]:
    """Return a member's subscription; raises `MalformedProtocol`."""
    cursor = _Cursor(raw)
    version = cursor.i16()
    if version < 0:
        raise MalformedProtocol(f"version {version}")
    names = yield from cursor.topic_names(yielding)
    cursor.skip_bytes()
    owned: Mapping[str, frozenset[int]] = {}
    if version >= 1:
        owned = yield from cursor.partitions(yielding)
    if version >= 2:
        cursor.i32()  # the generation that gave what is owned
    rack_id = cursor.string() if version >= 3 else None
    return Subscription(version, names, owned, rack_id)


def assignment_said(raw: bytes, yielding: CooperativeYield) -> Pieces[Mapping[str, frozenset[int]]]:
    """Return the partitions of an assignment by topic name; raises `MalformedProtocol`."""
    if not raw:
        return {}
    cursor = _Cursor(raw)
    if cursor.i16() < 0:
        raise MalformedProtocol("the version is negative")
    return (yield from cursor.partitions(yielding))


def write_assignment(version: int, partitions: Mapping[str, frozenset[int]]) -> bytes:
    """Return an assignment that a client which sent `version` can read."""
    out = [_I16.pack(min(version, VERSION_MAX)), _I32.pack(len(partitions))]
    for name in sorted(partitions):
        encoded = name.encode()
        held = sorted(partitions[name])
        out += [_I16.pack(len(encoded)), encoded, _I32.pack(len(held)), *map(_I32.pack, held)]
    out.append(_I32.pack(-1))  # no user data
    return b"".join(out)
