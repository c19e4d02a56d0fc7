"""One life of a region of three nodes: trouble, an end of it, and a judgement.

INV-CSL1  nothing but the seed decides: two runs have one trace
INV-CSL2  once faults end, everything converges: all nodes run, one leads, all are in sync, all clients get on, tidemarks go on
INV-CSL3  where one fault comes at a time, writes go on within `SINGLE_S`
"""

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from typing_extensions import override

from tests.simulation.cluster_swarm import faults
from tests.simulation.cluster_swarm.clients import DOORS, clients_of, doors
from tests.simulation.cluster_swarm.judge import Found, Judge, judged
from tests.simulation.cluster_swarm.logs import ClusterTrims
from tests.simulation.cluster_swarm.plan import OF_ALL, Fault, Gust, Plan
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.cluster_swarm.watch import Watch
from tests.simulation.kafka_client import CREATE_TOPICS, Connection, Refused
from tests.simulation.node_faults.clients import hasten
from tests.simulation.node_faults.drawn import OF_DISKS, OF_FOLDERS
from tests.simulation.node_faults.life import NodesLife, Outcome
from tests.simulation.region_cluster import NAMES, Member
from tests.simulation.simulated_loop import run_simulated
from tests.simulation.swarm.workloads.setting import End, Reach
from tests.simulation.trace import Trace

SETTLE_S: Final = 30.0
PROGRESS_S: Final = 45.0
"""Longer than a member of a group waits for an answer (30 s)."""
ENDING_S: Final = 70.0
STABLE_S: Final = 75.0
EQUAL_S: Final = 10.0
QUIET_S: Final = 1.0
SINGLE_S: Final = 5.0
NOT_TIMED: Final = OF_DISKS | {Fault.LATE}
TOPICS_EXIST: Final = 36


def play(
    seed: int, *, minutes: float = 0.5, without: frozenset[str] = frozenset(), say: Callable[[str], None] | None = None,
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
        self._watch = Watch(stage, self._broken)

    @override
    def told_character(self) -> str:
        return f"{self.plan}; {sorted(self.clients.workloads)}"

    @override
    async def watch(self) -> None:
        await self._watch.run()

    @override
    def count(self) -> None:
        self.counted["leader epochs"] = self._watch.leader_epochs

    def _broken(self, may_lead: list[Member]) -> Iterator[str]:
        trims = self.clients.workloads.get("trims")
        return trims.broken(may_lead) if isinstance(trims, ClusterTrims) else iter(())

    # -- the course of it ------------------------------------------------------------------------

    @override
    async def live(self) -> None:
        for name in NAMES:
            await self.stage.start_soundly(name)
        if not await self._settle("before anything happens"):
            return
        await self._make_topics()
        if self.plan.spreads:
            await self.stage.order_spread(wanted=True)
            if not await self._settle("before anything happens, and leaders are spread"):
                return
        self.clients.start(self.spawn)
        hasten(self.clients)
        if await self.all_get_on("before anything happens"):
            await self.trouble(self._minutes)
            if await self._settle("once faults have ended"):
                tidemark = self._tidemark()
                if await self.all_get_on("although all is well"):
                    await self._tidemarks_go_on(tidemark)
                    await self._end()

    async def _make_topics(self) -> None:
        rows = [
            {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": (), "configs": self._configs()}
            for name, count in self._topics().items()
        ]  # fmt: skip
        [acting] = self.stage.acting()
        connection = await Connection.open(self.stage.fabric.site("admin"), acting.kafka_port)
        answer = await connection.call(
            CREATE_TOPICS, 5, {"topics": rows, "timeout": 10_000, "validate_only": False}
        )
        for row in answer.topics:
            if row.error_code.value not in {0, TOPICS_EXIST}:
                raise Refused(f"CreateTopics {row.name}", row.error_code)
        connection.close()

    def _configs(self) -> list[dict[str, str]]:
        """Return what all topics have: nothing is deleted by a clock that jumps, and segments may be small."""
        size = self.plan.segment_bytes
        small = {} if size is None else {"segment.bytes": str(size)}
        return [{"name": k, "value": v} for k, v in {"retention.ms": "-1", **small}.items()]

    def _topics(self) -> dict[str, int]:
        found = {"plain": len(DOORS), "accounts": 4, "processed": len(DOORS)}
        for load in self.clients.workloads.values():
            found |= {plan.name: plan.partitions for plan in load.topics}
        return found

    @override
    def gust(self, number: int) -> Gust:
        return self.plan.gust(number)

    @override
    async def play(self, gust: Gust, name: str) -> None:
        await faults.play(self.stage, gust, name)

    @override
    def victim(self, gust: Gust) -> str:
        acting = self.stage.acting()
        if gust.victim is None and acting:
            return acting[0].name
        return NAMES[gust.victim or 0]

    @override
    def disturbed_by(self, gust: Gust, name: str) -> set[str]:
        return set(NAMES) if gust.fault in OF_ALL else {name}

    @override
    def may(self, gust: Gust, name: str, disturbed: set[str]) -> bool:
        stage = self.stage
        if gust.fault in OF_ALL:
            return not stage.disturbed
        if gust.fault in OF_FOLDERS:
            return stage.is_well()
        return not (stage.disturbed if not self.plan.wild else stage.disturbed & {name})

    @override
    async def begin(
        self, gust: Gust, name: str, disturbed: set[str], lasting: asyncio.TaskGroup
    ) -> None:
        if self.plan.calm:
            await self._alone(gust, name, disturbed)
        else:
            await super().begin(gust, name, disturbed, lasting)

    async def _alone(self, gust: Gust, name: str, disturbed: set[str]) -> None:
        """Play one fault, and nothing else until all is well again."""
        began_s = self.stage.now_s()
        await self.disturb(gust, name, disturbed)
        await self.stage.until(self.stage.is_well, SETTLE_S)
        await asyncio.sleep(QUIET_S)
        if gust.fault not in NOT_TIMED and gust.fault is not Fault.SLOW:
            self._time(f"{gust.number} ({gust.fault.value} {name})", began_s, self.stage.now_s())

    def _time(self, what: str, began_s: float, ended_s: float) -> None:
        """Hold it to INV-CSL3."""
        times_s = [
            each.at_s for writer in self.clients.writers for each in writer.acked if began_s <= each.at_s <= ended_s
        ]  # fmt: skip
        gaps_s = [b - a for a, b in pairwise(sorted([began_s, *times_s, ended_s]))]
        if max(gaps_s) > SINGLE_S:
            self.stage.blame(f"no write is acknowledged for {max(gaps_s):.1f} s: fault {what}")

    async def _settle(self, when: str) -> bool:
        """Let the operator start what does not run any more, and wait (INV-CSL2)."""
        stage = self.stage
        stage.tell("everything is to be well")
        if self.plan.spreads:
            await stage.order_spread(wanted=True)
        for name in NAMES:
            if name in stage.disk_failed:
                await stage.kill(name)
        for name in NAMES:
            await stage.start_soundly(name)
        if await stage.until(stage.is_well, SETTLE_S):
            return True
        stage.blame(
            f"not within {SETTLE_S:.0f} s, {when}: one leads, all in sync: {stage.told_state()}"
        )
        return False

    def _tidemark(self) -> Any:
        [acting] = self.stage.acting()[:1]
        return acting.node.tidemarks._published()

    async def _tidemarks_go_on(self, before: Any) -> None:
        """Rule INV-CSL2."""
        if not await self.stage.until(lambda: self._tidemark() > before, EQUAL_S):
            self.stage.blame(f"no tidemark behind {before} although all is well")

    async def _readers_end(self, judge: Judge) -> None:
        """Rule INV-CSR2."""
        for reader in judge.rack_readers():
            if not await self.stage.until(lambda r=reader: r.is_at_end(judge.ends()), EQUAL_S):  # type: ignore[misc]
                self.stage.blame(
                    f"a reader with a rack does not come to the end: {reader.lacks(judge.ends())}"
                )

    # -- the end ---------------------------------------------------------------------------------

    async def _end(self) -> None:
        stage, clients = self.stage, self.clients
        clients.stop_writing()
        if not await stage.until(lambda: len(self.tasks) == len(clients.watchers), ENDING_S):
            stage.blame(f"writers do not end within {ENDING_S:.0f} s: {clients.last_errors()}")
        judge = judged(stage, clients, self._topics())
        if not await stage.until(judge.is_decided, STABLE_S):
            stage.blame(f"not decided within {STABLE_S:.0f} s: {judge.undecided()}")
        await self._readers_end(judge)
        clients.stop_reading()
        await stage.until(judge.is_equal, EQUAL_S)
        try:
            found: Found = await judge.look()
        except (OSError, Refused) as error:
            stage.blame(f"cannot be read back: {error!r}")
            return
        for name, workload in clients.workloads.items():
            end = End(Reach(stage.fabric, doors(stage)), DOORS[0], found.story)
            for text in await workload.violations(end):
                stage.blame(f"{name}: {text}")
            self.counted.update(workload.counts())
        for text in found.wrong:
            stage.blame(text)
        self.counted.update(found.counts)
