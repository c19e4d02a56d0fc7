"""What is asked of the regions beyond what clients saw: whole views of mirrors, logs equal to the byte, losses that add up.

INV-SWA2  at the end every transaction is decided, and all regions hold the same bytes
INV-SWA3  nobody is ever shown what an application aborted, whatever was lost
A mirror shows no half of a transfer, and its ends never go down under one region epoch, over restarts too (T9, T16, T17).

Not here: clients (`clients`), what a reader found at the end (`chaos.shuffle.judge`, `chaos.checker`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from chaos.history import Attempt, Outcome, Seen, seen
from chaos.story import Place, Sighting
from geo_replicator.failover import Phase
from region_broker.partitions.partition import Partition
from tests.simulation.bank import ACCOUNTS, TOPIC
from tests.simulation.cut_judge import whole
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.region_pair import Region
from tests.simulation.swarm.plain_writer import PLAIN_TOPIC
from tests.simulation.swarm.stage import Stage

LOOK_S: Final = 0.05
CALL_S: Final = 5.0


class Auditor:
    """Asks a mirror for the ends of all accounts at once, and reads up to them, again and again."""

    def __init__(self, stage: Stage, name: str) -> None:
        """Nothing is asked before `run`."""
        self.name, self.looks = name, 0
        self.closed = asyncio.Event()
        self.rest_s = LOOK_S
        self.seen: list[Sighting] = []
        """What it was shown of transfers, and of plain records uncommitted: no such record goes either (T17)."""
        self._stage = stage
        self._network = stage.fabric.site(f"auditor-{name}")
        self._term: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        self._reader = Reader(TOPIC, ACCOUNTS, committed=True)
        self._any = Reader(PLAIN_TOPIC, len(self._stage.names), committed=False)
        self._ends = dict.fromkeys(range(ACCOUNTS), 0)
        self._waiting: dict[int, deque[Seen]] = {number: deque() for number in range(ACCOUNTS)}
        self._halves: Counter[str] = Counter()

    async def run(self) -> None:
        """Look until closed."""
        connection: Connection | None = None
        while not self.closed.is_set():
            try:
                async with asyncio.timeout(CALL_S):
                    if connection is None:
                        connection = await Connection.open(
                            self._network, self._stage.regions[self.name].kafka_port
                        )
                    await self._look(connection)
            except (OSError, Refused):
                if connection is not None:
                    connection.close()
                connection = None
            await asyncio.sleep(self.rest_s)

    def _mirrors_in(self) -> tuple[int, int] | None:
        """Return the region epoch that it mirrors, and how often its folder was damaged; None where it does not mirror."""
        if not self._stage.up(self.name):
            return None
        failover = self._stage.regions[self.name].node.failover
        if failover.state.phase is not Phase.MIRRORING:
            return None
        domain = failover.parts.metadata.image.domains[failover.parts.domain]
        damages = sum(each.region == self.name for each in self._stage.story.damages)
        return domain.region_epoch, damages

    def _may_give_up(self, term: tuple[int, int]) -> bool:
        """Return whether it has reached nothing of its region epoch, and a loss was accepted elsewhere: its view may go back."""
        reached = self._stage.regions[self.name].node.storage.reached.point
        return self._stage.given_up(self.name) > 0 and reached.region_epoch < term[0]

    async def _look(self, connection: Connection) -> None:
        term = self._mirrors_in()
        if term is None:
            return
        ends = await connection.ends(TOPIC, ACCOUNTS)
        if term != self._term:
            self._term = term
            self._forget()
        if self._mirrors_in() != term:
            return
        if any(end < self._ends[number] for number, end in ends.items()) and self._may_give_up(
            term
        ):
            self._forget()
        for number, end in ends.items():
            if end < self._ends[number]:
                self._stage.blame(
                    f"the view of mirror {self.name} goes back: {TOPIC}-{number} from {self._ends[number]} to {end}"
                )
        self._ends = ends
        while any(self._reader.positions[number] < end for number, end in ends.items()):
            if not await self._reader.read(connection):
                return
        if self._mirrors_in() == term:
            self._judge(ends)
        await self._any.read(connection)
        self._note(PLAIN_TOPIC, self._any.records)
        self._any.records.clear()

    def _note(self, topic: str, records: Iterable[tuple[int, int, bytes]]) -> None:
        now_s = self._stage.now_s()
        for partition, offset, value in records:
            place = Place(topic, partition, offset, value.decode())
            self.seen.append(Sighting(now_s, self.name, place, True))

    def _judge(self, ends: Mapping[int, int]) -> None:
        self._note(TOPIC, self._reader.records)
        for each in self._reader.records:
            self._waiting[each[0]].append(seen(*each))
        self._reader.records.clear()
        for number, end in ends.items():
            waiting = self._waiting[number]
            while waiting and waiting[0].offset < end:
                self._halves[waiting.popleft().attempt] += 1
        torn = sorted(name for name, count in self._halves.items() if count != 2)
        self.looks += 1
        if torn:
            self._stage.blame(f"torn in the view of mirror {self.name}: {torn[:5]}")
        self._halves.clear()


def aborted_and_shown(attempts: Sequence[Attempt], sightings: Iterable[Sighting]) -> list[str]:
    """Rule INV-SWA3."""
    aborted = {each.name for each in attempts if each.outcome is Outcome.NOT_COMMITTED}
    return sorted(
        {
            f"{place.value} at {place.partition}/{place.offset} by {each.region}"
            for each in sightings
            if each.shown and (place := each.place).topic == TOPIC
            and place.value.split(" ")[0] in aborted
        }
    )  # fmt: skip


def losses_of_transfers(losses: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return how many commits of each transactional id the losses list: one of two regions' lists counts once."""
    lost = {
        (each["transactional_id"], *each["decision"].values())
        for loss in losses
        for each in loss.get("transactions", ())
    }
    return Counter(each[0] for each in lost)


def unstable(region: Region, topics: Mapping[str, int]) -> list[str]:
    """Return the partitions in which something is undecided (INV-SWA2)."""
    found = []
    for topic, count in topics.items():
        for number in range(count):
            each = region.partition(topic, number)
            if each.sight.last_stable_offset != each.log_end_offset:
                found.append(
                    f"{topic}-{number} of {region.name}: {each.sight.last_stable_offset} of {each.log_end_offset}"
                )
    return found


def unequal_bytes(regions: Sequence[Region], topics: Mapping[str, int]) -> Iterator[str]:
    """Yield the partitions whose bytes are not the same in two regions (INV-SWA2)."""
    for one, other in pairwise(regions):
        for topic, count in topics.items():
            for number in range(count):
                ours, theirs = one.partition(topic, number), other.partition(topic, number)
                start, end = _compared(ours, theirs)
                if whole(ours, start, end) != whole(theirs, start, end):
                    yield f"{topic}-{number} of {one.name} and {other.name} in {start} to {end}"


def _compared(*logs: Partition) -> tuple[int, int]:
    start = max(max(each.log.cleaning.holes_below, each.log_start_offset) for each in logs)
    return start, max(start, min(each.high_watermark for each in logs))
