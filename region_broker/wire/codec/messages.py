"""Requests into kio entities, version-neutral dicts into response bytes.

INV-WK1  no schema module is imported before its API and version is first used (all of them cost a second)
INV-WK2  a body reaches kio only through the guard (`wire.codec.guard`, INV-WG1)
INV-WK4  an answer of more than RESPONSE_BYTES_MAX is given up as soon as it is that long (`AnswerTooLarge`)
What has many elements or rows is read and written in pieces: generators that yield after each, so that the event loop
can serve others (`request_pieces`, `response_pieces`).
Field names are kio's; durations are ms, timestamps ms since the epoch (-1: none), errors Kafka numbers.
Not here: what the fields mean (`handlers`), how structs and values are written (`struct_writers`, `value_writers`).
"""

import importlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, cast

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from region_broker.limits import ELEMENTS_AT_ONCE_MAX, RESPONSE_BYTES_MAX
from region_broker.wire.codec.guard import GuardError, Op, check, compile_plan, field_shapes
from region_broker.wire.codec.pieces import Pieces, Progress, read_pieces
from region_broker.wire.codec.struct_writers import (
    EncodedRow,
    Fields,
    names_without_default,
    pieces_writer,
    struct_writer,
)
from region_broker.wire.codec.value_writers import Writer

ApiVersion: TypeAlias = tuple[int, int]
_CORRELATION_ID: Final = struct.Struct(">i")
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


class RowPath(NamedTuple):
    """Which rows of an answer: API, version, and the fields that lead to them (`("topics",)`)."""

    api_key: int
    version: int
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestCodec:
    """How requests of one API version are read."""

    entity: type
    flexible: bool
    guard: Op
    read: Callable[[memoryview, int], tuple[Any, int]]


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
    return ResponseCodec(entity, flexible_header, struct_writer(entity))


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
        writer = struct_writer(entity)
    assert writer is not None, path
    return writer


def response_pieces(
    api_key: int, version: int, correlation_id: int, values: Fields
) -> Pieces[bytearray]:
    """Write what `encode_response` returns, in pieces; raises `MissingField` or `AnswerTooLarge`."""
    codec = response_codec(api_key, version)
    out = _header(codec, correlation_id)
    for _ in pieces_writer(codec.entity)(out, values, Progress()):
        _check_size(out)
        yield
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
    if all(shape.name != "error_code" for shape in field_shapes(entity)):
        return None
    # -1 is what Kafka puts into ids, epochs and generations of refused requests.
    return dict.fromkeys(names_without_default(entity), -1) | {"error_code": error_code}
