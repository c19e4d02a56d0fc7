"""What one turn of the event loop begins of the requests of all connections is bounded (INV-WS11)."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from region_broker.limits import FRAME_TIMEOUT_MS, REQUEST_COST_MIN
from region_broker.metrics import Metrics
from region_broker.ports.network import Buffer
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.ports.turn_budget import TURN_COST_MAX
from region_broker.wire.connection import FETCH_KEY, PRODUCE_KEY, Incoming
from region_broker.wire.server import KafkaServer, _cost_of, _Link
from tests.fixtures.kafka_port import RawClient
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until

TASK, DIRECT = 60, 63
SMALL_BYTES, LARGE_BYTES = 8, 3_000
AT_ONCE = 64


def request(key: int, number: int, frame_bytes: int = SMALL_BYTES) -> bytes:
    """Return a request of API `key`, with `number` as its correlation id."""
    return struct.pack(">ihhi", frame_bytes, key, 0, number) + bytes(frame_bytes - SMALL_BYTES)


class Counted:
    """A server that answers each request as it begins; `begun`: which, by the turn of the loop in which that was."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.server = KafkaServer(
            AsyncioNetwork(), self.clock, self.answer, Metrics(), begin=self.begin
        )
        self.begun: list[list[int]] = [[]]
        self.clients: list[RawClient] = []

    async def answer(self, incoming: Incoming) -> Buffer | None:
        self.begun[-1].append(incoming.correlation_id)
        return struct.pack(">i", incoming.correlation_id)

    def begin(self, incoming: Incoming, finish: object) -> bool:
        if incoming.api_key != DIRECT:
            return False
        self.begun[-1].append(incoming.correlation_id)
        assert callable(finish)
        finish(struct.pack(">i", incoming.correlation_id))
        return True

    @property
    def all_begun(self) -> list[int]:
        return [number for turn in self.begun for number in turn]

    def tick(self) -> None:
        """Note that a turn of the loop has ended, and all that come."""
        self.begun.append([])
        asyncio.get_running_loop().call_soon(self.tick)

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        return client

    def spend_turn(self) -> None:
        """Begin nothing more, until `begin_turn`."""
        self.server.turns._is_due = True
        self.server.turns.spend(TURN_COST_MAX)

    def begin_turn(self) -> None:
        """Begin what waits."""
        self.server.turns._begin_turn()

    async def waiting(self, client: RawClient, data: bytes) -> _Link:
        """Return the one connection, which has sent something that waits for its turn."""
        self.spend_turn()
        client.send_raw(data)
        await until(lambda: any(link.turn_after for link in self.server._links))
        (link,) = self.server._links
        return link


@asynccontextmanager
async def counted() -> AsyncIterator[Counted]:
    fixture = Counted()
    await fixture.server.start("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(fixture.server.run())
        yield fixture
        for client in fixture.clients:
            client.writer.transport.abort()
        fixture.server.close()
        await running


@pytest.mark.parametrize("key", [TASK, DIRECT])
@pytest.mark.parametrize("frame_bytes", [SMALL_BYTES, LARGE_BYTES])
async def test_INV_WS11_a_turn_of_the_loop_begins_little_of_all_connections(
    key: int, frame_bytes: int
) -> None:
    async with counted() as fixture:
        clients = [await fixture.connect() for _ in range(8)]
        asyncio.get_running_loop().call_soon(fixture.tick)
        for client in clients:
            client.send_raw(b"".join(request(key, each, frame_bytes) for each in range(AT_ONCE)))
        for client in clients:
            for number in range(AT_ONCE):
                assert await client.receive_raw() == struct.pack(">i", number)
        assert len(fixture.all_begun) == 8 * AT_ONCE
        # Between two ticks are the rest of one turn's budget, and the next one's, each with one beyond it.
        at_once_max = 2 * (TURN_COST_MAX // max(frame_bytes, REQUEST_COST_MIN) + 1)
        assert max(map(len, fixture.begun)) <= at_once_max


async def test_INV_WS11_what_waits_for_a_turn_is_begun_in_its_order() -> None:
    async with counted() as fixture:
        client = await fixture.connect()
        link = await fixture.waiting(
            client, request(TASK, 1) + request(DIRECT, 2) + request(TASK, 3)[:6]
        )
        assert link.core.waits_framed
        fixture.clock.pass_ms(FRAME_TIMEOUT_MS + 1)
        await asyncio.sleep(0)
        assert not link.closing, "nobody's time runs while this node begins nothing"
        client.send_raw(request(TASK, 3)[6:])
        fixture.begin_turn()
        for number in (1, 2, 3):
            assert await client.receive_raw() == struct.pack(">i", number)
        assert fixture.all_begun == [1, 2, 3]


async def test_INV_WS11_who_sends_no_whole_request_waits_for_no_turn() -> None:
    async with counted() as fixture:
        client = await fixture.connect()
        fixture.spend_turn()
        client.send_raw(request(TASK, 1)[:7])
        await until(lambda: any(link.core.mid_frame for link in fixture.server._links))
        (link,) = fixture.server._links
        assert link.turn_after is None
        fixture.begin_turn()


async def test_INV_WS11_who_has_gone_waits_for_no_turn() -> None:
    async with counted() as fixture:
        link = await fixture.waiting(await fixture.connect(), request(TASK, 1))
        link.shut()
        await fixture.server.wait_connections(0)
        assert link.turn_after is None
        assert not fixture.server.turns._waiting
        assert fixture.all_begun == []
        fixture.begin_turn()


async def test_INV_WS11_what_is_held_meanwhile_is_begun_when_it_is_let_go() -> None:
    async with counted() as fixture:
        client = await fixture.connect()
        link = await fixture.waiting(client, request(TASK, 1))
        fixture.server.hold()
        fixture.begin_turn()
        assert link.turn_after is None
        assert fixture.all_begun == []
        fixture.server.release()
        await client.receive_raw()
        assert fixture.all_begun == [1]


async def test_INV_WS11_a_wrong_frame_that_waited_ends_its_connection_as_any_other() -> None:
    async with counted() as fixture:
        client = await fixture.connect()
        await fixture.waiting(client, request(TASK, 1) + b"\xff" * 8)
        fixture.begin_turn()
        await client.receive_raw()
        assert await client.closed()
        assert fixture.all_begun == [1]


@pytest.mark.parametrize(
    "wrong", [b"\x6f\xff\xff\xff\0\0", struct.pack(">ihh", 4, TASK, 0)], ids=["frame", "header"]
)
async def test_INV_WS11_so_it_does_where_its_turn_comes_before_its_reader_goes_on(
    wrong: bytes,
) -> None:
    """1. A large request spends the turn. 2. One behind it waits, and begins before the task that reads wakes. 3. Behind that is no frame."""
    async with counted() as fixture:
        client = await fixture.connect()
        client.send_raw(request(TASK, 1, TURN_COST_MAX) + request(TASK, 2) + wrong)
        await client.reader.read()
        await fixture.server.wait_connections(0)
        assert fixture.server._memory.held_bytes == 0


def test_INV_WS11_records_cost_little_of_a_turn() -> None:
    assert _cost_of(TASK, SMALL_BYTES, has_task=True) == REQUEST_COST_MIN
    assert _cost_of(FETCH_KEY, LARGE_BYTES, has_task=False) == LARGE_BYTES
    assert _cost_of(PRODUCE_KEY, 1 << 20, has_task=False) < TURN_COST_MAX // 4
    assert _cost_of(PRODUCE_KEY, 1 << 20, has_task=True) < TURN_COST_MAX // 2
