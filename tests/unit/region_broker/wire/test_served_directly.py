"""Requests without a task beside such with one: order of starts, order of answers, peers that are slow or half gone."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from region_broker.limits import WRITE_TIMEOUT_MS
from region_broker.metrics import Metrics
from region_broker.ports.network import Buffer
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.wire.connection import Incoming
from region_broker.wire.server import CloseConnection, KafkaServer
from tests.fixtures.kafka_port import RawClient
from tests.fixtures.node_logs import ManualClock

TASK, DIRECT, REFUSED, HUGE = 60, 63, 64, 65
HUGE_BYTES = 64 << 20
Finish = Callable[[Buffer | Exception | None], None]


def request(key: int, number: int) -> bytes:
    """Return a request of API `key` with `number` as its correlation id."""
    return struct.pack(">ihhi", 8, key, 0, number)


def answer(number: int) -> bytes:
    """Return its answer."""
    return struct.pack(">i", number)


class Fixture:
    """A server whose direct requests are answered when the test says so; `starts` is the order of beginnings."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.server = KafkaServer(
            AsyncioNetwork(), self.clock, self.answer, self.metrics, begin=self.begin
        )
        self.starts: list[int] = []
        self.finishes: dict[int, Finish] = {}
        self.changed = asyncio.Event()
        self.gate = asyncio.Event()
        self.clients: list[RawClient] = []

    async def answer(self, incoming: Incoming) -> Buffer | None:
        self.starts.append(incoming.correlation_id)
        self.changed.set()
        await self.gate.wait()
        return answer(incoming.correlation_id)

    def begin(self, incoming: Incoming, finish: Finish) -> bool:
        if incoming.api_key == REFUSED:
            raise CloseConnection("for the test")
        if incoming.api_key not in (DIRECT, HUGE):
            return False
        self.starts.append(incoming.correlation_id)
        self.finishes[incoming.correlation_id] = finish
        self.changed.set()
        return True

    async def started(self, count: int) -> None:
        while len(self.starts) < count:
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 10)

    async def reads_no_more(self) -> None:
        """Return once the server has seen the end of what its one client sends."""
        (link,) = self.server._links
        assert link.reader is not None
        await asyncio.wait((link.reader,))

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def fixture() -> AsyncIterator[Fixture]:
    some = Fixture()
    await some.server.start("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(some.server.run())
        yield some
        some.gate.set()
        for client in some.clients:
            client.writer.transport.abort()
        some.server.close()
        await running


async def test_INV_WS1_a_direct_request_starts_behind_the_task_before_it() -> None:
    async with fixture() as some:
        some.gate.set()
        client = await some.connect()
        client.send_raw(request(TASK, 1) + request(DIRECT, 2))
        # Behind a task that has not begun it has one, too: both are answered by tasks, in their order.
        assert [await asyncio.wait_for(client.receive_raw(), 10) for _ in range(2)] == [
            answer(1),
            answer(2),
        ]
        assert (some.starts, some.finishes) == ([1, 2], {})
        client.send_raw(request(DIRECT, 3))
        await some.started(3)
        some.finishes[3](answer(3))
        assert await asyncio.wait_for(client.receive_raw(), 10) == answer(3)


async def test_INV_WQ1_answers_leave_in_order_whoever_is_finished_first() -> None:
    async with fixture() as some:
        client = await some.connect()
        client.send_raw(request(DIRECT, 1) + request(DIRECT, 2) + request(DIRECT, 3))
        await some.started(3)
        for number in (3, 1, 2):
            some.finishes[number](answer(number))
        assert [await asyncio.wait_for(client.receive_raw(), 10) for _ in range(3)] == [
            answer(n) for n in (1, 2, 3)
        ]


async def test_a_peer_that_sends_no_more_still_gets_its_answers() -> None:
    async with fixture() as some:
        client = await some.connect()
        client.send_raw(request(DIRECT, 1))
        await some.started(1)
        client.writer.write_eof()
        await asyncio.wait_for(some.reads_no_more(), 10)
        some.finishes[1](answer(1))
        assert await asyncio.wait_for(client.receive_raw(), 10) == answer(1)
        assert await client.closed()


async def test_an_answer_to_a_peer_that_has_gone_disturbs_nobody() -> None:
    async with fixture() as some:
        gone, good = await some.connect(), await some.connect()
        gone.send_raw(request(DIRECT, 1))
        await some.started(1)
        gone.writer.transport.abort()
        good.send_raw(request(DIRECT, 2))
        await some.started(2)
        for number in (1, 2):
            some.finishes[number](answer(number))
        assert await asyncio.wait_for(good.receive_raw(), 10) == answer(2)
        await asyncio.wait_for(some.server.wait_connections(1), 10)


async def test_a_request_that_is_refused_closes_its_connection_only() -> None:
    async with fixture() as some:
        bad, good = await some.connect(), await some.connect()
        bad.send_raw(request(REFUSED, 1))
        assert await bad.closed()
        good.send_raw(request(DIRECT, 2))
        await some.started(1)
        some.finishes[2](answer(2))
        assert await asyncio.wait_for(good.receive_raw(), 10) == answer(2)
        assert b'connections_refused_total{reason="protocol"} 1.0' in some.metrics.render()


async def test_a_request_that_fails_after_it_was_begun_closes_its_connection_only() -> None:
    async with fixture() as some:
        bad, good = await some.connect(), await some.connect()
        bad.send_raw(request(DIRECT, 1))
        good.send_raw(request(DIRECT, 2))
        await some.started(2)
        some.finishes[1](ValueError("for the test"))
        assert await bad.closed()
        some.finishes[2](answer(2))
        assert await asyncio.wait_for(good.receive_raw(), 10) == answer(2)
        assert b'connections_refused_total{reason="failure"} 1.0' in some.metrics.render()


async def test_INV_WS3_a_bug_of_ours_ends_the_server() -> None:
    async def failing() -> None:
        async with fixture() as some:
            client = await some.connect()
            client.send_raw(request(DIRECT, 1))
            await some.started(1)
            some.finishes[1](AssertionError("for the test"))
            assert await client.closed()

    with pytest.raises(ExceptionGroup) as failed:
        await failing()
    assert failed.group_contains(AssertionError, match="for the test")


async def test_INV_WS4_what_waits_is_given_up_when_its_peer_has_gone() -> None:
    class Waits:
        def give_up(self) -> None:
            some.finishes[1](None)

    async with fixture() as some:
        client = await some.connect()
        client.send_raw(request(DIRECT, 1))
        await some.started(1)
        (link,) = some.server._links
        link.core.peer.waiting[Waits()] = None
        client.writer.transport.abort()
        await asyncio.wait_for(some.server.wait_connections(0), 10)


async def test_INV_WS2_a_peer_that_does_not_read_is_cut_off() -> None:
    async with fixture() as some:
        deaf, good = await some.connect(), await some.connect()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.send_raw(request(HUGE, 1))
        await some.started(1)
        some.finishes[1](bytes(HUGE_BYTES))
        for number in (2, 3, 4):
            good.send_raw(request(DIRECT, number))
            await some.started(number)
            some.finishes[number](answer(number))
            await asyncio.wait_for(good.receive_raw(), 10)
        some.clock.pass_ms(WRITE_TIMEOUT_MS + 1)
        await asyncio.wait_for(some.server.wait_connections(1), 10)
        assert some.server.connection_count == 1
