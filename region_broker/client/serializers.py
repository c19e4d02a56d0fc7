"""Values and keys as bytes: what producers write, and what consumers make of it.

A serializer takes an object and returns bytes, a deserializer the other way round; None (no key, a tombstone) passes
through untouched. Any callable will do; these are the usual ones.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import orjson

from region_broker.client.errors import Refused
from region_broker.client.verdicts import Position

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


class Unreadable(Refused):
    """A deserializer does not take the record at `position`: what to `skip` (`ReadCommittedConsumer`)."""

    def __init__(self, text: str, *, position: Position) -> None:
        """Keep where the record lies."""
        super().__init__(text)
        self.position: Final = position


def deserialized(
    data: bytes | None, deserializer: Deserializer | None, what: str, position: Position
) -> Any:
    """Return what `data` says, the key or the value of the record at `position`; raises `Unreadable`."""
    if data is None or deserializer is None:
        return data
    try:
        return deserializer(data)
    except Exception as error:  # the application's own code: each kind of data has its own errors
        raise Unreadable(
            f"the {what} of {position.topic}-{position.partition} at offset {position.offset} cannot be deserialized:"
            f" {error}. Where the deserializer had trouble of its own, as without its registry, read again; else leave the record out with the"
            " consumer's `skip(error.position)`, or read it without a deserializer.",
            position=position,
        ) from error
