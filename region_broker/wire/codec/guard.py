"""The length-and-tag guard: every length in a request is checked before kio sees the bytes.

INV-WG1  kio reads only bodies in which every string, bytes, array and varint ends inside the body
        (kio 0.6.5 allocates by the claimed length and aborts the process: Metadata v12 `ff ff ff ff 0f`)
INV-WG2  unknown tagged fields are cut out (KIP-482: ignore), duplicated ones and trailing bytes refused
INV-WG4  all arrays of one request together hold at most ARRAY_ELEMENTS_MAX elements
INV-WG5  of a request with more elements than may be read at once no more than that many are looked at (`ManyElements`)
INV-WG6  a structure has at most TAGGED_FIELDS_MAX tagged fields, known or not, and each counts as an element: whoever sends
         chooses how many there are, also in front of the body
INV-WG7  no string is longer than REQUEST_STRING_BYTES_MAX, of whichever kind: compact ones could say 100 MB, and handlers do work
        per letter (Kafka's readers refuse them too)
Work is per field, never per byte or record: record bytes are skipped, whatever their size.
A plan per request class is compiled once from the kio dataclass; it is a tuple of closures
`op(buffer, position, state) -> position`.
Not here: values (kio checks booleans and UTF-8, handlers check meaning).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from region_broker.limits import (
    ARRAY_ELEMENTS_MAX,
    ELEMENTS_AT_ONCE_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_STRING_BYTES_MAX,
    TAGGED_FIELDS_MAX,
)
from region_broker.wire.codec.bounded import (
    DecodeRefused,
    Elements,
    ManyElements,
    read_uvarint,
    write_uvarint,
)
from region_broker.wire.codec.schemas import FieldShape, field_shapes

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")

FIXED_BYTES: Final = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4,
    "uint32": 4, "timedelta_i32": 4, "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8,
    "datetime_i64": 8, "uuid": 16,
}  # fmt: skip


@dataclass(slots=True)
class GuardState:
    """What one pass collects: where the body ends, elements seen, cuts as (start, stop, instead).

    `at_once_max`: elements that are looked at in one go; beyond it the pass ends with `ManyElements`. `tags`: how many of
    the elements are tagged fields; who reads in pieces takes them off once they are counted as work.
    """

    end: int
    at_once_max: int = ARRAY_ELEMENTS_MAX
    elements: int = 0
    tags: int = 0
    edits: list[tuple[int, int, bytes]] = field(default_factory=list)


Op: TypeAlias = Callable[[memoryview, int, GuardState], int]


@dataclass(frozen=True, slots=True)
class _Piece:
    """One op; `size_bytes_min` bounds array counts; `fixed` says the op only skips that many bytes."""

    op: Op
    size_bytes_min: int
    fixed: bool = False


def pass_tags(body: memoryview, position: int, end: int, elements: Elements | None = None) -> int:
    """Return the position behind a section of tagged fields none of which is known; raises `DecodeRefused`.

    They count among `elements`, which raises `ManyElements` of many (INV-WG6).
    """
    if position < end and body[position] == 0:
        return position + 1
    state = GuardState(end)
    stop = _read_tags({}, body, position, state)
    if elements is not None:
        elements.check(state.elements, 0, 0)
    return stop


def check(plan: Op, body: memoryview, *, trailing_bytes_max: int = 0) -> memoryview:
    """Return `body`, or a copy without unknown tagged fields; raises `DecodeRefused` or `ManyElements`.

    Up to `trailing_bytes_max` bytes behind the last field are cut off, more are refused.
    """
    state = GuardState(len(body), ELEMENTS_AT_ONCE_MAX)
    position = plan(body, 0, state)
    check_rest(state, position, trailing_bytes_max)
    if state.edits:
        return edited(body, 0, position, state.edits)
    return body if position == state.end else body[:position]


def check_rest(state: GuardState, position: int, trailing_bytes_max: int) -> None:
    """Refuse more than `trailing_bytes_max` bytes behind the last field; raises `DecodeRefused`."""
    if state.end - position > trailing_bytes_max:
        raise DecodeRefused(f"{state.end - position} bytes follow the last field")


def edited(
    body: memoryview, start: int, stop: int, edits: Sequence[tuple[int, int, bytes]]
) -> memoryview:
    """Return a copy of `body[start:stop]` with `edits` applied, whose positions are those of `body`."""
    parts: list[bytes | memoryview] = []
    position = start
    for cut_start, cut_stop, instead in sorted(edits):
        parts += (body[position:cut_start], instead)
        position = cut_stop
    parts.append(body[position:stop])
    return memoryview(b"".join(parts))


def compile_plan(entity: type) -> Op:
    """Return the guard of a kio request class."""
    return _struct(entity).op


def compile_element(shape: FieldShape, *, flexible: bool) -> tuple[Op, int]:
    """Return the guard of one element of an array field, and how many bytes it has at least."""
    piece = _element(shape, flexible=flexible, nullable=False)
    return piece.op, piece.size_bytes_min


def compile_field(shape: FieldShape, *, flexible: bool) -> Op:
    """Return the guard of a field."""
    return _field(shape, flexible=flexible).op


def compile_tags(entity: type) -> Op:
    """Return the guard of the tag section of a flexible class."""
    shapes = [shape for shape in field_shapes(entity) if shape.tag is not None]
    return _tags(
        {shape.tag: _field(shape, flexible=True).op for shape in shapes if shape.tag is not None}
    )


def _struct(entity: type) -> _Piece:
    flexible = bool(entity.__flexible__)  # type: ignore[attr-defined]
    pieces: list[_Piece] = []
    known_tags: dict[int, Op] = {}
    for shape in field_shapes(entity):
        piece = _field(shape, flexible=flexible)
        if shape.tag is None:
            pieces.append(piece)
        else:
            known_tags[shape.tag] = piece.op
    pieces = _joined(pieces)
    size_bytes_min = sum(piece.size_bytes_min for piece in pieces) + flexible
    if not flexible and len(pieces) == 1:
        return pieces[0]
    ops = tuple(piece.op for piece in pieces)
    if flexible:
        ops = (*ops, _tags(known_tags))
    return _Piece(_sequence(ops), size_bytes_min)


def _joined(pieces: list[_Piece]) -> list[_Piece]:
    """Return the pieces with neighbours of fixed size made one."""
    result: list[_Piece] = []
    for piece in pieces:
        if piece.fixed and result and result[-1].fixed:
            result[-1] = _fixed(result[-1].size_bytes_min + piece.size_bytes_min)
        else:
            result.append(piece)
    return result


def _field(shape: FieldShape, *, flexible: bool) -> _Piece:
    if shape.is_array:
        element = _element(shape, flexible=flexible, nullable=False)
        return _array(element, flexible=flexible, nullable=shape.nullable)
    return _element(shape, flexible=flexible, nullable=shape.nullable)


def _element(shape: FieldShape, *, flexible: bool, nullable: bool) -> _Piece:
    if shape.entity is not None:
        piece = _struct(shape.entity)
        return _nullable_struct(piece) if nullable else piece
    assert shape.kafka_type is not None, shape
    if shape.kafka_type in FIXED_BYTES:
        return _fixed(FIXED_BYTES[shape.kafka_type])
    assert shape.kafka_type in ("string", "bytes", "records"), shape
    if flexible:
        is_text = shape.kafka_type == "string"
        size_bytes_max = REQUEST_STRING_BYTES_MAX if is_text else REQUEST_BYTES_MAX
        return _Piece(_compact_bytes(size_bytes_max, nullable=nullable), 1)
    length = _I16 if shape.kafka_type == "string" else _I32
    return _Piece(_legacy_bytes(length, nullable=nullable), length.size)


def _fixed(size_bytes: int) -> _Piece:
    def skip(_buffer: memoryview, position: int, state: GuardState) -> int:
        position += size_bytes
        if position > state.end:
            raise DecodeRefused(f"the body ends inside the field before byte {position}")
        return position

    return _Piece(skip, size_bytes, fixed=True)


def _sequence(ops: tuple[Op, ...]) -> Op:
    def run(buffer: memoryview, position: int, state: GuardState) -> int:
        for op in ops:
            position = op(buffer, position, state)
        return position

    return run


def _legacy_bytes(length: struct.Struct, *, nullable: bool) -> Op:
    prefix_bytes, unpack_from = length.size, length.unpack_from
    size_bytes_min = -1 if nullable else 0

    def skip(buffer: memoryview, position: int, state: GuardState) -> int:
        start = position + prefix_bytes
        if start > state.end:
            raise DecodeRefused(f"the body ends inside a length at byte {position}")
        (size_bytes,) = unpack_from(buffer, position)
        if size_bytes < size_bytes_min or start + size_bytes > state.end:
            raise DecodeRefused(f"length {size_bytes} at byte {position}, {state.end - start} left")
        return start + size_bytes if size_bytes > 0 else start

    return skip


def _compact_bytes(size_bytes_max: int, *, nullable: bool) -> Op:
    def skip(buffer: memoryview, position: int, state: GuardState) -> int:
        end = state.end
        if position < end and buffer[position] < 0x80:
            claimed = buffer[position]
            start = position + 1
        else:
            claimed, start = read_uvarint(buffer, position, end)
            if claimed > size_bytes_max + 1:
                raise DecodeRefused(
                    f"length {claimed - 1} at byte {position}: {size_bytes_max} at most"
                )
        if claimed == 0:
            if not nullable:
                raise DecodeRefused(f"null at byte {position} where a value is required")
            return start
        stop = start + claimed - 1
        if stop > end:
            raise DecodeRefused(f"length {claimed - 1} at byte {position}, {end - start} left")
        return stop

    return skip


def _nullable_struct(piece: _Piece) -> _Piece:
    inner = piece.op

    def run(buffer: memoryview, position: int, state: GuardState) -> int:
        if position >= state.end:
            raise DecodeRefused(f"the body ends before the struct at byte {position}")
        marker = buffer[position]
        if marker == 0xFF:  # KIP-893: -1 is null
            return position + 1
        return inner(buffer, position + 1, state)

    return _Piece(run, 1)


def _array(element: _Piece, *, flexible: bool, nullable: bool) -> _Piece:
    size_bytes_min, element_op, fixed = element.size_bytes_min, element.op, element.fixed
    assert size_bytes_min > 0, "an element without bytes could be claimed without end"

    read_count = array_count_reader(size_bytes_min, flexible=flexible, nullable=nullable)

    def run(buffer: memoryview, position: int, state: GuardState) -> int:
        count, start = read_count(buffer, position, state)
        if count < 0:
            return start
        if fixed:
            return start + count * size_bytes_min
        for _ in range(count):
            start = element_op(buffer, start, state)
        return start

    return _Piece(run, 1 if flexible else 4)


CountReader: TypeAlias = Callable[[memoryview, int, GuardState], tuple[int, int]]


def array_count_reader(size_bytes_min: int, *, flexible: bool, nullable: bool) -> CountReader:
    """Return what reads an array's head: (count, -1 for null; start of the first element)."""

    def read(buffer: memoryview, position: int, state: GuardState) -> tuple[int, int]:
        if flexible:
            if position < state.end and buffer[position] < 0x80:
                count, start = buffer[position] - 1, position + 1
            else:
                claimed, start = read_uvarint(buffer, position, state.end)
                count = claimed - 1
        else:
            start = position + 4
            if start > state.end:
                raise DecodeRefused(f"the body ends inside an array length at byte {position}")
            (count,) = _I32.unpack_from(buffer, position)
        if count < 0:
            if count == -1 and nullable:
                return count, start
            raise DecodeRefused(f"array length {count} at byte {position}")
        state.elements += count
        left_bytes = state.end - start
        if count * size_bytes_min > left_bytes or state.elements > ARRAY_ELEMENTS_MAX:
            raise DecodeRefused(f"array of {count} at byte {position}, {left_bytes} bytes left")
        if state.elements > state.at_once_max:
            raise ManyElements
        return count, start

    return read


def _tags(known: dict[int, Op]) -> Op:
    def run(buffer: memoryview, position: int, state: GuardState) -> int:
        if position < state.end and buffer[position] == 0:
            return position + 1
        return _read_tags(known, buffer, position, state)

    return run


def _read_tags(known: dict[int, Op], buffer: memoryview, position: int, state: GuardState) -> int:
    section_start = position
    count, position = read_uvarint(buffer, position, state.end)
    count_stop = position
    _count_tags(count, position, state)
    seen: set[int] = set()
    unknown_count = 0
    for _ in range(count):
        tag_start = position
        tag, position = read_uvarint(buffer, position, state.end)
        size_start = position
        size_bytes, position = read_uvarint(buffer, position, state.end)
        stop = position + size_bytes
        if stop > state.end:
            raise DecodeRefused(f"tag {tag} claims {size_bytes} bytes, {state.end - position} left")
        if tag in seen:
            raise DecodeRefused(f"tag {tag} is there twice")
        seen.add(tag)
        if tag in known:
            _check_known_tag(known[tag], buffer, (size_start, position, stop), state)
        else:
            unknown_count += 1
            state.edits.append((tag_start, stop, b""))
        position = stop
    if unknown_count:
        state.edits.append((section_start, count_stop, write_uvarint(count - unknown_count)))
    return position


def _count_tags(count: int, position: int, state: GuardState) -> None:
    """Refuse more tagged fields than there can be (INV-WG6)."""
    state.elements += count
    state.tags += count
    too_many = count > TAGGED_FIELDS_MAX or state.elements > ARRAY_ELEMENTS_MAX
    if too_many or count * 2 > state.end - position:
        raise DecodeRefused(f"{count} tagged fields at byte {position}")
    if state.elements > state.at_once_max:
        raise ManyElements


def _check_known_tag(
    op: Op, buffer: memoryview, span: tuple[int, int, int], state: GuardState
) -> None:
    """Check the value of a known tag; when something was cut out of it, its size changes too."""
    size_start, start, stop = span
    outer_end, edit_count = state.end, len(state.edits)
    state.end = stop
    if op(buffer, start, state) != stop:
        raise DecodeRefused(f"the tagged field at byte {start} does not fill its size")
    state.end = outer_end
    cut_bytes = sum(end - begin - len(by) for begin, end, by in state.edits[edit_count:])
    if cut_bytes:
        state.edits.append((size_start, start, write_uvarint(stop - start - cut_bytes)))
