"""Requests of many elements read in pieces, so that others are served in between.

INV-WP1  a request read in pieces is equal to what one read of it gives, and is refused where that is refused
INV-WP2  a piece is PIECE_ELEMENTS elements of arrays of structs or strings; a whole array of numbers is one element
A reader is a generator that yields after each piece and returns the request. Arrays of structs and strings are walked
here; everything else is guarded (`wire.codec.guard`) and then read by kio, as always.
Not here: whose order is held meanwhile (`handlers.dispatch.turns`), small requests and all answers (`wire.codec.messages`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import Field, dataclass, fields
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

from kio.serial import entity_reader
from kio.serial._parse import get_field_reader, get_reader

from region_broker.limits import ARRAY_ELEMENTS_MAX, PIECE_ELEMENTS
from region_broker.wire.codec.guard import (
    CountReader,
    FieldShape,
    GuardError,
    GuardState,
    Op,
    array_count_reader,
    check_rest,
    compile_element,
    compile_field,
    compile_plan,
    compile_tags,
    edited,
    field_shapes,
    read_uvarint,
)

_Result = TypeVar("_Result")
Pieces: TypeAlias = Generator[None, None, _Result]
_KioReader: TypeAlias = Callable[[Any, int], tuple[Any, int]]


def drained(pieces: Pieces[_Result]) -> _Result:
    """Return what `pieces` return, without a pause: for what is known to be short."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result


async def _next_turn() -> None:
    await asyncio.sleep(0)


async def in_turns(
    pieces: Pieces[_Result], pause: Callable[[], Awaitable[None]] = _next_turn
) -> _Result:
    """Return what `pieces` return, with a `pause` between them: the event loop runs, unless another is given."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: _Result = done.value
            return result
        await pause()


@dataclass(slots=True)
class Progress:
    """Elements done since the last pause."""

    done: int = 0

    def pause_due(self) -> bool:
        """Count one element; return whether the piece is full."""
        self.done += 1
        if self.done < PIECE_ELEMENTS:
            return False
        self.done = 0
        return True


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What is guarded and then read by kio in one go."""

    guard: Op
    read: _KioReader

    def take(self, body: memoryview, position: int, state: GuardState) -> tuple[Any, int]:
        """Return (value, next position); raises `GuardError`, or what kio raises."""
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
            raise GuardError(f"the value at byte {position} is not {stop - position} bytes long")
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
    known: Mapping[int, tuple[str, _KioReader]]

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
                raise GuardError(
                    f"the tagged field {tag} before byte {stop} does not fill its size"
                )
            at += size_bytes
        return values, stop


def read_pieces(entity: type, body: memoryview, *, trailing_bytes_max: int = 0) -> Pieces[Any]:
    """Read a kio request of class `entity`; raises `GuardError`, or what kio raises.

    As in `guard.check`, up to `trailing_bytes_max` bytes may follow the last field.
    """
    plan = _plan(entity)
    state = GuardState(len(body), ARRAY_ELEMENTS_MAX)
    if isinstance(plan, _Leaf):
        value, position = plan.take(body, 0, state)
    else:
        value, position = yield from _read_branch(plan, body, 0, state, Progress())
    check_rest(state, position, trailing_bytes_max)
    return value


def _read_branch(
    plan: _Branch, body: memoryview, position: int, state: GuardState, progress: Progress
) -> Pieces[tuple[Any, int]]:
    values: dict[str, Any] = {}
    for name, step in plan.steps:
        if isinstance(step, _Leaf):
            values[name], position = step.take(body, position, state)
        else:
            values[name], position = yield from _read_array(step, body, position, state, progress)
    if plan.tags is not None:
        if position < state.end and body[position] == 0:
            position += 1
        else:
            tagged, position = plan.tags.take(body, position, state)
            values |= tagged
    return plan.entity(**values), position


def _read_array(
    plan: _ArrayOf, body: memoryview, position: int, state: GuardState, progress: Progress
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
            item, position = yield from _read_branch(element, body, position, state, progress)
        items.append(item)
        if progress.pause_due():
            yield
    return tuple(items), position


@cache
def _plan(entity: Any) -> _Leaf | _Branch:
    flexible = bool(entity.__flexible__)
    shapes = field_shapes(entity)
    if not any(_walked(shape) for shape in shapes):
        return _Leaf(compile_plan(entity), cast("_KioReader", entity_reader(entity)))
    by_name: dict[str, Field[Any]] = {item.name: item for item in fields(entity)}
    steps: list[tuple[str, _Leaf | _ArrayOf]] = []
    for shape in shapes:
        if shape.tag is not None:
            continue
        if _walked(shape):
            steps.append((shape.name, _array_plan(shape, flexible=flexible)))
            continue
        read = get_field_reader(entity, by_name[shape.name], False, False)
        steps.append((shape.name, _Leaf(compile_field(shape, flexible=flexible), read)))
    known = {
        shape.tag: (shape.name, get_field_reader(entity, by_name[shape.name], False, True))
        for shape in shapes
        if shape.tag is not None
    }
    tags = _Tags(compile_tags(entity), known) if flexible else None
    return _Branch(entity, tuple(steps), tags)


def _walked(shape: FieldShape) -> bool:
    """Return whether a field is an array of what takes some time each; tagged ones are small."""
    return shape.is_array and shape.tag is None and (
        shape.entity is not None or shape.kafka_type in ("string", "bytes", "records")
    )  # fmt: skip


def _array_plan(shape: FieldShape, *, flexible: bool) -> _ArrayOf:
    guard, size_bytes_min = compile_element(shape, flexible=flexible)
    read_count = array_count_reader(size_bytes_min, flexible=flexible, nullable=shape.nullable)
    if shape.entity is not None:
        return _ArrayOf(read_count, _plan(shape.entity))
    assert shape.kafka_type is not None, shape
    return _ArrayOf(read_count, _Leaf(guard, get_reader(shape.kafka_type, flexible, False)))
