"""A consumer that says its rack: it reads where the leader sends it, and goes back to the leader where it is refused (KIP-392).

INV-CSR1  it is given each committed record once, in the order of each log, none that is not there at the end, and none that was
          aborted; and nobody tells it that its place is gone
INV-CSR2  once nobody writes any more it comes to the end of each log

It reads from the beginning and is never set back, so what it was given is what a log holds below its place.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from chaos.story import Place, Sighting
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.region_cluster import NAMES, rack_of
from tests.simulation.swarm.clients import Watcher
from tests.simulation.swarm.workloads.setting import Reach

LEADER: Final = -1
_BACK: Final = {"not_leader_or_follower", "offset_not_available", "fenced_leader_epoch", "unknown_leader_epoch"}  # fmt: skip
_WAIT_MS: Final = 20
_PartitionKey = tuple[str, int]


class RackReader(Watcher):
    """A `Watcher` in the rack of one node, as consumers are: one connection to each node, one place in each log."""

    def __init__(self, stage: Stage, reach: Reach, topics: Mapping[str, int]) -> None:
        """Nothing is read before `run`."""
        super().__init__(reach, "rack", topics)
        self._stage = stage
        self._rack = rack_of(stage.plan.stream("rack").choice(NAMES))
        self._reading = {
            topic: Reader(topic, count, committed=True) for topic, count in topics.items()
        }
        self._sent_to: dict[_PartitionKey, int] = {}
        self._connections: dict[int, Connection] = {}
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    @override
    async def run(self) -> None:
        while not self.closed.is_set():
            for node_id in {LEADER, *self._sent_to.values()}:
                await self._turn(node_id)
            await asyncio.sleep(self.rest_s)

    async def _turn(self, node_id: int) -> None:
        """Ask one node for what is to be read there; whoever does not answer is left."""
        try:
            async with asyncio.timeout(self.call_s):
                await self._ask(node_id)
        except (OSError, Refused):
            connection = self._connections.pop(node_id, None)
            if connection is not None:
                connection.close()
            self._sent_to = {key: to for key, to in self._sent_to.items() if to != node_id}

    async def _ask(self, node_id: int) -> None:
        connection = self._connections.get(node_id)
        if connection is None:
            port = self._region.kafka_port if node_id == LEADER else 10_000 + node_id - 1
            connection = self._connections[node_id] = await Connection.open(self._network, port)
        positions = {
            topic: here
            for topic, reader in self._reading.items()
            if (here := {n: at for n, at in reader.positions.items() if self._sent_to.get((topic, n), LEADER) == node_id})
        }  # fmt: skip
        if not positions:
            return
        answer = await connection.fetch_topics(positions, committed=True, wait_ms=_WAIT_MS, rack=self._rack)  # fmt: skip
        is_refused = False
        for topic, rows in answer.items():
            for row in rows:
                is_refused |= self._take(node_id, topic, row)
        if is_refused and node_id == LEADER:
            self._connections.pop(node_id).close()  # another one leads

    def _take(self, node_id: int, topic: str, row: Any) -> bool:
        """Take what one partition answered; return whether it was refused."""
        number, code = int(row.partition_index), row.error_code
        if code.name == "offset_out_of_range":
            self.wrong.append(f"{topic}-{number}: its place is gone, says {self._name_of(node_id)}")
        if code.value:
            self.counts["rack refusals"] += code.name in _BACK
            self._sent_to.pop((topic, number), None)
            return True
        preferred = int(row.preferred_read_replica)
        if preferred != LEADER:
            assert node_id == LEADER, "only who leads sends readers away"
            self._sent_to[topic, number] = preferred
            return False
        reader = self._reading[topic]
        before = len(reader.records)
        reader.take_row(row)
        now_s = asyncio.get_running_loop().time()
        for _, offset, value in reader.records[before:]:
            self.seen.append(Sighting(now_s, self.name, Place(topic, number, offset, value.decode()), True))  # fmt: skip
        if node_id != LEADER:
            self.counts["read at followers"] += len(reader.records) - before
        return False

    def _name_of(self, node_id: int) -> str:
        return "the leader" if node_id == LEADER else NAMES[node_id - 1]

    def is_at_end(self, ends: Mapping[_PartitionKey, int]) -> bool:
        """Return whether it has read all logs to their ends (INV-CSR2)."""
        return not self.lacks(ends)

    def lacks(self, ends: Mapping[_PartitionKey, int]) -> list[str]:
        """Return the logs that it has not read to their ends, and where it is."""
        return [
            f"{topic}-{number}: {at} of {ends[topic, number]}, asks {self._name_of(self._sent_to.get((topic, number), LEADER))}"
            for topic, reader in self._reading.items()
            for number, at in reader.positions.items()
            if at < ends[topic, number]
        ]

    def judged(self, final: frozenset[Place]) -> list[str]:
        """Return what is wrong with what it was given, by what is there at the end (INV-CSR1)."""
        found = list(self.wrong)
        for topic, reader in self._reading.items():
            for number, at in reader.positions.items():
                given = [
                    (offset, value.decode()) for n, offset, value in reader.records if n == number
                ]
                there = sorted(
                    (p.offset, p.value)
                    for p in final
                    if (p.topic, p.partition) == (topic, number) and p.offset < at
                )
                if given != there:
                    found.append(
                        f"a reader with a rack was given of {topic}-{number} below {at}: {_difference(given, there)}"
                    )
        return found


def _difference(given: list[tuple[int, str]], there: list[tuple[int, str]]) -> str:
    more, less = Counter(given) - Counter(there), Counter(there) - Counter(given)
    return f"too much {dict(more)}, too little {dict(less)}" if more or less else "another order"
