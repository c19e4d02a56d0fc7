"""One life of two regions: trouble, an end of it, and a judgement.

INV-RSL1  nothing but the seed decides: two runs have one trace
INV-RSL2  once faults end, everything converges: one region acts, the other one mirrors it, all nodes are in sync, all clients get on, tidemarks go on
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from typing_extensions import override

from chaos.judges.contacts import NEVER
from chaos.judges.operator import UNCHANGED_S, picture, without_counts, word_for
from region_broker.controller.metadata_commands import CommandRefused
from tests.simulation.kafka_client import Refused
from tests.simulation.node_faults.clients import hasten
from tests.simulation.node_faults.drawn import OF_FOLDERS
from tests.simulation.node_faults.life import NodesLife, Outcome
from tests.simulation.regions_swarm import faults
from tests.simulation.regions_swarm.access import AccessWatch
from tests.simulation.regions_swarm.judge import RegionsJudge
from tests.simulation.regions_swarm.plan import (
    OF_LINKS,
    OF_REGIONS,
    ORDERS,
    Fault,
    Gust,
    Plan,
)
from tests.simulation.regions_swarm.spots import RegionAuditor, clients_of, spots
from tests.simulation.regions_swarm.stage import Stage
from tests.simulation.regions_swarm.watch import Watch
from tests.simulation.simulated_loop import run_simulated
from tests.simulation.spread_facts import is_spread_as_wanted
from tests.simulation.swarm.workloads.setting import End, Reach, TopicPlan, Workload
from tests.simulation.trace import Trace

SETTLE_S: Final = 120.0
STAYS_S: Final = 3.0
PROGRESS_S: Final = 60.0
ENDING_S: Final = 90.0
STABLE_S: Final = 75.0
EQUAL_S: Final = 30.0
LOOK_S: Final = 0.25
BEGIN: Final = "before anything happens"
KEPT: Final = {"retention.ms": "-1"}


def play(
    seed: int, *, minutes: float = 0.3, without: frozenset[str] = frozenset(), say: Callable[[str], None] | None = None,
    write: Callable[[str], object] | None = None, events_max: int | None = None,
) -> Outcome:  # fmt: skip
    """Play the life of a seed; or only its first `events_max` events; `say` gets what happens, `write` every event."""
    life = Life(Plan(seed, without=without), minutes, Trace(write, events_max), say)
    return run_simulated(life.run(), seed)


class Life(NodesLife[Stage, Gust]):
    """See the module's head."""

    progress_s = PROGRESS_S

    def __init__(
        self, plan: Plan, minutes: float, trace: Trace, say: Callable[[str], None] | None
    ) -> None:
        """Nothing is started."""
        self.plan, self._minutes = plan, minutes
        stage = Stage(plan, trace, say)
        super().__init__(plan.seed, stage, clients_of(stage))
        self.auditors = [RegionAuditor(stage, name) for name in stage.names]
        self._access = AccessWatch(stage) if plan.changes_access else None
        self._watch = Watch(stage, self._access)

    @override
    def told_character(self) -> str:
        return f"{self.plan}; {sorted(self.clients.workloads)}"

    @override
    async def watch(self) -> None:
        await self._watch.run()

    @override
    def count(self) -> None:
        self.counted["leader epochs"] = len(self._watch.led)
        self.counted["region epochs"] = len(self._watch.acted)
        self.counted["bytes compared"] = self._watch.compared
        self.counted["data groups led"] = self._watch.groups_led
        self.counted["access changes"] = 0 if self._access is None else self._access.answered

    # -- the course of it ------------------------------------------------------------------------

    @override
    async def live(self) -> None:
        stage = self.stage
        for name in stage.nodes:
            await stage.start_soundly(name)
        if not await self._settle(BEGIN):
            return
        if self.plan.spreads and not await self._settle(f"{BEGIN}, and leaders are spread"):
            return
        self.clients.start(self.spawn)
        hasten(self.clients)
        for auditor in self.auditors:
            _ = self.spawn(auditor.run())
        if self._access is not None:
            _ = self.spawn(self._access.run())
        await self._make_topics()
        if await self._all_get_on_everywhere(BEGIN):
            await self.trouble(self._minutes)
            if await self._settle("once faults have ended"):
                before = {name: self._number(name) for name in stage.names}
                if await self._all_get_on_everywhere("although all is well"):
                    await self._tidemarks_go_on(before)
                    await self._end()

    async def _make_topics(self) -> None:
        size = self.plan.segment_bytes
        configs = KEPT if size is None else KEPT | {"segment.bytes": str(size)}
        topics = self.stage.regions[self.stage.acting()[0]].led.node.topics
        plans = [
            TopicPlan(name=name, partitions=count) for name, count in self.clients.topics.items()
        ]
        plans += [plan for load in self.clients.workloads.values() for plan in load.topics]
        for plan in plans:
            try:
                await topics.create_topic(plan.name, plan.partitions, {**configs, **plan.configs})
            except CommandRefused as error:
                self.stage.blame(f"topic {plan.name} is not created: {error}")

    async def _wish_spread(self) -> None:
        """Let an operator have leaders spread in each region: one that mirrors keeps that for the time when it acts."""
        for region in self.stage.regions.values():
            await self.stage.order_spread(region, wanted=True)

    async def _all_get_on_everywhere(self, when: str) -> bool:
        """Let clients write through each region, and no longer than that: leaders would stay gathered."""
        self.stage.opens_mirror(opened=True)
        get_on = await self.all_get_on(when)
        self.stage.opens_mirror(opened=False)
        return get_on

    @override
    def gust(self, number: int) -> Gust:
        return self.plan.gust(number)

    @override
    async def play(self, gust: Gust, name: str) -> None:
        await faults.play(self.stage, gust, name)

    @override
    def victim(self, gust: Gust) -> str:
        region = list(self.stage.regions.values())[gust.region]
        leader = region.leader
        if gust.victim is None and leader is not None:
            return leader.name
        return list(region.nodes)[(gust.victim or 0) % len(region.nodes)]

    @override
    def disturbed_by(self, gust: Gust, name: str) -> set[str]:
        """Return nodes, the link, the operator, the door of the mirror."""
        region = faults.region_of(self.stage, name)
        if gust.fault is Fault.LOST:
            return {*self.stage.nodes, "operator"}
        if gust.fault in OF_REGIONS:
            return set(region.nodes)
        if gust.fault in OF_LINKS:
            return {"link", "operator"}
        if gust.fault in ORDERS:
            return {"operator"}
        if gust.fault is Fault.VISIT:
            return {"door"}
        if gust.fault is Fault.SPREAD:
            return {f"spread {region.name}"}
        if gust.fault is Fault.SWAP:
            return {name, faults.partner_of(self.stage, gust, name)}
        return {name} if self.plan.wild else set(region.nodes)

    @override
    def may(self, gust: Gust, name: str, disturbed: set[str]) -> bool:
        stage = self.stage
        if disturbed & stage.disturbed:
            return False
        region = faults.region_of(stage, name)
        if gust.fault is Fault.SWAP:
            both = [region, *(each for each in stage.regions.values() if each is not region)]
            return not any(set(each.nodes) & stage.disturbed for each in both)
        if gust.fault in OF_FOLDERS:
            peace = not (set(region.nodes) & stage.disturbed)
            return peace and len(stage.serving(region)) == region.in_sync() == 3
        return True

    async def _settle(self, when: str) -> bool:
        """Let the operator start what does not run, give a word where nobody acts, and wait (INV-RSL2)."""
        stage = self.stage
        stage.tell("everything is to be well")
        stage.opens_mirror(opened=False)
        for name in sorted(stage.disk_failed):
            await stage.kill(name)
        for name in stage.nodes:
            await stage.start_soundly(name)
        wishes = self.plan.spreads and when != BEGIN
        deadline_s = stage.now_s() + SETTLE_S
        seen, since_s, well_s = "", stage.now_s(), NEVER
        while stage.now_s() < deadline_s:
            stage.check_ends()
            if wishes and stage.acting():
                await self._wish_spread()
                wishes = False
            well_s = min(well_s, stage.now_s()) if self._is_well() else NEVER
            if stage.now_s() - well_s >= STAYS_S if well_s < NEVER else False:
                return True
            views = {name: view for name in stage.names if (view := stage.view(name)) is not None}
            if (now := without_counts(picture(views))) != seen:
                seen, since_s = now, stage.now_s()
            elif stage.now_s() - since_s > UNCHANGED_S and not stage.acting() and len(views) == 2:
                order = word_for(views, self.plan.stream("word", int(stage.now_s())))
                if order is not None:
                    stage.tell(f"  the operator's word: {order.kind} at {order.target}")
                    if refused := await stage.order(order.kind, order.target):
                        stage.tell(f"  not done: {refused[:200]}")
                seen = ""
            await asyncio.sleep(LOOK_S)
        stage.blame(
            f"not within {SETTLE_S:.0f} s, {when}: one acts, all in sync: {stage.told_state()}"
        )
        return False

    def _is_well(self) -> bool:
        acting = self.stage.acting()
        if len(acting) != 1 or not self.stage.all.is_well(acting[0]):
            return False
        leads = self.stage.regions[acting[0]].led.node
        return leads.role.awaits_readers or is_spread_as_wanted(
            leads.storage.metadata.image
        )  # INV-SPD4

    def _number(self, name: str) -> Any:
        region = self.stage.regions[name]
        return region.led.node.tidemarks.claim().point if region.leader is not None else None

    async def _tidemarks_go_on(self, before: dict[str, Any]) -> None:
        """Rule INV-RSL2."""

        def on() -> bool:
            return all(
                (now := self._number(name)) is not None and now > was
                for name, was in before.items()
            )

        if not await self.stage.until(on, EQUAL_S):
            self.stage.blame(f"no tidemark behind {before} although all is well")

    # -- the end ---------------------------------------------------------------------------------

    async def _end(self) -> None:
        stage, clients = self.stage, self.clients
        stage.opens_mirror(opened=True)
        clients.stop_writing()
        if self._access is not None:
            self._access.stop()
        left = len(clients.watchers) + len(self.auditors)
        if not await stage.until(lambda: len(self.tasks) == left, ENDING_S):
            stage.blame(f"writers do not end within {ENDING_S:.0f} s: {clients.last_errors()}")
        if self.plan.spreads and not await stage.until(self._is_well, SETTLE_S):
            stage.blame(f"leaders are not spread again although all is well: {stage.told_state()}")
        judge = RegionsJudge(stage, clients, self._access)
        if not await stage.until(lambda: not judge.undecided(), STABLE_S):
            stage.blame(f"not decided within {STABLE_S:.0f} s: {judge.undecided()}")
        await stage.until(lambda: not judge.differing(), EQUAL_S)
        clients.stop_reading()
        for auditor in self.auditors:
            auditor.closed.set()
        stage.end_separations()
        audited = [each for auditor in self.auditors for each in auditor.seen]
        stage.story.sightings = clients.sightings() + audited
        try:
            await judge.look()
        except (OSError, Refused) as error:
            stage.blame(f"cannot be read back: {error!r}")
        for text in judge.wrong:
            stage.blame(text)
        for name, workload in clients.workloads.items():
            await self._judge_workload(name, workload)
        self.counted.update(judge.counts)
        self.counted["looks"] = sum(auditor.looks for auditor in self.auditors)

    async def _judge_workload(self, name: str, workload: Workload) -> None:
        """Ask its judge until nothing is wrong, or what is has lasted: a mirror may be a tidemark behind."""
        stage, found = self.stage, list[str]()
        [acting] = stage.acting()
        end = End(Reach(stage.fabric, spots(stage, f"end {name}")), acting, stage.story)
        deadline_s = stage.now_s() + EQUAL_S
        while True:
            try:
                found = await workload.violations(end)
            except (OSError, Refused) as error:
                found = [f"cannot be read back: {error!r}"]
            if not found or stage.now_s() > deadline_s:
                break
            await asyncio.sleep(LOOK_S)
        for text in found:
            stage.blame(f"{name}: {text}")
        self.counted.update(workload.counts())
