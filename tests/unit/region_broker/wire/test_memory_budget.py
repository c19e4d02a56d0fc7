"""Memory of requests and answers stays near the budget, and everybody honest is served in the end (INV-MB1..3)."""

import asyncio
import struct
from collections.abc import Coroutine
from typing import TypeVar

from region_broker.limits import (
    FREE_HELD_BYTES,
    IDLE_TIMEOUT_MS,
    MIB,
    PRESSED_TIMEOUT_MS,
    SOCKET_READ_BYTES,
)
from region_broker.ports.network import READ_AHEAD_BYTES
from region_broker.wire.connection import FETCH_KEY
from region_broker.wire.memory_budget import MemoryBudget, Share
from tests.fixtures.kafka_port import RawClient
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until
from tests.unit.region_broker.wire.test_server import REQUEST, Served, served

R = TypeVar("R")
FRAME_BYTES = 4 * MIB
SMALL_BYTES = FREE_HELD_BYTES // 2


def request(api_key: int, size_bytes: int) -> bytes:
    return struct.pack(">ihhi", size_bytes, api_key, 0, 1) + bytes(size_bytes - 8)


class Watched(MemoryBudget):
    """A budget that remembers the most that was held."""

    most_bytes = 0

    def hold(self, share: Share, held_bytes: int, not_begun_bytes: int = 0) -> None:
        super().hold(share, held_bytes, not_begun_bytes)
        self.most_bytes = max(self.most_bytes, self.held_bytes)


async def turns() -> None:
    """Let the loop run for as long as loopback bytes may be under way."""
    for _ in range(50):
        await asyncio.sleep(0.001)


async def in_time(fixture: Served, awaited: Coroutine[None, None, R]) -> R:
    """Wait for what a client sees, while time passes: on a busy machine a look at who is overdue may come late."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(awaited)
        while not task.done():
            fixture.clock.pass_ms(1_000)
            await turns()
    return task.result()


async def answered_in_time(fixture: Served, client: RawClient) -> None:
    """Return once a client is answered, while time passes."""
    await in_time(fixture, client.receive_raw())


async def closed_in_time(fixture: Served, client: RawClient) -> bool:
    """Whether a client is cut off and told nothing, once time passes."""
    return await in_time(fixture, client.closed())


async def small_is_answered(fixture: Served) -> None:
    client = await fixture.connect()
    client.send_raw(request(60, SMALL_BYTES))
    await client.receive_raw()
    client.writer.close()


def test_small_holdings_do_not_count() -> None:
    budget, share = MemoryBudget(MIB), Share()
    budget.hold(share, FREE_HELD_BYTES)
    assert budget.held_bytes == 0
    budget.hold(share, FREE_HELD_BYTES + 1)
    assert budget.held_bytes == FREE_HELD_BYTES + 1
    budget.hold(share, 0)
    assert budget.held_bytes == 0


async def test_a_budget_that_is_made_larger_is_read_on_at_once() -> None:
    budget, mine, other = MemoryBudget(MIB), Share(), Share()
    budget.hold(mine, MIB)
    assert not budget.may_read(mine, 0, unfinished=False)
    assert budget.may_read(other, 0, unfinished=True)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(budget.changed())
        await asyncio.sleep(0)
        budget.resize(2 * MIB)
        await waiting
    assert budget.may_read(mine, 0, unfinished=False)
    assert budget.left_bytes == MIB


def test_INV_MB3_a_budget_that_is_made_smaller_takes_nothing_away() -> None:
    budget, mine = MemoryBudget(4 * MIB), Share()
    budget.hold(mine, 3 * MIB)
    budget.resize(MIB)
    assert (budget.full, budget.left_bytes, budget.held_bytes) == (True, 0, 3 * MIB)
    budget.hold(mine, 0)
    assert (budget.full, budget.left_bytes) == (False, MIB)


def test_INV_MB1_in_a_full_budget_one_unfinished_frame_goes_on() -> None:
    budget = MemoryBudget(MIB)
    first, second, answered, small = Share(), Share(), Share(), Share()
    for share in (first, second, answered):
        budget.hold(share, MIB // 2)
    assert not budget.may_read(answered, 1, unfinished=False)
    assert budget.may_read(first, 1, unfinished=True)
    assert not budget.may_read(second, 2, unfinished=True)
    assert budget.may_read(first, 3, unfinished=True)
    assert first.turn_since_ms == 1  # a turn is not prolonged by asking again
    assert budget.may_read(small, 3, unfinished=False)


def test_INV_MB2_a_turn_ends_with_its_connection_and_with_the_want() -> None:
    budget = MemoryBudget(MIB)
    first, second, third = Share(), Share(), Share()
    for share in (first, second, third):
        budget.hold(share, MIB)
    assert budget.may_read(first, 1, unfinished=True)
    budget.hold(first, 0)
    assert first.turn_since_ms == -1
    assert budget.may_read(second, 2, unfinished=True)
    budget.hold(third, 0)
    budget.hold(second, MIB - 1)
    assert (budget.full, second.turn_since_ms) == (False, -1)


def test_INV_MB2_a_turn_is_for_one_frame_and_until_that_one_is_answered() -> None:
    budget = MemoryBudget(MIB)
    first, second = Share(), Share()
    for share in (first, second):
        budget.hold(share, MIB)
    assert budget.may_read(first, 1, unfinished=True)
    assert budget.spend_turn(first)
    assert not budget.spend_turn(first), "it was for one frame"
    assert first.turn_since_ms == -1, "nobody waits for bytes of it any more"
    assert not budget.may_read(first, 2, unfinished=True)
    assert not budget.may_read(second, 2, unfinished=True), "the frame is still held"
    budget.end_turn(first)
    assert budget.may_read(second, 3, unfinished=True)
    budget.end_turn(first)
    assert not budget.may_read(first, 4, unfinished=True), "who has no turn ends none"


def test_INV_MB4_what_is_not_begun_leaves_a_part_of_the_budget_to_answers() -> None:
    budget, parts, begun = MemoryBudget(4 * MIB), Share(), Share()
    budget.hold(parts, 3 * MIB, 3 * MIB)
    assert (budget.full, budget.left_bytes) == (True, MIB)
    budget.hold(parts, 90 * MIB, 90 * MIB)  # it had the turn
    assert (budget.full, budget.left_bytes) == (True, MIB)
    budget.hold(begun, MIB - 1)
    assert budget.left_bytes == 1
    budget.hold(parts, 2 * MIB, 2 * MIB)
    assert (budget.full, budget.left_bytes) == (False, MIB + 1)
    budget.hold(begun, 2 * MIB)
    assert (budget.full, budget.left_bytes) == (True, 0)


async def test_INV_MB4_who_waits_for_room_to_answer_is_woken_where_nothing_may_be_read_yet() -> (
    None
):
    budget, parts, begun, clock = MemoryBudget(4 * MIB), Share(), Share(), ManualClock()
    budget.hold(parts, 3 * MIB, 3 * MIB)
    budget.hold(begun, MIB)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.wait_room(clock, 1_000))
        await turns()
        assert not waiting.done()
        budget.hold(begun, 0)
    assert waiting.result()
    assert budget.full


async def test_INV_MB3_many_large_requests_wait_in_their_sockets_and_are_all_answered() -> None:
    memory = Watched(MIB)
    async with served(memory=memory) as fixture:
        clients = [await fixture.connect() for _ in range(8)]
        for client in clients:
            client.send_raw(request(62, FRAME_BYTES))
        await turns()
        assert memory.full
        await small_is_answered(fixture)
        fixture.gate.set()
        await asyncio.gather(*(client.receive_raw() for client in clients))
        assert memory.most_bytes <= MIB + FRAME_BYTES + len(clients) * SOCKET_READ_BYTES
        for client in clients:
            client.writer.close()
        await fixture.server.wait_connections(0)
        assert memory.held_bytes == 0


async def test_senders_that_stop_within_large_frames_give_way() -> None:
    memory = Watched(MIB)
    async with served(memory=memory) as fixture:
        for _ in range(8):
            slow = await fixture.connect()
            slow.send_raw(request(60, FRAME_BYTES)[: MIB // 5])
        await turns()
        assert memory.full
        honest = await fixture.connect()
        honest.send_raw(request(60, FRAME_BYTES))
        await small_is_answered(fixture)
        for _ in range(2):
            fixture.clock.pass_ms(PRESSED_TIMEOUT_MS + 1)
            await turns()
        await until(lambda: fixture.server.connection_count <= 4)  # all that slept went at once
        await answered_in_time(fixture, honest)


async def test_who_waits_for_an_answer_keeps_no_part_of_a_request_for_longer() -> None:
    """1. A request waits for minutes, as a Fetch does. 2. Behind it comes a part of a large one, and a little more now and then."""
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        slow = [await fixture.connect() for _ in range(3)]
        for each in slow:
            each.send_raw(request(62, 8) + request(60, FRAME_BYTES)[: MIB // 2])
        await until(lambda: memory.full)
        honest = await fixture.connect()
        honest.send_raw(request(60, FRAME_BYTES))
        await turns()
        for _ in range(3 * PRESSED_TIMEOUT_MS // 1_000 + 6):
            fixture.clock.pass_ms(1_000)
            for each in slow:
                if not each.writer.transport.is_closing():
                    each.send_raw(b"x")
            await turns()
        await answered_in_time(fixture, honest)
        assert not memory.full, "though what they sent first is not answered yet"
        fixture.gate.set()


async def test_a_large_request_behind_a_fetch_that_waits_gives_way() -> None:
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        greedy, good = await fixture.connect(), await fixture.connect()
        small, large = request(FETCH_KEY, 8), request(FETCH_KEY, FRAME_BYTES)
        greedy.send_raw(small + large)
        good.send_raw(small + small)  # nobody is in its way
        await until(lambda: memory.full)
        fixture.clock.pass_ms(PRESSED_TIMEOUT_MS + 1)
        assert await closed_in_time(fixture, greedy)
        fixture.gate.set()
        await good.receive_raw()
        await good.receive_raw()
        assert memory.held_bytes == 0


async def test_a_small_request_behind_a_fetch_that_waits_keeps_no_turn_either() -> None:
    """Neither is large, and both together count: it has the turn until the second one begins, which waits for the first."""
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        memory.hold(Share(), MIB)
        greedy, large = await fixture.connect(), await fixture.connect()
        first, second = request(FETCH_KEY, 60_000), request(FETCH_KEY, 20_000)
        greedy.send_raw(first + second[:10_000])
        await turns()
        large.send_raw(request(60, FRAME_BYTES))
        greedy.send_raw(second[10_000:])
        await turns()
        assert fixture.answered == 0
        for _ in range(2):
            fixture.clock.pass_ms(PRESSED_TIMEOUT_MS + 1)
            await turns()
        assert await closed_in_time(fixture, greedy)
        await answered_in_time(fixture, large)


async def test_INV_MB2_a_small_request_that_waits_keeps_no_turn() -> None:
    """It had the turn for its frame: that is here, and small, and its answer may take minutes."""
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        memory.hold(Share(), MIB)
        waits, large = await fixture.connect(), await fixture.connect()
        begun = request(62, 60_000)
        waits.send_raw(begun + request(62, 20_000)[:10_000])
        await turns()
        waits.send_raw(request(62, 20_000)[10_000:])
        await turns()
        large.send_raw(request(60, FRAME_BYTES))
        await asyncio.wait_for(large.receive_raw(), 10)
        fixture.gate.set()


async def test_INV_MB2_who_is_left_unread_by_a_quota_keeps_no_turn_and_is_not_cut_off_for_it() -> (
    None
):
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        memory.hold(Share(), MIB)
        throttled, large = await fixture.connect(), await fixture.connect()
        throttled.send_raw(request(63, 8) + request(60, FRAME_BYTES)[: MIB // 2])
        await turns()
        fixture.gate.set()
        await throttled.receive_raw()
        large.send_raw(request(60, FRAME_BYTES))
        await asyncio.wait_for(large.receive_raw(), 10)
        for _ in range(2):
            fixture.clock.pass_ms(PRESSED_TIMEOUT_MS + 1)
            await turns()
        assert not throttled.reader.at_eof()


async def test_INV_MB3_answers_that_nobody_takes_leave_the_turn_and_no_request_behind() -> None:
    """A large request that is answered is given back before its answer is taken."""
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        memory.hold(Share(), MIB)
        client = await fixture.connect()
        client.send_raw(request(62, 8) + request(60, FRAME_BYTES))
        await until(lambda: fixture.answered == 1)
        await turns()
        assert memory.held_bytes == MIB, "the answer waits for the one before it"
        client.send_raw(request(60, FRAME_BYTES))
        await until(lambda: fixture.answered == 2)
        fixture.gate.set()
        for _ in range(3):
            await client.receive_raw()


async def test_who_sends_a_little_now_and_then_is_waited_for_no_longer_than_others_wait() -> None:
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        memory.hold(Share(), MIB)
        slow = await fixture.connect()
        slow.send_raw(request(60, FRAME_BYTES)[: MIB // 5])  # it has the turn
        await turns()
        for _ in range(PRESSED_TIMEOUT_MS // 1_000 + 2):
            fixture.clock.pass_ms(1_000)
            slow.send_raw(bytes(MIB // 5))  # what wakes its reader
            await turns()
        assert await closed_in_time(fixture, slow)


async def test_whoever_is_held_back_is_not_cut_off_for_it() -> None:
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        holder = Share()
        memory.hold(holder, MIB)
        candidate, honest = await fixture.connect(), await fixture.connect()
        candidate.send_raw(request(62, FRAME_BYTES))  # has the turn, then its answer is late
        await turns()
        honest.send_raw(request(60, FRAME_BYTES))
        await turns()
        fixture.clock.pass_ms(2 * IDLE_TIMEOUT_MS)
        await turns()
        memory.hold(holder, 0)
        fixture.gate.set()
        await candidate.receive_raw()
        await asyncio.wait_for(honest.receive_raw(), 10)


async def test_answers_that_nobody_takes_count_and_are_given_up_sooner() -> None:
    memory = MemoryBudget(MIB)
    async with served(memory=memory) as fixture:
        deaf = await fixture.connect()
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        deaf.send_raw(struct.pack(">ihhi", 8, 61, 0, 1))
        good = await fixture.connect()
        while fixture.server.connection_count < 2 or not memory.full:
            good.send_raw(REQUEST)
            await good.receive_raw()
        fixture.clock.pass_ms(PRESSED_TIMEOUT_MS + 1)
        await fixture.server.wait_connections(1)
        assert memory.held_bytes == 0


async def test_waiting_for_room_ends_with_it_or_with_the_time() -> None:
    memory, clock, holder = MemoryBudget(MIB), ManualClock(), Share()
    assert await memory.wait_room(clock, 1_000)
    memory.hold(holder, MIB)
    async with asyncio.TaskGroup() as group:
        late = group.create_task(memory.wait_room(clock, 1_000))
        await turns()
        clock.pass_ms(1_000)
    assert not late.result()
    async with asyncio.TaskGroup() as group:
        in_time = group.create_task(memory.wait_room(clock, 1_000))
        await turns()
        memory.hold(holder, 0)
    assert in_time.result()


async def test_a_stalled_connection_holds_little_beside_the_budget() -> None:
    """What a socket brings while nobody may read it: one receive of the event loop."""
    async with served() as fixture:
        client: RawClient = await fixture.connect()
        client.send_raw(request(62, 100) * 64 + request(62, 16 * MIB))
        await turns()
        (link,) = fixture.server._links
        assert link.core.held_bytes <= 64 * 104 + SOCKET_READ_BYTES
        assert link.stream.unread_bytes <= READ_AHEAD_BYTES + SOCKET_READ_BYTES
        fixture.gate.set()
        for _ in range(65):
            await client.receive_raw()
