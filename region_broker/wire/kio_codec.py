"""Requests into kio entities, version-neutral dicts into response bytes.

INV-WK1  no schema module is imported before its API and version is first used (all of them cost a second)
INV-WK2  a body reaches kio only through the guard (`wire.guard`, INV-WG1)
INV-WK3  an answer is refused (`MissingField`) rather than sent with an offset, id or count nobody gave:
        only nulls, empty strings and arrays, false, no error and no throttling are filled in (B11)
INV-WK4  an answer of more than RESPONSE_BYTES_MAX is given up as soon as it is that long (`AnswerTooLarge`)
What has many elements or rows is read and written in pieces: generators that yield after each, so that the event loop
can serve others (`request_pieces`, `response_pieces`).
Field names are kio's; durations are ms, timestamps ms since the epoch (-1: none), errors Kafka numbers.
Not here: what the fields mean (`handlers`).
"""

import importlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from region_broker.limits import ELEMENTS_AT_ONCE_MAX, RESPONSE_BYTES_MAX
from region_broker.wire.guard import (
    FieldShape,
    GuardError,
    Op,
    check,
    compile_plan,
    field_shapes,
    write_uvarint,
)
from region_broker.wire.piecewise import Pieces, Progress, read_pieces

ApiVersion: TypeAlias = tuple[int, int]
Fields: TypeAlias = Mapping[str, Any]
_CORRELATION_ID: Final = struct.Struct(">i")
_NIL_UUID: Final = bytes(16)
# kio's native reader raises these for booleans that are neither 0 nor 1, bad UTF-8, nulls.
_KIO_ERRORS: Final = (SerialError, ValueError, LookupError, TypeError, OverflowError)
# librdkafka (2.16 at least) asks Metadata v9+ for all topics with `00 00 00 00 ..`: it reserves four bytes
# for the array length and writes the one-byte null into them. Kafka's parser stops early, and so do we.
_TRAILING_BYTES_MAX: Final = {3: 3}


class DecodeRefused(Exception):
    """The body does not fit the schema of its API and version: close the connection."""


class AnswerTooLarge(Exception):
    """An answer would be longer than RESPONSE_BYTES_MAX: close the connection."""


class UnknownSchema(LookupError):
    """kio has no schema for that API and version."""


class MissingField(LookupError):
    """A handler left out a field that must not be guessed: a bug of the handler."""


class RowPath(NamedTuple):
    """Which rows of an answer: API, version, and the fields that lead to them (`("topics",)`)."""

    api_key: int
    version: int
    fields: tuple[str, ...]


class EncodedRow(bytes):
    """A struct of an answer that is written already (`encode_row`): it stands for its fields."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RequestCodec:
    """How requests of one API version are read."""

    entity: type
    flexible: bool
    guard: Op
    read: Callable[[memoryview, int], tuple[Any, int]]


Writer: TypeAlias = Callable[[bytearray, Any], None]


@dataclass(frozen=True, slots=True)
class ResponseCodec:
    """How responses of one API version are written."""

    entity: type
    flexible_header: bool
    write: Writer


@cache
def has_schema(api_key: int, version: int) -> bool:
    """Return whether requests and responses of that version can be read and written."""
    name = api_key_map.get(api_key)
    return name is not None and version in schema_name_map[name]


def _load(api_key: int, version: int, kind: EntityType) -> type:
    name = api_key_map.get(api_key)
    versions = {} if name is None else schema_name_map[name]
    if version not in versions:
        raise UnknownSchema(f"there is no schema for API {api_key} version {version}")
    module, _, class_name = cast("Mapping[Any, str]", versions[version])[kind].partition(":")
    return cast("type", getattr(importlib.import_module(module), class_name))


@cache
def request_codec(api_key: int, version: int) -> RequestCodec:
    """Return the (cached) reader of requests; raises `UnknownSchema`."""
    entity = cast("Any", _load(api_key, version, EntityType.request))
    read = cast("Any", entity_reader(entity))
    return RequestCodec(entity, bool(entity.__flexible__), compile_plan(entity), read)


@cache
def response_codec(api_key: int, version: int) -> ResponseCodec:
    """Return the (cached) writer of responses; raises `UnknownSchema`.

    The header version comes from the schema: ApiVersions answers with header v0 always (KIP-511).
    """
    entity = cast("Any", _load(api_key, version, EntityType.response))
    flexible_header = int(entity.__header_schema__.__version__) >= 1
    return ResponseCodec(entity, flexible_header, _struct_writer(entity))


def guard_request(api_key: int, version: int, body: memoryview) -> memoryview:
    """Return `body` without unknown tags, every length checked; raises `DecodeRefused` or `ManyElements`."""
    try:
        return check(
            request_codec(api_key, version).guard,
            body,
            trailing_bytes_max=_TRAILING_BYTES_MAX.get(api_key, 0),
        )
    except GuardError as error:
        raise DecodeRefused(str(error)) from error


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Return the kio request entity in `body`; raises `DecodeRefused` or `UnknownSchema`.

    `ManyElements`: it is to be read in pieces (`request_pieces`).
    """
    codec = request_codec(api_key, version)
    checked = guard_request(api_key, version, body)
    try:
        entity, size_bytes = codec.read(checked, 0)
    except _KIO_ERRORS as error:
        raise DecodeRefused(f"{type(error).__name__}: {error}") from error
    if size_bytes != len(checked):
        raise DecodeRefused(f"{len(checked) - size_bytes} bytes follow the last field")
    return entity


def request_pieces(api_key: int, version: int, body: memoryview) -> Pieces[Any]:
    """Read the kio request entity in `body` in pieces; raises `DecodeRefused` or `UnknownSchema`."""
    trailing_bytes_max = _TRAILING_BYTES_MAX.get(api_key, 0)
    entity = request_codec(api_key, version).entity
    try:
        return (yield from read_pieces(entity, body, trailing_bytes_max=trailing_bytes_max))
    except GuardError as error:
        raise DecodeRefused(str(error)) from error
    except _KIO_ERRORS as error:
        raise DecodeRefused(f"{type(error).__name__}: {error}") from error


def encode_response(
    api_key: int, version: int, correlation_id: int, values: Fields | bytes
) -> bytearray:
    """Return header and body of an answer (without length prefix); raises `MissingField` or `AnswerTooLarge`.

    `values` may also be an already encoded body.
    """
    codec = response_codec(api_key, version)
    out = _header(codec, correlation_id)
    if isinstance(values, bytes | bytearray):
        out += values
    else:
        codec.write(out, values)
    _check_size(out)
    return out


def encode_body(api_key: int, version: int, values: Fields) -> bytes:
    """Return the body of an answer, whose rows may be `EncodedRow`s; raises `MissingField`."""
    out = bytearray()
    response_codec(api_key, version).write(out, values)
    return bytes(out)


def encode_row(path: RowPath, values: Fields) -> EncodedRow:
    """Return one row of an answer, to be used in it as often as one likes; raises `MissingField`."""
    out = bytearray()
    _row_writer(path)(out, values)
    return EncodedRow(out)


@cache
def _row_writer(path: RowPath) -> Writer:
    entity = _load(path.api_key, path.version, EntityType.response)
    writer: Writer | None = None
    for name in path.fields:
        shape = next(shape for shape in field_shapes(entity) if shape.name == name)
        assert shape.entity is not None, path
        entity = shape.entity
        writer = _struct_writer(entity)
    assert writer is not None, path
    return writer


def response_pieces(
    api_key: int, version: int, correlation_id: int, values: Fields
) -> Pieces[bytearray]:
    """Write what `encode_response` returns, in pieces; raises `MissingField` or `AnswerTooLarge`."""
    codec = response_codec(api_key, version)
    out = _header(codec, correlation_id)
    yield from _pieces_writer(codec.entity)(out, values, Progress())
    _check_size(out)
    return out


def has_many_rows(values: Fields) -> bool:
    """Return whether an answer is to be written in pieces; looks at ELEMENTS_AT_ONCE_MAX rows at most."""
    left = ELEMENTS_AT_ONCE_MAX
    waiting = [values]
    while waiting:
        for rows in waiting.pop().values():
            if isinstance(rows, list | tuple) and rows:
                left -= len(rows)
                if left < 0:
                    return True
                if isinstance(rows[0], Mapping):
                    waiting.extend(rows)
    return False


def _header(codec: ResponseCodec, correlation_id: int) -> bytearray:
    out = bytearray(_CORRELATION_ID.pack(correlation_id))
    if codec.flexible_header:
        out.append(0)
    return out


def _check_size(out: bytearray) -> None:
    if len(out) > RESPONSE_BYTES_MAX:
        raise AnswerTooLarge(
            f"the answer has more than {RESPONSE_BYTES_MAX} bytes; ask for less at once"
        )


def top_level_error(api_key: int, version: int, error_code: int) -> Fields | None:
    """Return fields that carry one error for the whole answer, or None if it has no place for it."""
    entity = cast("Any", _load(api_key, version, EntityType.response))
    shapes = field_shapes(entity)
    if all(shape.name != "error_code" for shape in shapes):
        return None
    # -1 is what Kafka puts into ids, epochs and generations of refused requests.
    values: dict[str, Any] = {
        item.name: -1
        for item, shape in zip(fields(entity), shapes, strict=True)
        if _default_of(shape, item.default) is _NO_GUESS
    }
    return values | {"error_code": error_code}


# --- writers, compiled from the response classes ---------------------------------------------------

_INTEGERS: Final = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint8": ">B", "uint16": ">H",
    "uint32": ">I", "uint64": ">Q", "float64": ">d", "error_code": ">h",
}  # fmt: skip
_NO_GUESS: Final = object()
_IMPLICIT: Final[dict[str, Any]] = {
    "error_code": 0, "bool": False, "string": "", "bytes": b"", "uuid": None, "timedelta_i32": 0,
}  # fmt: skip


def _struct_writer(entity: Any) -> Writer:
    flexible = bool(entity.__flexible__)
    defaults = {item.name: item.default for item in fields(entity)}
    plain: list[tuple[str, Writer, Any]] = []
    tagged: list[tuple[int, str, Writer, Any]] = []
    for shape in field_shapes(entity):
        write = _field_writer(shape, flexible=flexible)
        default = _default_of(shape, defaults[shape.name])
        if shape.tag is None:
            plain.append((shape.name, write, default))
        else:
            tagged.append((shape.tag, shape.name, write, default))
    steps, tags, name = tuple(plain), tuple(sorted(tagged)), entity.__name__

    def write_struct(out: bytearray, values: Any) -> None:
        if values.__class__ is EncodedRow:
            out += values
            return
        for key, write, default in steps:
            value = values.get(key, default)
            if value is _NO_GUESS:
                raise MissingField(f"{name} needs {key}")
            write(out, value)
        if flexible:
            if tags:
                _write_tags(out, tags, values)
            else:
                out.append(0)

    return write_struct


def _default_of(shape: FieldShape, default: Any) -> Any:
    if shape.is_array:
        return None if shape.nullable else ()
    if shape.entity is not None:
        return None if shape.nullable else {}
    if default is not MISSING:
        return default
    if shape.nullable:
        return None
    return _IMPLICIT.get(shape.kafka_type or "", _NO_GUESS)


def _write_tags(
    out: bytearray, tags: tuple[tuple[int, str, Writer, Any], ...], values: Fields
) -> None:
    present: list[tuple[int, bytearray]] = []
    for tag, key, write, default in tags:
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
    if shape.is_array:
        element = _element_writer(shape, flexible=flexible, nullable=False)
        return _array_writer(element, flexible=flexible)
    return _element_writer(shape, flexible=flexible, nullable=shape.nullable)


def _element_writer(shape: FieldShape, *, flexible: bool, nullable: bool) -> Writer:
    if shape.entity is not None:
        write = _struct_writer(shape.entity)
        return _nullable_struct_writer(write) if nullable else write
    kind = shape.kafka_type
    assert kind is not None, shape
    if kind in _INTEGERS:
        return _packer(struct.Struct(_INTEGERS[kind]))
    match kind:
        case "bool":
            return _write_bool
        case "uuid":
            return _write_uuid
        case "timedelta_i32":
            return _duration_writer(struct.Struct(">i"))
        case "timedelta_i64":
            return _duration_writer(struct.Struct(">q"))
        case "datetime_i64":
            return _write_timestamp
        case "string" if flexible:
            return _write_compact_string
        case "string":
            return _write_legacy_string
        case _:
            assert kind in ("bytes", "records"), kind
            return _write_compact_bytes if flexible else _write_legacy_bytes


def _packer(layout: struct.Struct) -> Writer:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _duration_writer(layout: struct.Struct) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if isinstance(value, timedelta):
            value = round(value.total_seconds() * 1000)
        out += layout.pack(value)

    return write


_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")


def _write_timestamp(out: bytearray, value: Any) -> None:
    if value is None:
        value = -1
    elif isinstance(value, datetime):
        value = round(value.timestamp() * 1000)
    out += _I64.pack(value)


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: Any) -> None:
    assert value is None or isinstance(value, UUID), value
    out += _NIL_UUID if value is None else value.bytes


def _write_compact_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out.append(0)
        return
    size_bytes = len(value) + 1
    if size_bytes < 0x80:
        out.append(size_bytes)
    else:
        out += write_uvarint(size_bytes)
    out += value


def _write_compact_string(out: bytearray, value: Any) -> None:
    _write_compact_bytes(out, None if value is None else value.encode())


def _write_legacy_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out += _I32.pack(-1)
    else:
        out += _I32.pack(len(value))
        out += value


def _write_legacy_string(out: bytearray, value: Any) -> None:
    if value is None:
        out += _I16.pack(-1)
        return
    encoded = value.encode()
    out += _I16.pack(len(encoded))
    out += encoded


def _array_writer(element: Writer, *, flexible: bool) -> Writer:
    def write_compact(out: bytearray, values: Any) -> None:
        if values is None:
            out.append(0)
            return
        out += write_uvarint(len(values) + 1)
        for value in values:
            element(out, value)

    def write_legacy(out: bytearray, values: Any) -> None:
        if values is None:
            out += _I32.pack(-1)
            return
        out += _I32.pack(len(values))
        for value in values:
            element(out, value)

    return write_compact if flexible else write_legacy


def _nullable_struct_writer(write: Writer) -> Writer:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(out, value)

    return write_nullable


# --- writers in pieces -------------------------------------------------------------------------------

_PiecesWriter: TypeAlias = Callable[[bytearray, Fields, Progress], Pieces[None]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """An array field whose rows are written one by one: `write`, or in pieces `write_pieces`."""

    flexible: bool
    write: Writer
    write_pieces: _PiecesWriter | None

    def pieces(self, out: bytearray, rows: Any, progress: Progress) -> Pieces[None]:
        """Write the rows (None: null)."""
        count = -1 if rows is None else len(rows)
        out += write_uvarint(count + 1) if self.flexible else _I32.pack(count)
        for row in rows or ():
            if self.write_pieces is None:
                self.write(out, row)
            else:
                yield from self.write_pieces(out, row, progress)
            if progress.pause_due():
                _check_size(out)
                yield


@cache
def _pieces_writer(entity: Any) -> _PiecesWriter:
    flexible = bool(entity.__flexible__)
    defaults = {item.name: item.default for item in fields(entity)}
    steps: list[tuple[str, Writer | _Rows, Any]] = []
    tagged: list[tuple[int, str, Writer, Any]] = []
    for shape in field_shapes(entity):
        default = _default_of(shape, defaults[shape.name])
        if shape.tag is not None:
            tagged.append((shape.tag, shape.name, _field_writer(shape, flexible=flexible), default))
        elif shape.is_array and shape.entity is not None:
            has_rows = any(each.is_array and each.entity for each in field_shapes(shape.entity))
            rows = _Rows(flexible, _element_writer(shape, flexible=flexible, nullable=False),
                         _pieces_writer(shape.entity) if has_rows else None)  # fmt: skip
            steps.append((shape.name, rows, default))
        else:
            steps.append((shape.name, _field_writer(shape, flexible=flexible), default))
    tags, name = tuple(sorted(tagged)), entity.__name__

    def write_struct(out: bytearray, values: Fields, progress: Progress) -> Pieces[None]:
        for key, write, default in steps:
            value = values.get(key, default)
            if value is _NO_GUESS:
                raise MissingField(f"{name} needs {key}")
            if isinstance(write, _Rows):
                yield from write.pieces(out, value, progress)
            else:
                write(out, value)
        if flexible:
            if tags:
                _write_tags(out, tags, values)
            else:
                out.append(0)

    return write_struct
