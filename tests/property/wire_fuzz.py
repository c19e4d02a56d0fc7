"""Mutated requests through the codec and kio, to be run in a process of its own: kio may abort it.

    python -m tests.property.wire_fuzz --frames 100000 [--api NAME ...] [--socket 2000] [--seed 7]

Each API gets `--frames` frames, spread over its versions: random requests written by kio, then mutated. Each is read
at once and in pieces, which must agree, by kio itself if it was accepted, and by its fast path, where it has one: all
must say the same. kio may refuse what the codec accepts (it takes no unknown tags); it never reads anything else. With
`--socket`, that many of each API also go to a live node, over its socket, while a good client beside it writes and
reads (`wire_fuzz_node`). Any exception but DecodeRefused, a disagreement, an abort, or memory that grows ends the
process with another code than 0.
"""

import argparse
import asyncio
import io
import random
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from kio.serial import entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.registry import Api
from region_broker.wire.codec.bounded import DecodeRefused, ManyElements
from region_broker.wire.codec.entities import entity_pieces, read_entity
from region_broker.wire.codec.fast_paths import fetch, produce, transactions
from tests.fixtures.drawn_bodies import outcome
from tests.fixtures.kafka_port import schema
from tests.fixtures.memory_census import resident_bytes
from tests.fixtures.plain_requests import (
    add_of_kio,
    end_of_kio,
    fetch_of_fast_path,
    fetch_of_kio,
    produce_of_fast_path,
    produce_of_kio,
    read_by_kio,
)
from tests.property.wire_fuzz_node import send_to_node

_PRODUCE_KEY, _METADATA_KEY, _ADD_PARTITIONS_KEY, _END_TXN_KEY = 0, 3, 24, 26
MEMORY_BYTES_MAX = 2 << 30
GROWTH_BYTES_MAX = 64 << 20
SOUND_PER_VERSION = 40
HOSTILE = (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff",
           b"\x80\x80\x80\x80\x80", b"\x80\x00", b"\x00", b"\x01", b"\x02", b"\x01\x63\x7f", b"\x01\x07\x02ab")  # fmt: skip


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


def sound_requests(chance: random.Random, key: int, version: int) -> list[tuple[Any, bytes]]:
    """Return random requests of an API version, with the bytes that kio writes."""
    entity = schema(key, version, EntityType.request)
    found: list[tuple[Any, bytes]] = []
    for _ in range(SOUND_PER_VERSION):
        out = io.BytesIO()
        request = random_entity(chance, entity)
        entity_writer(entity)(out, request)
        found.append((request, out.getvalue()))
    return found


def read_both_ways(key: int, version: int, body: bytes) -> Any:
    """Return the request in `body`, None if it is refused; reading at once and in pieces must agree."""
    try:
        at_once = read_entity(key, version, memoryview(body))
    except DecodeRefused:
        at_once = None
    except ManyElements:
        return read_in_pieces(key, version, body)
    in_pieces = read_in_pieces(key, version, body)
    assert in_pieces == at_once, (at_once, in_pieces)
    return at_once


def agree_with_kio(key: int, version: int, body: bytes, found: Any) -> None:
    """Raise AssertionError if kio reads anything else in an accepted body; what was refused is not shown to it."""
    if found is None or key == _METADATA_KEY:  # which may have spare bytes behind it
        return
    try:
        of_kio = read_by_kio(key, version, body)
    except (SerialError, ValueError, LookupError, TypeError, OverflowError, AssertionError):
        return
    assert of_kio == found, (of_kio, found)


def fast_path_agrees(key: int, version: int, body: bytes, of_kio: Any) -> None:
    """Raise AssertionError if a hand reader says anything else of `body` than kio (None: kio refused)."""
    view = memoryview(body)
    found: Any
    expected: Any = None
    if key == _PRODUCE_KEY:
        found = outcome(
            lambda: produce.read_request(version, view),
            lambda: produce.request_pieces(version, view),
            produce_of_fast_path,
        )
        expected = of_kio and produce_of_kio(of_kio)
    elif key == fetch.KEY:
        found = outcome(
            lambda: fetch.read_request(version, view),
            lambda: fetch.request_pieces(version, view),
            fetch_of_fast_path,
        )
        expected = of_kio and fetch_of_kio(version, of_kio)
    elif key == _END_TXN_KEY:
        found = transactions.plain_end(version, view)  # None: left to kio
        expected = found and of_kio and end_of_kio(of_kio)
    elif key == _ADD_PARTITIONS_KEY:
        found = transactions.plain_add(version, view)
        expected = found and of_kio and add_of_kio(of_kio)
    else:
        return
    assert found == expected, (found, expected)


def read_in_pieces(key: int, version: int, body: bytes) -> Any:
    """Return the request in `body`, None if it is refused."""
    pieces = entity_pieces(key, version, memoryview(body))
    try:
        while True:
            next(pieces)
    except StopIteration as done:
        return done.value
    except DecodeRefused:
        return None


@dataclass
class Outcome:
    """What became of the frames of one API."""

    read: int = 0
    refused: int = 0


def fuzz(api: Api, chance: random.Random, frame_count: int) -> Outcome:
    """Read `frame_count` frames of one API."""
    found = Outcome()
    for version, count in spread(api.versions, frame_count):
        sound = sound_requests(chance, api.key, version)
        for request, body in sound[:count]:
            assert read_both_ways(api.key, version, body) == request, (api.name, version, body)
            fast_path_agrees(api.key, version, body, request)
        for index in range(count - len(sound[:count])):
            data = mutated(chance, sound[index % len(sound)][1])
            try:
                request = read_both_ways(api.key, version, data)
                agree_with_kio(api.key, version, data, request)
                fast_path_agrees(api.key, version, data, request)
                found.refused += request is None
            except BaseException:
                print(f"{api.name} version {version} body {data.hex()}", flush=True)
                raise
    found.read = frame_count - found.refused
    return found


def spread(versions: range, frame_count: int) -> Iterator[tuple[int, int]]:
    """Yield (version, frames of it): `frame_count` in all."""
    each, rest = divmod(frame_count, len(versions))
    for index, version in enumerate(versions):
        yield version, each + (index < rest)


def frames_of(api: Api, chance: random.Random, frame_count: int) -> Iterator[tuple[int, bytes]]:
    """Yield (version, mutated body) of one API, for a live node."""
    for version, count in spread(api.versions, frame_count):
        sound = sound_requests(chance, api.key, version)
        for index in range(count):
            yield version, mutated(chance, sound[index % len(sound)][1])


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1_000, help="of each API, in this process")
    parser.add_argument("--socket", type=int, default=0, help="of each API, to a live node")
    parser.add_argument("--api", action="append", help="this API only; may be given several times")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    by_name = {api.name: api for api in all_apis().by_key.values()}
    if unknown := set(asked.api or ()) - by_name.keys():
        parser.error(f"no API is called {', '.join(sorted(unknown))}")
    apis = [by_name[name] for name in asked.api or by_name]
    if asked.frames:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    for api in apis if asked.frames else ():
        chance = random.Random(f"{asked.seed} {api.name}")
        fuzz(api, chance, min(asked.frames, SOUND_PER_VERSION * len(api.versions)))  # loads all
        before_bytes, started_s = resident_bytes(), time.monotonic()
        found = fuzz(api, chance, asked.frames)
        grown_bytes = resident_bytes() - before_bytes
        print(
            f"{api.name}: {asked.frames} frames in {time.monotonic() - started_s:.1f} s, {found.read} read, "
            f"{found.refused} refused, {grown_bytes >> 10} KiB more memory",
            flush=True,
        )
        assert grown_bytes < GROWTH_BYTES_MAX, f"{api.name}: memory grew by {grown_bytes} bytes"
    if asked.socket:
        by_api = {
            api: frames_of(api, random.Random(f"{asked.seed} {api.name} node"), asked.socket)
            for api in apis
        }
        asyncio.run(send_to_node(by_api, asked.socket))


if __name__ == "__main__":
    main()
