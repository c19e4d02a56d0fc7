"""The throttle time in an answer that is written already: put where its schema has it, whoever wrote the answer.

INV-WTT1  nothing but the throttle time of an answer changes; an answer without a place for it stays as it is
INV-WTT2  a Produce that names leaders, of which a client chooses how many rows it has, comes in two parts, and has it at the end of the
          first one: it is not read to find that
Most answers begin with it, the others end with it, but for their tags. Where there are tags otherwise (ApiVersions) the answer is read
and written again.
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
from region_broker.wire.codec.fast_paths.leaders import Endpoint, endpoints_tags
from region_broker.wire.codec.gathered import AnswerBytes, GatheredAnswer
from region_broker.wire.codec.schemas import class_of, field_shapes
from region_broker.wire.codec.struct_writers import Fields

_I32: Final = struct.Struct(">i")
_PRODUCE_KEY: Final = 0
_NAME: Final = "throttle_time"
_ERROR_CODE_BYTES: Final = 2


class _Place(Enum):
    NONE = auto()
    LAST = auto()
    """Behind everything but the count of tags; where that is not 0, as in `BEFORE_TAGS`. The two can be told apart: what a Produce ends with
    then is a port, which is not 0, before no rack and no tags."""
    BEFORE_TAGS = auto()
    """Behind everything but tags, of which there are some."""


@cache
def _place(api_key: int, version: int) -> int | _Place:
    """Return at which byte of the answer the field stands, where that is the same in all; or how it is found."""
    shapes = field_shapes(class_of(api_key, version, EntityType.response))
    names = [shape.name for shape in shapes]
    if _NAME not in names:
        return _Place.NONE
    front_bytes = _I32.size + response_codec(api_key, version).flexible_header
    before = names[: names.index(_NAME)]
    if not before:
        return front_bytes
    if before == ["error_code"]:
        return front_bytes + _ERROR_CODE_BYTES
    behind = shapes[len(before) + 1 :]
    is_last = all(shape.tag is not None for shape in behind)
    assert is_last, f"no place is known of the throttle time in answers of API {api_key}"
    return _Place.LAST if not behind or api_key == _PRODUCE_KEY else _Place.BEFORE_TAGS


def parted(api_key: int, values: Fields, answer: Buffer) -> AnswerBytes:
    """Return an answer that was written of `values`, in two parts where it is a Produce that names leaders (INV-WTT2)."""
    named = values.get("node_endpoints") if api_key == _PRODUCE_KEY else None
    if not named:
        return answer
    tags = endpoints_tags([Endpoint(**each) for each in named])
    whole = memoryview(answer)
    front, back = whole[: -len(tags)], whole[-len(tags) :]
    return GatheredAnswer((front, back)) if back == tags else answer  # older versions have none


def throttle_told_ms(api_key: int, version: int, answer: AnswerBytes) -> int:
    """Return what an answer tells, of those that tell it at a fixed place; 0 of all others."""
    place = _place(api_key, version)
    if isinstance(place, _Place):
        return 0
    front = answer.parts[0] if isinstance(answer, GatheredAnswer) else answer
    return max(0, int(_I32.unpack_from(front, place)[0]))


def with_throttle(api_key: int, version: int, answer: AnswerBytes, throttle_ms: int) -> AnswerBytes:
    """Return the answer with that throttle time in it (INV-WTT1)."""
    place = _place(api_key, version)
    if isinstance(answer, GatheredAnswer):
        front = answer.parts[0]
        if isinstance(place, _Place):
            assert api_key == _PRODUCE_KEY, "of what is gathered, only a Fetch has it elsewhere"
            place = len(front) - _I32.size  # INV-WTT2
        return answer.with_front(_put(front, place, throttle_ms))
    if place is _Place.NONE:
        return answer
    if place is _Place.LAST:
        entity: Any = response_codec(api_key, version).entity
        tags = b"\0" if entity.__flexible__ else b""
        tail = b"\0\0\0\0" + tags
        if bytes(answer[-len(tail) :]) == tail:
            place = len(answer) - len(tail)
    if isinstance(place, _Place):
        return _written_again(api_key, version, answer, throttle_ms)
    return _put(answer, place, throttle_ms)


def _put(answer: Buffer, place: int, throttle_ms: int) -> bytearray:
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
