"""The HTTP port and those that do not speak HTTP."""

import asyncio
import gc
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import uvloop
from aiohttp import ClientError, ClientSession, web

from region_broker.http_api import first_bytes
from region_broker.http_api.app import HttpLimits, HttpServer, bounded
from region_broker.http_api.doors import IDENTITY
from region_broker.security.identity import Identity
from region_broker.security.tls import ServerTls
from tests.fixtures.certificates import node_certificate, put
from tests.fixtures.waiting import until

BOUNDS = first_bytes.Bounds(silence_ms=60_000)


async def _pong(_request: web.Request) -> web.Response:
    return web.Response(text="pong")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/ping", _pong)
    server = HttpServer(app, HttpLimits(keepalive_timeout_ms=50))
    _host, bound = await server.start("127.0.0.1", 0)
    yield bound
    await server.stop()


async def said(port: int, data: bytes) -> bytes:
    """Return what the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_INV_HFB1_a_kafka_client_is_sent_away_at_once(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert await said(port, struct.pack(">ihhih", 10, 18, 0, 1, -1)) == b""
    assert "no HTTP: a Kafka client" in caplog.text


async def test_INV_HFB2_a_silent_connection_ends(port: int) -> None:
    assert await said(port, b"") == b""


async def test_a_request_in_pieces_is_served(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in (b"G", b"ET /pi", b"ng HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"pong")


async def test_connections_are_used_again(port: int) -> None:
    async with ClientSession() as session:
        for _ in range(3):
            async with session.get(f"http://127.0.0.1:{port}/ping") as answer:
                assert await answer.text() == "pong"


async def _ping(port: int) -> int:
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/ping") as answer:
        return answer.status


@pytest.fixture
async def patient_port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a server that takes three connections."""
    monkeypatch.setattr(first_bytes, "OF_AN_ADDRESS_MAX", 3)
    monkeypatch.setattr(first_bytes, "CONNECTIONS_MAX", 3)
    app = web.Application()
    app.router.add_get("/ping", _pong)
    server = HttpServer(app, HttpLimits(keepalive_timeout_ms=20_000))
    _host, bound = await server.start("127.0.0.1", 0)
    yield bound
    await server.stop()


async def test_INV_HFB3_an_address_that_opens_too_many_connections_is_sent_away(
    patient_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_bytes, "CONNECTIONS_MAX", 100)
    flood = [await asyncio.open_connection("127.0.0.1", patient_port) for _ in range(10)]
    ended = [await reader.read() for reader, _ in flood[3:]]
    assert ended == [b""] * 7
    assert caplog.text.count("connections to the HTTP port open already") == 1, "INV-HFB4"
    for _, writer in flood:
        writer.close()
    async with asyncio.timeout(5):
        while await _ping_or_none(patient_port) is None:
            pass


async def _ping_or_none(port: int) -> int | None:
    try:
        return await _ping(port)
    except ClientError:
        return None


async def test_INV_HFB3_who_says_nothing_gives_way_to_who_asks(
    patient_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_bytes, "OF_AN_ADDRESS_MAX", 100)
    silent = [await asyncio.open_connection("127.0.0.1", patient_port) for _ in range(3)]
    assert await _ping(patient_port) == 200
    assert await silent[0][0].read() == b"", "the oldest one has given way"
    silent[1][1].write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await silent[1][0].readline()).startswith(b"HTTP/1.1 200")
    for _, writer in silent:
        writer.close()


async def test_INV_HFB3_who_left_without_a_word_gives_way_no_more(
    patient_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_bytes, "OF_AN_ADDRESS_MAX", 100)
    gone = [await asyncio.open_connection("127.0.0.1", patient_port) for _ in range(2)]
    assert await _ping(patient_port) == 200
    for _, writer in gone:
        writer.close()
        await writer.wait_closed()
    assert await _ping(patient_port) == 200, "they were seen to leave"
    silent = [await asyncio.open_connection("127.0.0.1", patient_port) for _ in range(4)]
    assert await silent[0][0].read() == b"", "the oldest of those that are there"
    for reader, writer in silent[1:]:
        writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    for _, writer in silent:
        writer.close()


class Met(asyncio.Transport):
    """A transport that knows who is at its other end, and whether it was cut off."""

    def __init__(self, host: str) -> None:
        super().__init__({"peername": (host, 1, 0, 0)})
        self.ended = False

    def abort(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True


Came = Callable[[str], tuple[first_bytes.FirstBytes, Met]]


def coming() -> Came:
    """Return what connects a host to a port whose connections are served by bare protocols."""
    opened = first_bytes.OpenConnections()

    def came(host: str) -> tuple[first_bytes.FirstBytes, Met]:
        connection, transport = (
            first_bytes.FirstBytes(Deaf, BOUNDS, opened),
            Met(host),
        )
        connection.connection_made(transport)
        return connection, transport

    return came


class Deaf(asyncio.Protocol):
    """Serves nobody."""

    def data_received(self, data: bytes) -> None:
        """Let it be."""


async def test_INV_HFB3_a_place_is_given_back_once_and_who_is_served_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_bytes, "CONNECTIONS_MAX", 2)
    came = coming()
    asks, asking = came("10.0.0.1")
    asks.data_received(b"GET / HTTP/1.1")
    asks.request_began(is_known=False)
    silent, silence = came("10.0.0.2")
    late, lateness = came("10.0.0.3")
    assert [each.ended for each in (asking, silence, lateness)] == [False, True, False]
    silent.connection_lost(None)
    late.request_began(is_known=False)
    _, fourth = came("10.0.0.4")
    assert fourth.ended, "both places are taken by requests under way"
    asks.request_ended()
    _, fifth = came("10.0.0.5")
    assert [each.ended for each in (asking, lateness, fifth)] == [True, False, False]
    asks.request_began(is_known=False)  # it had come with the one before
    asks.request_ended()
    _, sixth = came("10.0.0.6")
    assert [each.ended for each in (fifth, sixth)] == [True, False]


async def test_INV_HFB3_who_has_said_a_letter_or_asked_long_ago_gives_way() -> None:
    """1,000 connections from four addresses that had said one letter, or asked now and then whether the node lives, held the port for good."""
    came = coming()
    flood = list[tuple[first_bytes.FirstBytes, Met]]()
    for number in range(first_bytes.CONNECTIONS_MAX):
        each = came(f"10.0.{number // first_bytes.OF_AN_ADDRESS_MAX}.1")
        each[0].data_received(b"G")
        flood.append(each)
    flood[0][0].request_began(is_known=False)
    flood[0][0].request_ended()
    probes = [came(f"10.9.0.{number}")[1] for number in range(3)]
    assert not any(probe.ended for probe in probes)
    assert [number for number, (_, met) in enumerate(flood) if met.ended] == [1, 2, 3]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_INV_HFB3_this_machine_and_who_was_known_give_way_last(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_bytes, "CONNECTIONS_MAX", 4)
    came = coming()
    (_, here), (known, knows) = came(host), came("10.0.0.1")
    known.request_began(is_known=True)
    known.request_ended()
    known.request_began(is_known=False)  # as to `/livez`, without credentials
    known.request_ended()
    strangers = [came(f"10.0.0.{number}")[1] for number in range(2, 12)]
    assert [each.ended for each in strangers] == [True] * 8 + [False] * 2
    assert [here.ended, knows.ended] == [False, False]
    for number in range(12, 15):
        known, _ = came(f"10.0.0.{number}")
        known.request_began(is_known=True)
        known.request_ended()
    all_were_known = [here.ended, knows.ended]
    assert all_were_known == [True, False], "the one without a request for longest"


@web.middleware
async def _as_ada(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Know who says so, as the door does by credentials."""
    if "Ada" in request.headers:
        request[IDENTITY] = Identity("User:ada", "10.0.0.1", "TLS")
    return await handler(request)


@pytest.mark.parametrize("secured", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_INV_HFB3_whose_request_is_under_way_and_who_was_known_stay_where_a_stranger_gives_way(
    tmp_path: Path,
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    secured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(first_bytes, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(first_bytes, "is_this_machine", lambda _host: False)
    files = put(tmp_path, node_certificate())
    context = ssl.create_default_context(cafile=files.ca) if secured else None

    async def fill() -> None:
        began, opened = asyncio.Event(), asyncio.Event()

        async def wait(_request: web.Request) -> web.Response:
            began.set()
            await opened.wait()
            return web.Response(text="waited")

        app = bounded(HttpLimits())
        app.middlewares.insert(len(app.middlewares) - 1, _as_ada)
        app.router.add_get("/wait", wait)
        app.router.add_get("/ping", _pong)
        server = HttpServer(app, HttpLimits(), tls=ServerTls(files) if secured else None)
        _host, bound = await server.start("127.0.0.1", 0)
        met = [await _connected(bound, context) for _ in range(3)]
        waits, known, stranger = met
        try:
            _ask(waits, "/wait")
            await began.wait()
            for asks, more in ((known, "Ada: 1\r\n"), (stranger, "")):
                _ask(asks, "/ping", more)
                assert await _text_of(asks) == b"pong"
            met.append(await _connected(bound, context))
            _ask(met[-1], "/ping")
            assert await _text_of(met[-1]) == b"pong"
            assert await stranger[0].read() == b"", "it had no request for a shorter time than Ada"
            _ask(known, "/ping")
            assert await _text_of(known) == b"pong"
            opened.set()
            assert await _text_of(waits) == b"waited"
        finally:
            for _, writer in met:
                writer.transport.abort()
            await server.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(fill())


async def test_INV_HFB3_an_order_whose_body_does_not_come_holds_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no logins are asked for, everybody's orders are let in."""
    monkeypatch.setattr(first_bytes, "CONNECTIONS_MAX", 2)
    read = asyncio.Event()

    @web.middleware
    async def noted(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        read.set()
        return await handler(request)

    app = bounded(HttpLimits())
    app.middlewares.insert(0, noted)
    app.router.add_post("/ping", _pong)
    app.router.add_get("/ping", _pong)
    server = HttpServer(app)
    _host, bound = await server.start("127.0.0.1", 0)
    late = await _connected(bound, None)
    late[1].write(b"POST /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
    await read.wait()
    others = [await _connected(bound, None) for _ in range(2)]
    for each in others:
        _ask(each, "/ping")
        assert await _text_of(each) == b"pong"
    assert await late[0].read() == b""
    for _, writer in (late, *others):
        writer.close()
    await server.stop()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connected(port: int, context: ssl.SSLContext | None) -> Streams:
    name = None if context is None else "localhost"
    return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)


def _ask(streams: Streams, path: str, headers: str = "") -> None:
    streams[1].write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())


async def _text_of(streams: Streams) -> bytes:
    """Read one answer, and return its text."""
    head = await streams[0].readuntil(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    assert length is not None
    return await streams[0].readexactly(int(length[1]))


async def test_INV_HFB3_who_was_sent_away_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind TLS the first bytes may have come with the handshake."""
    monkeypatch.setattr(first_bytes, "CONNECTIONS_MAX", 0)

    def serve() -> asyncio.Protocol:
        raise AssertionError("nobody is served")

    connection, transport = (
        first_bytes.FirstBytes(serve, BOUNDS, first_bytes.OpenConnections()),
        Met("h"),
    )
    connection.connection_made(transport)
    assert transport.ended
    connection.data_received(b"GET / HTTP/1.1")


async def test_INV_HFB3_so_many_of_an_address_and_not_one_more() -> None:
    opened = first_bytes.OpenConnections()
    each = [
        first_bytes.FirstBytes(asyncio.Protocol, BOUNDS, opened)
        for _ in range(first_bytes.OF_AN_ADDRESS_MAX + 1)
    ]
    assert [opened.enter(one, "10.0.0.1") for one in each] == [
        True
    ] * first_bytes.OF_AN_ADDRESS_MAX + [False]
    assert opened.enter(each[-1], "10.0.0.2")
    opened.left(each[0], "10.0.0.1")
    assert opened.enter(each[0], "10.0.0.1")


async def test_INV_PAD1_one_host_of_ipv6_counts_as_one_at_the_http_port() -> None:
    came = coming()
    for number in range(first_bytes.OF_AN_ADDRESS_MAX):
        assert not came(f"2001:db8::{number + 1:x}")[1].ended
    assert came("2001:db8::ffff:1")[1].ended
    assert not came("2001:db8:0:1::1")[1].ended
    for number in range(first_bytes.OF_AN_ADDRESS_MAX):
        assert not came("::ffff:10.0.0.1" if number else "10.0.0.1")[1].ended
    assert came("::ffff:10.0.0.1")[1].ended


async def test_INV_HFB4_a_flood_of_what_is_no_http_fills_no_log(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        await said(port, b"\0\0\0\x0a")
    assert caplog.text.count("no HTTP") == 1


KEPT = {"FirstBytes", "RequestHandler", "Request", "SSLProtocol", "BadHttpMethod", "BadHttpMessage", "BadStatusLine"}  # fmt: skip


def kept() -> Counter[str]:
    """Return what is there of connections and requests, by type."""
    names = (type(each).__name__ for each in gc.get_objects())
    return Counter(name for name in names if name in KEPT)


def say_from_outside(port: int, ca: str, data: bytes) -> bytes:
    """Say something in TLS from a thread, so that all that is left is the server's; return what comes back."""
    context = ssl.create_default_context(cafile=ca)
    back = b""
    with (
        socket.create_connection(("127.0.0.1", port)) as opened,
        context.wrap_socket(opened, server_hostname="localhost") as secured,
    ):
        secured.sendall(data)
        with suppress(ssl.SSLError, ConnectionError):
            while more := secured.recv(4096):
                back += more
    return back


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 200"),
        (b"GET /none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 404"),
        (b"PUT /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"HTTP/1.1 405"),
        (
            b"GET /ping HTTP/1.1\r\nHost: x\r\nExpect: more\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 417",
        ),
        (b"GET\x01 /ping\r\n\r\n", b"HTTP/1.0 400"),
        (b"GET /ping HTTP/1.1\r\nHost x\r\n\r\n", b"HTTP/1.0 400"),
        (b"GET /pi", b""),
        (struct.pack(">ihhih", 10, 18, 0, 1, -1), b""),
    ],
    ids=["served", "no-route", "no-method", "expects", "no-http", "no-header", "half", "kafka"],
)
def test_INV_HPL2_INV_PN7_a_connection_that_has_ended_is_freed_without_the_cycle_collector(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], data: bytes, answer: bytes
) -> None:
    """A node's collector comes so seldom that 48 KB of each request that was none, and 15 KB of each path that is not there, added up."""

    async def say_and_count() -> None:
        app = bounded(HttpLimits())
        app.router.add_get("/ping", _pong)
        files = put(tmp_path, node_certificate())
        server = HttpServer(app, HttpLimits(keepalive_timeout_ms=200), tls=ServerTls(files))
        _host, bound = await server.start("127.0.0.1", 0)
        try:
            gc.collect()
            assert not kept(), "of tests before"
            gc.disable()
            for _ in range(3):
                said = await asyncio.to_thread(say_from_outside, bound, files.ca, data)
                assert said[: len(answer)] == answer
            await until(lambda: not kept(), looks=100)
        finally:
            gc.enable()
            await server.stop()  # or uvloop would wait for it at its end

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(say_and_count())


def leave_within(port: int, method: str) -> None:
    with socket.create_connection(("127.0.0.1", port)) as opened:
        opened.sendall(b"%s /take HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc" % method.encode())  # fmt: skip


@pytest.mark.parametrize(
    "method", ["GET", "POST"]
)  # an order's body is read before its route is asked (INV-HDO6)
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_INV_PN7_who_leaves_within_a_body_leaves_neither_memory_nor_a_line_in_the_log(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error of whoever had left was kept by the body, which the frames of its traceback held; and it was logged as one of this node."""
    asked = 0

    @web.middleware
    async def counted(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return await handler(request)

    async def take(request: web.Request) -> web.Response:
        await request.read()
        return web.Response()

    async def leave_and_count() -> None:
        app = bounded(HttpLimits())
        app.middlewares.insert(0, counted)
        app.router.add_route(method, "/take", take)
        server = HttpServer(app, HttpLimits())
        _host, bound = await server.start("127.0.0.1", 0)
        try:
            gc.collect()
            assert not kept(), "of tests before"
            gc.disable()
            for number in (1, 2, 3):
                await asyncio.to_thread(leave_within, bound, method)
                await until(lambda number=number: asked == number)  # type: ignore[misc]
            await until(lambda: not kept(), looks=100)
        finally:
            gc.enable()
            await server.stop()  # or uvloop would wait for it at its end

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(leave_and_count())
    assert "failed" not in caplog.text
