"""Single values, arrays and nullable structs as bytes of an answer, as a kind of field wants them.

A writer appends to the answer and looks at nothing else. Durations are ms, timestamps ms since the epoch (-1: none).
INV-WVW1  a text that is longer than a string of an old version can be is cut: reasons name what was asked for, which may be as long
Not here: which fields a struct has, and what stands for those that nobody gave (`wire.codec.struct_writers`).
"""

import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from region_broker.limits import REQUEST_STRING_BYTES_MAX
from region_broker.wire.codec.bounded import write_uvarint

Writer: TypeAlias = Callable[[bytearray, Any], None]
_NIL_UUID: Final = bytes(16)
_I64: Final = struct.Struct(">q")
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")
_INTEGERS: Final = {
    "int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q", "uint8": ">B", "uint16": ">H",
    "uint32": ">I", "uint64": ">Q", "float64": ">d", "error_code": ">h",
}  # fmt: skip


def value_writer(kind: str, *, flexible: bool) -> Writer:
    """Return the writer of one value of a kind of kio's (`int32`, `string`, ...)."""
    if kind in _INTEGERS:
        return _packer(struct.Struct(_INTEGERS[kind]))
    match kind:
        case "bool":
            return _write_bool
        case "uuid":
            return _write_uuid
        case "timedelta_i32":
            return _duration_writer(struct.Struct(">i"))
        case "timedelta_i64":
            return _duration_writer(struct.Struct(">q"))
        case "datetime_i64":
            return _write_timestamp
        case "string" if flexible:
            return _write_compact_string
        case "string":
            return _write_legacy_string
        case _:
            assert kind in ("bytes", "records"), kind
            return _write_compact_bytes if flexible else _write_legacy_bytes


def _packer(layout: struct.Struct) -> Writer:
    pack = layout.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _duration_writer(layout: struct.Struct) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        if isinstance(value, timedelta):
            value = round(value.total_seconds() * 1000)
        out += layout.pack(value)

    return write


def _write_timestamp(out: bytearray, value: Any) -> None:
    if value is None:
        value = -1
    elif isinstance(value, datetime):
        value = round(value.timestamp() * 1000)
    out += _I64.pack(value)


def _write_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _write_uuid(out: bytearray, value: Any) -> None:
    assert value is None or isinstance(value, UUID), value
    out += _NIL_UUID if value is None else value.bytes


def _write_compact_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out.append(0)
        return
    size_bytes = len(value) + 1
    if size_bytes < 0x80:
        out.append(size_bytes)
    else:
        out += write_uvarint(size_bytes)
    out += value


def _write_compact_string(out: bytearray, value: Any) -> None:
    _write_compact_bytes(out, None if value is None else value.encode())


def _write_legacy_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out += _I32.pack(-1)
    else:
        out += _I32.pack(len(value))
        out += value


def _write_legacy_string(out: bytearray, value: Any) -> None:
    if value is None:
        out += _I16.pack(-1)
        return
    encoded = value.encode()
    if len(encoded) > REQUEST_STRING_BYTES_MAX:  # INV-WVW1
        encoded = encoded[:REQUEST_STRING_BYTES_MAX].decode(errors="ignore").encode()
    out += _I16.pack(len(encoded))
    out += encoded


def array_writer(element: Writer, *, flexible: bool) -> Writer:
    """Return the writer of an array (None: null) whose elements are written by `element`."""
    pack, plus = count_format(flexible=flexible)

    def write_array(out: bytearray, values: Any) -> None:
        if values is None:
            out += pack(plus - 1)
            return
        out += pack(len(values) + plus)
        for value in values:
            element(out, value)

    return write_array


def count_format(*, flexible: bool) -> tuple[Callable[[int], bytes], int]:
    """Return how the count of an array is written, and what is added to it first (null counts -1)."""
    return (write_uvarint, 1) if flexible else (_I32.pack, 0)


def nullable_struct_writer(write: Writer) -> Writer:
    """Return the writer of a struct, written by `write`, that may be null."""

    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(out, value)

    return write_nullable
