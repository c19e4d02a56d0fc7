"""Structs of an answer as bytes: one writer per class of kio's, filled from a dict, at once or in pieces.

An answer is refused (`MissingField`) rather than sent with an offset, id or count nobody gave: only nulls, empty
strings and arrays, false, no error and no throttling are filled in (B11).
What has many rows is written in pieces: by generators that yield after each, so that others are served in between.
Not here: single values (`wire.codec.value_writers`), headers, and how long an answer may be (`answers`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from idempotency.pieces import Pieces
from region_broker.wire.codec.bounded import write_uvarint
from region_broker.wire.codec.schemas import NO_DEFAULT, FieldShape, field_shapes
from region_broker.wire.codec.value_writers import (
    Writer,
    array_writer,
    count_format,
    nullable_struct_writer,
    value_writer,
)
from region_broker.wire.cooperative_yield import CooperativeYield

Fields: TypeAlias = Mapping[str, Any]
PiecesWriter: TypeAlias = Callable[[bytearray, Fields, CooperativeYield], Pieces[None]]
_NO_GUESS: Final = object()
_IMPLICIT: Final[dict[str, Any]] = {
    "error_code": 0, "bool": False, "string": "", "bytes": b"", "uuid": None, "timedelta_i32": 0,
}  # fmt: skip


class MissingField(LookupError):
    """A handler left out a field that must not be guessed: a bug of the handler."""


class EncodedRow(bytes):
    """A struct of an answer that is written already: it stands for its fields."""

    __slots__ = ()


class _Step(NamedTuple):
    """One field of a struct: how it is called, written, and what stands for it if it was not given."""

    name: str
    write: Writer
    default: Any


class _Plan(NamedTuple):
    """How a class is written: its fields in wire order, then those with a tag; `flexible`: there is a tag section."""

    name: str
    flexible: bool
    steps: tuple[_Step, ...]
    tagged: tuple[tuple[int, _Step], ...]


@cache
def _plan_of(entity: Any) -> _Plan:
    flexible = bool(entity.__flexible__)
    steps: list[_Step] = []
    tagged: list[tuple[int, _Step]] = []
    for shape, default in _defaults(entity):
        step = _Step(shape.name, _field_writer(shape, flexible=flexible), default)
        if shape.tag is None:
            steps.append(step)
        else:
            tagged.append((shape.tag, step))
    return _Plan(entity.__name__, flexible, tuple(steps), tuple(sorted(tagged)))


def names_without_default(entity: Any) -> Iterator[str]:
    """Yield the fields of a class that must be given."""
    return (shape.name for shape, default in _defaults(entity) if default is _NO_GUESS)


def _defaults(entity: Any) -> Iterator[tuple[FieldShape, Any]]:
    """Yield the fields of a class, and what stands for each if it was not given (`_NO_GUESS`: nothing)."""
    for shape in field_shapes(entity):
        if shape.is_array:
            yield shape, None if shape.nullable else ()
        elif shape.entity is not None:
            yield shape, None if shape.nullable else {}
        elif shape.default is not NO_DEFAULT:
            yield shape, shape.default
        elif shape.nullable:
            yield shape, None
        else:
            yield shape, _IMPLICIT.get(shape.kafka_type or "", _NO_GUESS)


@cache
def struct_writer(entity: Any) -> Writer:
    """Return the (cached) writer of a class of kio's; it raises `MissingField`."""
    name, flexible, steps, tagged = _plan_of(entity)

    def write_struct(out: bytearray, values: Any) -> None:
        if values.__class__ is EncodedRow:
            out += values
            return
        for key, write, default in steps:
            value = values.get(key, default)
            if value is _NO_GUESS:
                raise MissingField(f"{name} needs {key}")
            write(out, value)
        if tagged:
            _write_tags(out, tagged, values)
        elif flexible:
            out.append(0)

    return write_struct


def _write_tags(out: bytearray, tagged: tuple[tuple[int, _Step], ...], values: Fields) -> None:
    present: list[tuple[int, bytearray]] = []
    for tag, (key, write, default) in tagged:
        value = values.get(key, default)
        if value is _NO_GUESS or value == default:
            continue
        encoded = bytearray()
        write(encoded, value)
        present.append((tag, encoded))
    out += write_uvarint(len(present))
    for tag, encoded in present:
        out += write_uvarint(tag) + write_uvarint(len(encoded)) + encoded


def _field_writer(shape: FieldShape, *, flexible: bool) -> Writer:
    if shape.entity is None:
        assert shape.kafka_type is not None, shape
        write = value_writer(shape.kafka_type, flexible=flexible)
    else:
        write = struct_writer(shape.entity)
    if shape.is_array:
        return array_writer(write, flexible=flexible)
    return nullable_struct_writer(write) if shape.entity and shape.nullable else write


@dataclass(frozen=True, slots=True)
class _Rows:
    """An array field whose rows are written one by one: `write`, or in pieces `write_pieces`."""

    flexible: bool
    write: Writer
    write_pieces: PiecesWriter | None

    def pieces(self, out: bytearray, rows: Any, yielding: CooperativeYield) -> Pieces[None]:
        """Write the rows (None: null)."""
        pack, plus = count_format(flexible=self.flexible)
        out += pack(plus + (-1 if rows is None else len(rows)))
        for row in rows or ():
            if self.write_pieces is None:
                self.write(out, row)
            else:
                yield from self.write_pieces(out, row, yielding)
            if yielding.due():
                yield


@cache
def pieces_writer(entity: Any) -> PiecesWriter:
    """Return the (cached) writer of a class whose rows are not `EncodedRow`s, in pieces; it raises `MissingField`."""
    name, flexible, steps, tagged = _plan_of(entity)
    rows_of = dict(_arrays_of_structs(entity))

    def write_struct(out: bytearray, values: Fields, yielding: CooperativeYield) -> Pieces[None]:
        for key, write, default in steps:
            value = values.get(key, default)
            if value is _NO_GUESS:
                raise MissingField(f"{name} needs {key}")
            if key in rows_of:
                yield from rows_of[key].pieces(out, value, yielding)
            else:
                write(out, value)
        if tagged:
            _write_tags(out, tagged, values)
        elif flexible:
            out.append(0)

    return write_struct


def _arrays_of_structs(entity: Any) -> Iterator[tuple[str, _Rows]]:
    for shape in field_shapes(entity):
        if shape.is_array and shape.entity is not None:
            has_rows = any(each.is_array and each.entity for each in field_shapes(shape.entity))
            in_pieces = pieces_writer(shape.entity) if has_rows else None
            yield shape.name, _Rows(entity.__flexible__, struct_writer(shape.entity), in_pieces)
