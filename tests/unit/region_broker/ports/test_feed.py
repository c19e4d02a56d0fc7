"""`AsyncioStream.feed`: chunks go to whoever takes them in the step in which they come."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from region_broker.ports.system.network import AsyncioStream


async def feeding(stream: AsyncioStream, taken: list[bytes], until: bytes) -> asyncio.Task[bool]:
    """Return a task that takes chunks up to and with `until`, once it waits."""

    def take(chunk: bytes) -> bool:
        taken.append(chunk)
        return chunk != until

    task = asyncio.get_running_loop().create_task(stream.feed(take))
    await asyncio.sleep(0)
    return task


async def test_a_chunk_is_taken_in_the_step_in_which_it_comes() -> None:
    stream, taken = AsyncioStream(), list[bytes]()
    task = await feeding(stream, taken, b"end")
    stream.data_received(b"one")
    stream.data_received(b"two")
    assert taken == [b"one", b"two"]
    assert not task.done()
    stream.data_received(b"end")
    stream.data_received(b"later")
    assert await task
    assert taken == [b"one", b"two", b"end"]
    assert stream.unread_bytes == 5
    assert await stream.read(99) == b"later"


async def test_what_came_before_is_taken_first() -> None:
    stream, taken = AsyncioStream(), list[bytes]()
    stream.data_received(b"one")
    stream.data_received(b"two")
    task = await feeding(stream, taken, b"end")
    stream.data_received(b"end")
    assert await task
    assert taken == [b"onetwo", b"end"]  # INV-PN9
    assert stream.unread_bytes == 0


async def test_the_end_of_the_peer_ends_it_and_a_break_raises() -> None:
    stream, taken = AsyncioStream(), list[bytes]()
    task = await feeding(stream, taken, b"end")
    stream.data_received(b"one")
    stream.eof_received()
    assert not await task
    broken = AsyncioStream()
    task = await feeding(broken, taken, b"end")
    broken.connection_lost(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError, match="gone"):
        await task


async def test_what_the_candidate_raises_reaches_whoever_feeds_it_and_nothing_else_is_taken() -> (
    None
):
    stream = AsyncioStream()
    taken: list[bytes] = []

    def choke(chunk: bytes) -> bool:
        taken.append(chunk)
        raise ValueError(chunk.decode())

    task = asyncio.get_running_loop().create_task(stream.feed(choke))
    await asyncio.sleep(0)
    stream.data_received(b"one")
    stream.data_received(b"two")
    with pytest.raises(ValueError, match="one"):
        await task
    assert taken == [b"one"]
    assert await stream.read(99) == b"two"


async def test_after_a_cancelled_feed_chunks_are_queued_again() -> None:
    stream, taken = AsyncioStream(), list[bytes]()
    task = await feeding(stream, taken, b"end")
    task.cancel()
    await asyncio.wait((task,))
    stream.data_received(b"one")
    assert taken == []
    assert await stream.read(99) == b"one"


async def _broken_in_the_consumer(stream: AsyncioStream) -> None:
    def choke(_chunk: bytes) -> bool:
        raise ValueError("no frame")

    loop = asyncio.get_running_loop()
    task = loop.create_task(stream.feed(choke))
    await asyncio.sleep(0)
    # Neither called nor awaited here: the error would hold this frame, and this the error.
    loop.call_soon(stream.data_received, b"one")
    await asyncio.wait((task,))
    assert isinstance(task.exception(), ValueError)


async def _broken_before_a_drain(stream: AsyncioStream) -> None:
    stream.connection_lost(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError, match="gone"):
        await stream.drain()


async def _broken_within_a_drain(stream: AsyncioStream) -> None:
    stream.pause_writing()
    task = asyncio.get_running_loop().create_task(stream.drain())
    await asyncio.sleep(0)
    stream.connection_lost(ConnectionResetError("gone"))
    await asyncio.wait((task,))
    assert isinstance(task.exception(), ConnectionResetError)


async def _broken_before_a_read(stream: AsyncioStream) -> None:
    stream.connection_lost(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError, match="gone"):
        await stream.read(1)


@pytest.mark.parametrize(
    "broken",
    [
        _broken_in_the_consumer,
        _broken_before_a_drain,
        _broken_within_a_drain,
        _broken_before_a_read,
    ],
)
async def test_INV_PN7_what_broke_is_freed_without_the_cycle_collector(
    broken: Callable[[AsyncioStream], Awaitable[None]],
) -> None:
    """An error that is kept where it was raised holds its frames, and they hold the stream, with all that came by it."""
    stream = AsyncioStream()
    kept = weakref.ref(stream)
    gc.collect()
    gc.disable()
    try:
        await broken(stream)
        del stream
        await asyncio.sleep(0)
        assert kept() is None
    finally:
        gc.enable()
