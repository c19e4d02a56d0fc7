"""Short directed scenes, played on the swarm's stage by its clients and read by its judges.

INV-SCN1  a scene is clean on the product as it is, and one run: nothing but its name decides
What is wrong first ends it: a scene that a mutant breaks waits for nothing.

A scene is what random seeds meet too seldom: load, a fault in the middle of it, and an operator who acts at once.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

from chaos.shuffle.plan import Action, Kind, Part
from region_broker.log.failures import LogDamaged
from tests.simulation.simulated_loop import run_simulated
from tests.simulation.swarm.disasters import LOAD_S, burst, load
from tests.simulation.swarm.life import Life, Outcome
from tests.simulation.swarm.plan import Plan
from tests.simulation.swarm.stage import NAMES
from tests.simulation.swarm.workloads.drawn import LOADS
from tests.simulation.swarm.workloads.setting import Reach, Setting
from tests.simulation.trace import Trace

PACE_S: Final = 0.05
STAYS_S: Final = 0.7
PATIENCE_S: Final = 25.0
EU, US, AP = "eu", "us", "ap"


@dataclass(frozen=True, slots=True)
class Scene:
    """`play` is its trouble; the rest are the rates that make its window wide."""

    name: str
    play: Callable[[Life], Coroutine[Any, Any, None]]
    regions: int = 2
    tidemark_interval_ms: int = 40
    delay_ms_max: float = 0.5
    job_s_max: float = 0.002
    cold_chance: float = 0.0
    loads: tuple[str, ...] = ()
    """Further workloads (`swarm.workloads.drawn`)."""
    seed: int = 0


def play_scene(scene: Scene, nth: int, say: Callable[[str], None] | None = None) -> Outcome:
    """Play it from its `nth` seed and return what it came to."""
    plan = Plan(scene.seed + nth, NAMES[: scene.regions])
    plan.rates = replace(
        plan.rates, power_share=0.0, late_share=0.0, pace_s=PACE_S, cold_chance=scene.cold_chance,
        tidemark_interval_ms=scene.tidemark_interval_ms, delay_ms_max=scene.delay_ms_max,
        job_s_max=scene.job_s_max,
    )  # fmt: skip

    async def trouble(life: Life) -> bool:
        try:
            await scene.play(life)
        except LogDamaged as error:  # nothing here damages a disk
            life.stage.blame(f"a log is not opened: {error}")
            return False
        return await life.settled()

    life = Life(plan, scene.regions, trouble, say=say, trace=Trace())
    for kind in scene.loads:
        reach, chance = (
            Reach(life.stage.fabric, life.stage.regions),
            random.Random(f"{kind} {nth}" if nth else kind),
        )
        life.clients.workloads[kind] = LOADS[kind](Setting(reach, chance, PACE_S))
    life.progress_s = life.stage.settle_s = PATIENCE_S
    life.stage.hasty, life.stage.stays_s = True, STAYS_S
    return run_simulated(life.run(), f"{scene.name} {nth}" if nth else scene.name)


async def _fail_over(life: Life, target: str) -> None:
    refused = await life.stage.order("failover", target)
    assert not refused, refused


async def power_goes(life: Life) -> None:
    """The only region, and its disk is slow: it loses power under load, again and again, and is killed once.

    What is below a high watermark survives (INV-PT2): clients were told of it.
    """
    for power in (True, False, *[True] * 6):
        await load(life, 1.0)
        await burst(life)
        await life.stage.kill(EU, power=power)
        await life.stage.start(EU)


async def killed(life: Life) -> None:
    """The only region is killed twice under load, and loses power once."""
    for power in (False, True, False):
        await load(life)
        await life.stage.kill(EU, power=power)
        await life.stage.start(EU)
    await load(life)


async def primary_lost(life: Life) -> None:
    """The primary is killed under load and the mirror told to act at once; then the same the other way round."""
    for lost, candidate in ((EU, US), (US, EU)):
        await burst(life)
        await life.stage.kill(lost)
        await _fail_over(life, candidate)
        await load(life)
        await life.settled()


async def cut_off(life: Life) -> None:
    """The primary cannot be reached and goes on, the mirror takes over: both act, until they meet."""
    for cut, candidate in ((EU, US), (US, EU)):
        await load(life)
        life.stage.part(EU, US, silent=cut == EU)
        await burst(life)
        await _fail_over(life, candidate)
        await load(life)
        life.stage.heal(EU, US)
        await load(life)
        await life.settled()


async def switches(life: Life) -> None:
    """Planned switches under load, there and back: nobody may lose anything."""
    for candidate in (US, EU):
        await load(life)
        refused = await life.stage.order("switch", candidate)
        assert not refused, refused
        await load(life)


async def mirror_restarts(life: Life) -> None:
    """The mirror is killed, loses power and its link breaks, under load: nothing is lost by that."""
    for power in (False, True):
        await load(life)
        await life.stage.kill(US, power=power)
        await load(life)
        await life.stage.start(US)
        await load(life)
        life.stage.fabric.drop(EU, US)
    life.stage.part(EU, US, silent=False)
    await load(life)
    life.stage.heal(EU, US)
    await load(life)


async def both_restart(life: Life) -> None:
    """The primary loses power and returns, nobody takes over: what was acknowledged or shown anywhere is there.

    So often, because a write without a sync survives every other time.
    """
    for power in (*[True] * 24, False):
        await load(life)
        await life.stage.kill(EU, power=power)
        await life.stage.start(EU)
        await load(life)
        await life.stage.kill(US, power=power)
        await life.stage.kill(EU, power=power)
        await life.stage.start(US)
        await life.stage.start(EU)
    await load(life)


def _action(kind: Kind, region: str, other: str) -> Action:
    return Action(kind, region, other, LOAD_S, Part.LOGS, put_back=False)


async def older_primary(life: Life) -> None:
    """The primary is wound back to an older copy of its folder."""
    await load(life)
    await life.stage.play(_action(Kind.COPY, EU, US))
    await load(life, 1.0)
    await life.stage.kill(EU)
    await life.stage.play(_action(Kind.RESTORE, EU, US))
    await load(life)


async def empty_primary(life: Life) -> None:
    """The primary's folder is emptied; then half of the mirror's."""
    await load(life, 1.0)
    await life.stage.play(_action(Kind.WIPE, EU, US))
    await load(life)
    await life.settled()
    await life.stage.play(_action(Kind.HALF, US, EU))


async def behind(life: Life) -> None:
    """Three regions: one is behind when the primary goes, and takes over; then that one goes, too, in the middle of
    it."""
    stage = life.stage
    for other in (EU, US):
        stage.part(other, AP, silent=False)
    await load(life)
    await stage.kill(EU)
    stage.heal(US, AP)
    await _fail_over(life, AP)
    await load(life)
    stage.heal(EU, AP)
    await stage.start(EU)
    await life.settled()
    await load(life)
    await stage.kill(AP)
    order = life.spawn(_order(life, US))
    await asyncio.sleep(0.01)  # before the takeover is written down
    await stage.kill(US)
    order.cancel()
    await stage.start(US)
    await _fail_over(life, EU)
    await load(life)


async def _order(life: Life, target: str) -> None:
    await life.stage.order("failover", target)


SCENES: Final = {
    scene.name: scene
    for scene in (
        Scene("power goes", power_goes, regions=1, job_s_max=0.05),
        Scene(
            "power goes, groups", power_goes, regions=1, job_s_max=0.02, loads=("classic groups",)
        ),
        Scene("killed", killed, regions=1, loads=("java producers", "lists", "trims")),
        Scene("the primary lost", primary_lost, tidemark_interval_ms=300, job_s_max=0.01),
        Scene("cut off", cut_off, tidemark_interval_ms=100),
        Scene("switches", switches),
        Scene("mirror restarts", mirror_restarts, cold_chance=0.2),
        Scene("both restart", both_restart, job_s_max=0.05, seed=8),
        Scene("older primary", older_primary),
        Scene("empty primary", empty_primary),
        Scene("behind", behind, regions=3, tidemark_interval_ms=100),
    )
}
