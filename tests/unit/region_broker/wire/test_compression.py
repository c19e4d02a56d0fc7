"""Bounds of the decompressors: 64 MiB of zeros in 2 kB must not be unpacked."""

import pytest

from region_broker.wire.compression import Codec, CompressionError, compress, decompress

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
CAP_BYTES = 1 << 20


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_is_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(8 * CAP_BYTES))
    with pytest.raises(CompressionError, match="more than"):
        decompress(codec, bomb, max_bytes=CAP_BYTES)


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


def test_several_zstd_frames_are_one_stream() -> None:
    data = compress(Codec.ZSTD, b"one") + compress(Codec.ZSTD, b"two")
    assert decompress(Codec.ZSTD, data) == b"onetwo"
