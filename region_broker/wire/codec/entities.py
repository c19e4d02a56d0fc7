"""Requests as kio's classes: bodies whose every length was checked, read by kio, at once or in pieces.

A body reaches kio only through the guard (`guard`, INV-WG1).
Field names are kio's; durations are timedeltas.
Not here: the APIs that have a fast path (`requests`), what the fields mean (`handlers`).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

from kio.serial import entity_reader
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from idempotency.pieces import Pieces
from region_broker.wire.codec.bounded import DecodeRefused, malformed
from region_broker.wire.codec.guard import Op, check, compile_plan
from region_broker.wire.codec.piece_readers import read_pieces
from region_broker.wire.codec.schemas import class_of

# kio's native reader raises these for booleans that are neither 0 nor 1, bad UTF-8, nulls.
_KIO_ERRORS: Final = (SerialError, ValueError, LookupError, TypeError, OverflowError)
# librdkafka (2.16 at least) asks Metadata v9+ for all topics with `00 00 00 00 ..`: it reserves four bytes
# for the array length and writes the one-byte null into them. Kafka's parser stops early, and so do we.
# It ends AlterUserScramCredentials with one empty set of tags too many (2.16.1 at least).
_TRAILING_BYTES_MAX: Final = {3: 3, 51: 1}


class RequestSchema(NamedTuple):
    """kio's class of a request, and whether it (and so its header) is flexible."""

    entity: Any
    flexible: bool


@cache
def request_schema(api_key: int, version: int) -> RequestSchema:
    """Return the (cached) schema of a request; raises `UnknownSchema`."""
    entity = class_of(api_key, version, EntityType.request)
    return RequestSchema(entity, bool(entity.__flexible__))


@cache
def _reader(api_key: int, version: int) -> tuple[Op, int, Callable[[Any, int], tuple[Any, int]]]:
    """Return the guard of a request, how many bytes may follow it, and kio's reader."""
    entity = request_schema(api_key, version).entity
    return compile_plan(entity), _TRAILING_BYTES_MAX.get(api_key, 0), entity_reader(entity)


def read_entity(api_key: int, version: int, body: memoryview) -> Any:
    """Return the request in `body`; raises `DecodeRefused` or `UnknownSchema`.

    `ManyElements`: it is to be read in pieces (`entity_pieces`).
    """
    guard, trailing_bytes_max, read = _reader(api_key, version)
    checked = check(guard, body, trailing_bytes_max=trailing_bytes_max)
    try:
        entity, size_bytes = read(checked, 0)
    except _KIO_ERRORS as error:
        raise malformed(error) from error
    if size_bytes != len(checked):
        raise DecodeRefused(f"{len(checked) - size_bytes} bytes follow the last field")
    return entity


def entity_pieces(api_key: int, version: int, body: memoryview) -> Pieces[Any]:
    """Read the request in `body` in pieces; raises `DecodeRefused` or `UnknownSchema`."""
    entity = request_schema(api_key, version).entity
    trailing_bytes_max = _TRAILING_BYTES_MAX.get(api_key, 0)
    try:
        return (yield from read_pieces(entity, body, trailing_bytes_max=trailing_bytes_max))
    except _KIO_ERRORS as error:
        raise malformed(error) from error
