"""The five codecs of record batches, with a bound on what comes out.

Decompression never yields more than the bytes allowed, nor allocates them before it knows (64 MiB of zeros is 2 kB of
zstd). Decompression yields all that a stream holds, or fails: gzip members (RFC 1952), frames of lz4 and zstd, and
xerial's streams may follow each other, and nothing else may follow them.
Not here: who decides whether a codec may be used (`handlers.produce.produce`), batches (`records.batches`).
"""

import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol, TypeVar

import cramjam
import lz4.frame

from region_broker.limits import DECOMPRESSED_BYTES_MAX, ZSTD_WINDOW_BYTES_MAX

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = struct.Struct(">i")
_PIECE_BYTES: Final = 32 * 1024
_ZSTD_LEVEL_OF_WINDOW: Final = 19  # the highest with a window of ZSTD_WINDOW_BYTES_MAX
S = TypeVar("S", bound="_Stream")


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
            return _compress_zstd(data, level)


def _compress_zstd(data: bytes, level: int | None) -> bytes:
    """Return a frame of a window that any decoder takes (RFC 8878, 3.1.1.1.2); it has no larger one but by the highest levels."""
    if len(data) <= ZSTD_WINDOW_BYTES_MAX or level is None or level <= _ZSTD_LEVEL_OF_WINDOW:
        return bytes(zstd.compress(data, level=level))
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        parameter.compression_level: level,
        parameter.window_log: ZSTD_WINDOW_BYTES_MAX.bit_length() - 1,
    }
    return bytes(zstd.compress(data, options=options))


def decompress(codec: Codec, data: bytes, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Return what `data` holds; `CompressionError` when it is damaged or holds over `max_bytes`."""
    if codec is Codec.NONE:
        return data
    return _DECOMPRESSORS[codec](data, max_bytes)


def _too_much(max_bytes: int) -> CompressionError:
    return CompressionError(f"the batch holds more than {max_bytes} bytes; send smaller batches")


def _damaged(codec: str, reason: object) -> CompressionError:
    return CompressionError(f"not a valid {codec} stream: {reason}")


class _Stream(Protocol):
    """One member or frame of a codec. It takes all that it is given, or has nothing left to yield."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None:
        """What follows its end in what it was given last."""
        ...


def _unframed(
    codec: str,
    frames: tuple[Callable[[], S], Callable[[S, bytes, int], bytes]],
    data: bytes,
    max_bytes: int,
) -> bytes:
    """Return what all frames of `data` hold; `frames` makes one, and feeds it (bytes, most to yield, never 0)."""
    begun, fed = frames
    parts: list[bytes] = []
    position, left_bytes = 0, max_bytes
    while position < len(data):
        stream = begun()
        while not stream.eof:
            # In pieces: what a frame leaves unused is copied, and a batch may be a hundred thousand empty frames.
            piece = data[position : position + _PIECE_BYTES]
            if not piece:
                raise _damaged(codec, "it ends too early")
            part = fed(stream, piece, left_bytes + 1)
            left_bytes -= len(part)
            if left_bytes < 0:
                raise _too_much(max_bytes)
            parts.append(part)
            position += len(piece) - len(stream.unused_data or b"")
    if not parts:
        raise _damaged(codec, "it is empty")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    def fed(stream: "zlib._Decompress", piece: bytes, most_bytes: int) -> bytes:
        try:
            return stream.decompress(piece, most_bytes)
        except zlib.error as error:
            raise _damaged("gzip", error) from error

    return _unframed("gzip", (lambda: zlib.decompressobj(wbits=31), fed), data, max_bytes)


def _unlz4(data: bytes, max_bytes: int) -> bytes:
    def fed(stream: lz4.frame.LZ4FrameDecompressor, piece: bytes, most_bytes: int) -> bytes:
        try:
            return bytes(stream.decompress(piece, max_length=most_bytes))
        except (RuntimeError, EOFError) as error:
            raise _damaged("lz4", error) from error

    return _unframed("lz4", (lz4.frame.LZ4FrameDecompressor, fed), data, max_bytes)


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    def fed(stream: zstd.ZstdDecompressor, piece: bytes, most_bytes: int) -> bytes:
        try:
            return bytes(stream.decompress(piece, max_length=most_bytes))
        except zstd.ZstdError as error:
            raise _damaged("zstd", error) from error

    return _unframed("zstd", (zstd.ZstdDecompressor, fed), data, max_bytes)


def _compress_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += [_INT32.pack(len(block)), block]
    return b"".join(parts)


def _unsnappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(XERIAL_MAGIC):
        return _unsnappy_block(data, max_bytes)
    position = 0
    parts: list[bytes] = []
    left_bytes = max_bytes
    while position < len(data):
        if data.startswith(
            XERIAL_MAGIC, position
        ):  # another stream follows (SnappyInputStream reads on, too)
            position += len(_XERIAL_HEADER)
            continue
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
    if position > len(data):
        raise _damaged("snappy", "its header is cut off")
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
