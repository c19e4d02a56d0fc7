"""What a command says where a node's HTTP port speaks TLS and it does not, or the other way round, or not to its liking."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from region_broker.http_api.app import HttpServer
from region_broker.security.login import Security
from region_broker.security.tls import ServerTls
from region_broker.workbench import node_http
from region_broker.workbench.credentials import present_as
from region_broker.workbench.node_http import request
from tests.fixtures.certificates import node_certificate, put


async def refusal_of(server: HttpServer, scheme: str) -> str:
    """Return what a command says that asks by `scheme`."""
    host, port = await server.start("localhost", 0)
    try:
        with pytest.raises(ConnectionError) as refused:
            await asyncio.to_thread(
                request, f"{scheme}://{host}:{port}", "GET", "/readyz", timeout_s=10
            )
    finally:
        await server.stop()
    return str(refused.value)


async def test_a_port_without_tls_that_is_asked_by_tls(tmp_path: Path) -> None:
    """As an operator meets it while nodes get TLS one by one."""
    assert "does it speak TLS at all, or not yet (http://)?" in await refusal_of(
        HttpServer(web.Application()), "https"
    )


async def test_a_port_of_tls_that_is_asked_without(tmp_path: Path) -> None:
    tls = ServerTls(put(tmp_path, node_certificate()))
    said = await refusal_of(HttpServer(web.Application(), tls=tls), "http")
    assert "does it speak TLS by now (https://)?" in said


async def test_a_certificate_that_does_not_count_is_told_with_the_ca_that_was_looked_at(
    tmp_path: Path,
) -> None:
    tls = ServerTls(put(tmp_path, node_certificate()))
    said = await refusal_of(HttpServer(web.Application(), tls=tls), "https")
    assert (
        "shows a certificate that does not count by the CAs of this system, as there is no --ca: unable to get local issuer certificate"
        in said
    )


async def test_INV_WNH2_a_handshake_has_the_time_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A region that starts on a busy machine ended `tidemark demo --secure`: its loop took more than the time of a connection for a handshake."""

    async def answered(_asked: web.Request) -> web.Response:
        return web.json_response({"role": "mirror"})

    app = web.Application()
    app.router.add_get("/v1/region", answered)
    files = put(tmp_path, node_certificate())
    server = HttpServer(app, tls=ServerTls(files))
    host, port = await server.start("localhost", 0)
    present_as(Security(ca=str(files.ca)))
    monkeypatch.setattr(node_http, "CONNECT_TIMEOUT_S", 1e-6)
    try:
        asked = await asyncio.to_thread(request, f"https://{host}:{port}", "GET", "/v1/region")
    finally:
        await server.stop()
    assert asked == {"role": "mirror"}
