"""Bounds of the decompressors: 64 MiB of zeros in 2 kB must not be unpacked."""

import pytest

from region_broker.records.compression import Codec, CompressionError, compress, decompress

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
