"""The throttle time in an answer that is written already: put where its schema has it, whoever wrote the answer.

INV-WTT1  nothing but the throttle time of an answer changes; an answer without a place for it stays as it is
Most answers begin with it, Produce ends with it; the few others are read and written again.
Not here: how long a client is throttled (`security.quotas`), the socket (`wire.server`).
"""

import io
import struct
from dataclasses import replace
from datetime import timedelta
from enum import Enum, auto
from functools import cache
from typing import Any, Final

from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from region_broker.ports.network import Buffer
from region_broker.wire.codec.answers import response_codec
from region_broker.wire.codec.schemas import class_of, field_shapes

_I32: Final = struct.Struct(">i")
_NAME: Final = "throttle_time"
_ERROR_CODE_BYTES: Final = 2


class _Place(Enum):
    NONE = auto()
    LAST = auto()
    """Behind everything but tags."""
    ELSEWHERE = auto()


@cache
def _place(api_key: int, version: int) -> int | _Place:
    """Return at which byte of the answer the field stands, where that is the same in all; or how it is found."""
    names = [shape.name for shape in field_shapes(class_of(api_key, version, EntityType.response))]
    if _NAME not in names:
        return _Place.NONE
    front_bytes = _I32.size + response_codec(api_key, version).flexible_header
    before = names[: names.index(_NAME)]
    if not before:
        return front_bytes
    if before == ["error_code"]:
        return front_bytes + _ERROR_CODE_BYTES
    return _Place.LAST if before == ["responses"] else _Place.ELSEWHERE


def throttle_told_ms(api_key: int, version: int, answer: Buffer) -> int:
    """Return what an answer tells, of those that tell it at a fixed place; 0 of all others."""
    place = _place(api_key, version)
    if isinstance(place, _Place):
        return 0
    return max(0, int(_I32.unpack_from(answer, place)[0]))


def with_throttle(api_key: int, version: int, answer: Buffer, throttle_ms: int) -> Buffer:
    """Return the answer with that throttle time in it (INV-WTT1)."""
    place = _place(api_key, version)
    if place is _Place.NONE:
        return answer
    if place is _Place.LAST:
        tags = b"\0" if response_codec(api_key, version).flexible_header else b""
        tail = b"\0\0\0\0" + tags
        if bytes(answer[-len(tail) :]) == tail:
            place = len(answer) - len(tail)
    if isinstance(place, _Place):
        return _written_again(api_key, version, answer, throttle_ms)
    out = bytearray(answer)
    _I32.pack_into(out, place, throttle_ms)
    return out


def _written_again(api_key: int, version: int, answer: Buffer, throttle_ms: int) -> bytes:
    codec = response_codec(api_key, version)
    front_bytes = _I32.size + codec.flexible_header
    raw = bytes(answer)
    entity: Any = entity_reader(codec.entity)(raw, front_bytes)[0]
    out = io.BytesIO()
    out.write(raw[:front_bytes])
    told = replace(entity, throttle_time=timedelta(milliseconds=throttle_ms))
    entity_writer(codec.entity)(out, told)
    return out.getvalue()
