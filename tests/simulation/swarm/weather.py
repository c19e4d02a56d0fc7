"""What troubles a life beside the actions, each for a while: connections, clocks, disks, links one way, processes that stand.

Whatever began has ended when `storm` has: what is left of it is what it did.

A region whose disk failed is started anew by the operator, as its `/readyz` asks for.
"""

import asyncio
import errno
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, TypeAlias

from tests.simulation.disk import GROWING
from tests.simulation.network import Fabric
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.swarm.plan import PRIMARY_SHARE, Gust, Plan
from tests.simulation.swarm.rates import Weather
from tests.simulation.swarm.stage import Stage

DISK_FAILS_SHARE: Final = 0.1
SLOW_JOB_S: Final = 1.0
MINUTES_OFF_MS: Final = (-600_000, -2_000, 2_000, 600_000)
DAY_MS: Final = 24 * 3600 * 1000
DAYS_OFF_MS: Final = (-400 * DAY_MS, -2 * DAY_MS, 2 * DAY_MS, 400 * DAY_MS)
ROOM_BYTES: Final = (0, 20_000, 100_000_000)
"""Of a full disk. The last is less than a node wants to be free, and more than it fills."""


_Between: TypeAlias = Callable[[Fabric, str, str], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a gust is: at `name`, towards `other`."""

    stage: Stage
    name: str
    other: str
    chance: Random

    @property
    def loop(self) -> SimulatedLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        return loop


async def storm(stage: Stage, plan: Plan, spell: int) -> None:
    """Trouble the regions until cancelled."""
    async with asyncio.TaskGroup() as lasting:
        for gust in plan.weather(spell):
            await asyncio.sleep(gust.gap_s)
            if plan.choice.has(gust.label, gust.kind.value):
                lasting.create_task(_blow(stage, gust))


async def _blow(stage: Stage, gust: Gust) -> None:
    chance, acting = gust.chance, stage.acting()
    name = acting[0] if acting and chance.random() < PRIMARY_SHARE else chance.choice(stage.names)
    other = chance.choice([each for each in stage.names if each != name])
    stage.note_played(gust.label, gust.kind.value)
    stage.tell(f"{gust.label}: {gust.kind.value} {name}, {other}, {gust.for_s:.1f} s")
    with _KINDS[gust.kind](_Place(stage, name, other, chance)):
        await asyncio.sleep(gust.for_s * (DISK_FAILS_SHARE if gust.kind in _SHORT else 1))


def _reset(at: _Place) -> AbstractContextManager[None]:
    at.stage.fabric.reset(at.name)
    return nullcontext()


def _sever(at: _Place) -> AbstractContextManager[None]:
    at.stage.fabric.sever(at.name)
    return nullcontext()


@contextmanager
def _clock_off(offs_ms: Sequence[int], at: _Place) -> Iterator[None]:
    wall = at.stage.regions[at.name].wall
    wall.off_ms = at.chance.choice(offs_ms)
    at.stage.days_off |= abs(wall.off_ms) >= DAY_MS
    try:
        yield
    finally:
        wall.off_ms = 0


@contextmanager
def _disk_fails(
    chance: float, errors: Sequence[int], operations: Collection[str] | None, at: _Place
) -> Iterator[None]:
    disk = at.stage.regions[at.name].disk
    if not at.stage.up(at.name):
        yield
        return
    life = disk.life
    at.stage.disk_failed.add(at.name)
    disk.fail_by_chance(at.chance, chance, errors, operations)
    try:
        yield
    finally:
        if disk.life == life:
            disk.fault = None


@contextmanager
def _disk_full(at: _Place) -> Iterator[None]:
    disk = at.stage.regions[at.name].disk
    disk.room_bytes = at.chance.choice(ROOM_BYTES)
    if disk.room_bytes < max(ROOM_BYTES):
        at.stage.disk_failed.add(at.name)
    try:
        yield
    finally:
        disk.room_bytes = None


@contextmanager
def _slow(at: _Place) -> Iterator[None]:
    at.loop.slow[at.name] = SLOW_JOB_S
    try:
        yield
    finally:
        at.loop.slow.pop(at.name, None)


@contextmanager
def _pause(at: _Place) -> Iterator[None]:
    at.loop.pause(at.name)
    at.stage.begin_apart(at.name)
    try:
        yield
    finally:
        at.loop.resume(at.name)
        at.stage.end_apart(at.name)


@contextmanager
def _one_way(begin: _Between, end: _Between, at: _Place) -> Iterator[None]:
    begin(at.stage.fabric, at.name, at.other)
    at.stage.begin_apart(at.name, at.other)
    try:
        yield
    finally:
        end(at.stage.fabric, at.name, at.other)
        at.stage.end_apart(at.name, at.other)


_KINDS: Final[dict[Weather, Callable[[_Place], AbstractContextManager[None]]]] = {
    Weather.RESET: _reset,
    Weather.SEVER: _sever,
    Weather.CLOCK: partial(_clock_off, MINUTES_OFF_MS),
    Weather.DAYS: partial(_clock_off, DAYS_OFF_MS),
    Weather.DISK: partial(_disk_fails, 0.2, (errno.EIO, errno.ENOSPC), None),
    Weather.WRITES: partial(_disk_fails, 0.5, (errno.EIO,), GROWING),
    Weather.SYNCS: partial(_disk_fails, 0.5, (errno.EIO,), ("fdatasync", "fsync_dir")),
    Weather.READS: partial(_disk_fails, 0.5, (errno.EIO,), ("pread", "pread_cached", "read_file")),
    Weather.FULL: _disk_full,
    Weather.SLOW: _slow,
    Weather.PAUSE: _pause,
    Weather.BAR: partial(_one_way, Fabric.bar, Fabric.unbar),
    Weather.MUTE: partial(_one_way, Fabric.mute, Fabric.unmute),
}
_SHORT: Final = {Weather.DISK, Weather.WRITES, Weather.SYNCS, Weather.READS}
