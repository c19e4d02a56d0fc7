"""A node that hands over to whoever goes on in its process: what may keep it from that (INV-NHO2)."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from region_broker.handlers.dispatch.deadlines import Deadlines
from region_broker.metrics import Metrics
from region_broker.node import ending
from region_broker.ports.network import Buffer
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.ports.unbroken import to_its_end
from region_broker.wire.connection import Incoming
from region_broker.wire.server import KafkaServer
from tests.fixtures.kafka_port import RawClient
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until
from tests.unit.region_broker.groups.fakes import settle

REQUEST = struct.pack(">ihhi", 8, 62, 0, 1)


@asynccontextmanager
async def asked(work: Callable[[], Awaitable[Any]]) -> AsyncIterator[KafkaServer]:
    """Run a server of which one request is under way, that takes as long as `work`."""

    async def answer(_incoming: Incoming) -> Buffer | None:
        await work()
        return bytes(4)

    server = KafkaServer(AsyncioNetwork(), ManualClock(), answer, Metrics())
    await server.start("127.0.0.1", 0)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run())
        client = RawClient(*await asyncio.open_connection("127.0.0.1", server.port))
        client.send_raw(REQUEST)
        await until(lambda: any(link.core.owes for link in server._links))
        yield server
        client.writer.transport.abort()
        server.close()
        await running


async def end(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """End requests of a node that has no patience left."""
    monkeypatch.setattr(ending, "UNDER_WAY_S_MAX", 0)
    monkeypatch.setattr(ending, "ANSWERED_S_MAX", 0)

    async def stand_still(_reason: str) -> None:
        return

    role = SimpleNamespace(stand_still=stand_still)
    await ending.end_requests(server, cast("Any", role), Deadlines())


async def test_INV_NHO2_what_waits_for_others_keeps_no_node_from_handing_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was forwarded to a region that is gone, say, which is waited for for ten minutes."""
    async with asked(asyncio.Event().wait) as server:
        await end(server, monkeypatch)
        assert server.connection_count == 0


async def test_INV_NHO2_what_must_not_be_left_half_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done, go_on = list[str](), asyncio.Event()

    async def change() -> None:
        await go_on.wait()
        done.append("a change")

    async with asked(lambda: to_its_end(change())) as server:
        async with asyncio.TaskGroup() as tasks:
            handing_over = tasks.create_task(end(server, monkeypatch))
            (link,) = server._links
            serving = link.serving
            assert serving is not None
            await until(lambda: serving.cancelling() > 0)
            await settle()
            assert not handing_over.done()
            assert done == []
            go_on.set()
        assert done == ["a change"]
