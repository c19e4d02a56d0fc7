"""One request to a node: who asks is said where nobody else hears it, and nowhere else; an order of which no answer comes."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from region_broker.http_api.app import HttpServer
from region_broker.security.login import Security
from region_broker.workbench.credentials import present_as
from region_broker.workbench.node_http import (
    ApiError,
    BadUrl,
    OutcomeUnknown,
    metrics_text,
    request,
    urls_of,
)


@pytest.fixture
def as_alice() -> None:
    present_as(Security(http_token="tmt_alice"))


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    async def said(asked: web.Request) -> web.Response:
        if asked.path == "/metrics":
            return web.Response(text=asked.headers.get("Authorization", "nobody"))
        if asked.path == "/moved":
            raise web.HTTPTemporaryRedirect("http://192.0.2.1/elsewhere")
        return web.json_response({"said": asked.headers.get("Authorization")})

    app = web.Application()
    app.router.add_get("/{path:.*}", said)
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    yield f"http://{host}:{port}"
    await server.stop()


async def test_INV_WNH1_who_asks_is_said_to_this_machine(echo: str, as_alice: None) -> None:
    assert await asyncio.to_thread(request, echo, "GET", "/v1/region") == {
        "said": "Bearer tmt_alice"
    }
    assert await asyncio.to_thread(metrics_text, echo) == "Bearer tmt_alice"
    with pytest.raises(ConnectionError, match="without JSON"):  # followed by nobody
        await asyncio.to_thread(request, echo, "GET", "/moved")


async def test_without_credentials_nobody_is_named(echo: str) -> None:
    assert await asyncio.to_thread(request, echo, "GET", "/v1/region") == {"said": None}


def test_INV_WNH1_nothing_secret_goes_to_another_machine_in_the_clear(as_alice: None) -> None:
    for url in ("http://192.0.2.1:9093", "http://eu1.example.org"):
        with pytest.raises(BadUrl, match="give an https address") as refused:
            request(url, "GET", "/v1/region", timeout_s=0.1)
        assert "tmt_alice" not in str(refused.value)


def test_addresses_are_http_or_https_and_hold_no_password() -> None:
    assert urls_of("http://a:1, https://b") == ["http://a:1", "https://b"]
    for wrong in ("ftp://a", "a:1", "http://", "http://a:b", "http://alice:open-sesame@a:1"):
        with pytest.raises(BadUrl) as refused:
            urls_of(wrong)
        assert "open-sesame" not in str(refused.value)


async def test_an_answer_that_is_a_problem_has_its_code(echo: str) -> None:
    with pytest.raises((ApiError, OSError)):
        await asyncio.to_thread(request, echo, "POST", "/v1/region/switch", {})


@pytest.mark.parametrize("answered", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{"])
def test_INV_WNH3_an_order_whose_connection_ends_before_its_answer_has_an_unknown_outcome(
    answered: bytes,
) -> None:
    """The node took it, and died: whoever scripts this must not read that nothing was done. A question has changed nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def take_and_die() -> None:
            for _ in range(2):
                with listening.accept()[0] as connection:
                    while b"{}" not in (heard := connection.recv(65_536)) and b"GET" not in heard:
                        pass
                    connection.sendall(answered)

        node = threading.Thread(target=take_and_die)
        node.start()
        with pytest.raises(OutcomeUnknown, match="before it answered"):
            request(url, "POST", "/v1/regions/us/failover", {})
        with pytest.raises(ConnectionError) as broken:
            request(url, "GET", "/v1/region")
        node.join()
    assert not isinstance(broken.value, OutcomeUnknown)
