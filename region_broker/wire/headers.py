"""The header in front of each request, read by hand: it is small and tells which schema applies.

The correlation id is read before anything that may be wrong, so that a refusal can be answered.
Source: RequestHeader.json, KIP-482. The client id is a legacy string in every header version.
Not here: bodies (`wire.codec.requests`).
"""

import struct
from typing import Final, NamedTuple

from region_broker.wire.codec.bounded import DecodeRefused
from region_broker.wire.codec.guard import pass_tags

_PREFIX: Final = struct.Struct(">hhih")
_MIN_BYTES: Final = 8
_SHORT_PREFIX: Final = struct.Struct(">hhi")


class HeaderError(Exception):
    """The frame is too short for a header or the header is damaged: close the connection."""


class RequestHeader(NamedTuple):
    """Who asks what; `body_start` is the position of the body, -1 when the header was not read whole."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_start: int


def peek_header(frame: memoryview) -> tuple[int, int, int]:
    """Return (api key, version, correlation id) of a frame; raises `HeaderError`."""
    if len(frame) < _MIN_BYTES:
        raise HeaderError(f"a request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id = _SHORT_PREFIX.unpack_from(frame)
    return api_key, version, correlation_id


def read_header(frame: memoryview, *, flexible: bool) -> RequestHeader:
    """Return the header of a request whose schema is (or is not) `flexible`; raises `HeaderError`."""
    if len(frame) < _PREFIX.size:
        raise HeaderError(f"a request of {len(frame)} bytes is shorter than its header")
    api_key, version, correlation_id, client_id_bytes = _PREFIX.unpack_from(frame)
    position = _PREFIX.size
    client_id: str | None = None
    if client_id_bytes >= 0:
        end = position + client_id_bytes
        if end > len(frame):
            raise HeaderError(f"the client id claims {client_id_bytes} bytes, more than there are")
        try:
            client_id = bytes(frame[position:end]).decode()
        except UnicodeDecodeError as error:
            raise HeaderError("the client id is not UTF-8") from error
        position = end
    elif client_id_bytes != -1:
        raise HeaderError(f"the client id has length {client_id_bytes}")
    if flexible and position < len(frame) and frame[position] == 0:
        position += 1
    elif flexible:
        try:
            position = pass_tags(frame, position, len(frame))
        except DecodeRefused as error:
            raise HeaderError(f"the header's tagged fields are damaged: {error}") from error
    return RequestHeader(api_key, version, correlation_id, client_id, position)
