"""The fields that hand-written readers share: each returns its value and the position behind it.

INV-BH1  a length is checked against what is left before anything is cut out or allocated by it; what is wrong raises
         `GuardError`, or `struct.error` where a number ends behind the body
Not here: whole requests (`produce`, `fetch`), the guard of all other APIs (`wire.codec.guard`).
"""

import struct
from typing import Final

from region_broker.limits import ARRAY_ELEMENTS_MAX
from region_broker.wire.codec.guard import GuardError, ManyElements, read_uvarint, skip_unknown_tags

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
NULL: Final = -1


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


def text(body: memoryview, position: int, size_bytes: int, end: int) -> tuple[str | None, int]:
    """Return the string of a size that was just read, None for null; UnicodeDecodeError if it is none."""
    stop = position + size_bytes
    if size_bytes < 0:
        if size_bytes != NULL:
            raise GuardError(f"a string of {size_bytes} bytes at byte {position}")
        return None, position
    if stop > end:
        raise GuardError(
            f"a string of {size_bytes} bytes at byte {position}, {end - position} left"
        )
    return bytes(body[position:stop]).decode(), stop


def blob(
    body: memoryview, position: int, size_bytes: int, end: int
) -> tuple[memoryview | None, int]:
    """Return the bytes of a size that was just read, not copied; None for null."""
    stop = position + size_bytes
    if size_bytes < 0:
        if size_bytes != NULL:
            raise GuardError(f"{size_bytes} bytes at byte {position}")
        return None, position
    if stop > end:
        raise GuardError(f"{size_bytes} bytes at byte {position}, {end - position} left")
    return body[position:stop], stop


class Elements:
    """Counts the elements of all arrays of one request, as the guard does (INV-WG4, INV-WG5)."""

    __slots__ = ("_at_once_max", "_count")

    def __init__(self, at_once_max: int) -> None:
        """Start with none; `at_once_max`: see `GuardState`."""
        self._at_once_max = at_once_max
        self._count = 0

    def check(self, count: int, left_bytes: int, element_bytes_min: int) -> None:
        """Raise `GuardError` unless an array may have that many elements, `ManyElements` if they are many."""
        self._count += count
        if count < 0 or count * element_bytes_min > left_bytes or self._count > ARRAY_ELEMENTS_MAX:
            raise GuardError(f"array of {count}, {left_bytes} bytes left")
        if self._count > self._at_once_max:
            raise ManyElements


def tags(body: memoryview, position: int, end: int) -> int:
    """Return the position behind a section of tags none of which is known."""
    if position < end and body[position] == 0:
        return position + 1
    return skip_unknown_tags(body, position)
