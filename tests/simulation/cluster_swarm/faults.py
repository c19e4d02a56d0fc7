"""What each fault does to the nodes of a stage, and how it ends.

Whatever a fault began has ended when its coroutine has: what is left of it is what it did.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tests.simulation.cluster_swarm.plan import Fault, Gust
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.node_faults import disks, folders
from tests.simulation.region_cluster import NAMES

DRAIN_S: Final = 20.0


async def play(stage: Stage, gust: Gust, name: str) -> None:
    """Let it happen to node `name`."""
    await _PLAYS[gust.fault](stage, gust, name)


def other_of(gust: Gust, name: str) -> str:
    """Return the second node of a fault between two."""
    return NAMES[(NAMES.index(name) + gust.other) % len(NAMES)]


async def _kill(stage: Stage, gust: Gust, name: str, *, power: bool) -> None:
    when = gust.chance.random()
    if when < folders.COPY_SHARE / 2:
        stage.keep_copy(name)
    await stage.kill(name, power=random.Random(gust.chance.random()) if power else None)
    if folders.COPY_SHARE / 2 <= when < folders.COPY_SHARE:
        stage.keep_copy(name)
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


async def _disk(stage: Stage, gust: Gust, name: str) -> None:
    await disks.fails(stage, gust.fault.value, name, gust.for_s, gust.chance)


async def _slow(stage: Stage, gust: Gust, name: str) -> None:
    await disks.slow(stage, name, gust.for_s)


async def _clock(stage: Stage, gust: Gust, name: str) -> None:
    await disks.clock_off(stage, name, gust.for_s, gust.chance)


async def _late(stage: Stage, gust: Gust, name: str) -> None:
    await disks.late(stage, name, gust.for_s)


async def _folder(stage: Stage, gust: Gust, name: str) -> None:
    await folders.FOLDER_PLAYS[gust.fault.value](stage, name, gust.for_s, gust.chance)


async def _all_down(stage: Stage, gust: Gust, _name: str) -> None:
    order = gust.chance.sample(NAMES, len(NAMES))
    power = gust.fault is Fault.ALL_POWER
    for name in order:
        await stage.kill(name, power=random.Random(gust.chance.random()) if power else None)
    for name in order:
        await asyncio.sleep(gust.chance.choice((0.0, 0.0, 0.5)) * gust.for_s)
        await stage.start_soundly(name)


async def _swap(stage: Stage, gust: Gust, name: str) -> None:
    await folders.swapped(stage, name, gust.for_s, other_of(gust, name))


async def _spread(stage: Stage, gust: Gust, _name: str) -> None:
    """Let an operator gather the leaders for a while."""
    await stage.order_spread(wanted=False)
    await asyncio.sleep(gust.for_s)
    await stage.order_spread(wanted=True)


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
    Fault.CLOCK: _clock,
    Fault.LATE: _late,
    Fault.WIPE: _folder,
    Fault.OLDER: _folder,
    Fault.ANOTHER: _folder,
    Fault.HALF: _folder,
    Fault.REMOVE: _folder,
    Fault.FLIP: _folder,
    Fault.ALL_POWER: _all_down,
    Fault.ALL_KILLED: _all_down,
    Fault.ALL_PAUSED: _all_paused,
    Fault.SWAP: _swap,
    Fault.SPREAD: _spread,
}
