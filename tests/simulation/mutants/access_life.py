"""Lives of two regions, of several nodes and of one, in which access changes all the time, and what hands it on is struck: for mutants of that.

Not here: what is looked at meanwhile (`regions_swarm.access`), lives in which all else happens, too (`regions_swarm.life`).
"""

import asyncio
from typing import Final

from typing_extensions import override

from tests.simulation.cluster_regions import BOTH, MIRROR_OF_ONE
from tests.simulation.regions_swarm.life import Life
from tests.simulation.regions_swarm.plan import Plan
from tests.simulation.regions_swarm.watch import LOOK_S
from tests.simulation.trace import Trace

LOAD_S: Final = 1.5
ASK_AGAIN_S: Final = 0.5
EU, US = "eu", "us"


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed: access changes, and nothing happens but what `AccessLife` lets happen."""
    plan = Plan(seed, without=frozenset({"spread"}))
    plan.layout, plan.changes_access = (MIRROR_OF_ONE, BOTH)[seed % 2], True
    plan.trims = plan.retains = False
    plan.tidemark_interval_ms, plan.delay_ms_max, plan.segment_bytes, plan.pace_s = (
        100,
        1.0,
        None,
        0.4,
    )
    return plan


class AccessLife(Life):
    """`run` it; what is wrong first ends it, by an AssertionError."""

    def __init__(self, seed: int) -> None:
        """Nothing is started."""
        plan = plan_of(seed)
        super().__init__(plan, 0.0, Trace(), None)
        self._chance = plan.stream("load")

    @override
    async def watch(self) -> None:
        while True:
            self._watch.look()
            assert not self.stage.anomalies, self.stage.anomalies
            await asyncio.sleep(LOOK_S)

    @override
    async def trouble(self, minutes: float) -> None:
        """Restart the mirror, switch there and back, lose the primary and let it return; each after a time of load."""
        await self._load()
        await self._kill(US)
        await self._load()
        await self._start(US)
        for candidate in (US, EU):
            await self._load()
            await self._order("switch", candidate)
        await self._load()
        await self._kill(EU)
        await self._order("failover", US)
        await self._load()
        await self._start(EU)
        await self._load()

    async def _order(self, kind: str, region: str) -> None:
        """Order it until it is done: another operation may be under way."""
        while not self.stage.regions[region].acts:
            refused = await self.stage.order(kind, region)
            self.stage.tell(f"  {kind} to {region}: {refused or 'done'}")
            await asyncio.sleep(ASK_AGAIN_S)

    async def _load(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.5, 1.5) * LOAD_S)

    async def _kill(self, region: str) -> None:
        for name in self.stage.regions[region].nodes:
            await self.stage.kill(name)

    async def _start(self, region: str) -> None:
        for name in self.stage.regions[region].nodes:
            await self.stage.start_soundly(name)


async def live(seed: int) -> None:
    """Live that life; raises AssertionError."""
    outcome = await AccessLife(seed).run()
    assert not outcome.violations, outcome.violations
    assert outcome.counted["access changes"], "nobody changed anything"
