"""A compacted topic: keys that are written again and again, and deleted by tombstones, while cleaners run.

Each producer has keys of its own, so that the numbers of a key rise with its offsets.
"""

import random
from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from chaos.judges.compaction import Compaction, KeyedRecord, KeyedWrite, judge_compaction
from chaos.story import Place, Sighting
from idempotency.identity import ProducerPair, SequenceNumber
from region_broker.node import Node
from region_broker.partitions.cleaner import Cleaner
from region_broker.records.batches import Origin, Record, build_batch
from tests.simulation.simulated_loop import LoopClock
from tests.simulation.swarm.plain_writer import NamedPipeliner, PlainWriter
from tests.simulation.swarm.workloads.setting import End, Load, Reach, Setting, TopicPlan, now_s

TOPIC: Final = "compacted"
KEYS: Final = 6
TOMBSTONES: Final = 7
"""One of so many writes deletes its key."""
PADDING: Final = b" " * 200
CLEANED_MS: Final = 500
"""How often a cleaner looks."""
CONFIGS: Final = {
    "cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "500",
}  # fmt: skip


class KeyedProducer(NamedPipeliner):
    """Writes each of its keys in turn, now and then a tombstone."""

    def __init__(
        self, owner: "KeyedWriter", writer: str, reach: Reach, number: int, chance: random.Random
    ) -> None:
        """Belong to a writer of keys."""
        super().__init__(owner, writer, reach, number, chance)
        self._tried = owner.tried

    def written(self, sequence: int) -> tuple[str, bool]:
        """Return the key of a sequence, and whether it deletes it."""
        return f"{self._writer}/{sequence % KEYS}", sequence % TOMBSTONES == TOMBSTONES - 1

    @override
    def batch_of(self, sequence: int, producer: ProducerPair) -> bytes:
        key, deletes = self.written(sequence)
        self._tried[key, sequence] = KeyedWrite(key, sequence, deletes)
        value = None if deletes else b"%d" % sequence + PADDING
        record = Record(key.encode(), value, timestamp_ms=LoopClock().wall_ms())
        return build_batch(
            [record], origin=Origin(*producer, SequenceNumber(sequence), transactional=False)
        )

    @override
    def note(self, sequence: int, offset: int) -> None:
        super().note(sequence, offset)
        key, deletes = self.written(sequence)
        place = Place(TOPIC, self._number, offset, key)
        said = Sighting(now_s(), self._owner.name, place, False)
        self._tried[key, sequence] = KeyedWrite(key, sequence, deletes, said)


class KeyedWriter(PlainWriter):
    """A plain writer of keys. `tried`: every write, by key and number."""

    def __init__(self, setting: Setting, region: str, number: int) -> None:
        """Write through one region."""
        reach = setting.reach.only(region)
        super().__init__(reach, region, number, setting.drawn(), setting.pace_s, TOPIC)
        self.reach = reach
        self.tried: dict[tuple[str, int], KeyedWrite] = {}

    @override
    def opened(self, writer: str) -> NamedPipeliner:
        return KeyedProducer(self, writer, self.reach, self._number, self._chance)


class CompactionLoad(Load):
    """A writer in each region, each in a partition of its own."""

    def __init__(self, setting: Setting) -> None:
        """Let cleaners look often, in every life of a node."""
        names = list(setting.reach.regions)
        super().__init__(TopicPlan(name=TOPIC, partitions=len(names), configs=CONFIGS))
        self._writers = [KeyedWriter(setting, name, n) for n, name in enumerate(names)]
        self.clients += self._writers
        self._cleaners: list[Cleaner] = []
        for region in setting.reach.regions.values():
            region.on_open = self._opened

    def _opened(self, node: Node) -> None:
        node.cleaner.pause_ms = CLEANED_MS
        self._cleaners.append(node.cleaner)

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {f"keyed producer of {each.name}": len(each.acked) for each in self._writers}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {
            f"keyed producer of {each.name}": each.producer.last_error for each in self._writers
        }

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {
            "cleanings": sum(each.cleanings for each in self._cleaners),
            "bytes cleaned away": sum(each.removed_bytes for each in self._cleaners),
        }

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        final = {
            name: await end.records(name, TOPIC, len(self._writers)) for name in end.reach.regions
        }
        found: list[str] = []
        for number, writer in enumerate(self._writers):
            records = {
                name: [_kept(record) for at, record in kept if at == number]
                for name, kept in final.items()
            }
            found += judge_compaction(Compaction(list(writer.tried.values()), records), end.excuse)
        return found


def _kept(record: Record) -> KeyedRecord:
    number = None if record.value is None else int(record.value)
    return KeyedRecord(record.offset, (record.key or b"").decode(), number)
