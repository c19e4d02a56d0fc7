"""What is wrong at the end of a life, now that all nodes run and nobody writes.

INV-CSJ1  nothing acknowledged is lost, nothing is there twice, order holds, no transaction is torn
INV-CSJ2  all nodes have the same bytes below HW, the same topics, the same metadata
INV-CSJ3  a committed offset stands where its output stands
"""

from collections import Counter
from dataclasses import dataclass, field

from chaos.checker import check
from chaos.history import History, Outcome, seen
from chaos.shuffle.judge import judge
from chaos.story import Place, Story
from region_broker.partitions.partition import Partition
from tests.simulation.bank import TOPIC as ACCOUNTS_TOPIC
from tests.simulation.cluster_swarm.rack_reader import RackReader
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.kafka_client import Connection, Reader
from tests.simulation.node_faults.alike import (
    logs_differ,
    metadata_differ,
    processed_wrongly,
    undecided_logs,
)
from tests.simulation.node_faults.refusals import of_no_clock
from tests.simulation.swarm.clients import Clients
from tests.simulation.swarm.plain_writer import PLAIN_TOPIC
from tests.simulation.swarm.processor import OUTPUT_TOPIC
from tests.simulation.view_audit import aborted_and_shown

REGION = "eu"


@dataclass
class Found:
    """What is wrong, and what happened."""

    story: Story
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Judge:
    """Use `judged`."""

    stage: Stage
    clients: Clients
    topics: dict[str, int]

    def _leading(self) -> list[Partition]:
        """Return the logs of all topics, each at the node that leads it."""
        acting = self.stage.acting()
        if len(acting) != 1:
            return []
        logs = [p for p in acting[0].node.storage.partitions if p.tp.topic in self.topics]
        by_port = {member.kafka_port: member.node for member in self.stage.serving()}
        found = []
        for log in logs:
            port = self.stage.leader_port(str(log.tp.topic), log.tp.partition)
            leader = acting[0].node if port is None else by_port.get(port)
            led = None if leader is None else leader.storage.partitions.by_id(*log.key)
            if led is None:
                return []
            found.append(led)
        return found

    def undecided(self) -> list[str]:
        """Return the logs that hold an open transaction, or records that are not committed."""
        return list(undecided_logs(self._leading()))

    def is_decided(self) -> bool:
        """Return whether somebody leads, and all is decided there."""
        return bool(self._leading()) and not self.undecided()

    def is_equal(self) -> bool:
        """Return whether all nodes are alike."""
        return not self._differing()

    def _differing(self) -> list[str]:
        """Rule INV-CSJ2."""
        nodes = {member.name: member.node for member in self.stage.serving()}
        wrong = [f"not the same bytes: {each}" for each in logs_differ(nodes)]
        return [*wrong, *metadata_differ(nodes)]

    def rack_readers(self) -> list[RackReader]:
        """Return the readers that say their rack."""
        return [each for each in self.clients.watchers if isinstance(each, RackReader)]

    def ends(self) -> dict[tuple[str, int], int]:
        """Return up to where read-committed readers may read, as who leads says."""
        return {
            (str(p.tp.topic), p.tp.partition): p.sight.last_stable_offset for p in self._leading()
        }

    async def look(self) -> Found:
        """Read everything back and judge it; raises OSError, `Refused`."""
        clients = self.clients
        found = Found(Story())
        found.story.final = {REGION: await self._read()}
        found.story.sightings = clients.sightings()
        found.wrong += [str(each) for each in judge(found.story, PLAIN_TOPIC)]
        places = sorted(found.story.final[REGION])
        accounts = [
            seen(p.partition, p.offset, p.value.encode())
            for p in places
            if p.topic == ACCOUNTS_TOPIC
        ]
        attempts = clients.attempts()
        found.wrong += [
            f"{each.name} {each.detail}"
            for each in check(History(attempts, {REGION: accounts}, listed=Counter()))
        ]
        found.wrong += [
            f"shown although it was aborted: {each}"
            for each in aborted_and_shown(attempts, found.story.sightings)[:5]
        ]
        found.wrong += [
            f"a producer is refused for good: {each}"
            for writer in clients.writers
            for each in of_no_clock(writer.refused, was_behind=self.stage.was_clock_behind)
        ]
        for reader in self.rack_readers():
            found.wrong += reader.judged(found.story.final[REGION])
            found.counts += reader.counts
        found.wrong += await self._processors(places)
        found.wrong += self._differing()
        found.wrong += self._phases()
        found.counts["acked"] = sum(len(writer.acked) for writer in clients.writers)
        found.counts["committed"] = sum(a.outcome is Outcome.COMMITTED for a in attempts)
        found.counts["processed"] = sum(each.committed for each in clients.processors)
        found.counts["topics changed"] = clients.churner.changes
        return found

    def _phases(self) -> list[str]:
        phases = {m.name: m.node.failover.state.phase.value for m in self.stage.serving()}
        return [] if set(phases.values()) == {"acting"} else [f"failover journals say {phases}"]

    async def _read(self) -> frozenset[Place]:
        [acting] = self.stage.acting()
        network, found = self.stage.fabric.site("auditor"), set[Place]()
        for topic in (PLAIN_TOPIC, ACCOUNTS_TOPIC, OUTPUT_TOPIC):
            connection = await Connection.open(network, acting.kafka_port)
            reader = Reader(topic, self.topics[topic], committed=True)
            while await reader.read(connection):
                pass
            connection.close()
            found |= {Place(topic, n, at, value.decode()) for n, at, value in reader.records}
        return frozenset(found)

    async def _processors(self, places: list[Place]) -> list[str]:
        """Rule INV-CSJ3."""
        [acting] = self.stage.acting()
        connection = await Connection.open(self.stage.fabric.site("auditor"), acting.kafka_port)
        found = await processed_wrongly(connection, self.clients.processors, places)
        connection.close()
        return found


def judged(stage: Stage, clients: Clients, topics: dict[str, int]) -> Judge:
    """Return who judges."""
    return Judge(stage, clients, topics)
