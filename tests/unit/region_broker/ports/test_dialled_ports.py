"""Connections that are given the port of a listener to come."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from region_broker.ports.system.dialled_ports import dialled_range, not_dialled
from region_broker.ports.system.network import AsyncioNetwork
from tests.fixtures.failover_regions import free_ports


class _GivesItsOwnPort:
    """A loop whose connections begin at the port that they are dialled to, as they do by chance in the system's range."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def create_connection(self, factory: Any, host: str, port: int) -> Any:
        return await self._loop.create_connection(factory, host, port, local_addr=(host, port))


async def test_a_connection_to_itself_is_none_and_keeps_the_port_from_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A node stops. 2. Others dial its port, again and again. 3. One of them is given that port, and connected to itself."""
    (port,) = free_ports(1)
    own = _GivesItsOwnPort(asyncio.get_running_loop())
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: own)
        connecting = AsyncioNetwork().connect("127.0.0.1", port)
        with pytest.raises(ConnectionRefusedError, match="connected to itself"):
            await connecting
    await asyncio.sleep(0.01)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))


def test_what_the_system_says_of_its_ports(tmp_path: Path) -> None:
    dialled, kept = tmp_path / "range", tmp_path / "reserved"
    dialled.write_text("32768\t60999\n")
    kept.write_text("40000-40001,50000\n")
    assert dialled_range(dialled) == range(32_768, 61_000)
    ports = [32_767, 32_768, 39_999, 40_000, 40_001, 40_002, 50_000, 60_999, 61_000]
    assert not_dialled(ports, dialled, kept) == [32_767, 40_000, 40_001, 50_000, 61_000]
    kept.write_text("\n")
    assert not_dialled(ports, dialled, kept) == [32_767, 61_000]
    assert not_dialled(ports, tmp_path / "none", tmp_path / "none") == ports
