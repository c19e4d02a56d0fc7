"""What a fault does to one node, whatever it stands beside, and how it ends.

Whatever a fault began has ended when its coroutine has: what is left of it is what it did.
Not here: what it does between two nodes, to a whole region, and who is ordered to what (`cluster_swarm.faults`, `regions_swarm.faults`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from tests.simulation.node_faults import disks, folders
from tests.simulation.node_faults.drawn import Gust
from tests.simulation.node_faults.stage import NodesStage
from tests.simulation.region_cluster import Member

DRAIN_S: Final = 20.0

AnyStage: TypeAlias = NodesStage[Any]
Play: TypeAlias = Callable[[AnyStage, Gust, str], Awaitable[None]]


async def kill(stage: AnyStage, gust: Gust, name: str, *, power: bool) -> None:
    """End it at once, and start it again."""
    when = gust.chance.random()
    if when < folders.COPY_SHARE / 2:
        stage.keep_copy(name)
    await stage.kill(name, power=random.Random(gust.chance.random()) if power else None)
    if folders.COPY_SHARE / 2 <= when < folders.COPY_SHARE:
        stage.keep_copy(name)
    await asyncio.sleep(gust.for_s)
    await stage.start_soundly(name)


async def drain(stage: AnyStage, gust: Gust, name: str) -> None:
    """Have it stop cleanly, which it must do in time, and start it again."""
    node = stage.nodes[name]
    task = node._task
    if name not in stage.running or task is None:
        return
    stage.tell(f"  {name} is stopped")
    stage.stopping.add(name)
    (node.member if isinstance(node, Member) else node.node).stop()
    await asyncio.wait([task], timeout=DRAIN_S)
    stage.stopping.discard(name)
    if not task.done():
        stage.blame(f"{name} does not stop within {DRAIN_S:.0f} s")
    elif not task.cancelled() and task.exception() is not None:
        stage.blame(f"{name} does not stop cleanly: {node.why_died()}")
    stage.running.discard(name)
    await node.kill()
    stage.changed()
    await asyncio.sleep(gust.for_s)
    await stage.start_soundly(name)


async def pause(stage: AnyStage, gust: Gust, *names: str) -> None:
    """Let nodes stand still."""
    for name in names:
        stage.loop.pause(name)
        stage.paused.add(name)
    await asyncio.sleep(gust.for_s)
    for name in names:
        stage.loop.resume(name)
        stage.paused.discard(name)


async def all_down(stage: AnyStage, gust: Gust, names: Sequence[str], *, power: bool) -> None:
    """End all of these, and start them one after the other."""
    order = gust.chance.sample(names, len(names))
    for name in order:
        await stage.kill(name, power=random.Random(gust.chance.random()) if power else None)
    for name in order:
        await asyncio.sleep(gust.chance.choice((0.0, 0.0, 0.5)) * gust.for_s)
        await stage.start_soundly(name)


async def _reset(stage: AnyStage, gust: Gust, name: str) -> None:
    if gust.fault == "reset":
        stage.fabric.reset(name)
    else:
        stage.fabric.sever(name)
    await asyncio.sleep(0)


async def _disk(stage: AnyStage, gust: Gust, name: str) -> None:
    await disks.fails(stage, gust.fault.value, name, gust.for_s, gust.chance)


async def _slow(stage: AnyStage, gust: Gust, name: str) -> None:
    await disks.slow(stage, name, gust.for_s)


async def _clock(stage: AnyStage, gust: Gust, name: str) -> None:
    await disks.clock_off(stage, name, gust.for_s, gust.chance)


async def _late(stage: AnyStage, gust: Gust, name: str) -> None:
    await disks.late(stage, name, gust.for_s)


async def _folder(stage: AnyStage, gust: Gust, name: str) -> None:
    await folders.FOLDER_PLAYS[gust.fault.value](stage, name, gust.for_s, gust.chance)


OF_A_NODE: Final[dict[str, Play]] = {
    "kill": partial(kill, power=False),
    "power": partial(kill, power=True),
    "drain": drain,
    "pause": pause,
    "reset": _reset,
    "sever": _reset,
    "writes": _disk,
    "syncs": _disk,
    "reads": _disk,
    "full": _disk,
    "slow": _slow,
    "clock": _clock,
    "late": _late,
    "wipe": _folder,
    "older": _folder,
    "another": _folder,
    "half": _folder,
    "remove": _folder,
    "flip": _folder,
}
"""By the value of the fault."""
