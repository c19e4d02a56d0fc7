"""What one connection to the HTTP port may hold, and for how long: heads, requests sent ahead, answers that nobody takes."""

import asyncio
import gc
import io
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from aiohttp import ClientConnectionError, ClientSession, web

from region_broker.http_api import first_bytes
from region_broker.http_api.app import HttpLimits, HttpServer, bounded
from region_broker.limits import KIB, MIB
from region_broker.security.tls import ServerTls
from tests.fixtures.certificates import node_certificate, put
from tests.fixtures.waiting import until

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


async def _pong(_request: web.Request) -> web.Response:
    return web.Response(text="pong")


async def _much(_request: web.Request) -> web.Response:
    return web.Response(body=bytes(16 * MIB))


async def _echo(request: web.Request) -> web.Response:
    return web.Response(body=await request.read())


class Gate:
    """A route that answers once it is opened, and counts who waits."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.asked = 0

    async def wait(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.opened.wait()
        return web.Response(text=request.query["n"])


@asynccontextmanager
async def served(
    limits: HttpLimits, *, gate: Gate | None = None, tls: ServerTls | None = None
) -> AsyncIterator[int]:
    app = bounded(limits)
    app.router.add_get("/ping", _pong)
    app.router.add_get("/much", _much)
    app.router.add_post("/echo", _echo)
    if gate is not None:
        app.router.add_get("/gate", gate.wait)
    server = HttpServer(app, limits, tls=tls)
    _host, port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.stop()


async def status_or_none(url: str, context: ssl.SSLContext | None) -> int | None:
    try:
        async with ClientSession() as session, session.get(url, ssl=context or True) as answer:
            return answer.status
    except ClientConnectionError:
        return None


@pytest.mark.parametrize("secured", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("new_loop", LOOPS)
def test_INV_HFB5_who_takes_no_answer_holds_no_place_for_good(
    tmp_path: Path, new_loop: LoopFactory, secured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an address at its bound none gives way (INV-HFB3): its places were taken for good by who asked and read nothing."""
    monkeypatch.setattr(first_bytes, "OF_AN_ADDRESS_MAX", 3)
    files = put(tmp_path, node_certificate())
    context = ssl.create_default_context(cafile=files.ca) if secured else None
    scheme = "https" if secured else "http"

    async def fill_and_ask() -> None:
        limits = HttpLimits(write_timeout_ms=100)
        async with served(limits, tls=ServerTls(files) if secured else None) as port:
            greedy = [
                await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname="localhost" if secured else None
                )
                for _ in range(3)
            ]
            for number, (_, writer) in enumerate(greedy):
                last = b"Connection: close\r\n" if number else b""  # either way it is not closed
                writer.write(b"GET /much HTTP/1.1\r\nHost: x\r\n%s\r\n" % last)
            url = f"{scheme}://localhost:{port}/ping"
            async with asyncio.timeout(30):
                while await status_or_none(url, context) is None:
                    pass
            for _, writer in greedy:
                writer.transport.abort()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(fill_and_ask())


class Stuck(asyncio.Transport):
    """A transport whose other end takes nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 1)})
        self.closing = False
        self.aborted = False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


class Kept(asyncio.Protocol):
    """Notes what it is handed."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def data_received(self, data: bytes) -> None:
        self.taken += data


def spoken(kept: Kept, *, timeout_ms: int) -> tuple[first_bytes.FirstBytes, Stuck]:
    bounds = first_bytes.Bounds(
        silence_ms=60_000, write_timeout_ms=timeout_ms, unended_bytes_max=100
    )
    connection = first_bytes.FirstBytes(lambda: kept, bounds, first_bytes.OpenConnections())
    transport = Stuck()
    connection.connection_made(transport)
    connection.data_received(b"GET / HTTP/1.1\r\n")
    return connection, transport


async def test_INV_HFB5_a_connection_that_does_not_end_is_cut_off() -> None:
    """A transport that is closed waits until what is left to send is taken, without a bound."""
    _, closes = spoken(Kept(), timeout_ms=1)
    closes.close()
    await until(lambda: closes.aborted)


async def test_INV_HFB5_who_takes_something_is_not_cut_off() -> None:
    reads, reading = spoken(Kept(), timeout_ms=1)
    _, nothing = spoken(Kept(), timeout_ms=1)
    stuck, waiting = spoken(Kept(), timeout_ms=20)
    reads.pause_writing()
    reads.resume_writing()
    stuck.pause_writing()
    await until(lambda: waiting.aborted)
    assert not reading.aborted
    assert not nothing.aborted
    for each in (reads, stuck):
        each.connection_lost(None)


async def test_INV_HFB6_a_head_without_an_end_is_not_taken_beyond_its_bound() -> None:
    kept = Kept()
    connection, _ = spoken(kept, timeout_ms=60_000)
    for _ in range(1000):
        connection.data_received(b"A: 1\r\n")
    assert len(kept.taken) == 100
    connection.connection_lost(None)


def longest_taken(stream: bytes, bytes_max: int) -> bytes:
    """Return as much as has no more than so many bytes in a row without an empty line, looked for byte by byte."""
    since = 0
    for at in range(1, len(stream) + 1):
        if at - since > bytes_max:
            return stream[: at - 1]
        if stream[:at].endswith(b"\r\n\r\n"):
            since = at
    return stream


@pytest.mark.parametrize("seed", range(20))
def test_INV_HFB6_pieces_of_any_size_are_taken_as_the_whole_is(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        words = chance.choices((b"abcdefg", b"\r\n", b"\r\n\r\n", b"x"), k=chance.randint(1, 60))
        stream, sent, taken = b"".join(words), 0, b""
        unended = first_bytes.Unended(20)
        while sent < len(stream):
            piece = stream[sent : sent + chance.randint(1, 50)]
            taken += unended.taken(piece)
            sent += len(piece)
        assert stream.startswith(taken)
        assert longest_taken(taken, 20) == taken
        # Two bytes less: of "\r\n\r\n\r\n" either end may count as the empty line's.
        assert taken == stream or longest_taken(stream, 18) != stream


async def test_a_body_far_beyond_its_bound_is_answered_and_not_taken() -> None:
    """RFC 9110, 15.5.14: 413. What comes behind the bound is thrown away, so the answer is read."""
    async with served(HttpLimits()) as port, ClientSession() as session:
        url = f"http://127.0.0.1:{port}/echo"
        async with session.post(url, data=io.BytesIO(bytes(2 * MIB))) as answer:
            assert answer.status == 413
            assert answer.headers["Connection"] == "close"
        async with session.post(url, data=b"x" * 64 * KIB) as answer:
            assert answer.status == 200
            assert len(await answer.read()) == 64 * KIB


@pytest.mark.parametrize(
    ("count", "each_bytes", "status"),
    [(60, 100, 200), (3, 8_000, 200), (3, 9_000, 400), (5, 8_000, 431), (70, 10, 400)],
    ids=["many", "long", "one-too-long", "too-long-together", "too-many"],
)
async def test_INV_HBE2_a_head_is_bounded_as_a_whole(
    count: int, each_bytes: int, status: int
) -> None:
    """RFC 6585, 5: 431 where it is all of them together."""
    async with served(HttpLimits()) as port:
        head = "".join(f"x-{n}: {'é' + 'a' * (each_bytes - 10)}\r\n" for n in range(count))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /ping HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()


def read_ahead() -> int:
    return sum(type(each).__name__ == "RawRequestMessage" for each in gc.get_objects())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_INV_HBE3_what_is_sent_ahead_waits_in_its_socket_and_is_answered_in_turn(
    new_loop: LoopFactory,
) -> None:
    """aiohttp keeps 32 requests of a connection beside the one that is served: of 1 MB each, and fivefold with one emoji."""

    async def send_ahead() -> None:
        gate = Gate()
        gc.collect()
        before = read_ahead()
        async with served(HttpLimits(), gate=gate) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for number in range(20):
                writer.write(
                    b"GET /gate?n=%d HTTP/1.1\r\nHost: x\r\nA: %s\r\n\r\n" % (number, b"a" * 4_000)
                )
            await until(lambda: gate.asked == 1)
            for _ in range(20):  # rounds of the loop, in which what has come is read
                await asyncio.sleep(0)
            assert read_ahead() - before <= 2
            gate.opened.set()
            for number in range(20):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(len(str(number))) == str(number).encode()
            writer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(send_ahead())


@pytest.mark.parametrize("new_loop", LOOPS)
def test_INV_HBE3_a_request_behind_a_body_that_came_late_is_read(new_loop: LoopFactory) -> None:
    async def one_behind_another() -> None:
        async with served(HttpLimits()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n12")
                for _ in range(20):  # rounds of the loop, in which what has come is read
                    await asyncio.sleep(0)
                writer.write(b"34GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
                for expected in (b"1234", b"pong"):
                    await reader.readuntil(b"\r\n\r\n")
                    assert await reader.readexactly(4) == expected
            writer.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(one_behind_another())
