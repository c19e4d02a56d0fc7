"""Connections of an address that come faster than they may, to a port that speaks TLS."""

import asyncio
import socket
import ssl
import struct
from pathlib import Path

from region_broker.metrics import Metrics
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.security.tls import ServerTls
from region_broker.wire.connection import Incoming
from region_broker.wire.connection_caps import ConnectionCaps
from region_broker.wire.listening import Listening
from region_broker.wire.server import KafkaServer
from tests.fixtures.certificates import node_certificate, put
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until

REQUEST = struct.pack(">ihhi", 8, 60, 0, 1)


async def answer(_incoming: Incoming) -> bytes:
    return bytes(4)


async def test_INV_CN5_beyond_the_rate_of_its_address_nobody_is_made_a_handshake_for(
    tmp_path: Path,
) -> None:
    """They were counted behind it, so an address without any credentials could have as many made as the loop can."""
    metrics, clock = Metrics(), ManualClock()
    server = KafkaServer(AsyncioNetwork(), clock, answer, metrics, caps=ConnectionCaps(rate=2))
    tls = ServerTls(put(tmp_path / "eu", node_certificate()))
    await server.start("127.0.0.1", 0, Listening("SSL", tls))
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run())
        half_open = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
        refused = metrics.connections_refused.labels("rate")._value
        await until(lambda: refused.get() == 6, "four may come at once")
        assert len(server._listeners[0]._server._tasks) == 4  # type: ignore[attr-defined]
        for each in half_open:
            each.close()
        clock.pass_ms(60_000)
        anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=anybody)
            writer.write(REQUEST)
            assert await reader.readexactly(8) == struct.pack(">i", 4) + bytes(4)
            writer.close()
        assert refused.get() == 6, "one whose handshake ends is not counted a second time"
        server.close()
        await running
