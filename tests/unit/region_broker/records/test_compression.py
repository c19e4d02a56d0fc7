"""Bounds of the decompressors: 64 MiB of zeros in 2 kB must not be unpacked."""

import sys

import pytest

from region_broker.records.compression import Codec, CompressionError, compress, decompress

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
CAP_BYTES = 1 << 20


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_is_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(8 * CAP_BYTES))
    with pytest.raises(CompressionError, match="more than"):
        decompress(codec, bomb, max_bytes=CAP_BYTES)


@pytest.mark.parametrize("level", [None, 19, 20, 22])
@pytest.mark.parametrize("size_bytes", [100, 9 << 20])
def test_RFC8878_no_frame_has_a_window_above_8_MiB(level: int | None, size_bytes: int) -> None:
    """ "It is recommended for decoders to support a Window_Size of up to 8 MB", and for encoders to ask for no more: it is also
    what their memory goes by, 0.6 GiB at zstd's highest level.
    """
    data = bytes(size_bytes)
    packed = compress(Codec.ZSTD, data, level=level)
    most: dict[int, int] = {zstd.DecompressionParameter.window_log_max: 23}
    assert zstd.ZstdDecompressor(options=most).decompress(packed) == data


@pytest.mark.parametrize("codec", CODECS)
def test_exactly_the_cap_is_allowed(codec: Codec) -> None:
    data = bytes(CAP_BYTES)
    assert decompress(codec, compress(codec, data), max_bytes=CAP_BYTES) == data


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_stream_is_refused(codec: Codec) -> None:
    data = compress(codec, bytes(range(256)) * 500)
    with pytest.raises(CompressionError):
        decompress(codec, data[: len(data) // 2])


def test_raw_snappy_without_xerial_framing_is_read() -> None:
    # The snappy format description's own example: a literal of 5 bytes, "hello".
    assert decompress(Codec.SNAPPY, b"\x05\x10hello") == b"hello"


def test_snappy_that_claims_4_gib_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(CompressionError):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f\x10hello")


@pytest.mark.parametrize("codec", CODECS)
def test_streams_one_after_the_other_are_read_to_their_end(codec: Codec) -> None:
    """RFC 1952 section 2.2, the frame formats of lz4 and zstd, and SnappyInputStream's concatenated data."""
    parts = [b"one", b"", bytes(range(256)) * 500, b"last"]
    data = b"".join(compress(codec, part) for part in parts)
    whole = b"".join(parts)
    assert decompress(codec, data, max_bytes=len(whole)) == whole
    with pytest.raises(CompressionError, match="more than"):
        decompress(codec, data, max_bytes=len(whole) - 1)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rest", [b"\x00", b"more", bytes(40_000)])
def test_what_is_no_stream_behind_one_is_refused(codec: Codec, rest: bytes) -> None:
    with pytest.raises(CompressionError):
        decompress(codec, compress(codec, b"one") + rest)


@pytest.mark.parametrize("codec", CODECS)
def test_a_second_stream_that_is_cut_off_is_refused(codec: Codec) -> None:
    data = compress(codec, b"one") + compress(codec, bytes(range(256)))[:-3]
    with pytest.raises(CompressionError):
        decompress(codec, data)
