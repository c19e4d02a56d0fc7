"""How much room the disk has: when clients are refused, and when they are served again."""

import asyncio
from contextlib import suppress

from region_broker.partitions.disk_room import (
    CLOSE_LOOK_INTERVAL_MS,
    LOOK_INTERVAL_MS,
    DiskRoom,
    watch_room,
)
from tests.fixtures.node_logs import ManualClock

MIB = 1 << 20


def test_INV_DRM1_writes_are_refused_below_the_watermark_and_taken_again_above_it() -> None:
    room = DiskRoom(100 * MIB)
    said = []
    for free in (100, 99, 105, 109, 110, 100, 99):
        room.note(1_000 * MIB, free * MIB)
        said.append(room.refusal is not None)
    assert said == [False, True, True, True, False, False, True]
    assert room.refusal is not None
    assert "99 MiB are free" in room.refusal
    assert "Free some space" in room.refusal


def test_a_watermark_of_zero_refuses_nothing() -> None:
    room = DiskRoom(0)
    room.note(1_000, 0)
    assert room.refusal is None


def test_little_room_is_looked_at_often() -> None:
    room = DiskRoom(100)
    room.note(100_000, 1_000)
    assert room.look_again_ms == LOOK_INTERVAL_MS
    room.note(100_000, 999)
    assert room.look_again_ms == CLOSE_LOOK_INTERVAL_MS


async def test_INV_DRM2_a_look_that_fails_changes_nothing_and_is_repeated() -> None:
    clock, room = ManualClock(), DiskRoom(100)
    looks = iter([(1_000, 50), None, (1_000, 500)])

    def look() -> tuple[int, int]:
        found = next(looks)
        if found is None:
            raise OSError("I/O error")
        return found

    watching = asyncio.get_running_loop().create_task(watch_room(room, look, clock))
    seen = []
    for _ in range(3):
        await asyncio.sleep(0)
        seen.append((room.refusal is not None, room.unknown))
        clock.pass_ms(LOOK_INTERVAL_MS)
        await asyncio.sleep(0)
    assert seen == [(True, None), (True, "I/O error"), (False, None)]
    watching.cancel()
    with suppress(asyncio.CancelledError, RuntimeError):
        await watching
