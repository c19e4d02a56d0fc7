"""DeleteRecords under load: the log start moves, readers that are below it are told so, and go on from there."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from kio.schema.errors import ErrorCode
from typing_extensions import override

from chaos.judges.trims import Deletion, Reading, Trims, judge_trims
from region_broker.records.batches import Record
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.swarm.plain_writer import PlainWriter
from tests.simulation.swarm.workloads.setting import (
    End,
    Load,
    Reach,
    Setting,
    TopicPlan,
    Visitor,
    earliest,
    now_s,
)

TOPIC: Final = "trimmed"
PARTITIONS: Final = 2
DELETE_RECORDS: Final = 21
ANEW_SHARE: Final = 0.1


class Trimmer(Visitor):
    """Deletes a part of what there is, again and again."""

    rest_s = 1.0
    timeout_ms = 10_000

    def __init__(self, setting: Setting) -> None:
        """Go through any region."""
        super().__init__(setting.reach, "trimmer", setting.drawn())
        self.deletions: list[Deletion] = []

    def drawn_offset(self, end: int) -> int:
        """Return below what all is to be deleted of a log that ends there."""
        return self.chance.randint(0, end)

    @override
    async def step(self, connection: Connection) -> None:
        ends = await connection.ends(TOPIC, PARTITIONS)
        number = self.chance.randrange(PARTITIONS)
        offset = self.drawn_offset(ends[number])
        asked = Deletion(self.region, number, offset, now_s())
        self.deletions.append(asked)
        at = len(self.deletions) - 1
        answer = await connection.call(
            DELETE_RECORDS, 1,
            {"topics": [{"name": TOPIC, "partitions": [{"partition_index": number, "offset": offset}]}],
             "timeout": self.timeout_ms},
        )  # fmt: skip
        [row] = answer.topics[0].partitions
        if row.error_code.value:
            raise Refused("DeleteRecords", row.error_code)
        self.deletions[at] = replace(asked, answered_s=now_s(), log_start=row.low_watermark)


class TrimmedReader(Visitor):
    """Reads one region on, and notes each answer; now and then from the beginning, which may be gone."""

    rest_s = 0.1

    def __init__(self, setting: Setting, region: str) -> None:
        """Read one region."""
        super().__init__(setting.reach.only(region), f"trimmed-reader-{region}", setting.drawn())
        self.readings: list[Reading] = []
        self._positions = dict.fromkeys(range(PARTITIONS), 0)

    @override
    async def step(self, connection: Connection) -> None:
        if self.chance.random() < ANEW_SHARE:
            self._positions[self.chance.randrange(PARTITIONS)] = 0
        rows = await connection.fetch(TOPIC, self._positions, committed=True)
        starts: list[int] = []
        for row in rows:
            number, code, position = (
                row.partition_index,
                row.error_code,
                self._positions[row.partition_index],
            )
            if code is ErrorCode.offset_out_of_range:
                starts = starts or await earliest(connection, TOPIC, PARTITIONS)
                self.readings.append(
                    Reading(self.region, number, now_s(), position, starts[number], refused=True)
                )
                self._positions[number] = starts[number]
            elif code.value:
                raise Refused(f"Fetch of {number}", code)
            else:
                one = _One(number, position)
                one.take(number, bytes(row.records or b""), row.aborted_transactions)
                self._positions[number] = one.positions[number]
                self.readings.append(
                    Reading(
                        self.region,
                        number,
                        now_s(),
                        position,
                        row.log_start_offset,
                        tuple(one.offsets),
                    )
                )


class _One(Reader):
    """Takes one answer of one partition."""

    def __init__(self, number: int, position: int) -> None:
        self.offsets: list[int] = []
        super().__init__(TOPIC, PARTITIONS, committed=True)
        self.positions = {number: position}

    @override
    def keep(self, partition: int, record: Record) -> None:
        self.offsets.append(record.offset)


class TrimsLoad(Load):
    """Writers, a deleter and a reader in each region."""

    def __init__(self, setting: Setting, read_at: Reach | None = None) -> None:
        """Nothing runs before `start`. `read_at`: where readers meet the regions, if not where writers do."""
        super().__init__(TopicPlan(name=TOPIC, partitions=PARTITIONS))
        names = list(setting.reach.regions)
        self.trimmer = self.opened(setting)
        reading = replace(setting, reach=read_at or setting.reach)
        self._readers = [TrimmedReader(reading, name) for name in names]
        self._writers = [
            PlainWriter(
                setting.reach.only(name := names[number % len(names)]), name, number,
                setting.drawn(), 2 * setting.pace_s, TOPIC,
            )
            for number in range(PARTITIONS)
        ]  # fmt: skip
        self.clients += [self.trimmer, *self._readers, *self._writers]

    def opened(self, setting: Setting) -> Trimmer:
        """Return who deletes."""
        return Trimmer(setting)

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {"deletions of records": self._answered()} | {
            f"producer trimmed-{n}": len(each.acked) for n, each in enumerate(self._writers)
        }

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {"deletions of records": self.trimmer.last_error} | {
            f"producer trimmed-{n}": each.producer.last_error
            for n, each in enumerate(self._writers)
        }

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        readings = [each for reader in self._readers for each in reader.readings]
        return {
            "reads below a log start": sum(r.refused and r.position < r.log_start for r in readings)
        }

    def _answered(self) -> int:
        return sum(each.log_start is not None for each in self.trimmer.deletions)

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        return judge_trims(await self.run_of(end, undisturbed=end.undisturbed), end.excuse)

    async def run_of(self, end: End, *, undisturbed: bool) -> Trims:
        """Return what the judge is given."""
        starts: dict[str, Sequence[int]] = {}
        final = {}
        for name in end.reach.regions:
            starts[name] = await end.starts(name, TOPIC, PARTITIONS)
            final[name] = await end.places(name, TOPIC, PARTITIONS, starts[name])
        return Trims(
            TOPIC, self.trimmer.deletions, [r for each in self._readers for r in each.readings],
            [said for writer in self._writers for said in writer.acked], starts, final, undisturbed,
        )  # fmt: skip
