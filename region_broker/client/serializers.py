"""Values and keys as bytes: what producers write, and what consumers make of it.

A serializer takes an object and returns bytes, a deserializer the other way round; None (no key, a tombstone) passes
through untouched. Any callable will do; these are the usual ones.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import orjson

from region_broker.client.errors import Refused

Serializer: TypeAlias = Callable[[Any], bytes | str]
Deserializer: TypeAlias = Callable[[bytes], Any]


def to_json(value: Any) -> bytes:
    """Return `value` as JSON; raises TypeError for what JSON has no form for."""
    return orjson.dumps(value)


def from_json(data: bytes) -> Any:
    """Return what a JSON document says; raises ValueError."""
    return orjson.loads(data)


def to_text(value: str) -> bytes:
    """Return text as UTF-8."""
    return value.encode()


def from_text(data: bytes) -> str:
    """Return UTF-8 as text; raises ValueError."""
    return data.decode()


def serialized(value: Any, serializer: Serializer | None, what: str) -> bytes | str | None:
    """Return what is sent for `value`; raises `Refused` if it cannot be."""
    if value is None or serializer is None:
        return value  # type: ignore[no-any-return]  # as it was given: confluent-kafka checks it
    try:
        return serializer(value)
    except (TypeError, ValueError) as error:
        raise Refused(f"the {what} {value!r:.100} cannot be serialized: {error}") from error


def deserialized(data: bytes | None, deserializer: Deserializer | None, where: str) -> Any:
    """Return what `data` says; raises `Refused`, which names the record, if it is not readable."""
    if data is None or deserializer is None:
        return data
    try:
        return deserializer(data)
    except (TypeError, ValueError) as error:
        raise Refused(
            f"{where} cannot be deserialized: {error}. Seek behind it, or read it without a deserializer."
        ) from error
