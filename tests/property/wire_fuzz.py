"""Mutated requests through the guard and kio, to be run in a process of its own: kio may abort it.

    python -m tests.property.wire_fuzz SEED COUNT

Every API and version served gets its share of COUNT frames: random requests written by kio, then mutated.
Prints one line with the outcome; any exception but DecodeRefused, an abort, or more memory than the limit
ends the process with another code than 0.
"""

import io
import random
import resource
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.serial import entity_writer
from kio.static.constants import EntityType

from region_broker.handlers.apis import all_apis
from region_broker.wire.kio_codec import DecodeRefused, decode_request
from tests.wire_world import schema

MEMORY_BYTES_MAX = 2 << 30
HOSTILE = (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
           b"\x80\x80\x80\x80\x80", b"\x80\x00", b"\x00", b"\x01\x63\x7f")  # fmt: skip


def _draw_duration(chance: random.Random) -> timedelta:
    return timedelta(milliseconds=chance.randrange(100_000))


DRAWS: dict[str, Callable[[random.Random], Any]] = {
    "bool": lambda chance: chance.random() < 0.5,
    "string": lambda chance: "".join(chance.choices("abé\x00.", k=chance.randrange(6))),
    "bytes": lambda chance: chance.randbytes(chance.randrange(80)),
    "records": lambda chance: chance.randbytes(chance.randrange(80)),
    "uuid": lambda chance: UUID(int=chance.getrandbits(128)),
    "timedelta_i32": _draw_duration,
    "timedelta_i64": _draw_duration,
}


def random_value(chance: random.Random, annotation: Any, kafka_type: str | None) -> Any:
    """Return a value that kio writes for a field."""
    if get_origin(annotation) is UnionType:
        if chance.random() < 0.2:
            return None
        annotation = next(each for each in get_args(annotation) if each is not NoneType)
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)[0]
        return tuple(random_value(chance, inner, kafka_type) for _ in range(chance.randrange(3)))
    if is_dataclass(annotation):
        return random_entity(chance, annotation)
    draw = DRAWS.get(kafka_type or "")
    return chance.randrange(100) if draw is None else draw(chance)


def random_entity(chance: random.Random, entity: Any) -> Any:
    """Return an entity with random fields; some defaults are kept."""
    values: dict[str, Any] = {}
    for item in fields(entity):
        if item.default is not MISSING and chance.random() < 0.3:
            continue
        if "tag" in item.metadata and chance.random() < 0.5:
            continue
        value = random_value(chance, item.type, item.metadata.get("kafka_type"))
        if value is None and "tag" in item.metadata:
            continue
        values[item.name] = value
    return entity(**values)


def mutated(chance: random.Random, body: bytes) -> bytes:
    """Return the body with a few bytes changed, added, cut or replaced by hostile lengths."""
    data = bytearray(body)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                data[at:at] = chance.choice(HOSTILE)
            case 2:
                hostile = chance.choice(HOSTILE)
                data[at : at + len(hostile)] = hostile
            case _:
                del data[at : at + chance.randrange(1, 5)]
    return bytes(data)


def main(seed: int, count: int) -> None:
    """Run `count` frames drawn from `seed`."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    chance = random.Random(seed)
    served = [(api.key, version) for api in all_apis().by_key.values() for version in api.versions]
    read = refused = 0
    for index in range(count):
        key, version = served[index % len(served)]
        entity = schema(key, version, EntityType.request)
        out = io.BytesIO()
        request = random_entity(chance, entity)
        entity_writer(entity)(out, request)
        body = out.getvalue()
        if index % 4 == 0:
            assert decode_request(key, version, memoryview(body)) == request, (key, version, body)
            read += 1
            continue
        data = mutated(chance, body)
        try:
            decode_request(key, version, memoryview(data))
            read += 1
        except DecodeRefused:
            refused += 1
        except BaseException:
            print(f"seed {seed}: API {key} version {version} body {data.hex()}", flush=True)
            raise
    print(f"seed {seed}: {len(served)} API versions, {read} read, {refused} refused")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
