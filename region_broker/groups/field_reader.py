"""Big-endian fields of bytes that somebody else wrote, read in order and never beyond their end.

Not here: what the fields mean, and which error it is when they are not there (`records`, `modern.consumer_protocol`).
"""

import struct
from abc import ABC, abstractmethod
from typing import Final

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")


class FieldReader(ABC):
    """Stands somewhere in the bytes of one key, value, subscription or assignment."""

    __slots__ = ("_position", "_raw")

    def __init__(self, raw: bytes) -> None:
        """Begin at the first byte."""
        self._raw = raw
        self._position = 0

    @abstractmethod
    def _short(self, text: str) -> ValueError:
        """Return the error of bytes that end too early."""

    def take(self, size_bytes: int) -> bytes:
        """Return so many bytes, and stand behind them."""
        end = self._position + size_bytes
        if size_bytes < 0 or end > len(self._raw):
            raise self._short(f"{size_bytes} bytes wanted at {self._position} of {len(self._raw)}")
        taken = self._raw[self._position : end]
        self._position = end
        return taken

    def i16(self) -> int:
        """Return a signed number of two bytes."""
        return int(_I16.unpack(self.take(2))[0])

    def i32(self) -> int:
        """Return a signed number of four bytes."""
        return int(_I32.unpack(self.take(4))[0])

    def i64(self) -> int:
        """Return a signed number of eight bytes."""
        return int(_I64.unpack(self.take(8))[0])
