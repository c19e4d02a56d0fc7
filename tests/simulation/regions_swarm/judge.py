"""What is wrong at the end of a life, now that all nodes run, one region acts, the other one mirrors it, and nobody writes.

INV-RGJ1  nothing that was acknowledged or shown is gone but by an operator's word, nothing is there twice, order holds, no transaction is torn
INV-RGJ2  all nodes of a region have the same bytes below HW and the same metadata; both regions show the same bytes
INV-RGJ3  a committed offset stands where its output stands
INV-RGJ4  at each tidemark that a region has reached, what a takeover there would keep has no half of a transaction (T2, T9)
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.checker import Kind, check
from chaos.history import History, Outcome, seen
from chaos.shuffle.judge import judge
from chaos.story import Place
from tests.simulation.bank import TOPIC as ACCOUNTS_TOPIC
from tests.simulation.cluster_region_steps import number_of
from tests.simulation.cluster_regions import ClusterRegion
from tests.simulation.cut_judge import torn_at_tidemarks
from tests.simulation.kafka_client import Connection, Reader
from tests.simulation.node_faults.alike import (
    logs_differ,
    metadata_differ,
    processed_wrongly,
    undecided_logs,
)
from tests.simulation.node_faults.refusals import of_no_clock
from tests.simulation.regions_swarm.access import AccessWatch
from tests.simulation.regions_swarm.stage import Stage, service_of
from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.plain_writer import PLAIN_TOPIC
from tests.simulation.view_audit import aborted_and_shown, losses_of_transfers, unequal_bytes

IN_EVERY_HISTORY: Final = frozenset(
    {Kind.TORN, Kind.DUPLICATE, Kind.WRONG, Kind.INVENTED, Kind.ABORTED_READ, Kind.SUM,
     Kind.OUT_OF_ORDER, Kind.REGIONS_DIFFER}
)  # fmt: skip


@dataclass
class RegionsJudge:
    """Ask `undecided` and `differing` until nothing is left, then `look`."""

    stage: Stage
    clients: Clients
    access: AccessWatch | None = None
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def undecided(self) -> list[str]:
        """Return the logs, each at the node that leads it, that hold what is not decided, not committed, or not shown."""
        return [
            f"{told} of {region.name}"
            for region in self.stage.regions.values()
            if region.leader is not None
            for told in undecided_logs(
                self.stage.leading(region, each)
                for each in region.led.node.storage.partitions
                if each.tp.topic in self.clients.topics
            )
        ]

    def differing(self) -> list[str]:
        """Return what differs between nodes of a region (INV-RGJ2), and of access between both (INV-RGA3)."""
        found: list[str] = []
        for region in self.stage.regions.values():
            nodes = {each.name: each.node for each in self.stage.serving(region)}
            found += [*logs_differ(nodes), *metadata_differ(nodes)]
        return found if self.access is None else [*found, *self.access.differing()]

    async def look(self) -> None:
        """Read everything back and judge it; raises OSError, `Refused`."""
        stage, story = self.stage, self.stage.story
        story.final = {name: await self._read(region) for name, region in stage.regions.items()}
        losses = await self._losses()
        story.note_losses(losses)
        self.wrong += judge(story, PLAIN_TOPIC)
        self._judge_transfers(losses)
        await self._judge_processors()
        self._judge_cuts()
        self.wrong += [f"not the same: {each}" for each in self.differing()]
        leaders = [region.led for region in stage.regions.values()]
        self.wrong += [
            f"not the same bytes: {w}" for w in unequal_bytes(leaders, self.clients.topics)
        ]
        names = [
            frozenset((t.name, t.topic_id) for t in n.node.storage.metadata.image.topics.values())
            for n in leaders
        ]
        if len(set(names)) > 1:
            self.wrong.append("the regions have other topics")
        if not story.words:
            for writer in self.clients.writers:
                refused = of_no_clock(writer.refused, was_behind=stage.was_clock_behind)
                self.wrong += [f"without a word a producer is refused: {e}" for e in refused]

    async def _losses(self) -> list[Mapping[str, Any]]:
        """Return what the leaders list: each of them has cut its own logs."""
        return [
            loss
            for region in self.stage.regions.values()
            for node in self.stage.serving(region)
            for loss in await service_of(node).losses()
        ]

    def _judge_transfers(self, losses: list[Mapping[str, Any]]) -> None:
        story, attempts = self.stage.story, self.clients.attempts()
        final = {
            name: [
                seen(p.partition, p.offset, p.value.encode())
                for p in sorted(places)
                if p.topic == ACCOUNTS_TOPIC
            ]
            for name, places in story.final.items()
        }
        kinds = {kind.name for kind in IN_EVERY_HISTORY}
        if story.listed_all:
            kinds |= {Kind.UNLISTED.name}
        for found in check(History(attempts, final, listed=losses_of_transfers(losses))):
            if found.name in kinds:
                self.wrong.append(f"{found.name} {found.detail}")
        self.wrong += [
            f"shown although it was aborted: {e}"
            for e in aborted_and_shown(attempts, story.sightings)[:5]
        ]
        self.counts["acked"] = sum(len(writer.acked) for writer in self.clients.writers)
        self.counts["committed"] = sum(a.outcome is Outcome.COMMITTED for a in attempts)
        self.counts["processed"] = sum(each.committed for each in self.clients.processors)
        self.counts["topics changed"] = self.clients.churner.changes

    async def _read(self, region: ClusterRegion) -> frozenset[Place]:
        found: set[Place] = set()
        for topic, count in self.clients.topics.items():
            connection = await self._connected(region)
            reader = Reader(topic, count, committed=True)
            while await reader.read(connection):
                pass
            connection.close()
            found |= {Place(topic, n, at, value.decode()) for n, at, value in reader.records}
        return frozenset(found)

    async def _connected(self, region: ClusterRegion) -> Connection:
        return await Connection.open(self.stage.fabric.site("auditor"), region.led.kafka_port)

    async def _judge_processors(self) -> None:
        """Rule INV-RGJ3."""
        [acting] = self.stage.acting()
        places = sorted(self.stage.story.final[acting])
        connection = await self._connected(self.stage.regions[acting])
        self.wrong += await processed_wrongly(connection, self.clients.processors, places)
        connection.close()

    def _judge_cuts(self) -> None:
        """Rule INV-RGJ4."""
        for region in self.stage.regions.values():
            leader = region.led
            for text in torn_at_tidemarks(leader, ACCOUNTS_TOPIC):
                self.wrong.append(f"{leader.name}: {text}")
            self.counts["tidemarks"] = max(self.counts["tidemarks"], number_of(leader))
