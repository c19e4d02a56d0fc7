"""What each fault does between nodes, to a region, and between both, and what an operator orders; to one node: `node_faults.plays`."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from tests.simulation.cluster_regions import ClusterRegion
from tests.simulation.node_faults import folders, plays
from tests.simulation.regions_swarm.plan import Fault, Gust
from tests.simulation.regions_swarm.stage import Stage

LOAD_S: Final = 0.5


async def play(stage: Stage, gust: Gust, name: str) -> None:
    """Let it happen: to node `name`, to its region, to the other one, or between both."""
    if (of_more := _PLAYS.get(gust.fault)) is not None:
        await of_more(stage, gust, name)
    else:
        await plays.OF_A_NODE[gust.fault.value](stage, gust, name)


def region_of(stage: Stage, name: str) -> ClusterRegion:
    """Return the region of a node."""
    return next(each for each in stage.regions.values() if name in each.nodes)


def _siblings(stage: Stage, name: str) -> list[str]:
    return [each for each in region_of(stage, name).nodes if each != name]


async def _between(stage: Stage, gust: Gust, name: str) -> None:
    """Cut it off from any one other node, of its region or the other one."""
    other = gust.chance.choice([each for each in stage.nodes if each != name])
    stage.tell(f"  between {name} and {other}")
    one, two = (name, other) if gust.chance.random() < 0.5 else (other, name)
    fabric = stage.fabric
    begin: dict[StrEnum, Callable[[str, str], None]] = {
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


def partner_of(stage: Stage, gust: Gust, name: str) -> str:
    """Return the node of the other region whose folder is exchanged with this one's."""
    others = [each for each in stage.nodes if each not in region_of(stage, name).nodes]
    return others[(gust.victim or 0) % len(others)]


async def _swap(stage: Stage, gust: Gust, name: str) -> None:
    await folders.swapped(stage, name, gust.for_s, partner_of(stage, gust, name))


async def _region_down(stage: Stage, gust: Gust, name: str) -> None:
    names = list(region_of(stage, name).nodes)
    await plays.all_down(stage, gust, names, power=gust.fault is Fault.REGION_POWER)


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


async def _spread(stage: Stage, gust: Gust, name: str) -> None:
    """Let an operator gather the leaders of a region for a while, whichever it is."""
    region = region_of(stage, name)
    await stage.order_spread(region, wanted=False)
    await asyncio.sleep(gust.for_s)
    await stage.order_spread(region, wanted=True)


async def _visit(stage: Stage, gust: Gust, _name: str) -> None:
    """Let clients write through the mirror, which has the leaders of the other region gathered (INV-SPD3)."""
    stage.opens_mirror(opened=True)
    await asyncio.sleep(gust.for_s)
    stage.opens_mirror(opened=False)


_PLAYS: Final[dict[StrEnum, Callable[[Stage, Gust, str], Awaitable[None]]]] = {
    Fault.CUT: _between,
    Fault.HUSH: _between,
    Fault.MUTE: _between,
    Fault.BAR: _between,
    Fault.ALONE: _alone,
    Fault.SWAP: _swap,
    Fault.REGION_KILLED: _region_down,
    Fault.REGION_POWER: _region_down,
    Fault.PARTED: _parted,
    Fault.SILENT: _parted,
    Fault.FAILOVER: _order,
    Fault.SWITCH: _order,
    Fault.LOST: _lost,
    Fault.SPREAD: _spread,
    Fault.VISIT: _visit,
}
