"""Answers as bytes: version-neutral dicts written by the writers compiled from kio's classes, at once or in pieces.

INV-WK4  an answer of more than RESPONSE_BYTES_MAX is given up as soon as it is that long (`AnswerTooLarge`)
Field names are kio's; durations are ms, timestamps ms since the epoch (-1: none), errors Kafka numbers.
Not here: what the fields mean (`handlers`), how structs and values are written (`struct_writers`, `value_writers`),
answers of the fast paths (`fast_paths`).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from kio.static.constants import EntityType

from idempotency.pieces import Pieces
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, PIECE_ELEMENTS, RESPONSE_BYTES_MAX
from region_broker.wire.codec.schemas import class_of, field_shapes
from region_broker.wire.codec.struct_writers import (
    EncodedRow,
    Fields,
    names_without_default,
    pieces_writer,
    struct_writer,
)
from region_broker.wire.codec.value_writers import Writer
from region_broker.wire.cooperative_yield import CooperativeYield

_CORRELATION_ID: Final = struct.Struct(">i")


class AnswerTooLarge(Exception):
    """An answer would be longer than RESPONSE_BYTES_MAX: close the connection."""


class RowPath(NamedTuple):
    """Which rows of an answer: API, version, and the fields that lead to them (`("topics",)`)."""

    api_key: int
    version: int
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResponseCodec:
    """How responses of one API version are written."""

    entity: type
    flexible_header: bool
    write: Writer


@cache
def response_codec(api_key: int, version: int) -> ResponseCodec:
    """Return the (cached) writer of responses; raises `UnknownSchema`.

    The header version comes from the schema: ApiVersions answers with header v0 always (KIP-511).
    """
    entity = class_of(api_key, version, EntityType.response)
    flexible_header = int(entity.__header_schema__.__version__) >= 1
    return ResponseCodec(entity, flexible_header, struct_writer(entity))


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
    entity = class_of(path.api_key, path.version, EntityType.response)
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
    for _ in pieces_writer(codec.entity)(out, values, CooperativeYield(PIECE_ELEMENTS)):
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
    entity = class_of(api_key, version, EntityType.response)
    if all(shape.name != "error_code" for shape in field_shapes(entity)):
        return None
    # -1 is what Kafka puts into ids, epochs and generations of refused requests.
    return dict.fromkeys(names_without_default(entity), -1) | {"error_code": error_code}
