"""What each fault does to the nodes of a stage, and how it ends.

Whatever a fault began has ended when its coroutine has: what is left of it is what it did.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from tests.simulation.cluster_regions import ClusterRegion
from tests.simulation.node_faults import disks, folders
from tests.simulation.region_cluster import Member
from tests.simulation.regions_swarm.plan import Fault, Gust
from tests.simulation.regions_swarm.stage import Stage

DRAIN_S: Final = 20.0
LOAD_S: Final = 0.5


async def play(stage: Stage, gust: Gust, name: str) -> None:
    """Let it happen: to node `name`, to its region, to the other one, or between both."""
    await _PLAYS[gust.fault](stage, gust, name)


def region_of(stage: Stage, name: str) -> ClusterRegion:
    """Return the region of a node."""
    return next(each for each in stage.regions.values() if name in each.nodes)


def _siblings(stage: Stage, name: str) -> list[str]:
    return [each for each in region_of(stage, name).nodes if each != name]


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
    node = stage.nodes[name]
    task = node._task
    if name not in stage.running or task is None:
        return
    stage.tell(f"  {name} is stopped")
    (node.member if isinstance(node, Member) else node.node).stop()
    await asyncio.wait([task], timeout=DRAIN_S)
    if not task.done():
        stage.blame(f"{name} does not stop within {DRAIN_S:.0f} s")
    elif not task.cancelled() and task.exception() is not None:
        stage.blame(f"{name} does not stop cleanly: {node.why_died()}")
    stage.running.discard(name)
    await node.kill()
    stage.changed()
    await asyncio.sleep(gust.for_s)
    await stage.start_soundly(name)


async def _pause(stage: Stage, gust: Gust, name: str) -> None:
    stage.loop.pause(name)
    stage.paused.add(name)
    await asyncio.sleep(gust.for_s)
    stage.loop.resume(name)
    stage.paused.discard(name)


async def _between(stage: Stage, gust: Gust, name: str) -> None:
    """Cut it off from any one other node, of its region or the other one."""
    other = gust.chance.choice([each for each in stage.nodes if each != name])
    stage.tell(f"  between {name} and {other}")
    one, two = (name, other) if gust.chance.random() < 0.5 else (other, name)
    fabric = stage.fabric
    begin = {
        Fault.CUT: fabric.cut,
        Fault.HUSH: fabric.hush,
        Fault.MUTE: fabric.mute,
        Fault.BAR: fabric.bar,
    }
    stage.between(begin[gust.fault], one, two)
    await asyncio.sleep(gust.for_s)
    stage.heal(name, other)


async def _alone(stage: Stage, gust: Gust, name: str) -> None:
    """Cut it off from its own region, and by chance from the other one."""
    others = _siblings(stage, name)
    if gust.chance.random() < 0.3:
        others = [each for each in stage.nodes if each != name]
    silent = gust.chance.random() < 0.5
    for other in others:
        stage.part(name, other, silent=silent)
    await asyncio.sleep(gust.for_s)
    for other in others:
        stage.heal(name, other)


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


def partner_of(stage: Stage, gust: Gust, name: str) -> str:
    """Return the node of the other region whose folder is exchanged with this one's."""
    others = [each for each in stage.nodes if each not in region_of(stage, name).nodes]
    return others[(gust.victim or 0) % len(others)]


async def _swap(stage: Stage, gust: Gust, name: str) -> None:
    await folders.swapped(stage, name, gust.for_s, partner_of(stage, gust, name))


async def _region_down(stage: Stage, gust: Gust, name: str) -> None:
    names = list(region_of(stage, name).nodes)
    order = gust.chance.sample(names, len(names))
    power = gust.fault is Fault.REGION_POWER
    for each in order:
        await stage.kill(each, power=random.Random(gust.chance.random()) if power else None)
    for each in order:
        await asyncio.sleep(gust.chance.choice((0.0, 0.0, 0.5)) * gust.for_s)
        await stage.start_soundly(each)


async def _parted(stage: Stage, gust: Gust, _name: str) -> None:
    one, other = stage.regions.values()
    pairs = [(a, b) for a in one.nodes for b in other.nodes]
    for a, b in pairs:
        stage.part(a, b, silent=gust.fault is Fault.SILENT)
    if gust.chance.random() < 0.4 and (acting := stage.acting()):
        await asyncio.sleep(LOAD_S)
        await stage.order_as_told("failover", _other(stage, acting[0]))
    await asyncio.sleep(gust.for_s)
    for a, b in pairs:
        stage.heal(a, b)


def _other(stage: Stage, name: str) -> str:
    return next(each for each in stage.names if each != name)


async def _order(stage: Stage, gust: Gust, _name: str) -> None:
    acting = stage.acting()
    if acting:
        await stage.order_as_told(gust.fault.value, _other(stage, acting[0]))


async def _lost(stage: Stage, gust: Gust, _name: str) -> None:
    """Lose the region that acts, let the other one take over, and let it return."""
    acting = stage.acting()
    if not acting:
        return
    names = list(stage.regions[acting[0]].nodes)
    for name in names:
        await stage.kill(name)
    await stage.order_as_told("failover", _other(stage, acting[0]))
    await asyncio.sleep(gust.for_s)
    for name in names:
        await stage.start_soundly(name)


_PLAYS: Final[dict[Fault, Callable[[Stage, Gust, str], Awaitable[None]]]] = {
    Fault.KILL: partial(_kill, power=False),
    Fault.POWER: partial(_kill, power=True),
    Fault.PAUSE: _pause,
    Fault.CUT: _between,
    Fault.HUSH: _between,
    Fault.ALONE: _alone,
    Fault.RESET: _reset,
    Fault.MUTE: _between,
    Fault.BAR: _between,
    Fault.SEVER: _reset,
    Fault.LATE: _late,
    Fault.DRAIN: _drain,
    Fault.WRITES: _disk,
    Fault.SYNCS: _disk,
    Fault.READS: _disk,
    Fault.FULL: _disk,
    Fault.SLOW: _slow,
    Fault.CLOCK: _clock,
    Fault.WIPE: _folder,
    Fault.OLDER: _folder,
    Fault.ANOTHER: _folder,
    Fault.HALF: _folder,
    Fault.REMOVE: _folder,
    Fault.FLIP: _folder,
    Fault.SWAP: _swap,
    Fault.REGION_KILLED: _region_down,
    Fault.REGION_POWER: _region_down,
    Fault.PARTED: _parted,
    Fault.SILENT: _parted,
    Fault.FAILOVER: _order,
    Fault.SWITCH: _order,
    Fault.LOST: _lost,
}
