"""What each fault does to the nodes of a stage, and how it ends.

Whatever a fault began has ended when its coroutine has: what is left of it is what it did.
"""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from tests.simulation.cluster_swarm.plan import Fault, Gust
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.disk import GROWING
from tests.simulation.folder_faults import copy_of, empty_folder, restore
from tests.simulation.region_cluster import NAMES

DISK_SHARE: Final = 0.15
SLOW_JOB_S: Final = 0.7
DOWN_S: Final = 1.6
"""Longer than a session, so that somebody else leads before a folder is another one."""
DRAIN_S: Final = 20.0
JUDGED_S: Final = 60.0
"""Within that a node registers, or is refused, if a quorum is there."""
COPY_SHARE: Final = 0.5


async def play(stage: Stage, gust: Gust, name: str) -> None:
    """Let it happen to node `name`."""
    await _PLAYS[gust.fault](stage, gust, name)


def other_of(gust: Gust, name: str) -> str:
    """Return the second node of a fault between two."""
    return NAMES[(NAMES.index(name) + gust.other) % len(NAMES)]


async def _kill(stage: Stage, gust: Gust, name: str, *, power: bool) -> None:
    await stage.kill(name, power=random.Random(gust.chance.random()) if power else None)
    if gust.chance.random() < COPY_SHARE:
        stage.copies[name] = copy_of(stage.nodes[name])
    await asyncio.sleep(gust.for_s)
    await stage.start_soundly(name)


async def _drain(stage: Stage, gust: Gust, name: str) -> None:
    member = stage.nodes[name]
    task = member._task
    if name not in stage.running or task is None:
        return
    stage.tell(f"  {name} is stopped")
    member.member.stop()
    await asyncio.wait([task], timeout=DRAIN_S)
    if not task.done():
        stage.blame(f"{name} does not stop within {DRAIN_S:.0f} s")
    elif not task.cancelled() and task.exception() is not None:
        stage.blame(f"{name} does not stop cleanly: {member.why_died()}")
    stage.running.discard(name)
    await member.kill()
    await asyncio.sleep(gust.for_s)
    await stage.start_soundly(name)


async def _pause(stage: Stage, gust: Gust, *names: str) -> None:
    for name in names:
        stage.loop.pause(name)
        stage.paused.add(name)
    await asyncio.sleep(gust.for_s)
    for name in names:
        stage.loop.resume(name)
        stage.paused.discard(name)


async def _all_paused(stage: Stage, gust: Gust, _name: str) -> None:
    await _pause(stage, gust, *NAMES)


async def _between(stage: Stage, gust: Gust, name: str) -> None:
    fabric, other = stage.fabric, other_of(gust, name)
    one, two = (name, other) if gust.chance.random() < 0.5 else (other, name)
    begin, end = {
        Fault.CUT: (fabric.cut, fabric.heal),
        Fault.HUSH: (fabric.hush, fabric.heal),
        Fault.MUTE: (fabric.mute, fabric.unmute),
        Fault.BAR: (fabric.bar, fabric.unbar),
    }[gust.fault]
    stage.tell(f"  between {one} and {two}")
    begin(one, two)
    await asyncio.sleep(gust.for_s)
    end(one, two)


async def _alone(stage: Stage, gust: Gust, name: str) -> None:
    others = [each for each in NAMES if each != name]
    part = stage.fabric.hush if gust.chance.random() < 0.5 else stage.fabric.cut
    for other in others:
        part(name, other)
    await asyncio.sleep(gust.for_s)
    for other in others:
        stage.fabric.heal(name, other)


async def _reset(stage: Stage, gust: Gust, name: str) -> None:
    if gust.fault is Fault.RESET:
        stage.fabric.reset(name)
    else:
        stage.fabric.sever(name)
    await asyncio.sleep(0)


@contextmanager
def _failing(stage: Stage, gust: Gust, name: str) -> Iterator[None]:
    disk = stage.nodes[name].disk
    operations: Sequence[str] = {
        Fault.WRITES: GROWING, Fault.SYNCS: ("fdatasync", "fsync_dir"),
        Fault.READS: ("pread", "pread_cached", "read_file"),
    }[gust.fault]  # fmt: skip
    life = disk.life
    disk.fail_by_chance(gust.chance, 0.5, (errno.EIO,), operations)
    try:
        yield
    finally:
        if disk.life == life:
            disk.fault = None


@contextmanager
def _full(stage: Stage, gust: Gust, name: str) -> Iterator[None]:
    disk = stage.nodes[name].disk
    disk.room_bytes = gust.chance.choice((0, 20_000))
    try:
        yield
    finally:
        disk.room_bytes = None


async def _disk(stage: Stage, gust: Gust, name: str) -> None:
    """Let the disk fail, then do what an operator does: start the node again."""
    if name not in stage.running:
        return
    stage.disk_failed.add(name)
    with (_full if gust.fault is Fault.FULL else _failing)(stage, gust, name):
        await asyncio.sleep(gust.for_s * (1 if gust.fault is Fault.FULL else DISK_SHARE))
    await asyncio.sleep(gust.chance.uniform(0, 1))
    await stage.kill(name)
    await stage.start_soundly(name)


async def _slow(stage: Stage, gust: Gust, name: str) -> None:
    stage.loop.slow[name] = SLOW_JOB_S
    await asyncio.sleep(gust.for_s)
    stage.loop.slow.pop(name, None)


async def _wipe(stage: Stage, gust: Gust, name: str) -> None:
    await stage.kill(name)
    await asyncio.sleep(DOWN_S)
    empty_folder(stage.nodes[name])
    stage.copies.pop(name, None)
    await stage.start_soundly(name)


async def _older(stage: Stage, gust: Gust, name: str) -> None:
    copy = stage.copies.get(name)
    if copy is None:
        return
    await stage.kill(name)
    await asyncio.sleep(DOWN_S)
    restore(stage.nodes[name], copy)
    stage.older.add(name)
    await stage.start_soundly(name)
    member = stage.nodes[name].member
    await stage.until(lambda: name not in stage.running or member.node is not None, JUDGED_S)
    if name not in stage.running and name not in stage.disk_failed:
        empty_folder(stage.nodes[name])
        stage.copies.pop(name, None)
        await stage.start_soundly(name)
    stage.older.discard(name)


async def _all_down(stage: Stage, gust: Gust, _name: str) -> None:
    order = gust.chance.sample(NAMES, len(NAMES))
    power = gust.fault is Fault.ALL_POWER
    for name in order:
        await stage.kill(name, power=random.Random(gust.chance.random()) if power else None)
    for name in order:
        await asyncio.sleep(gust.chance.choice((0.0, 0.0, 0.5)) * gust.for_s)
        await stage.start_soundly(name)


async def _swap(stage: Stage, gust: Gust, name: str) -> None:
    one, two = stage.nodes[name], stage.nodes[other_of(gust, name)]
    for member in (one, two):
        await stage.kill(member.name)
    await asyncio.sleep(gust.for_s)
    ours, theirs = copy_of(one), copy_of(two)
    restore(one, theirs)
    restore(two, ours)
    for member in (one, two):
        if not await stage.start(member.name):
            await asyncio.sleep(1)
            stage.blame(f"{member.name} takes the folder of another node")
            await stage.kill(member.name)
    restore(one, ours)
    restore(two, theirs)
    for member in (one, two):
        await stage.start_soundly(member.name)


_PLAYS: Final[dict[Fault, Callable[[Stage, Gust, str], Awaitable[None]]]] = {
    Fault.KILL: partial(_kill, power=False),
    Fault.POWER: partial(_kill, power=True),
    Fault.DRAIN: _drain,
    Fault.PAUSE: _pause,
    Fault.CUT: _between,
    Fault.HUSH: _between,
    Fault.MUTE: _between,
    Fault.BAR: _between,
    Fault.RESET: _reset,
    Fault.SEVER: _reset,
    Fault.ALONE: _alone,
    Fault.WRITES: _disk,
    Fault.SYNCS: _disk,
    Fault.READS: _disk,
    Fault.FULL: _disk,
    Fault.SLOW: _slow,
    Fault.WIPE: _wipe,
    Fault.OLDER: _older,
    Fault.ALL_POWER: _all_down,
    Fault.ALL_KILLED: _all_down,
    Fault.ALL_PAUSED: _all_paused,
    Fault.SWAP: _swap,
}
