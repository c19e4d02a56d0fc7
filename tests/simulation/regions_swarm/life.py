"""One life of two regions: trouble, an end of it, and a judgement.

INV-RSL1  nothing but the seed decides: two runs have one trace
INV-RSL2  once faults end, everything converges: one region acts, the other one mirrors it, all nodes are in sync, all clients get on, tidemarks go on
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from chaos.judges.contacts import NEVER
from chaos.judges.operator import UNCHANGED_S, picture, without_counts, word_for
from region_broker.controller.metadata_commands import CommandRefused
from tests.simulation.cluster_swarm.life import Outcome
from tests.simulation.kafka_client import Refused
from tests.simulation.regions_swarm import faults
from tests.simulation.regions_swarm.judge import RegionsJudge
from tests.simulation.regions_swarm.plan import (
    OF_FOLDERS,
    OF_LINKS,
    OF_REGIONS,
    ORDERS,
    Fault,
    Gust,
    Plan,
)
from tests.simulation.regions_swarm.spots import RegionAuditor, clients_of, hasten
from tests.simulation.regions_swarm.stage import Stage
from tests.simulation.regions_swarm.watch import Watch
from tests.simulation.simulated_loop import run_simulated
from tests.simulation.trace import Trace

SETTLE_S: Final = 120.0
STAYS_S: Final = 3.0
PROGRESS_S: Final = 60.0
ENDING_S: Final = 90.0
STABLE_S: Final = 75.0
EQUAL_S: Final = 30.0
LOOK_S: Final = 0.25
KEPT: Final = {"retention.ms": "-1"}


def play(
    seed: int, *, minutes: float = 0.3, without: frozenset[str] = frozenset(), say: Callable[[str], None] | None = None,
    write: Callable[[str], object] | None = None, events_max: int | None = None,
) -> Outcome:  # fmt: skip
    """Play the life of a seed; or only its first `events_max` events; `say` gets what happens, `write` every event."""
    life = Life(Plan(seed, without=without), minutes, Trace(write, events_max), say)
    return run_simulated(life.run(), seed)


class Life:
    """See the module's head."""

    def __init__(
        self, plan: Plan, minutes: float, trace: Trace, say: Callable[[str], None] | None
    ) -> None:
        """Nothing is started."""
        self.plan, self.trace, self._minutes = plan, trace, minutes
        self.stage = Stage(plan, trace, say)
        self.clients = clients_of(self.stage)
        self.auditors = [RegionAuditor(self.stage, name) for name in self.stage.names]
        self.counted: Counter[str] = Counter()
        self._watch = Watch(self.stage)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> Outcome:
        """Live it, and return what it came to."""
        stage, loop = self.stage, asyncio.get_running_loop()
        stage.tell(str(self.plan))
        loop.set_exception_handler(self._unhandled)
        watching = loop.create_task(self._watch.run())
        life = loop.create_task(self._run())
        self.trace.when_full = life.cancel
        await asyncio.wait([life, watching], return_when=asyncio.FIRST_COMPLETED)
        try:
            if watching.done():
                watching.result()
            if not self.trace.is_full:
                life.result()
        finally:
            life.cancel()
            watching.cancel()
            self.clients.stop_reading()
            for task in sorted(self._tasks, key=hash):
                task.cancel()
            for node in stage.nodes.values():
                await node.kill()
        self.counted["leader epochs"] = len(self._watch.led)
        self.counted["region epochs"] = len(self._watch.acted)
        self.counted["metadata entries"] = stage.quorums.committed
        self.counted["bytes compared"] = self._watch.compared
        return Outcome(
            self.plan.seed, self.trace.digest, self.trace.events, tuple(stage.anomalies), stage.now_s(), self.counted
        )  # fmt: skip

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.stage.blame(f"{context.get('message')}: {context.get('exception')!r}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a client run beside everything."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._client_ended)
        return task

    def _client_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.stage.blame(f"a client ended: {task.exception()!r}")

    # -- the course of it ------------------------------------------------------------------------

    async def _run(self) -> None:
        stage = self.stage
        for name in stage.nodes:
            await stage.start_soundly(name)
        if not await self._settle("before anything happens"):
            return
        self.clients.start(self.spawn)
        hasten(self.clients)
        for auditor in self.auditors:
            _ = self.spawn(auditor.run())
        await self._make_topics()
        if await self._all_get_on("before anything happens"):
            await self._trouble()
            if await self._settle("once faults have ended"):
                before = {name: self._number(name) for name in stage.names}
                if await self._all_get_on("although all is well"):
                    await self._tidemarks_go_on(before)
                    await self._end()

    async def _make_topics(self) -> None:
        size = self.plan.segment_bytes
        configs = KEPT if size is None else KEPT | {"segment.bytes": str(size)}
        topics = self.stage.regions[self.stage.acting()[0]].led.node.topics
        for name, count in self.clients.topics.items():
            try:
                await topics.create_topic(name, count, configs)
            except CommandRefused as error:
                self.stage.blame(f"topic {name} is not created: {error}")

    async def _trouble(self) -> None:
        stage, number = self.stage, 0
        ends_s = stage.now_s() + 60 * self._minutes
        async with asyncio.TaskGroup() as lasting:
            while stage.now_s() < ends_s:
                number += 1
                gust = self.plan.gust(number)
                await asyncio.sleep(gust.gap_s)
                name = self._victim(gust)
                disturbed = self._disturbed_by(gust, name)
                if not self._may(gust, name, disturbed):
                    continue
                self.counted[gust.fault.value] += 1
                stage.tell(f"{number}: {gust.fault.value} {name}, {gust.for_s:.2f} s")
                lasting.create_task(self._disturb(gust, name, disturbed))

    def _victim(self, gust: Gust) -> str:
        region = list(self.stage.regions.values())[gust.region]
        leader = region.leader
        if gust.victim is None and leader is not None:
            return leader.name
        return list(region.nodes)[(gust.victim or 0) % len(region.nodes)]

    def _disturbed_by(self, gust: Gust, name: str) -> set[str]:
        """Return what must not be disturbed otherwise meanwhile: nodes, the link, the operator."""
        region = faults.region_of(self.stage, name)
        if gust.fault is Fault.LOST:
            return {*self.stage.nodes, "operator"}
        if gust.fault in OF_REGIONS:
            return set(region.nodes)
        if gust.fault in OF_LINKS:
            return {"link", "operator"}
        if gust.fault in ORDERS:
            return {"operator"}
        if gust.fault is Fault.SWAP:
            return {name, faults.partner_of(self.stage, gust, name)}
        return {name} if self.plan.wild else set(region.nodes)

    def _may(self, gust: Gust, name: str, disturbed: set[str]) -> bool:
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

    async def _disturb(self, gust: Gust, name: str, disturbed: set[str]) -> None:
        self.stage.disturbed |= disturbed
        await faults.play(self.stage, gust, name)
        self.stage.disturbed -= disturbed

    async def _settle(self, when: str) -> bool:
        """Let the operator start what does not run, give a word where nobody acts, and wait (INV-RSL2)."""
        stage = self.stage
        stage.tell("everything is to be well")
        for name in sorted(stage.disk_failed):
            await stage.kill(name)
        for name in stage.nodes:
            await stage.start_soundly(name)
        deadline_s = stage.now_s() + SETTLE_S
        seen, since_s, well_s = "", stage.now_s(), NEVER
        while stage.now_s() < deadline_s:
            stage.check_ends()
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
            f"not within {SETTLE_S:.0f} s, {when}: one acts, all in sync: {stage.all.told()}"
        )
        return False

    def _is_well(self) -> bool:
        acting = self.stage.acting()
        return len(acting) == 1 and self.stage.all.is_well(acting[0])

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

    async def _all_get_on(self, when: str) -> bool:
        before = self.clients.progress()

        def stuck() -> list[str]:
            now = self.clients.progress()
            return [name for name, count in before.items() if now[name] <= count]

        if await self.stage.until(lambda: not stuck(), PROGRESS_S):
            return True
        errors = self.clients.last_errors()
        told = "; ".join(f"{name} ({errors.get(name)})" for name in stuck())
        self.stage.blame(f"these get nothing through {when}: {told}; {self.stage.all.told()}")
        return False

    # -- the end ---------------------------------------------------------------------------------

    async def _end(self) -> None:
        stage, clients = self.stage, self.clients
        clients.stop_writing()
        left = len(clients.watchers) + len(self.auditors)
        if not await stage.until(lambda: len(self._tasks) == left, ENDING_S):
            stage.blame(f"writers do not end within {ENDING_S:.0f} s: {clients.last_errors()}")
        judge = RegionsJudge(stage, clients)
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
        self.counted.update(judge.counts)
        self.counted["looks"] = sum(auditor.looks for auditor in self.auditors)
