"""Topics that are made, written to, grown and deleted while nodes fail, under names that come again.

INV-CST1  a topic whose creation was answered is there on all nodes at the end, under its id, with the partitions and the records that
          were answered, unless its deletion was asked for
INV-CST2  a topic whose deletion was answered is on no node at the end, and nothing of it is in a later one of its name
INV-CST3  nothing is there that nobody asked for: neither a topic, nor partitions, nor records

A change of which nobody knows whether it took effect, or when it will, ends the use of its name.
Not here: topics that only come and go (`swarm.churn`), who compares the nodes (`judge`).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from typing_extensions import override

from chaos.story import Place
from region_broker.controller.metadata_image import TopicImage
from region_broker.records.batches import Record, build_batch
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.kafka_client import CREATE_TOPICS, Connection, Refused
from tests.simulation.simulated_loop import LoopClock
from tests.simulation.swarm.churn import DELETE_TOPICS
from tests.simulation.swarm.workloads.growth import CREATE_PARTITIONS
from tests.simulation.swarm.workloads.setting import End, Load, Setting, Visitor

PREFIX: Final = "maker-"
SLOTS: Final = 3
PARTITIONS_MAX: Final = 4
TIMEOUT_MS: Final = 10_000
READ_BACK_TRIES: Final = 10
GROW_SHARE: Final = 0.1
DELETE_SHARE: Final = 0.12
AGAIN_SHARE: Final = 0.7
"""How many names are used again after a deletion."""
NOT_DONE: Final = frozenset({ErrorCode.not_controller, ErrorCode.unknown_topic_or_partition})
"""What says that nothing was changed, and never will be."""


@dataclass
class Made:
    """One topic. Its records begin with `label`; `topic_id`, `partitions`: what was answered."""

    name: str
    label: str
    asked_partitions: int
    topic_id: UUID | None = None
    partitions: int = 0
    is_deletion_asked: bool = False
    is_deleted: bool = False
    acked: list[Place] = field(default_factory=list)


class Maker(Visitor):
    """Has one topic at a time."""

    rest_s = 0.3

    def __init__(self, setting: Setting, number: int) -> None:
        """Have none yet."""
        super().__init__(setting.reach, f"{PREFIX}{number}", setting.drawn())
        self.all: list[Made] = []
        self.done = 0
        self._made: Made | None = None
        self._names = 0
        self._is_changing = False
        self._written = 0

    @override
    async def step(self, connection: Connection) -> None:
        drawn, made = self.chance.random(), self._made
        if made is None:
            await self._create(connection)
        elif drawn < DELETE_SHARE:
            await self._delete(connection, made)
        elif drawn < DELETE_SHARE + GROW_SHARE and made.asked_partitions < PARTITIONS_MAX:
            await self._grow(connection, made)
        else:
            await self._write(connection, made)
        self.done += 1

    @override
    def gave_up(self) -> None:
        if self._is_changing:
            self._made, self._is_changing = None, False
            self._names += 1

    async def _change(
        self,
        connection: Connection,
        key: int,
        version: int,
        values: Mapping[str, object],
        rows: str,
    ) -> Any:
        """Return the only row of an answer; raises `Refused`, and whoever knows nothing of it changes the name."""
        self._is_changing = True
        answer = await connection.call(key, version, {**values, "timeout": TIMEOUT_MS})
        [row] = getattr(answer, rows)
        if row.error_code.value:
            self._is_changing = row.error_code not in NOT_DONE
            raise Refused(f"{self.name}, {rows}", row.error_code)
        self._is_changing = False
        return row

    async def _create(self, connection: Connection) -> None:
        count = self.chance.randrange(1, PARTITIONS_MAX)
        made = Made(f"{self.name}-{self._names}", f"{self.name} {len(self.all)}", count)
        self.all.append(made)
        row = {
            "name": made.name, "num_partitions": count, "replication_factor": 1, "assignments": (), "configs": (),
        }  # fmt: skip
        values = {"topics": [row], "validate_only": False}
        created = await self._change(connection, CREATE_TOPICS, 7, values, "topics")
        made.topic_id, made.partitions = created.topic_id, count
        self._made = made

    async def _grow(self, connection: Connection, made: Made) -> None:
        made.asked_partitions = count = made.asked_partitions + 1
        values = {
            "topics": [{"name": made.name, "count": count, "assignments": None}],
            "validate_only": False,
        }
        await self._change(connection, CREATE_PARTITIONS, 1, values, "results")
        made.partitions = count

    async def _delete(self, connection: Connection, made: Made) -> None:
        made.is_deletion_asked = True
        values = {"topic_names": (made.name,)}
        await self._change(connection, DELETE_TOPICS, 4, values, "responses")
        made.is_deleted, self._made = True, None
        self._names += self.chance.random() >= AGAIN_SHARE

    async def _write(self, connection: Connection, made: Made) -> None:
        number = self.chance.randrange(made.partitions)
        self._written += 1
        value = f"{made.label} {self._written}"
        record = Record(None, value.encode(), timestamp_ms=LoopClock().wall_ms())
        offsets = await connection.produce(made.name, {number: build_batch([record])})
        made.acked.append(Place(made.name, number, offsets[number], value))


class TopicsLoad(Load):
    """Some makers, and the judge of what they made."""

    def __init__(self, setting: Setting, stage: Stage) -> None:
        """Nothing runs before `start`."""
        super().__init__()
        self._stage = stage
        self._makers = [Maker(setting, number) for number in range(SLOTS)]
        self.clients += self._makers

    def _all(self) -> list[Made]:
        return [made for maker in self._makers for made in maker.all]

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {maker.name: maker.done for maker in self._makers}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {maker.name: maker.last_error for maker in self._makers}

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        made = self._all()
        return {
            "topics made": sum(each.topic_id is not None for each in made),
            "topics deleted": sum(each.is_deleted for each in made),
            "topics in doubt": sum(
                each.topic_id is None or (each.is_deletion_asked and not each.is_deleted)
                for each in made
            ),
            "records of made topics": sum(len(each.acked) for each in made),
        }

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        found, made = list[str](), self._all()
        for member in self._stage.serving():
            image = member.node.storage.metadata.image
            there = {p.topic_id for p in member.node.storage.partitions}
            found += [f"{member.name}: {text}" for text in topics_wrong(made, image.topics)]
            found += [
                f"{member.name} has logs of {each.name} {each.topic_id}, whose deletion was answered"
                for each in made
                if each.is_deleted and each.topic_id in there
            ]
        [acting] = self._stage.acting()
        for name, topic in acting.node.storage.metadata.image.topics.items():
            if known := [each for each in made if each.name == name]:
                places = await self._read_back(end, name, topic.partition_count)
                found += records_wrong(places, known, topic.topic_id)
        return found

    async def _read_back(self, end: End, name: str, partition_count: int) -> frozenset[Place]:
        """Return what a reader is shown of a topic, asking again as clients do while leaders change."""
        for _ in range(READ_BACK_TRIES):
            try:
                return await end.places(end.acting, name, partition_count)
            except Refused:
                await asyncio.sleep(1)
        return await end.places(end.acting, name, partition_count)


def topics_wrong(all_made: Sequence[Made], topics: Mapping[str, TopicImage]) -> Iterator[str]:
    """Say what is wrong with a node's topics (INV-CST1, INV-CST2, INV-CST3)."""
    for each in all_made:
        topic = topics.get(each.name)
        is_there = topic is not None and topic.topic_id == each.topic_id
        where = f"{each.name} {each.topic_id}"
        if each.is_deleted and is_there:
            yield f"{where} is there, and its deletion was answered"
        if each.topic_id is not None and not each.is_deletion_asked and not is_there:
            yield f"{where} is gone, and its creation was answered"
        if topic is not None and is_there:
            count = topic.partition_count
            if not each.partitions <= count <= each.asked_partitions:
                yield f"{where} has {count} partitions, of {each.partitions} answered and {each.asked_partitions} asked for"
    asked = {each.name for each in all_made}
    for name in topics:
        if name.startswith(PREFIX) and name not in asked:
            yield f"{name} is there, and nobody made it"


def records_wrong(places: frozenset[Place], known: Sequence[Made], topic_id: UUID) -> Iterator[str]:
    """Say what is wrong with the records of the topic that has the name now."""
    own = [each for each in known if each.topic_id in (topic_id, None)]
    labels = tuple(f"{each.label} " for each in own)
    foreign = [place for place in places if not place.value.startswith(labels)]
    yield from (f"a record of another topic: {place}" for place in foreign[:5])
    lost = [
        place
        for each in own
        if each.topic_id == topic_id
        for place in each.acked
        if place not in places
    ]
    yield from (f"acknowledged, and gone: {place}" for place in lost[:5])
