"""Topics that grow under load: new partitions are written to as soon as the growth is answered."""

from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from chaos.judges.growth import Growth, judge_growth
from chaos.story import Place, Sighting
from tests.simulation.kafka_client import Connection, Refused
from tests.simulation.swarm.plain_writer import PlainWriter
from tests.simulation.swarm.workloads.setting import (
    End,
    Load,
    Setting,
    Spawn,
    TopicPlan,
    Visitor,
    now_s,
)

TOPIC: Final = "grown"
PARTITIONS_MAX: Final = 4
METADATA: Final = 3
CREATE_PARTITIONS: Final = 37


class Grower(Visitor):
    """Asks for one partition more, until there are enough; again where a failover has taken one back."""

    rest_s = 2.0

    def __init__(self, setting: Setting, load: "GrowthLoad") -> None:
        """Go through any region."""
        super().__init__(setting.reach, "grower", setting.drawn())
        self.asked = [1]
        self.answered: list[Sighting] = []
        self._load = load

    @override
    async def step(self, connection: Connection) -> None:
        answer = await connection.call(
            METADATA, 8,
            {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False,
             "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False},
        )  # fmt: skip
        [topic] = answer.topics
        if topic.error_code.value:
            raise Refused("Metadata", topic.error_code)
        if (count := len(topic.partitions) + 1) > PARTITIONS_MAX:
            return
        self.asked.append(count)
        grown = await connection.call(
            CREATE_PARTITIONS, 1,
            {"topics": [{"name": TOPIC, "count": count, "assignments": None}], "timeout": 10_000,
             "validate_only": False},
        )  # fmt: skip
        [row] = grown.results
        if row.error_code.value:
            raise Refused("CreatePartitions", row.error_code)
        self.answered.append(Sighting(now_s(), self.region, Place(TOPIC, count, -1, ""), False))
        self._load.write_to(count - 1)


class GrowthLoad(Load):
    """A grower, and a writer for each partition."""

    def __init__(self, setting: Setting) -> None:
        """Nothing runs before `start`."""
        super().__init__(TopicPlan(name=TOPIC, partitions=1))
        self._setting, self._writers = setting, dict[int, PlainWriter]()
        self.grower = Grower(setting, self)
        self.clients.append(self.grower)

    @override
    def start(self, spawn: Spawn) -> None:
        self._spawn = spawn
        super().start(spawn)
        self.write_to(0)

    def write_to(self, number: int) -> None:
        """Write to a partition from now on."""
        if number in self._writers or self.grower.closed.is_set():
            return
        setting, names = self._setting, list(self._setting.reach.regions)
        writer = self._writers[number] = PlainWriter(
            setting.reach.only(name := names[number % len(names)]), name, number,
            setting.drawn(), 2 * setting.pace_s, TOPIC,
        )  # fmt: skip
        self.clients.append(writer)
        self._spawn(writer.run())

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {f"producer grown-{n}": len(each.acked) for n, each in self._writers.items()}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        errors = {n: each.producer.last_error for n, each in self._writers.items()}
        return {
            f"producer grown-{n}": f"{e}; grower: {self.grower.last_error}"
            for n, e in errors.items()
        }

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {"growths": len(self.grower.answered)}

    def acked(self) -> list[Sighting]:
        """Return what was acknowledged."""
        return [said for writer in self._writers.values() for said in writer.acked]

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        counts, final = {}, {}
        for name, region in end.reach.regions.items():
            image = region.node.storage.metadata.image
            counts[name] = image.topics[TOPIC].partition_count
            final[name] = await end.places(name, TOPIC, counts[name])
        run = Growth(TOPIC, self.grower.asked, self.grower.answered, self.acked(), counts, final)
        return judge_growth(run, end.excuse)
