"""Who sends a byte at a time has no more memory than who sends them at once (INV-CHQ1, INV-PN9); what is taken is what came."""

import asyncio
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import Mock

import pytest

from region_broker.limits import OTHER_REQUEST_BYTES_MAX, REQUEST_BYTES_MAX, SOCKET_READ_BYTES
from region_broker.ports.network import READ_AHEAD_BYTES
from region_broker.ports.system.network import AsyncioStream
from region_broker.region.peers import protocol as peers
from region_broker.wire import framing
from region_broker.wire.chunks import SMALL_BYTES, VIEWED_BYTES_MIN, ChunkQueue
from region_broker.wire.framing import GATHERED_BYTES_MIN, FrameReader, FramingError

_COUNT = 20_000


@contextmanager
def taking_at_most(kilobytes: int) -> Iterator[None]:
    """Check how much memory is kept of what is done meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[0] < kilobytes * 1_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size_bytes", [1, 100, SMALL_BYTES - 1])
def test_INV_CHQ1_a_request_that_trickles_in_takes_what_it_has(size_bytes: int) -> None:
    count = _COUNT // size_bytes + 1
    reader = FrameReader()
    reader.feed((count * size_bytes + 1).to_bytes(4))
    with taking_at_most(60):
        for number in range(count):
            reader.feed(bytes([number % 251]) * size_bytes)
            assert reader.next_frame() is None
    assert reader.held_bytes == count * size_bytes
    reader.feed(b"!")
    whole = b"".join(bytes([number % 251]) * size_bytes for number in range(count)) + b"!"
    assert bytes(reader.next_frame() or b"") == whole


def test_INV_CHQ1_so_does_a_frame_between_nodes() -> None:
    reader = peers.FrameReader(1 << 20)
    with taking_at_most(60):
        assert list(reader.feed((_COUNT + 1).to_bytes(4))) == []
        for _ in range(_COUNT):
            assert list(reader.feed(b"\1")) == []


async def test_INV_PN9_so_does_what_nobody_asked_for_yet() -> None:
    stream = AsyncioStream()
    transport = Mock(get_extra_info=lambda _name: None)
    stream.connection_made(transport)
    with taking_at_most(60):
        for number in range(_COUNT):
            stream.data_received(bytes([number % 251]))
    assert stream.unread_bytes == _COUNT
    came = b""
    while len(came) < _COUNT:
        came += await asyncio.wait_for(stream.read(READ_AHEAD_BYTES), 1)
    assert came == bytes(number % 251 for number in range(_COUNT))


@pytest.mark.parametrize("gathered_min", [GATHERED_BYTES_MIN, 500])
def test_pieces_of_any_size_come_out_as_they_came(
    monkeypatch: pytest.MonkeyPatch, gathered_min: int
) -> None:
    monkeypatch.setattr(framing, "GATHERED_BYTES_MIN", gathered_min)
    chance = random.Random(3)
    frames = [chance.randbytes(chance.choice([1, 20, SMALL_BYTES, 5_000])) for _ in range(200)]
    stream = b"".join(len(frame).to_bytes(4) + frame for frame in frames)
    reader, found, at = FrameReader(), list[bytes](), 0
    while at < len(stream):
        size = chance.choice([1, 3, 700, SMALL_BYTES - 1, SMALL_BYTES, 3_000])
        reader.feed(stream[at : at + size])
        at += size
        while (frame := reader.next_frame()) is not None:
            found.append(bytes(frame))
    assert found == frames


def test_INV_WFR2_a_large_frame_is_put_together_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To join 100 MB in the step in which the last of them came held the loop for 80 ms."""
    large_bytes = 1 << 20
    monkeypatch.setattr(framing, "GATHERED_BYTES_MIN", large_bytes)
    taken, take = list[int](), ChunkQueue._take

    def counted(queue: ChunkQueue, count: int) -> memoryview:
        taken.append(count)
        return take(queue, count)

    monkeypatch.setattr(ChunkQueue, "_take", counted)
    frame = b"\0\0" + random.Random(3).randbytes(3 * large_bytes)
    stream, reader, found = len(frame).to_bytes(4) + frame + framed(20), FrameReader(), list[Any]()
    for at in range(0, len(stream), SOCKET_READ_BYTES):
        reader.feed(stream[at : at + SOCKET_READ_BYTES])
        found.append(reader.next_frame())
        held_bytes = min(len(stream), at + SOCKET_READ_BYTES) - 4
        assert reader.held_bytes == held_bytes - (0 if found[-1] is None else len(frame))
    assert found[:-1] == [None] * (len(found) - 1)
    assert bytes(found[-1]) == frame
    assert found[-1].readonly
    assert bytes(reader.next_frame() or b"") == bytes(20)
    assert max(taken) <= SOCKET_READ_BYTES
    assert not reader.mid_frame


def test_INV_WFR2_who_announces_much_and_sends_little_has_little() -> None:
    with taking_at_most(60):
        reader = FrameReader()
        reader.feed(REQUEST_BYTES_MAX.to_bytes(4) + b"\0\0\0\1")
        assert reader.next_frame() is None
        reader.feed(b"x" * 1_000)
        assert reader.next_frame() is None
        assert reader.held_bytes == 1_004


@pytest.mark.parametrize("api_key", [1, 8, 11, 14, 36, 72])
def test_INV_WFR1_only_a_produce_is_very_large(api_key: int) -> None:
    """A JoinGroup of 95 MB was copied out for 0.1 s in one step, to be refused."""
    for size_bytes in (OTHER_REQUEST_BYTES_MAX, OTHER_REQUEST_BYTES_MAX + 1):
        for key in (api_key, 0):
            reader = FrameReader()
            reader.feed(size_bytes.to_bytes(4))
            assert reader.next_frame() is None
            reader.feed(key.to_bytes(2)[:1])
            assert reader.next_frame() is None
            reader.feed(key.to_bytes(2)[1:])
            if key and size_bytes > OTHER_REQUEST_BYTES_MAX:
                with pytest.raises(FramingError, match=f"API {key}, allowed are 16777216"):
                    reader.next_frame()
            else:
                assert reader.next_frame() is None
                assert reader.missing_bytes == size_bytes - 2


_LARGE = bytes(range(256)) * 512


@pytest.mark.parametrize("around", [b"s", b"s" * (SMALL_BYTES - 1)], ids=len)
def test_what_is_large_is_not_copied_for_what_is_small_before_and_behind_it(around: bytes) -> None:
    """Else each byte that trickles in behind a megabyte would copy that."""
    queue = ChunkQueue()
    for chunk in (around, _LARGE, around, around):
        queue._add(chunk)
    assert queue._take(len(around)) == around
    taken = queue._take(len(_LARGE))
    assert taken == _LARGE
    assert taken.obj is _LARGE
    assert queue._take(2 * len(around)) == 2 * around


def framed(*sizes_bytes: int) -> bytes:
    """Return frames of these sizes as they come in one chunk."""
    return b"".join(size_bytes.to_bytes(4) + bytes(size_bytes) for size_bytes in sizes_bytes)


def kept_bytes(part: memoryview | None) -> int:
    """Return how many bytes of memory somebody keeps who keeps `part`."""
    assert part is not None
    return len(cast("bytes", part.obj))


@pytest.mark.parametrize("large_bytes", [65_000, 250_000])
def test_INV_CHQ2_a_small_frame_keeps_no_large_chunk(large_bytes: int) -> None:
    """A thousand connections with 31 frames of 50 bytes each behind a large one kept 8 GB, which nobody counted."""
    reader = FrameReader()
    reader.feed(framed(large_bytes, 50) + b"\0")
    large, small = reader.next_frame(), reader.next_frame()
    assert kept_bytes(large) == large_bytes + 4 + 50 + 4 + 1, "as it came"
    assert kept_bytes(small) <= 2 * (4 + 50) + 1
    assert reader.next_frame() is None
    assert [kept_bytes(each) for each in reader._chunks] == [1]


@pytest.mark.parametrize("front_bytes", [1, 2, 3])
def test_INV_CHQ2_nor_does_one_whose_length_came_before_it_or_whose_end_did_behind_it(
    front_bytes: int,
) -> None:
    reader, whole = FrameReader(), framed(50, 200_000)
    reader.feed(whole[:front_bytes])
    assert reader.next_frame() is None
    reader.feed(whole[front_bytes:-100])
    assert kept_bytes(reader.next_frame()) == 50
    assert reader.next_frame() is None
    reader.feed(whole[-100:] + framed(200_000))
    assert kept_bytes(reader.next_frame()) == 200_000
    assert kept_bytes(reader.next_frame()) == 200_104, (
        "half of what came is looked at where it lies"
    )


@pytest.mark.parametrize("size_bytes", [20, 1_000, VIEWED_BYTES_MIN, 100_000])
def test_INV_CHQ2_a_frame_that_is_half_of_what_came_or_large_is_not_copied(size_bytes: int) -> None:
    chunk, reader = framed(size_bytes, size_bytes), FrameReader()
    reader.feed(chunk)
    for _ in range(2):
        frame = reader.next_frame()
        assert frame is not None
        assert frame.obj is chunk


async def test_INV_PN9_nor_is_what_nobody_asked_for_yet() -> None:
    stream = AsyncioStream()
    for chunk in (b"s", _LARGE, b"s", b"s"):
        stream.data_received(chunk)
    assert await stream.read(READ_AHEAD_BYTES) == b"s"
    assert await stream.read(READ_AHEAD_BYTES) is _LARGE
    assert await stream.read(READ_AHEAD_BYTES) == b"ss"
