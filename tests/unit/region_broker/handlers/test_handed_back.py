"""What a request that waits on others for long gives back of its bytes, it gives back: nothing holds them that nobody counts (INV-WQ4)."""

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

from region_broker.limits import FREE_HELD_BYTES, REQUEST_STRING_BYTES_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.connection import Incoming, Peer
from region_broker.wire.connection_state import ConnectionState
from tests.fixtures.judged_apis import ALICE, Judged, acl, judged_apis
from tests.fixtures.kafka_port import frame_of, wire_fixture
from tests.fixtures.waiting import until
from tests.unit.region_broker.handlers.kafka_acl_table import MEMBER

JUNK_BYTES = 1_000_000
JOIN: dict[str, Any] = {
    **MEMBER, "session_timeout": 10_000, "rebalance_timeout": 600_000, "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"what is subscribed"}], "reason": None,
}  # fmt: skip


def varint(value: int) -> bytes:
    """Return UNSIGNED_VARINT (KIP-482)."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low]) if not rest else bytes([low | 0x80]) + varint(rest)


async def test_INV_WQ4_a_join_that_waits_holds_nothing_of_what_it_handed_back(
    tmp_path: Path,
) -> None:
    """1. A member joins, with a tagged field of a megabyte that nobody knows (KIP-482). 2. It waits for another one: ten minutes, if it says so."""
    async with judged_apis(tmp_path) as judged:
        judged.give(acl(ResourceType.GROUP, Operation.READ, name="g"))
        drawn = [(await judged.ask(11, 9, {**JOIN, "member_id": ""})).member_id for _ in range(2)]
        await judged.ask(11, 9, {**JOIN, "member_id": drawn[0]})
        known = frame_of(11, 9, {**JOIN, "member_id": drawn[1]})
        assert known.endswith(b"\0"), "no tagged field"
        frame = bytearray(known[:-1] + varint(1) + varint(77) + varint(JUNK_BYTES) + bytes(JUNK_BYTES))  # fmt: skip
        peer = Peer(1, "10.0.0.1:5", state=ConnectionState(identity=ALICE))
        handed_back: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        incoming = Incoming(peer, memoryview(frame), 11, 9, 1)
        incoming.on_hand_back = handed_back.set_result
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(judged.dispatcher.answer(incoming))
            assert await handed_back > JUNK_BYTES // 2  # all but its beginning
            frame.clear()  # which raises BufferError while somebody holds it
            assert not waiting.done()
            await judged.ask(11, 9, {**JOIN, "member_id": drawn[0]})


async def test_INV_WQ4_a_fetch_that_waits_holds_nothing_of_what_it_handed_back(
    tmp_path: Path,
) -> None:
    """It waits for five minutes, if it says so, and takes no right to ask for nothing."""
    async with judged_apis(tmp_path) as judged:
        known = frame_of(1, 12, {"max_wait": 300_000, "min_bytes": 1, "max_bytes": 1, "topics": [], "forgotten_topics_data": []})  # fmt: skip
        assert known.endswith(b"\0"), "no tagged field"
        frame = bytearray(known[:-1] + varint(1) + varint(77) + varint(JUNK_BYTES) + bytes(JUNK_BYTES))  # fmt: skip
        peer = Peer(1, "10.0.0.1:5", state=ConnectionState(identity=ALICE))
        handed_back: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        incoming = Incoming(peer, memoryview(frame), 1, 12, 1)
        incoming.on_hand_back = handed_back.set_result
        assert not judged.dispatcher.begin(incoming, lambda _answer: None)
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(judged.dispatcher.answer(incoming))
            assert await handed_back > JUNK_BYTES // 2  # all but its beginning
            frame.clear()  # which raises BufferError while somebody holds it
            assert not waiting.done()
            waiting.cancel()


LONGEST = "\N{GRINNING FACE}" + "n" * (REQUEST_STRING_BYTES_MAX - 4)
"""Which takes four bytes a letter once it is decoded."""
SYNC: dict[str, Any] = {**MEMBER, "assignments": [{"member_id": LONGEST, "assignment": b""}] * 100}


async def group_of_two(judged: Judged) -> tuple[list[str], int]:
    """Have two members in a generation that nobody was assigned anything in; return the leader and the other one, and its number."""
    judged.give(acl(ResourceType.GROUP, Operation.READ, name="g"))
    drawn = [(await judged.ask(11, 9, {**JOIN, "member_id": ""})).member_id for _ in range(2)]
    await judged.ask(11, 9, {**JOIN, "member_id": drawn[0]})
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        late = tasks.create_task(judged.ask(11, 9, {**JOIN, "member_id": drawn[1]}))
        await asyncio.sleep(0)
        led = await judged.ask(11, 9, {**JOIN, "member_id": drawn[0]})
    assert (led.leader, late.result().leader) == (drawn[0], drawn[0])
    return drawn, led.generation_id


async def kept_bytes(judged: Judged, key: int, version: int, frame: bytes) -> int:
    """Return what is held beside the beginning of a request that waits; it waits no more then."""
    peer = Peer(1, "10.0.0.1:5", state=ConnectionState(identity=ALICE))
    incoming = Incoming(peer, memoryview(frame), key, version, 1)
    handed_back: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    incoming.on_hand_back = handed_back.set_result
    tracemalloc.start()
    try:
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(judged.dispatcher.answer(incoming))
            await handed_back
            assert not waiting.done()
            held_bytes, most_bytes = tracemalloc.get_traced_memory()
            assert most_bytes > len(frame), "it was decoded"
            waiting.cancel()
        return held_bytes
    finally:
        tracemalloc.stop()


async def test_INV_HD11_a_sync_that_waits_keeps_nothing_of_what_it_brought(tmp_path: Path) -> None:
    """Who does not lead brings no assignments; those of who does so are never looked at, and took a frame's worth, and more, until the leader came."""
    async with judged_apis(tmp_path) as judged:
        (_, follower), generation = await group_of_two(judged)
        asked = {**SYNC, "member_id": follower, "generation_id": generation}
        assert await kept_bytes(judged, 14, 5, frame_of(14, 5, asked)) < FREE_HELD_BYTES


async def test_INV_HD11_a_join_that_waits_keeps_no_reason(tmp_path: Path) -> None:
    async with judged_apis(tmp_path) as judged:
        judged.give(acl(ResourceType.GROUP, Operation.READ, name="g"))
        drawn = [(await judged.ask(11, 9, {**JOIN, "member_id": ""})).member_id for _ in range(2)]
        await judged.ask(11, 9, {**JOIN, "member_id": drawn[0]})
        asked = {**JOIN, "member_id": drawn[1], "reason": LONGEST}
        assert await kept_bytes(judged, 11, 9, frame_of(11, 9, asked)) < FREE_HELD_BYTES


async def test_INV_HD11_what_waits_keeps_a_name_of_its_client_as_long_as_groups_do(
    tmp_path: Path,
) -> None:
    async with judged_apis(tmp_path) as judged:
        (_, follower), generation = await group_of_two(judged)
        asked = frame_of(14, 5, {**SYNC, "member_id": follower, "generation_id": generation, "assignments": []})  # fmt: skip
        called = LONGEST.encode()
        frame = asked.replace(b"\0\3raw", len(called).to_bytes(2) + called, 1)
        assert await kept_bytes(judged, 14, 5, frame) < FREE_HELD_BYTES


async def test_INV_WQ4_what_is_forwarded_counts_until_it_has_left(tmp_path: Path) -> None:
    """At a mirror it waits for a connection to the primary region, and for that one to take it."""
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = False
        fixture.forwarder.may_leave = asyncio.Event()
        fixture.forwarder.answer = bytes(8)
        client, memory = await fixture.connect(), fixture.server.memory
        metadata = [{"name": "range", "metadata": bytes(JUNK_BYTES)}]
        client.send(11, 9, {**JOIN, "protocols": metadata})
        await until(lambda: bool(fixture.forwarder.frames))
        assert memory.held_bytes > JUNK_BYTES
        fixture.forwarder.may_leave.set()
        await client.receive_raw()
        await until(lambda: memory.held_bytes == 0)
