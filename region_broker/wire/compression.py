"""The five codecs of record batches, with a bound on what comes out.

INV-WZ1  decompression never yields more than the bytes allowed, nor allocates them before it knows
        (64 MiB of zeros is 2 kB of zstd)
Not here: who decides whether a codec may be used (`handlers.produce`), batches (`wire.batches`).
"""

import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam
import lz4.frame

from region_broker.limits import DECOMPRESSED_BYTES_MAX

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = struct.Struct(">i")


class Codec(IntEnum):
    """The codec numbers in the attributes of a batch (KIP-98, KIP-110)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS: Final[dict[Codec, tuple[int, int, int]]] = {
    Codec.GZIP: (-1, -1, 9),
    Codec.LZ4: (9, 1, 17),
    Codec.ZSTD: (3, -131_072, 22),
}
"""Default, lowest and highest level of each codec that has levels, as Kafka has them (KIP-780).

GzipCompression, Lz4Compression and ZstdCompression of the Java client; gzip's -1 is zlib's own default. The lz4
library ends at 16 and takes 17 as that.
"""


class CompressionError(Exception):
    """The bytes are no valid stream of the codec, or hold more than allowed."""


def compress(codec: Codec, data: bytes, *, level: int | None = None) -> bytes:
    """Return `data` compressed as Kafka clients expect it (snappy in xerial framing).

    `level` is one of `LEVELS`; None is quick, which need not be Kafka's default.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return gzip.compress(data, 9 if level is None else level, mtime=0)
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return bytes(lz4.frame.compress(data, block_linked=False, compression_level=level or 0))
        case Codec.ZSTD:
            return bytes(zstd.compress(data, level=level))


def decompress(codec: Codec, data: bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return what `data` holds; `CompressionError` when it is damaged or holds over `max_bytes`."""
    if codec is Codec.NONE:
        return data
    return _DECOMPRESSORS[codec](data, max_bytes)


def _too_much(max_bytes: int) -> CompressionError:
    return CompressionError(f"the batch holds more than {max_bytes} bytes; send smaller batches")


def _damaged(codec: str, reason: object) -> CompressionError:
    return CompressionError(f"not a valid {codec} stream: {reason}")


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        result = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise _damaged("gzip", error) from error
    if len(result) > max_bytes:
        raise _too_much(max_bytes)
    if not stream.eof:
        raise _damaged("gzip", "it ends too early")
    return result


def _unlz4(data: bytes, max_bytes: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    try:
        result = bytes(stream.decompress(data, max_length=max_bytes + 1))
    except (RuntimeError, EOFError) as error:
        raise _damaged("lz4", error) from error
    if len(result) > max_bytes:
        raise _too_much(max_bytes)
    if not stream.eof:
        raise _damaged("lz4", "it ends too early")
    return result


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while data:  # a stream may be several frames
        stream = zstd.ZstdDecompressor()
        try:
            part = bytes(stream.decompress(data, max_length=max_bytes - size_bytes + 1))
        except zstd.ZstdError as error:
            raise _damaged("zstd", error) from error
        size_bytes += len(part)
        if size_bytes > max_bytes:
            raise _too_much(max_bytes)
        if not stream.eof:
            raise _damaged("zstd", "it ends too early")
        parts.append(part)
        data = stream.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_INT32.pack(len(block)), block]
    return b"".join(parts)


def _unsnappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(XERIAL_MAGIC):
        return _unsnappy_block(data, max_bytes)
    position = len(_XERIAL_HEADER)
    parts: list[bytes] = []
    left_bytes = max_bytes
    while position < len(data):
        if position + 4 > len(data):
            raise _damaged("snappy", "a block length is cut off")
        (size_bytes,) = _INT32.unpack_from(data, position)
        position += 4
        if not 0 < size_bytes <= len(data) - position:
            raise _damaged("snappy", f"a block of {size_bytes} bytes with fewer left")
        part = _unsnappy_block(data[position : position + size_bytes], left_bytes)
        left_bytes -= len(part)
        parts.append(part)
        position += size_bytes
    return b"".join(parts)


def _unsnappy_block(block: bytes, max_bytes: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > max_bytes:
            raise _too_much(max_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _damaged("snappy", error) from error


_DECOMPRESSORS: Final[dict[Codec, Callable[[bytes, int], bytes]]] = {
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
