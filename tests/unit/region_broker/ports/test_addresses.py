"""What counts as one host (INV-PAD1)."""

import asyncio
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from region_broker.ports.addresses import network_of
from region_broker.ports.handshakes import TOO_MANY, HandshakeLimits
from region_broker.ports.network import FailedHandshake
from region_broker.ports.system.tls_accept import TlsServer
from region_broker.security.sasl.desk import Proving
from region_broker.security.tls import ServerTls
from region_broker.wire.connection_caps import Admission, ConnectionCaps, Refused
from tests.fixtures.certificates import node_certificate, put
from tests.fixtures.waiting import until

ONE = [f"2001:db8:0:7::{number:x}" for number in range(1, 40)]
"""Addresses of one host, as any has 2**64 of them."""


@pytest.mark.parametrize(
    ("host", "same", "other"),
    [
        ("2001:db8::1", "2001:db8:0:0:ffff:ffff:ffff:ffff", "2001:db8:0:1::1"),
        ("[2001:db8::1]", "2001:db8::2%eth0", "2001:db9::1"),
        ("192.0.2.1", "::ffff:192.0.2.1", "::ffff:192.0.2.2"),
        ("::1", "::2", "127.0.0.1"),
        ("", "", "no:address"),
    ],
)
def test_INV_PAD1_a_network_of_64_bits_is_one_host(host: str, same: str, other: str) -> None:
    assert network_of(host) == network_of(same) != network_of(other)


def test_one_host_of_ipv6_cannot_take_every_place() -> None:
    admission = Admission(ConnectionCaps(in_all=100, per_address=3, rate=5))
    assert [admission.admit(each, 0) for each in ONE[:4]] == [None, None, None, Refused.ADDRESS]
    assert admission.admit("2001:db8:0:8::1", 0) is None
    for each in ONE[:3]:
        admission.left(each)
    assert not admission.open_from(ONE[9])
    rate = [admission.admit(each, 0) for each in ONE[10:20]]
    assert Refused.RATE not in rate[:3]
    admission.caps = ConnectionCaps(in_all=100, per_address=50, rate=1)
    assert admission.admit(ONE[30], 0) is Refused.RATE


async def test_one_host_of_ipv6_waits_for_its_own_logins() -> None:
    """A flood from 30 addresses of one host holds another one up for one check, and not for 30 (INV-SDK2)."""
    proving, order = Proving(), list[str]()

    async def prove(host: str) -> None:
        async with proving.turn(host):
            order.append(host)
            for _ in range(3):
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        for host in (*ONE[:30], "192.0.2.7"):
            tasks.create_task(prove(host))
    assert order.index("192.0.2.7") < 3
    assert not proving._turns._asking


async def test_INV_PAD1_handshakes_of_one_host_of_ipv6_count_together(tmp_path: Path) -> None:
    told: list[FailedHandshake] = []
    contexts = ServerTls(put(tmp_path / "eu", node_certificate()))
    server = TlsServer(contexts, asyncio.Protocol, told.append, HandshakeLimits(per_address=1))
    pairs = [socket.socketpair() for _ in range(3)]
    for (ours, _), host in zip(
        pairs, ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"), strict=True
    ):
        ours.setblocking(False)
        server._begin(ours, (host, 9, 0, 0))
    assert [each.reason for each in told] == [TOO_MANY]
    assert server.under_way == 2
    server.close()
    await until(lambda: not server.under_way, "they are ended")
    assert not server._tasks
    assert [ours.fileno() for ours, _ in pairs] == [-1] * 3, "and hold no descriptor"
    for _, theirs in pairs:
        theirs.close()


async def test_INV_PTA2_who_may_not_connect_costs_no_handshake(tmp_path: Path) -> None:
    told: list[FailedHandshake] = []
    asked: list[str] = []
    contexts = ServerTls(put(tmp_path / "eu", node_certificate()))

    def admits(host: str) -> bool:
        asked.append(host)
        return len(asked) == 1

    server = TlsServer(contexts, asyncio.Protocol, told.append, admits=admits)
    pairs = [socket.socketpair() for _ in range(3)]
    for ours, _ in pairs:
        ours.setblocking(False)
        server._begin(ours, ("2001:db8::1", 9, 0, 0))
    assert asked == ["2001:db8::1"] * 3
    assert server.under_way == 1
    assert [ours.fileno() == -1 for ours, _ in pairs] == [False, True, True]
    assert not told, "whoever refuses says so"
    server.close()
    await until(lambda: not server.under_way)
    for _, theirs in pairs:
        theirs.close()


async def test_a_connection_that_is_gone_before_it_is_accepted_keeps_nobody_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """accept(2): ECONNABORTED. No descriptor is lacking, as other errors of it say."""
    server = TlsServer(ServerTls(put(tmp_path / "eu", node_certificate())), asyncio.Protocol)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gone = Mock(accept=Mock(side_effect=ConnectionAbortedError), fileno=listening.fileno)
        loop.add_reader(listening, server._accept, gone)
        server._accept(gone)
        assert loop.remove_reader(listening), "it is still listened to"
    assert not caplog.records
