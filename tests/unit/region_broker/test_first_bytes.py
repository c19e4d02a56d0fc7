"""The HTTP port and those that do not speak HTTP."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientError, ClientSession, web

from region_broker.http_api import first_bytes
from region_broker.http_api.app import HttpLimits, HttpServer


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


async def test_INV_HFB4_a_flood_of_what_is_no_http_fills_no_log(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        await said(port, b"\0\0\0\x0a")
    assert caplog.text.count("no HTTP") == 1
