"""Records as lines of text: what `produce` reads and `consume` prints. Pure.

INV-CLI1  what `consume -o json` prints is what `produce --format json` takes: key, value, headers, partition and time
          of a record survive the way through a file, whatever their bytes are
INV-CLI2  a line that cannot be a record is an error that names the line; none is skipped or guessed

In JSON, bytes that are UTF-8 are a string; all others are ``{"base64": "..."}``; null is no key, or a tombstone.
Not here: files and brokers (`produce`, `consume`).
"""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_FIELDS: Final = frozenset(
    {"topic", "partition", "offset", "timestamp_ms", "key", "value", "headers"}
)
_BY_KEY: Final = -1
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

Headers = list[tuple[str, str | bytes | None]]


class BadLine(ValueError):
    """A line is no record; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One record to be sent; `partition` -1 leaves it to the key, `timestamp_ms` 0 is now."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers | None = None
    partition: int = _BY_KEY
    timestamp_ms: int = 0


def parse_header(text: str) -> tuple[str, str | bytes | None]:
    """Return name and value of ``NAME=VALUE``; raises `BadLine`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadLine(f"{text!r} is not NAME=VALUE")
    if not _is_text(name):
        raise BadLine(f"{text!r} has a name that is not UTF-8")
    return name, value.encode(errors="surrogateescape")  # as the command line came


def from_text(line: bytes, separator: str | None) -> Outgoing:
    """Return a line as a record: all of it the value, or key and value around `separator`.

    Raises `BadLine` where the separator is missing: a line without a key would silently go anywhere.
    """
    if not separator:
        return Outgoing(value=line)
    key, found, value = line.partition(separator.encode())
    if not found:
        raise BadLine(f"there is no {separator!r} that parts key and value")
    return Outgoing(value=value, key=key)


def from_json(line: bytes) -> Outgoing:
    """Return what a line of `to_json` stands for; `topic` and `offset` are ignored; raises `BadLine`."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise BadLine('not a JSON object such as {"key": "alice", "value": "1 pair of boots"}')
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        raise BadLine(
            f"unknown field {', '.join(unknown)}; a record has {', '.join(sorted(_FIELDS))}"
        )
    if "value" not in fields:
        raise BadLine("there is no value; null makes a tombstone")
    return Outgoing(
        value=_bytes("value", fields["value"]),
        key=_bytes("key", fields.get("key")),
        headers=_headers(fields.get("headers")),
        partition=_number("partition", fields.get("partition"), -1, _INT32_MAX),
        timestamp_ms=_number("timestamp_ms", fields.get("timestamp_ms"), 0, _INT64_MAX),
    )


def _bytes(name: str, value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str) and _is_text(value):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise BadLine(f"{name}: not base64 ({error})") from error
    raise BadLine(
        f'{name}: neither a string of whole characters, nor null, nor {{"base64": "..."}}'
    )


def _is_text(value: str) -> bool:
    """Whether it has a form as UTF-8; half of a surrogate pair has none, and JSON may hold one."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _headers(listed: object) -> Headers | None:
    if listed is None:
        return None
    if isinstance(listed, dict):
        listed = list(listed.items())
    if not isinstance(listed, list):
        raise BadLine("headers: neither a list of [name, value] nor an object")
    headers: Headers = []
    for each in listed:
        if (
            not isinstance(each, Sequence)
            or len(each) != 2
            or not isinstance(each[0], str)
            or not _is_text(each[0])
        ):
            raise BadLine(f"headers: {each!r} is not [name, value]")
        headers.append((each[0], _bytes(f"header {each[0]}", each[1])))
    return headers


def _number(name: str, value: object, lowest: int, highest: int) -> int:
    if value is None:
        return lowest
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise BadLine(f"{name}: {value!r} is not a whole number in {lowest}..{highest}")
    return value


def to_json(message: Any) -> bytes:
    """Return a `confluent_kafka.Message` as one line of JSON, without the line's end."""
    _kind, timestamp_ms = message.timestamp()
    return json_line(
        message.topic(), message.partition(), message.offset(), timestamp_ms,
        message.key(), message.value(), message.headers() or (),
    )  # fmt: skip


def json_line(
    topic: str, partition: int, offset: int, timestamp_ms: int,
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]],
) -> bytes:  # fmt: skip
    """Return a record as one line of JSON, without the line's end."""
    fields: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp_ms": max(timestamp_ms, 0),
        "key": _shown(key),
        "value": _shown(value),
    }
    if headers:
        fields["headers"] = [[name, _shown(each)] for name, each in headers]
    return json.dumps(fields, ensure_ascii=False).encode()


def _shown(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
