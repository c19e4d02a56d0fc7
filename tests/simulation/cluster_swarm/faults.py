"""What each fault does between the nodes of a stage, or to all of them, and how it ends; to one of them: `node_faults.plays`."""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from tests.simulation.cluster_swarm.plan import Fault, Gust
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.node_faults import folders, plays
from tests.simulation.region_cluster import NAMES


async def play(stage: Stage, gust: Gust, name: str) -> None:
    """Let it happen to node `name`."""
    if (of_all := _PLAYS.get(gust.fault)) is not None:
        await of_all(stage, gust, name)
    else:
        await plays.OF_A_NODE[gust.fault.value](stage, gust, name)


def other_of(gust: Gust, name: str) -> str:
    """Return the second node of a fault between two."""
    return NAMES[(NAMES.index(name) + gust.other) % len(NAMES)]


async def _all_paused(stage: Stage, gust: Gust, _name: str) -> None:
    await plays.pause(stage, gust, *NAMES)


async def _between(stage: Stage, gust: Gust, name: str) -> None:
    fabric, other = stage.fabric, other_of(gust, name)
    one, two = (name, other) if gust.chance.random() < 0.5 else (other, name)
    ways: dict[StrEnum, tuple[Callable[[str, str], None], Callable[[str, str], None]]] = {
        Fault.CUT: (fabric.cut, fabric.heal),
        Fault.HUSH: (fabric.hush, fabric.heal),
        Fault.MUTE: (fabric.mute, fabric.unmute),
        Fault.BAR: (fabric.bar, fabric.unbar),
    }
    begin, end = ways[gust.fault]
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


async def _all_down(stage: Stage, gust: Gust, _name: str) -> None:
    await plays.all_down(stage, gust, NAMES, power=gust.fault is Fault.ALL_POWER)


async def _swap(stage: Stage, gust: Gust, name: str) -> None:
    await folders.swapped(stage, name, gust.for_s, other_of(gust, name))


async def _spread(stage: Stage, gust: Gust, _name: str) -> None:
    """Let an operator gather the leaders for a while."""
    await stage.order_spread(wanted=False)
    await asyncio.sleep(gust.for_s)
    await stage.order_spread(wanted=True)


_PLAYS: Final[dict[StrEnum, Callable[[Stage, Gust, str], Awaitable[None]]]] = {
    Fault.CUT: _between,
    Fault.HUSH: _between,
    Fault.MUTE: _between,
    Fault.BAR: _between,
    Fault.ALONE: _alone,
    Fault.ALL_POWER: _all_down,
    Fault.ALL_KILLED: _all_down,
    Fault.ALL_PAUSED: _all_paused,
    Fault.SWAP: _swap,
    Fault.SPREAD: _spread,
}
