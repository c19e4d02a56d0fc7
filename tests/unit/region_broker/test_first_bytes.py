"""The HTTP port and those that do not speak HTTP."""

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web

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
