"""What waits to be sealed: so much a turn, only while it is taken, in order."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop

from region_broker.ports.network import WRITE_HIGH_WATER_BYTES, Buffer, ByteStream
from region_broker.ports.system.network import AsyncioNetwork, SecuredStream
from region_broker.ports.system.sealing_turns import PIECE_BYTES, TURN_BYTES, SealingTurns
from region_broker.security.tls import ClientTls, ServerTls
from tests.fixtures.certificates import node_certificate, put
from tests.fixtures.waiting import until

LARGE = bytes(range(256)) * (10 * TURN_BYTES // 256) + b"end"
MANY = 40 * WRITE_HIGH_WATER_BYTES
"""More than two sockets of loopback take that nobody reads from."""


class Written:
    """Takes what is sealed; pauses whoever seals once it holds `pause_at_bytes`."""

    def __init__(self, pause_at_bytes: int = 1 << 40) -> None:
        self.data = bytearray()
        self.sealed_count = 0
        self.pause_at_bytes = pause_at_bytes
        self.turns = SealingTurns(self._take, self._sealed)

    async def all_sealed(self) -> None:
        """Return once nothing waits; it goes on by itself."""
        await until(lambda: not self.turns.waits)

    def _take(self, piece: Buffer) -> None:
        self.data += piece
        if len(self.data) >= self.pause_at_bytes:
            self.turns.pause()

    def _sealed(self) -> None:
        self.sealed_count += 1


async def test_INV_SLT1_a_large_answer_goes_in_turns_with_others_in_between() -> None:
    written = Written()
    written.turns.add([LARGE])
    assert len(written.data) == TURN_BYTES
    assert written.turns.waits
    assert not written.turns.has_room
    for turn in range(2, 11):
        assert not written.sealed_count
        await asyncio.sleep(0)
        assert len(written.data) == turn * TURN_BYTES
    await asyncio.sleep(0)
    assert bytes(written.data) == LARGE
    assert written.sealed_count == 1
    assert written.turns.has_room


async def test_INV_SLT1_who_writes_more_meanwhile_gets_no_turn_before_it_is_due() -> None:
    written = Written()
    written.turns.add([LARGE])
    written.turns.add([b"more"])
    written.turns.pause()
    written.turns.resume()
    assert len(written.data) == TURN_BYTES
    await written.all_sealed()
    assert bytes(written.data) == LARGE + b"more"


async def test_INV_SLT2_what_is_not_taken_is_not_sealed_and_goes_on_in_order() -> None:
    written = Written(pause_at_bytes=PIECE_BYTES)
    written.turns.add([LARGE])
    assert len(written.data) == PIECE_BYTES
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(written.data) == PIECE_BYTES
    written.turns.add([b"more"])
    assert len(written.data) == PIECE_BYTES
    written.pause_at_bytes = 1 << 40
    written.turns.resume()
    await written.all_sealed()
    assert bytes(written.data) == LARGE + b"more"
    written.turns.add([b"last"])
    assert written.data.endswith(b"morelast")


async def test_what_is_dropped_is_not_sealed_in_the_turn_that_was_due() -> None:
    written = Written()
    written.turns.add([LARGE])
    written.turns.drop()
    await asyncio.sleep(0)
    assert len(written.data) == TURN_BYTES
    assert not written.turns.waits


def on_both_loops(test: Callable[[Path], Awaitable[None]]) -> Callable[..., None]:
    def run(tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        complaints: list[object] = []
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.get_loop().set_exception_handler(lambda _loop, found: complaints.append(found))
            runner.run(test(tmp_path))  # type: ignore[arg-type]
        assert not complaints

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("new_loop", loops, ids=["asyncio", "uvloop"])(run)


class Served:
    """A listener of TLS that writes `MANY` bytes to whoever comes, and what became of it."""

    def __init__(self, *, closes: bool) -> None:
        self.stream: ByteStream | None = None
        self.goes_on = asyncio.Event()
        self.drained = asyncio.Event()
        self._closes = closes

    async def serve(self, stream: ByteStream) -> None:
        self.stream = stream
        stream.write(bytes(MANY - 4), b"last")
        if self._closes:
            stream.close()
            stream.write(b"behind the close")
            self.drained.set()
        else:
            await stream.drain()
            self.drained.set()
            await self.goes_on.wait()
        await stream.wait_closed()

    async def client(self, folder: Path) -> ByteStream:
        """Listen, and return the stream of a client."""
        network = AsyncioNetwork()
        server = ServerTls(put(folder / "s", node_certificate()))
        listener = await network.listen("127.0.0.1", 0, self.serve, tls=server)
        stream = await network.connect("127.0.0.1", listener.port, tls=ClientTls(put(folder / "c", None)))  # fmt: skip
        await until(lambda: self.stream is not None)
        listener.close()
        return stream


async def all_of(stream: ByteStream) -> bytes:
    data = bytearray()
    while chunk := await stream.read(1 << 20):
        data += chunk
    return bytes(data)


@on_both_loops
async def test_INV_SLT2_of_what_nobody_reads_little_is_sealed_and_who_waits_for_room_waits(
    folder: Path,
) -> None:
    served = Served(closes=False)
    client = await served.client(folder)
    stream = served.stream
    assert isinstance(stream, SecuredStream)
    assert not stream.has_room
    transport = stream._transport
    sealing = stream._sealing
    assert transport is not None
    assert sealing is not None
    await until(lambda: sealing._is_paused)
    assert sealing.waits
    assert transport.get_write_buffer_size() <= 2 * WRITE_HIGH_WATER_BYTES
    assert not served.drained.is_set()

    async def end() -> None:
        await served.drained.wait()
        assert stream.has_room
        assert not sealing.waits
        served.goes_on.set()
        stream.close()

    async with asyncio.TaskGroup() as group:
        group.create_task(end())
        data = await all_of(client)
    assert len(data) == MANY
    assert data.endswith(b"last")
    client.close()
    await client.wait_closed()


@on_both_loops
async def test_what_was_written_before_a_close_arrives_and_what_is_written_behind_it_does_not(
    folder: Path,
) -> None:
    served = Served(closes=True)
    client = await served.client(folder)
    data = await all_of(client)
    assert len(data) == MANY
    assert data.endswith(b"last")
    client.close()
    await client.wait_closed()


@on_both_loops
async def test_who_takes_nothing_keeps_no_closed_connection_open(folder: Path) -> None:
    served = Served(closes=True)
    client = await served.client(folder)
    await served.drained.wait()
    assert served.stream is not None
    await served.stream.wait_closed()
    client.abort()
    await client.wait_closed()


@on_both_loops
async def test_an_abort_drops_what_is_not_sealed(folder: Path) -> None:
    served = Served(closes=False)
    client = await served.client(folder)
    assert served.stream is not None
    served.stream.abort()
    await served.stream.wait_closed()
    with suppress(OSError):
        assert len(await all_of(client)) < MANY
    client.abort()
    served.goes_on.set()
    await client.wait_closed()
