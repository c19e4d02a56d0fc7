"""Peers that keep the server waiting are cut off, by a clock that the test moves (INV-WS2)."""

import asyncio
import gc
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from region_broker.limits import (
    CONNECTION_BURST_S,
    CONNECTIONS_MAX,
    FRAME_TIMEOUT_MS,
    IDLE_TIMEOUT_MS,
    WRITE_TIMEOUT_MS,
)
from region_broker.metrics import Metrics
from region_broker.ports.network import Buffer
from region_broker.ports.system.network import AsyncioNetwork, AsyncioStream
from region_broker.wire.connection import FETCH_KEY, Connection, Incoming, Slot
from region_broker.wire.connection_caps import ConnectionCaps
from region_broker.wire.server import KafkaServer
from tests.fixtures.kafka_port import RawClient
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until

REQUEST = struct.pack(">ihhi", 8, 60, 0, 1)
HUGE_BYTES = 64 << 20
THROTTLE_MS = 60_000


class Served:
    """A server on a manual clock; API 60 is answered shortly, API 61 with HUGE_BYTES, API 62, 63 and Fetch once `gate` is open, and who sent
    API 63 is left unread for THROTTLE_MS then."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.server = KafkaServer(AsyncioNetwork(), self.clock, self.answer, self.metrics, **limits)
        self.gate = asyncio.Event()
        self.answered = 0
        self.clients: list[RawClient] = []

    async def answer(self, incoming: Incoming) -> Buffer | None:
        if incoming.api_key in {62, 63, FETCH_KEY}:
            await self.gate.wait()
        if incoming.api_key == 63:
            incoming.throttle_ms = THROTTLE_MS
        self.answered += 1
        return bytes(HUGE_BYTES if incoming.api_key == 61 else 4)

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[Served]:
    fixture = Served(**limits)
    await fixture.server.start("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(fixture.server.run())
        yield fixture
        for client in fixture.clients:
            client.writer.transport.abort()
        fixture.server.close()
        await running


async def test_half_a_frame_is_not_waited_for_forever() -> None:
    async with served() as fixture:
        slow, good = await fixture.connect(), await fixture.connect()
        slow.send_raw(REQUEST + REQUEST[:5])
        await slow.receive_raw()
        fixture.clock.pass_ms(FRAME_TIMEOUT_MS + 1)
        assert await slow.closed()
        good.send_raw(REQUEST)
        await good.receive_raw()


async def test_a_flood_of_connections_that_may_not_stay_is_a_line_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(caps=ConnectionCaps(per_address=1, rate=0)) as fixture:
        good = await fixture.connect()
        good.send_raw(REQUEST)
        await good.receive_raw()
        for _ in range(20):
            assert await (await fixture.connect()).closed()
        assert caplog.text.count("connections are open") == 1
        fixture.clock.pass_ms(1_000)
        assert await (await fixture.connect()).closed()
        assert caplog.text.count("connections are open") == 2
        refused = fixture.metrics.connections_refused.labels("address")
        assert refused._value.get() == 21, "the counter has them all"


async def test_INV_PN8_a_server_expects_what_a_request_lacks_and_nothing_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected: list[int] = []
    monkeypatch.setattr(AsyncioStream, "expect", lambda _stream, count: expected.append(count))
    large = struct.pack(">ihhi", 100_000, 60, 0, 2) + bytes(100_000 - 8)
    async with served() as fixture:
        client = await fixture.connect()
        client.send_raw(large[:4])
        await until(lambda: expected == [100_000])
        client.send_raw(large[4:1_004])
        await until(lambda: expected[-1] == 99_000)
        client.send_raw(large[1_004:] + REQUEST[:2])
        await client.receive_raw()
        await until(lambda: expected[-1] == 0)


async def test_peer_that_does_not_read_its_answers_is_cut_off() -> None:
    async with served() as fixture:
        deaf, good = await fixture.connect(), await fixture.connect()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.send_raw(struct.pack(">ihhi", 8, 61, 0, 1))
        await deaf.writer.drain()
        for _ in range(3):  # the huge answer is begun before the third of these is answered
            good.send_raw(REQUEST)
            await good.receive_raw()
        fixture.clock.pass_ms(WRITE_TIMEOUT_MS + 1)
        await fixture.server.wait_connections(1)
        assert fixture.server.connection_count == 1


async def test_idle_connection_is_closed_in_the_end() -> None:
    async with served() as fixture:
        idle = await fixture.connect()
        idle.send_raw(REQUEST)
        await idle.receive_raw()
        fixture.clock.pass_ms(IDLE_TIMEOUT_MS + 1)
        assert await idle.closed()
        assert b'connections_refused_total{reason="timeout"} 1.0' in fixture.metrics.render()


async def test_who_waits_for_an_answer_is_not_idle() -> None:
    async with served() as fixture:
        waits = await fixture.connect()
        waits.send_raw(struct.pack(">ihhi", 8, 62, 0, 1))
        await until(
            lambda: any(link.core.in_flight for link in fixture.server._links), "it is served"
        )
        idle = await fixture.connect()
        idle.send_raw(REQUEST)
        await idle.receive_raw()
        fixture.clock.pass_ms(IDLE_TIMEOUT_MS + 1)
        assert await idle.closed(), "the sweeper has looked"
        fixture.gate.set()
        await waits.receive_raw()


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with served(caps=ConnectionCaps(in_all=1)) as fixture:
        first = await fixture.connect()
        first.send_raw(REQUEST)
        await first.receive_raw()
        second = await fixture.connect()
        assert await second.closed()


async def test_one_address_cannot_take_every_place() -> None:
    async with served(caps=ConnectionCaps(per_address=2)) as fixture:
        first, second = await fixture.connect(), await fixture.connect()
        for client in (first, second):
            client.send_raw(REQUEST)
            await client.receive_raw()
        for _ in range(20):  # a reconnect storm: each is closed at once
            assert await (await fixture.connect()).closed()
        assert fixture.server.connection_count == 2
        assert b'connections_refused_total{reason="address"} 20.0' in fixture.metrics.render()
        first.writer.close()
        await fixture.server.wait_connections(1)
        again = await fixture.connect()  # and a place that is left is given again
        again.send_raw(REQUEST)
        await again.receive_raw()


def test_connections_leave_half_of_the_descriptors_to_files() -> None:
    assert ConnectionCaps.fitting(1_024, 1_000, 7) == ConnectionCaps(512, 512, 7)
    assert ConnectionCaps.fitting(1 << 20, 1_000, 7) == ConnectionCaps(CONNECTIONS_MAX, 1_000, 7)


async def test_one_address_opens_connections_no_quicker_than_its_rate() -> None:
    async with served(caps=ConnectionCaps(rate=2)) as fixture:
        for _ in range(2 * CONNECTION_BURST_S):
            client = await fixture.connect()
            client.send_raw(REQUEST)
            await client.receive_raw()
            client.writer.close()
        assert await (await fixture.connect()).closed()
        fixture.clock.pass_ms(500)
        later = await fixture.connect()
        later.send_raw(REQUEST)
        await later.receive_raw()
        assert await (await fixture.connect()).closed()


async def test_port_in_use_is_an_oserror_at_start() -> None:
    async with served() as fixture:
        other = KafkaServer(AsyncioNetwork(), fixture.clock, fixture.answer, fixture.metrics)
        with pytest.raises(OSError, match="in use"):
            await other.start("127.0.0.1", fixture.server.port)


async def test_INV_WS7_a_connection_that_was_accepted_before_the_close_is_ended() -> None:
    fixture = Served()
    await fixture.server.start("127.0.0.1", 0)
    client = await fixture.connect()  # it waits for `run`, which serves it in a task of its own
    waiting = fixture.server._waiting
    await until(lambda: bool(waiting), "it was accepted")
    running = asyncio.get_running_loop().create_task(fixture.server.run())
    await asyncio.sleep(0)
    assert (waiting, fixture.server.connection_count) == ([], 0), (
        "it is to be served in the next turn of the loop"
    )
    fixture.server.close()
    async with asyncio.timeout(10):
        await running
    client.writer.transport.abort()


async def test_INV_WS7_a_connection_that_comes_while_the_server_is_cancelled_is_ended() -> None:
    """A handler takes its time to end; pytest fails a coroutine that nobody awaited."""
    fixture = Served()
    ending = asyncio.Event()

    async def reluctant(_: Incoming) -> Buffer | None:
        try:
            await fixture.gate.wait()
        except asyncio.CancelledError:
            ending.set()
            await fixture.gate.wait()
        return bytes(4)

    fixture.server._answer = reluctant
    await fixture.server.start("127.0.0.1", 0)
    running = asyncio.get_running_loop().create_task(fixture.server.run())
    first, late = await fixture.connect(), None
    first.send_raw(REQUEST)
    await until(lambda: fixture.server.connection_count == 1, "it is served")
    await asyncio.sleep(0)
    running.cancel()
    async with asyncio.timeout(10):
        await ending.wait()
        late = await fixture.connect()
        assert await late.closed()
        fixture.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    for client in (first, late):
        client.writer.transport.abort()


async def test_close_answers_what_was_asked_and_ends() -> None:
    async with served() as fixture:
        client = await fixture.connect()
        client.send_raw(REQUEST * 3)
        for _ in range(3):
            await client.receive_raw()
        fixture.server.close()
        assert await client.closed()


# --- requests are held while another one takes the connections over ---


WAITS = struct.pack(">ihhi", 8, 62, 0, 2)


async def test_INV_WS8_what_is_held_waits_and_is_served_in_order_by_whoever_serves_then() -> None:
    async with served() as fixture:
        server, client = fixture.server, await fixture.connect()
        client.send_raw(WAITS)
        await until(lambda: server.connection_count == 1, "it is there")
        await until(lambda: any(link.core.owes for link in server._links), "it is begun")
        server.hold()
        client.send_raw(REQUEST + REQUEST)
        late = await fixture.connect()
        late.send_raw(REQUEST)
        answered = asyncio.get_running_loop().create_task(server.until_answered())
        await until(lambda: server.connection_count == 2, "both are there")
        assert not answered.done()
        fixture.clock.pass_ms(FRAME_TIMEOUT_MS + 1)
        fixture.gate.set()
        await answered
        await client.receive_raw()
        served_by: list[int] = []

        async def other(incoming: Incoming) -> Buffer | None:
            served_by.append(incoming.peer.connection_id)
            return b"next"

        metrics = Metrics()
        server.serve_by(other, None, metrics)
        assert served_by == []
        server.release()
        assert await client.receive_raw() == await client.receive_raw() == b"next"
        assert await late.receive_raw() == b"next"
        assert sorted(served_by) == [1, 1, 2]
        assert metrics.connections._value.get() == 2


async def test_INV_WS8_no_connection_is_ended_for_the_time_that_requests_are_held() -> None:
    async with served() as fixture:
        server, client = fixture.server, await fixture.connect()
        client.send_raw(REQUEST)
        await client.receive_raw()
        server.hold()
        client.send_raw(REQUEST[:5])
        for _ in range(3):
            fixture.clock.pass_ms(FRAME_TIMEOUT_MS + IDLE_TIMEOUT_MS)
            await asyncio.sleep(0)
        server.release()
        client.send_raw(REQUEST[5:])
        await client.receive_raw()


async def test_what_is_not_answered_in_time_ends_its_connection_alone() -> None:
    async with served() as fixture:
        server = fixture.server
        stuck, other = await fixture.connect(), await fixture.connect()
        stuck.send_raw(WAITS)
        other.send_raw(REQUEST)
        await other.receive_raw()
        await until(lambda: any(link.core.owes for link in server._links), "it is begun")
        server.hold()
        assert server.end_unanswered() == 1
        assert await stuck.closed()
        fixture.gate.set()
        await server.until_answered()
        server.release()
        other.send_raw(REQUEST)
        await other.receive_raw()


async def test_what_is_not_answered_in_time_may_be_cancelled_with_its_connection() -> None:
    async with served() as fixture:
        server = fixture.server
        stuck, other = await fixture.connect(), await fixture.connect()
        stuck.send_raw(WAITS)
        other.send_raw(REQUEST)
        await other.receive_raw()
        await until(lambda: any(link.core.owes for link in server._links), "it is begun")
        server.hold()
        assert server.end_unanswered(cancels=True) == 1
        await server.until_answered()
        assert server.connection_count == 1
        assert fixture.answered == 1, "the one that waited was not"
        server.release()
        other.send_raw(REQUEST)
        await other.receive_raw()


def kept() -> int:
    return sum(type(each) in (Connection, Slot, Incoming) for each in gc.get_objects())


async def until_one(fixture: Served, is_so: Callable[[Any], bool]) -> None:
    """Wait until it is so of a connection, and hold none."""
    await until(lambda: any(map(is_so, fixture.server._links)))


async def resets(fixture: Served) -> None:
    """Ask for two answers, of which the second one is there and has to wait for the first, and go."""
    client = await fixture.connect()
    socket_of(client).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.send_raw(WAITS + REQUEST + WAITS)
    await until_one(
        fixture, lambda link: [slot.done for slot in link.core._slots] == [False, True, False]
    )
    client.writer.transport.abort()
    await asyncio.sleep(0)
    fixture.gate.set()


async def reads_nothing(fixture: Served) -> None:
    """Ask for more than the system takes, and for one more behind it; whoever cuts it off looks at it last."""
    client = await fixture.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    client.send_raw(struct.pack(">ihhi", 8, 61, 0, 1) + REQUEST)
    await until_one(fixture, lambda link: link.writing_since_ms >= 0 and bool(link.core._unsent))
    fixture.clock.pass_ms(WRITE_TIMEOUT_MS + 1)


async def is_held_back(fixture: Served) -> None:
    """Ask for two Fetches at once, of which the second one waits unbegun."""
    client = await fixture.connect()
    fetch = struct.pack(">ihhi", 8, 1, 0, 1)
    client.send_raw(WAITS + fetch + fetch)
    await until_one(fixture, lambda link: link.core._next is not None)
    client.writer.transport.abort()
    await asyncio.sleep(0)
    fixture.gate.set()


def socket_of(client: RawClient) -> socket.socket:
    found: socket.socket = client.writer.get_extra_info("socket")
    return found


@pytest.mark.parametrize("ends", [resets, reads_nothing, is_held_back])
async def test_INV_PN7_requests_that_were_not_answered_are_freed_with_their_connection(
    ends: Callable[[Served], Awaitable[None]],
) -> None:
    """Each held its connection, and was held by it: frames and answers of whoever had gone stayed until the cycle collector came."""
    async with served() as fixture:
        gc.collect()
        before = kept()
        gc.disable()
        try:
            await ends(fixture)
            await until(lambda: kept() == before, looks=200)
        finally:
            gc.enable()
        fixture.server.close()
