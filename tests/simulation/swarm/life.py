"""One life of some regions under the faults of one seed: trouble, an end of it, and a judgement.

INV-SWL1  nothing but the seed decides: two runs have one trace
INV-SWL2  once faults end, everything converges: one region acts, the others mirror it, all clients get on, all regions show
        the same
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from chaos.checker import Kind as Fault
from chaos.checker import check
from chaos.history import History, seen
from chaos.shuffle.judge import judge
from chaos.story import Place
from region_broker.controller.metadata_commands import CommandRefused
from tests.simulation.bank import TOPIC as ACCOUNTS_TOPIC
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.simulated_loop import SimulatedLoop, run_simulated
from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.disasters import strike
from tests.simulation.swarm.invariants.watch import Watch
from tests.simulation.swarm.plain_writer import PLAIN_TOPIC
from tests.simulation.swarm.plan import Choice, Plan
from tests.simulation.swarm.processor import OUTPUT_TOPIC, committed_offset
from tests.simulation.swarm.rates import FLIP
from tests.simulation.swarm.settling import settle
from tests.simulation.swarm.stage import NAMES, Stage
from tests.simulation.swarm.watching import watched
from tests.simulation.swarm.weather import storm
from tests.simulation.swarm.workloads.drawn import draw_workloads
from tests.simulation.swarm.workloads.setting import End, Reach, TopicPlan, Workload
from tests.simulation.trace import Trace
from tests.simulation.view_audit import (
    Auditor,
    aborted_and_shown,
    losses_of_transfers,
    unequal_bytes,
    unstable,
)

PROGRESS_S: Final = 60.0
ENDING_S: Final = 90.0
KEPT: Final = {"retention.ms": "-1"}
"""By a clock that is days off, all of a topic would be of long ago, as it would be to Kafka."""
EQUAL_S: Final = 30.0
STABLE_S: Final = 70.0
"""Longer than the transactions of a processor may last."""
ASK_S: Final = 0.2
SETTLE_EVERY_S: Final = 30.0
IN_EVERY_HISTORY: Final = frozenset(
    {Fault.TORN, Fault.DUPLICATE, Fault.WRONG, Fault.INVENTED, Fault.ABORTED_READ, Fault.SUM,
     Fault.OUT_OF_ORDER, Fault.REGIONS_DIFFER}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a life came to. `simulated_s`: how long it was; `played`: what was done, by number: its kind, and when,
    counted from the first trouble."""

    trace: str
    events: int
    violations: tuple[str, ...]
    simulated_s: float
    played: tuple[tuple[str, str, float], ...]


def play(
    seed: int, *, minutes: float = 1.0, regions: int = 2, say: Callable[[str], None] | None = None,
    write: Callable[[str], object] | None = None, choice: Choice | None = None, events_max: int | None = None,
) -> Outcome:  # fmt: skip
    """Play the life of a seed, or what `choice` leaves of it, or only its first `events_max` events; `say` gets
    what happens, `write` every event."""
    plan = Plan(seed, NAMES[:regions], choice)
    life = Life(
        plan, regions, partial(at_random, minutes=minutes), say=say, trace=Trace(write, events_max)
    )
    reach = Reach(life.stage.fabric, life.stage.regions)
    life.clients.workloads = draw_workloads(reach, plan.seed, plan.rates.pace_s)
    with watched(life.trace):
        return run_simulated(life.run(), seed)


class Life:
    """One life: `trouble` is what happens between its quiet beginning and its quiet end."""

    def __init__(
        self,
        plan: Plan,
        regions: int,
        trouble: Callable[["Life"], Coroutine[Any, Any, bool]],
        *,
        say: Callable[[str], None] | None,
        trace: Trace,
    ) -> None:
        """Nothing is started; `say` gets what happens."""
        self.plan, self.rates, self.trace = plan, plan.rates, trace
        self.progress_s = PROGRESS_S
        self.stage = Stage(plan.stream("stage"), self.rates, regions, trace, say)
        self.clients = Clients(
            self.stage.fabric, self.stage.regions, plan.stream("clients"), self.rates.pace_s
        )
        self.auditors = [Auditor(self.stage, name) for name in self.stage.names]
        self.listed: Counter[str] = Counter()
        self.began_s = 0.0
        self.spell = 0
        """How often it has been settled, and once more."""
        self._trouble = trouble
        self._watch = Watch(self.stage)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self) -> Outcome:
        """Live it, and return what it came to."""
        stage = self.stage
        stage.tell(f"{self.rates}, {sorted(self.clients.workloads)}")
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.job_s_max = self.rates.job_s_max
        loop.set_exception_handler(self._unhandled)
        watching = loop.create_task(self._watch.run())
        life = loop.create_task(self._run())
        self.trace.when_full = life.cancel
        try:
            await asyncio.wait([life])
            if not self.trace.is_full:
                life.result()
                for name in filter(stage.up, stage.names):
                    self._watch.look_whole(name)
        finally:
            life.cancel()
            watching.cancel()
            self.clients.stop_reading()
            for task in sorted(self._tasks, key=hash):
                task.cancel()
            for name in stage.names:
                await stage.regions[name].kill()
        played = tuple((label, kind, at_s - self.began_s) for label, kind, at_s in stage.played)
        return Outcome(
            self.trace.digest, self.trace.events, tuple(stage.anomalies), stage.now_s(), played
        )

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.stage.blame(f"{context.get('message')}: {context.get('exception')!r}")

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let a client, or whatever else, run beside everything."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._client_ended)
        return task

    def _client_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.stage.blame(f"a client ended: {task.exception()!r}")

    async def _run(self) -> None:
        for name in self.stage.names:
            await self.stage.start(name)
        if not await settle(self.stage):
            return
        await self._begin()
        if not await self._all_get_on("before anything happens"):
            return
        self.began_s = self.stage.now_s()
        if await self._trouble(self) and await self._all_get_on("although all is well"):
            await self._end()

    async def _begin(self) -> None:
        stage, clients = self.stage, self.clients
        clients.start(self.spawn)
        for auditor in self.auditors:
            _ = self.spawn(auditor.run())
        primary = stage.regions[stage.acting()[0]].node
        plans = [TopicPlan(name=name, partitions=count) for name, count in clients.topics.items()]
        plans += [plan for load in clients.workloads.values() for plan in load.topics]
        for plan in plans:
            configs = {**KEPT, **plan.configs}
            try:
                await primary.topics.create_topic(plan.name, plan.partitions, configs)
            except OSError:  # the region has just ended by itself: the stage says why
                return
            except CommandRefused as error:  # nothing has happened to it yet
                stage.check_ends()
                stage.blame(f"topic {plan.name} is not created: {error}")
                return

    async def _end(self) -> None:
        """Let the clients end, read everything back and judge it."""
        stage, clients = self.stage, self.clients
        clients.stop_writing()
        await self._until(
            lambda: len(self._tasks) == len(clients.watchers) + len(self.auditors),
            ENDING_S, "writers end",
        )  # fmt: skip
        await self._until(
            lambda: not any(unstable(each, clients.topics) for each in stage.regions.values()),
            STABLE_S, "all is decided",
        )  # fmt: skip
        await self._read_back()
        clients.stop_reading()
        for auditor in self.auditors:
            auditor.closed.set()
        stage.end_separations()
        audited = [each for auditor in self.auditors for each in auditor.seen]
        stage.story.sightings = clients.sightings() + audited
        await self._judge_processors()
        await self._until(self._same_topics, EQUAL_S, "the regions have the same topics")
        for name, workload in clients.workloads.items():
            await self._judge_workload(name, workload)
        self._judge()

    async def settled(self) -> bool:
        """Let the operator settle it; return whether that succeeded."""
        self.stage.tell("the operator settles it")
        self.stage.chance = self.plan.stream("settling", self.spell)
        return await settle(self.stage)

    async def _until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> bool:
        deadline_s = self.stage.now_s() + timeout_s
        while not condition():
            if self.stage.is_over:
                return False
            if self.stage.now_s() > deadline_s:
                self.stage.blame(f"not within {timeout_s:.0f} s: {what}")
                return False
            self.stage.check_ends()
            await asyncio.sleep(ASK_S)
        return True

    async def _all_get_on(self, when: str) -> bool:
        before = self.clients.progress()
        stuck: list[str] = []

        def none_is_stuck() -> bool:
            now = self.clients.progress()
            stuck[:] = [name for name, count in before.items() if now[name] <= count]
            return not stuck

        if await self._until(none_is_stuck, self.progress_s, f"all clients get on {when}"):
            return True
        errors = self.clients.last_errors()
        told = "; ".join(f"{name} ({errors[name]})" for name in stuck)
        self.stage.blame(f"these get nothing through {when}: {told}")
        return False

    async def _read_back(self) -> None:
        stage = self.stage
        deadline_s = stage.now_s() + EQUAL_S
        while True:
            try:
                stage.story.final = {name: await self._read(name) for name in stage.names}
            except (OSError, Refused) as error:
                stage.blame(f"cannot be read back: {error}")
                return
            if len(set(stage.story.final.values())) == 1 or stage.now_s() > deadline_s:
                break
            await asyncio.sleep(ASK_S)
        losses = [loss for name in stage.names for loss in await stage.service(name).losses()]
        self.listed = losses_of_transfers(losses)
        stage.story.note_losses(losses)

    async def _read(self, name: str) -> frozenset[Place]:
        network = self.stage.fabric.site("auditor")
        found: set[Place] = set()
        for topic, count in self.clients.topics.items():
            connection = await Connection.open(network, self.stage.regions[name].kafka_port)
            reader = Reader(topic, count, committed=True)
            while await reader.read(connection):
                pass
            connection.close()
            found |= {Place(topic, n, at, value.decode()) for n, at, value in reader.records}
        return frozenset(found)

    async def _judge_processors(self) -> None:
        """Rule INV-SWP1, at the region that acts; all regions show the same, as is judged elsewhere."""
        [acting] = self.stage.acting() or [self.stage.names[0]]
        places = sorted(self.stage.story.final.get(acting, ()))
        network = self.stage.fabric.site("auditor")
        connection = await Connection.open(network, self.stage.regions[acting].kafka_port)
        for each in self.clients.processors:
            end = await committed_offset(connection, each.group, each.topic, each.number)
            taken = [
                f"done {p.value}"
                for p in places
                if (p.topic, p.partition) == (each.topic, each.number) and p.offset < end
            ]
            made = [
                p.value for p in places if (p.topic, p.partition) == (OUTPUT_TOPIC, each.number)
            ]
            if taken != made:
                lacks, more = Counter(taken) - Counter(made), Counter(made) - Counter(taken)
                self.stage.blame(
                    f"processor of {each.name}, committed offset {end}: {len(taken)} are processed, the output has"
                    f" {len(made)}; it lacks {dict(lacks)}, and has too much {dict(more)}"
                )
            for beyond in each.beyond:
                self.stage.blame(
                    f"processor of {each.name}: a committed offset is out of range: {beyond}"
                )
        connection.close()

    async def _judge_workload(self, name: str, workload: Workload) -> None:
        """Ask its judge until nothing is wrong, or what is has lasted: mirrors may be a tidemark behind."""
        stage = self.stage
        [acting] = stage.acting() or [stage.names[0]]
        end = End(Reach(stage.fabric, stage.regions), acting, stage.story)
        stage.tell(f"{name}: {dict(workload.progress())}, {dict(workload.counts())}")
        deadline_s = stage.now_s() + EQUAL_S
        while True:
            try:
                found = await workload.violations(end)
            except (OSError, Refused) as error:
                found = [f"cannot be read back: {error!r}"]
            if not found or stage.now_s() > deadline_s:
                break
            await asyncio.sleep(ASK_S)
        for text in found:
            stage.blame(f"{name}: {text}")

    def _same_topics(self) -> bool:
        """Rule INV-SWT1."""
        images = [r.node.storage.metadata.image for r in self.stage.regions.values()]
        return (
            len({frozenset((t.name, t.topic_id) for t in i.topics.values()) for i in images}) == 1
        )

    def _judge(self) -> None:
        stage = self.stage
        counts = {name: len(places) for name, places in stage.story.final.items()}
        progress = {**self.clients.progress(), "changes of topics": self.clients.churner.changes}
        stage.tell(f"{len(stage.story.sightings)} sightings, at the end {counts}; {progress}")
        for anomaly in judge(stage.story, PLAIN_TOPIC):
            stage.blame(anomaly)
        final = {
            name: [
                seen(p.partition, p.offset, p.value.encode())
                for p in sorted(places)
                if p.topic == ACCOUNTS_TOPIC
            ]
            for name, places in stage.story.final.items()
        }
        attempts = self.clients.attempts()
        kinds = {kind.name for kind in IN_EVERY_HISTORY}
        if not stage.story.damages and stage.story.listed_all:
            kinds |= {Fault.UNLISTED.name, Fault.FALSE_LOSS.name}
        for found in check(History(attempts, final, listed=self.listed)):
            if found.name in kinds:
                stage.blame(f"{found.name} {found.detail}")
        for shown in aborted_and_shown(attempts, stage.story.sightings)[:5]:
            stage.blame(f"shown although it was aborted: {shown}")
        regions = [stage.regions[name] for name in stage.names]
        for where in unequal_bytes(regions, self.clients.topics):
            stage.blame(f"not the same bytes: {where}")
        if not stage.story.words and not stage.story.damages and not stage.days_off:
            for writer in self.clients.writers:
                for refused in writer.refused:
                    stage.blame(f"without a word a producer is refused: {refused}")


async def at_random(life: Life, *, minutes: float) -> bool:
    """Let things happen for as long as was asked, with a settled moment now and then."""
    stage = life.stage
    ends_s = life.began_s + minutes * 60
    number = 0
    while stage.now_s() < ends_s:
        life.spell += 1
        weather = life.spawn(storm(stage, life.plan, life.spell))
        until_s = min(ends_s, stage.now_s() + SETTLE_EVERY_S)
        number = await _act(life, number, until_s)
        weather.cancel()
        await asyncio.wait([weather])
        if not await life.settled():
            return False
    return True


async def _act(life: Life, number: int, until_s: float) -> int:
    """Play the actions behind `number` until a time; return the last one's number."""
    stage, primary = life.stage, life.stage.names[0]
    while stage.now_s() < until_s:
        number += 1
        primary = next(iter(stage.acting()), primary)
        action, disaster = life.plan.action(number, primary), life.plan.disaster(number)
        if (chance := life.plan.flip(number)) is not None:
            stage.note_played(f"f{number}", FLIP)
            await stage.flip_a_bit(action.region, chance)
        kind = action.kind.value if disaster is None else disaster.value
        if life.plan.choice.has(str(number), kind):
            stage.chance = life.plan.stream("of action", number)
            stage.note_played(str(number), kind)
            if disaster is None:
                await stage.play(action)
            else:
                await strike(life, disaster, action, primary)
        else:
            await asyncio.sleep(action.pause_s)
    return number
