"""The fields of requests, each read within bounds: every reader returns its value and the position behind it.

INV-BH1  a length is checked against what is left before anything is cut out or allocated by it; what is wrong raises
         `DecodeRefused`, or one of MALFORMED where a number ends behind the body, or bytes are no text
Not here: whole requests (`guard`, `piece_readers`, `fast_paths`), what the values mean (`handlers`).
"""

import struct
from typing import Final

from region_broker.limits import ARRAY_ELEMENTS_MAX, REQUEST_STRING_BYTES_MAX

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_VARINT_BYTES_MAX: Final = 5
UUID_BYTES: Final = 16
NIL_UUID: Final = bytes(UUID_BYTES)
NULL: Final = -1


class DecodeRefused(Exception):
    """The body does not fit the schema of its API and version: close the connection."""


class ManyElements(Exception):
    """The body may be sound, but holds more elements than are read at once: read it in pieces."""


MALFORMED: Final = (struct.error, UnicodeDecodeError)
"""What a reader may raise besides `DecodeRefused` where a body is wrong."""


def malformed(error: Exception) -> DecodeRefused:
    """Return the refusal of a body in which a reader met another error, one of MALFORMED or of kio's."""
    return DecodeRefused(f"{type(error).__name__}: {error}")


class Elements:
    """Counts the elements of all arrays of one request as the guard does (INV-WG4, INV-WG5)."""

    __slots__ = ("_at_once_max", "_count")

    def __init__(self, at_once_max: int) -> None:
        """Start with none; beyond `at_once_max` the reading ends with `ManyElements`."""
        self._at_once_max = at_once_max
        self._count = 0

    def check(self, count: int, left_bytes: int, element_bytes_min: int) -> None:
        """Raise `DecodeRefused` unless an array may have that many elements, `ManyElements` if they are many."""
        self._count += count
        if count < 0 or count * element_bytes_min > left_bytes or self._count > ARRAY_ELEMENTS_MAX:
            raise DecodeRefused(f"array of {count}, {left_bytes} bytes left")
        if self._count > self._at_once_max:
            raise ManyElements


def read_uvarint(body: memoryview, position: int, end: int) -> tuple[int, int]:
    """Return an unsigned varint of at most five bytes."""
    value = shift = 0
    stop = min(end, position + _VARINT_BYTES_MAX)
    while position < stop:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise DecodeRefused(f"a varint before byte {position} has no end")


def write_uvarint(value: int) -> bytes:
    """Return `value` (>= 0) as an unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- sizes -----------------------------------------------------------------------------------------


def compact_size(body: memoryview, position: int, end: int) -> tuple[int, int]:
    """Return the size of a compact string, bytes or array, -1 for null."""
    if position < end and body[position] < 0x80:
        return body[position] - 1, position + 1
    claimed, position = read_uvarint(body, position, end)
    return claimed - 1, position


def short_size(body: memoryview, position: int, _end: int) -> tuple[int, int]:
    """Return the size of a string of the old kind, -1 for null."""
    return _I16.unpack_from(body, position)[0], position + 2


def long_size(body: memoryview, position: int, _end: int) -> tuple[int, int]:
    """Return the size of bytes or of an array of the old kind, -1 for null."""
    return _I32.unpack_from(body, position)[0], position + 4


# --- values of a size ------------------------------------------------------------------------------


def text(body: memoryview, position: int, size_bytes: int, end: int) -> tuple[str | None, int]:
    """Return the string of a size that was just read, None for null."""
    stop = position + size_bytes
    if size_bytes < 0:
        if size_bytes != NULL:
            raise DecodeRefused(f"a string of {size_bytes} bytes at byte {position}")
        return None, position
    if stop > end or size_bytes > REQUEST_STRING_BYTES_MAX:  # INV-WG7
        left = end - position
        raise DecodeRefused(f"a string of {size_bytes} bytes at byte {position}, {left} left")
    return str(body[position:stop], "utf-8"), stop


def blob(
    body: memoryview, position: int, size_bytes: int, end: int
) -> tuple[memoryview | None, int]:
    """Return the bytes of a size that was just read, not copied; None for null."""
    stop = position + size_bytes
    if size_bytes < 0:
        if size_bytes != NULL:
            raise DecodeRefused(f"{size_bytes} bytes at byte {position}")
        return None, position
    if stop > end:
        raise DecodeRefused(f"{size_bytes} bytes at byte {position}, {end - position} left")
    return body[position:stop], stop
