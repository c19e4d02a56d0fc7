"""Requests of many elements read in pieces, as kio's classes.

INV-WP1  a request read in pieces is equal to what one read of it gives, and is refused where that is refused
INV-WP2  a piece is PIECE_ELEMENTS elements of arrays of structs or strings, and tagged fields; a whole array of numbers is one element
Arrays of structs and strings are walked here. A struct without such arrays is guarded (`guard`) and then read by kio, as
when it is read at once, and so are the fields beside the arrays.
Not here: small requests (`entities`), whose order is held meanwhile (`wire.cooperative_yield`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias, cast

from kio.serial import entity_reader, readers

from idempotency.pieces import Pieces
from region_broker.limits import ARRAY_ELEMENTS_MAX, PIECE_ELEMENTS
from region_broker.wire.codec.bounded import DecodeRefused, read_uvarint
from region_broker.wire.codec.guard import (
    CountReader,
    GuardState,
    Op,
    array_count_reader,
    check_rest,
    compile_element,
    compile_field,
    compile_plan,
    compile_tags,
    edited,
)
from region_broker.wire.codec.schemas import FieldShape, field_shapes
from region_broker.wire.cooperative_yield import CooperativeYield

_Reader: TypeAlias = Callable[[memoryview, int], tuple[Any, int]]
"""(body, position) -> (value, how many bytes it has): the form of kio's readers. The guard has passed the bytes."""

_FIXED: Final[Mapping[str, Any]] = {
    "bool": readers.read_boolean, "int8": readers.read_int8, "uint8": readers.read_uint8,
    "int16": readers.read_int16, "uint16": readers.read_uint16, "int32": readers.read_int32,
    "uint32": readers.read_uint32, "int64": readers.read_int64, "uint64": readers.read_uint64,
    "timedelta_i32": readers.read_timedelta_i32, "timedelta_i64": readers.read_timedelta_i64,
    "uuid": readers.read_uuid,
}  # fmt: skip
# By kind, flexible, nullable.
_SIZED: Final[Mapping[tuple[str, bool, bool], Any]] = {
    ("string", True, True): readers.read_compact_string_nullable,
    ("string", True, False): readers.read_compact_string,
    ("string", False, True): readers.read_nullable_legacy_string,
    ("string", False, False): readers.read_legacy_string,
    ("bytes", True, True): readers.read_compact_string_as_bytes_nullable,
    ("bytes", True, False): readers.read_compact_string_as_bytes,
    ("bytes", False, True): readers.read_nullable_legacy_bytes,
    ("bytes", False, False): readers.read_legacy_bytes,
}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What is guarded and then read in one go."""

    guard: Op
    read: _Reader

    def take(self, body: memoryview, position: int, state: GuardState) -> tuple[Any, int]:
        """Return (value, next position); raises `DecodeRefused`, or what kio raises."""
        stop = self.guard(body, position, state)
        if state.edits:
            part = edited(body, position, stop, state.edits)
            state.edits.clear()
            value, size_bytes = self.read(part, 0)
            sound = size_bytes == len(part)
        else:
            value, size_bytes = self.read(body, position)
            sound = position + size_bytes == stop
        if not sound:
            raise DecodeRefused(f"the value at byte {position} is not {stop - position} bytes long")
        return value, stop


@dataclass(frozen=True, slots=True)
class _ArrayOf:
    """An array whose elements are taken one by one."""

    read_count: CountReader
    element: "_Leaf | _Branch"


@dataclass(frozen=True, slots=True)
class _Branch:
    """A struct with arrays in it: its fields in wire order, and its tags."""

    entity: Callable[..., Any]
    steps: tuple[tuple[str, "_Leaf | _ArrayOf"], ...]
    tags: "_Tags | None"


@dataclass(frozen=True, slots=True)
class _Tags:
    guard: Op
    known: Mapping[int, tuple[str, _Reader]]

    def take(
        self, body: memoryview, position: int, state: GuardState
    ) -> tuple[dict[str, Any], int]:
        """Return (known values by name, next position) of a tag section."""
        stop = self.guard(body, position, state)
        part = edited(body, position, stop, state.edits)
        state.edits.clear()
        values: dict[str, Any] = {}
        count, at = read_uvarint(part, 0, len(part))
        for _ in range(count):
            tag, at = read_uvarint(part, at, len(part))
            size_bytes, at = read_uvarint(part, at, len(part))
            name, read = self.known[tag]
            values[name], used_bytes = read(part, at)
            if used_bytes != size_bytes:
                raise DecodeRefused(
                    f"the tagged field {tag} before byte {stop} does not fill its size"
                )
            at += size_bytes
        return values, stop


def read_pieces(entity: type, body: memoryview, *, trailing_bytes_max: int = 0) -> Pieces[Any]:
    """Read a kio request of class `entity`; raises `DecodeRefused`, or what kio raises.

    As in `guard.check`, up to `trailing_bytes_max` bytes may follow the last field.
    """
    plan = _plan(entity)
    state = GuardState(len(body), ARRAY_ELEMENTS_MAX)
    if isinstance(plan, _Leaf):
        value, position = plan.take(body, 0, state)
    else:
        value, position = yield from _read_branch(
            plan, body, 0, state, CooperativeYield(PIECE_ELEMENTS)
        )
    check_rest(state, position, trailing_bytes_max)
    return value


def _read_branch(
    plan: _Branch, body: memoryview, position: int, state: GuardState, yielding: CooperativeYield
) -> Pieces[tuple[Any, int]]:
    values: dict[str, Any] = {}
    for name, step in plan.steps:
        if isinstance(step, _Leaf):
            values[name], position = step.take(body, position, state)
        else:
            values[name], position = yield from _read_array(step, body, position, state, yielding)
    if plan.tags is not None:
        if position < state.end and body[position] == 0:
            position += 1
        else:
            tagged, position = plan.tags.take(body, position, state)
            values |= tagged
    return plan.entity(**values), position


def _read_array(
    plan: _ArrayOf, body: memoryview, position: int, state: GuardState, yielding: CooperativeYield
) -> Pieces[tuple[tuple[Any, ...] | None, int]]:
    count, position = plan.read_count(body, position, state)
    if count < 0:
        return None, position
    element = plan.element
    items: list[Any] = []
    for _ in range(count):
        if isinstance(element, _Leaf):
            item, position = element.take(body, position, state)
        else:
            item, position = yield from _read_branch(element, body, position, state, yielding)
        items.append(item)
        if yielding.due(1 + state.tags):
            yield
        state.tags = 0
    return tuple(items), position


@cache
def _plan(entity: Any) -> _Leaf | _Branch:
    flexible = bool(entity.__flexible__)
    shapes = field_shapes(entity)
    if not any(_walked(shape) for shape in shapes):
        return _Leaf(compile_plan(entity), cast("_Reader", entity_reader(entity)))
    steps: list[tuple[str, _Leaf | _ArrayOf]] = []
    for shape in shapes:
        if shape.tag is not None:
            continue
        if _walked(shape):
            steps.append((shape.name, _array_plan(shape, flexible=flexible)))
            continue
        guard = compile_field(shape, flexible=flexible)
        steps.append((shape.name, _Leaf(guard, _field_reader(shape, flexible=flexible))))
    known = {
        shape.tag: (shape.name, _field_reader(shape, flexible=True))
        for shape in shapes
        if shape.tag is not None
    }
    tags = _Tags(compile_tags(entity), known) if flexible else None
    return _Branch(entity, tuple(steps), tags)


def _walked(shape: FieldShape) -> bool:
    """Return whether a field is an array of what takes some time each; tagged ones are small."""
    return shape.is_array and shape.tag is None and shape.kafka_type not in _FIXED


def _array_plan(shape: FieldShape, *, flexible: bool) -> _ArrayOf:
    guard, size_bytes_min = compile_element(shape, flexible=flexible)
    read_count = array_count_reader(size_bytes_min, flexible=flexible, nullable=shape.nullable)
    if shape.entity is not None:
        return _ArrayOf(read_count, _plan(shape.entity))
    return _ArrayOf(
        read_count,
        _Leaf(guard, _value_reader(shape.kafka_type or "", flexible=flexible, nullable=False)),
    )


def _field_reader(shape: FieldShape, *, flexible: bool) -> _Reader:
    """Return kio's reader of a field that is not walked; kio takes no null behind a tag."""
    nullable = shape.nullable and shape.tag is None
    if shape.is_array:
        numbers = readers.compact_array_reader if flexible else readers.legacy_array_reader
        return cast("_Reader", numbers(_FIXED[shape.kafka_type or ""]))
    if shape.entity is not None:
        read = cast("Any", entity_reader)(shape.entity, nullable)
        return cast("_Reader", read)
    return _value_reader(shape.kafka_type or "", flexible=flexible, nullable=nullable)


def _value_reader(kind: str, *, flexible: bool, nullable: bool) -> _Reader:
    if kind in _FIXED:
        return cast("_Reader", _FIXED[kind])
    return cast("_Reader", _SIZED["bytes" if kind == "records" else kind, flexible, nullable])
