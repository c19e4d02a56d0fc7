"""Reading and writing the flexible-version encoding (KIP-482) that ledger records use.

INV-Y1  A reader never reads past its data and never allocates by a count that the data cannot hold.

Not here: which fields a record has (`ledger_records`).
"""

from typing import Final

_VARUINT_BYTES_MAX: Final = 5


class LedgerError(ValueError):
    """A ledger record that cannot be read: loading must stop, not go on without it (C22)."""


class Writer:
    """Appends fields to one record."""

    __slots__ = ("_out",)

    def __init__(self) -> None:
        """Start empty."""
        self._out = bytearray()

    def varuint(self, value: int) -> None:
        """Append an unsigned variable-length number."""
        assert 0 <= value < 1 << 32, value
        while value > 0x7F:
            self._out.append(value & 0x7F | 0x80)
            value >>= 7
        self._out.append(value)

    def content(self) -> bytes:
        """Return the record."""
        return bytes(self._out)


class Reader:
    """Takes fields from the front of one record; every method raises LedgerError at its end."""

    __slots__ = ("_data", "_pos")

    def __init__(self, data: bytes) -> None:
        """Start at the first byte."""
        self._data = bytes(data)
        self._pos = 0

    def int8(self) -> int:
        """Take a signed byte."""
        return self._number(1)

    def int16(self) -> int:
        """Take a signed 16-bit number."""
        return self._number(2)

    def int32(self) -> int:
        """Take a signed 32-bit number."""
        return self._number(4)

    def int64(self) -> int:
        """Take a signed 64-bit number."""
        return self._number(8)

    def varuint(self) -> int:
        """Take an unsigned variable-length number of 32 bits."""
        value = 0
        for index in range(_VARUINT_BYTES_MAX):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise LedgerError(f"variable-length number of more than {_VARUINT_BYTES_MAX} bytes")

    def raw(self, length: int) -> bytes:
        """Take `length` bytes."""
        end = self._pos + length
        if length < 0 or end > len(self._data):
            raise LedgerError(
                f"ledger record ends at {len(self._data)}, a field of {length} bytes "
                f"starts at {self._pos}"
            )
        taken = self._data[self._pos : end]
        self._pos = end
        return taken

    def text(self, length: int) -> str:
        """Take `length` bytes of UTF-8."""
        try:
            return self.raw(length).decode()
        except UnicodeDecodeError as error:
            raise LedgerError(f"ledger text is not UTF-8: {error}") from error

    def count(self, *, flexible: bool) -> int:
        """Take an array length; null counts as empty."""
        number = self.varuint() - 1 if flexible else self.int32()
        if number > len(self._data) - self._pos:
            raise LedgerError(f"array of {number} items in {len(self._data) - self._pos} bytes")
        return max(number, 0)

    def tagged_fields(self) -> dict[int, bytes]:
        """Take all tagged fields, known or not."""
        fields: dict[int, bytes] = {}
        for _ in range(self.varuint()):
            tag = self.varuint()
            fields[tag] = self.raw(self.varuint())
        return fields

    def expect_end(self) -> None:
        """Refuse bytes behind the last field."""
        if self._pos != len(self._data):
            raise LedgerError(f"ledger record has {len(self._data) - self._pos} bytes too many")

    def _number(self, width: int) -> int:
        return int.from_bytes(self.raw(width), "big", signed=True)
