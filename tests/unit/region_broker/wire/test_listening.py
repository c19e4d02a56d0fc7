"""Addresses of the Kafka port: who a connection speaks for at first, and where its client is told to meet nodes."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from region_broker.ports.system.network import AsyncioNetwork
from region_broker.security.identity import ANONYMOUS_PRINCIPAL
from region_broker.security.tls import ClientTls, ServerTls
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.listening import Listening, NoIdentity
from tests.fixtures.certificates import node_certificate, put, user_certificate
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture
from tests.fixtures.waiting import until

METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER = 3, 10, 60
OF_CLUSTER = {"include_cluster_authorized_operations": False}
NOTHING_ELSE = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


def _name(certificate: bytes) -> str:
    if b"nobody" in certificate:
        raise NoIdentity("no rule gives a name")
    return "User:alice" if b"alice" in certificate else "User:another"


async def _state_behind(
    fixture: WireFixture, folder: Path, listening: Listening, certificate: Any
) -> ConnectionState:
    """Return what the server knows of a connection by a listener."""
    await fixture.server.start("127.0.0.1", 0, listening)
    tls = ClientTls(put(folder / f"c{len(fixture.server.ports)}", certificate))
    stream = await AsyncioNetwork().connect("127.0.0.1", fixture.server.ports[-1], tls=tls)
    try:
        await until(lambda: bool(fixture.server._links))
        return list(fixture.server._links)[-1].core.peer.state
    finally:
        stream.close()
        await stream.wait_closed()
        await until(lambda: not fixture.server._links)


async def test_INV_LST1_a_certificate_says_whom_a_connection_speaks_for(tmp_path: Path) -> None:
    server = ServerTls(put(tmp_path / "s", node_certificate()), "requested")
    async with wire_fixture(tmp_path / "f") as fixture:
        heard = list[tuple[str, str]]()
        fixture.server.on_certificate = lambda who, why: heard.append((who.principal, why))
        secured = Listening("SSL", server, principal_of=_name)
        state = await _state_behind(fixture, tmp_path, secured, user_certificate("alice"))
        assert state.identity.principal == "User:alice"
        assert (state.identity.mechanism, state.identity.host) == ("TLS", "127.0.0.1")
        assert state.is_encrypted
        state = await _state_behind(fixture, tmp_path, secured, None)
        assert (state.identity.principal, state.identity.mechanism) == (ANONYMOUS_PRINCIPAL, "")
        login = Listening("SASL_SSL", server, must_log_in=True, principal_of=_name)
        state = await _state_behind(fixture, tmp_path, login, user_certificate("alice"))
        assert state.identity.principal == ANONYMOUS_PRINCIPAL, "SASL says who it is"
        assert state.must_log_in
        assert heard == [("User:alice", "")], "the audit trail hears of it, and of nobody else"


async def test_INV_SDK1_a_connection_is_encrypted_where_its_address_speaks_tls_and_nowhere_else(
    tmp_path: Path,
) -> None:
    """By this a password is offered to be sent, or is not."""
    tls = ServerTls(put(tmp_path / "s", node_certificate()))
    async with wire_fixture(tmp_path) as fixture:
        secured = await _state_behind(
            fixture, tmp_path, Listening(tls=tls, must_log_in=True), node_certificate()
        )
        assert (secured.is_encrypted, secured.must_log_in) == (True, True)
        await until(lambda: not fixture.server._links)
        await fixture.server.start("127.0.0.1", 0, Listening(must_log_in=True))
        stream = await AsyncioNetwork().connect("127.0.0.1", fixture.server.ports[-1])
        await until(lambda: bool(fixture.server._links))
        plain = list(fixture.server._links)[-1].core.peer.state
        assert (plain.is_encrypted, plain.must_log_in) == (False, True)
        stream.close()
        await stream.wait_closed()


async def test_INV_LST1_a_certificate_that_names_nobody_is_refused_and_leaves_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And INV-WS10: all of them are counted, and few are told."""
    server = ServerTls(put(tmp_path / "s", node_certificate()), "required")
    async with wire_fixture(tmp_path / "f") as fixture:
        await fixture.server.start("127.0.0.1", 0, Listening("SSL", server, principal_of=_name))
        fixture.server.limit(1, 0)
        told_of = iter([True])
        fixture.server._lines.may = lambda now_ms: now_ms >= 0 and next(told_of, False)  # type: ignore[method-assign]
        heard = list[tuple[str, str, str]]()
        fixture.server.on_certificate = lambda who, why: heard.append(
            (who.principal, who.host, why)
        )
        tls = ClientTls(put(tmp_path / "c", user_certificate("nobody")))
        for _ in range(3):
            stream = await AsyncioNetwork().connect("127.0.0.1", fixture.server.ports[1], tls=tls)
            with suppress(OSError):
                assert not await stream.read(1)
            await stream.wait_closed()
        assert fixture.services.metrics.connections_refused.labels("no_principal")._value.get() == 3
        told = ANONYMOUS_PRINCIPAL, "127.0.0.1", "its certificate names nobody"
        assert heard == [told] * 3, "the audit trail hears of it"
        assert caplog.text.count("its certificate names nobody") == 1
        client = await fixture.connect()
        assert (await client.call(18, 0, {})).error_code.value == 0


async def test_INV_LST2_who_came_by_a_listener_is_told_its_address(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        own, place = fixture.region.node_id, ("eu.example.org", 19_095)
        await fixture.server.start("127.0.0.1", 0, Listening("OUTSIDE", met_at={own: place}))
        streams = await asyncio.open_connection("127.0.0.1", fixture.server.ports[1])
        outside, inside = RawClient(*streams), await fixture.connect()
        fixture.clients.append(outside)
        everywhere = (fixture.region.kafka_host, fixture.region.kafka_port)
        for client, met in ((outside, place), (inside, everywhere)):
            told = await client.call(METADATA, 12, {"topics": [], **NOTHING_ELSE})
            assert [(node.node_id, node.host, node.port) for node in told.brokers] == [(own, *met)]
            found = await client.call(
                FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]}
            )
            assert [(row.host, row.port) for row in found.coordinators] == [met]
            cluster = await client.call(DESCRIBE_CLUSTER, 1, {"endpoint_type": 1, **OF_CLUSTER})
            assert [(node.broker_id, node.host, node.port) for node in cluster.brokers] == [
                (own, *met)
            ]
