"""Disasters: load, a fault in the middle of it, and an operator who acts at once, as one action of a life.

Random actions follow one another with a rest between them: what strikes between an answer and the tidemark above it, and is
followed by a failover in the same second, they draw too seldom. The scenes play the same with a stage of their own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from chaos.shuffle.plan import Action
from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.rates import Disaster
from tests.simulation.swarm.stage import Stage
from tests.simulation.view_audit import LOOK_S, Auditor

LOAD_S: Final = 0.4
BURST_S: Final = 0.2
HURRIED_S: Final = 0.002


class Loaded(Protocol):
    """A life, as far as load and disasters go."""

    stage: Stage
    clients: Clients
    auditors: list[Auditor]


async def load(life: Loaded, duration_s: float = LOAD_S) -> None:
    """Let the clients work for about so long."""
    await asyncio.sleep(life.stage.chance.uniform(0.5, 1.5) * duration_s)


async def burst(life: Loaded) -> None:
    """Let all write and look as fast as they can for a moment: what follows strikes in the middle of it."""
    await load(life)
    _hurry(life, HURRIED_S, HURRIED_S)
    await asyncio.sleep(life.stage.chance.uniform(0.5, 1.5) * BURST_S)
    _hurry(life, life.stage.rates.pace_s, LOOK_S)


def _hurry(life: Loaded, pace_s: float, look_s: float) -> None:
    for writer in life.clients.writers:
        writer.producer.pace_s = writer.pace_s = pace_s
    for bank in life.clients.banks:
        bank.teller.think_s = pace_s
    for auditor in life.auditors:
        auditor.rest_s = look_s


async def strike(life: Loaded, disaster: Disaster, action: Action, acting: str) -> None:
    """Let a disaster happen to who acts; `action` says who takes over, and how long to let the regions be then."""
    stage = life.stage
    candidate = action.other if action.region == acting else action.region
    stage.tell(f"disaster {disaster.value}: {acting}, {candidate}, then {action.pause_s:.1f} s")
    await _STRIKES[disaster](life, acting, candidate)
    stage.check_ends()
    await asyncio.sleep(action.pause_s)


async def _power_goes(life: Loaded, acting: str, _candidate: str) -> None:
    await burst(life)
    await life.stage.kill(acting, power=True)
    await life.stage.start(acting)


async def _primary_lost(life: Loaded, acting: str, candidate: str) -> None:
    await burst(life)
    await life.stage.kill(acting)
    await life.stage.order_as_told("failover", candidate)
    await load(life)
    await life.stage.start(acting)


async def _cut_off(life: Loaded, acting: str, candidate: str) -> None:
    stage = life.stage
    others = [name for name in stage.names if name != acting]
    silent = stage.chance.random() < 0.5
    for other in others:
        stage.part(acting, other, silent=silent)
    await burst(life)
    await life.stage.order_as_told("failover", candidate)
    await load(life)
    for other in others:
        stage.heal(acting, other)


_STRIKES: Final[dict[Disaster, Callable[[Loaded, str, str], Coroutine[Any, Any, None]]]] = {
    Disaster.POWER_GOES: _power_goes,
    Disaster.PRIMARY_LOST: _primary_lost,
    Disaster.CUT_OFF: _cut_off,
}
