"""What one connection holds and hands out, byte by byte: the core of the server, without sockets (INV-WQ1, INV-MB3)."""

import struct

import pytest

from region_broker.limits import IN_FLIGHT_REQUESTS_MAX
from region_broker.wire import connection as connection_module
from region_broker.wire.connection import (
    DESCRIBING_KEYS,
    FETCH_KEY,
    LISTING_KEYS,
    Connection,
    Peer,
    Slot,
)

HALF_BYTES = 20_000


def request(size_bytes: int, api_key: int = 60) -> bytes:
    return struct.pack(">ihhi", size_bytes, api_key, 0, 1) + bytes(size_bytes - 8)


def connection() -> Connection:
    return Connection(Peer(1, "h:1"))


def begun(core: Connection) -> list[Slot]:
    """Return what may begin now."""
    found = []
    while (slot := core.next_request()) is not None:
        found.append(slot)
    return found


def answered(core: Connection, slot: Slot, answer: bytes | None = b"answer") -> None:
    core.finish(slot, answer)
    core.take_answers()
    core.sent()


def test_requests_in_flight_have_so_many_bytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "IN_FLIGHT_BYTES_MAX", 2 * HALF_BYTES)
    core, is_stalled = connection(), list[bool]()
    core.receive(request(HALF_BYTES) * 3)
    first, second = begun(core)
    is_stalled.append(core.stalled)
    answered(core, first)
    (third,) = begun(core)
    for slot in (second, third):
        answered(core, slot)
    is_stalled.append(core.stalled)
    assert is_stalled == [True, False], "the third waited, and the socket was not read"
    assert (core.held_bytes, core.in_flight) == (0, 0)
    core.receive(request(HALF_BYTES) * 2)
    assert len(begun(core)) == 2, "what was answered counts no more"


def test_so_many_requests_are_in_flight_at_most() -> None:
    core = connection()
    core.receive(request(8) * (IN_FLIGHT_REQUESTS_MAX + 1))
    found = begun(core)
    assert (len(found), core.stalled) == (IN_FLIGHT_REQUESTS_MAX, True)
    core.finish(found[1], b"x")
    assert core.take_answers() == [], "INV-WQ1: the first one is not answered"
    assert begun(core) == []
    answered(core, found[0], None)
    assert len(begun(core)) == 1


@pytest.mark.parametrize("key", [FETCH_KEY, *sorted(LISTING_KEYS | DESCRIBING_KEYS)])
def test_INV_WQ5_what_may_be_answered_largely_is_held_back_behind_another_and_counts(
    key: int,
) -> None:
    core, size_bytes = connection(), 5_000
    core.receive(request(size_bytes, key) * 2 + request(100)[:50])
    (fetch,) = begun(core)
    assert core.stalled
    assert not core.mid_frame, "whole requests wait before what has come in part"
    assert core.held_bytes == 2 * size_bytes + 50
    core.finish(fetch, b"records")
    assert core.held_bytes == 2 * size_bytes + 50 + len(b"records")
    core.take_answers()
    assert begun(core) == [], "its answer may be large, and was not taken yet"
    core.sent()
    (second,) = begun(core)
    answered(core, second)
    assert (core.held_bytes, core.mid_frame, core.stalled) == (50 - 4, True, False), (
        "its length was read"
    )


def test_INV_CHQ2_what_a_connection_keeps_is_about_what_it_counts() -> None:
    """Requests that are answered at once and small ones that wait, which came in one chunk each."""
    core, waiting = connection(), list[memoryview]()
    for _ in range(20):
        core.receive(request(250_000) + request(50))
        large, small = begun(core)
        core.finish(large, b"x")
        waiting.append(small.incoming.frame)
    kept_bytes = sum(len(bytes(frame.obj)) for frame in waiting)
    assert kept_bytes <= 2 * core.held_bytes


def test_INV_WQ4_a_request_that_is_handed_back_counts_by_its_beginning_alone() -> None:
    core, told = connection(), list[int]()
    core.on_hand_back = lambda: told.append(core.held_bytes)
    core.receive(request(HALF_BYTES))
    (slot,) = begun(core)
    kept = bytes(slot.incoming.frame[:8])
    slot.incoming.hand_back()
    assert told == [core.held_bytes]
    assert core.held_bytes < 2_000
    assert slot.incoming.frame[:8] == kept
    answered(core, slot)
    assert core.held_bytes == 0
