"""Changes of topics that wait on a mirror for a tidemark: growth, shrinking, deletion (T15).

INV-TH3  what waits to be dropped waits no more once the primary's registry has it again
INV-TH2  logs are dropped only at a reached tidemark with M at or past the version of the primary's registry without
         them
A topic grows at the first tidemark that names a log which it has not yet, not before.

Not here: carrying it out (`driver`), what separates two registries (`topology`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from geo_replicator.lineage import LogKey
from geo_replicator.loss import UndoneChange
from geo_replicator.topology import MirrorTopic


@dataclass(frozen=True, slots=True)
class Drop:
    """A topic of which only the first `keeps` partitions stay, from `metadata_version` on."""

    topic: MirrorTopic
    keeps: int
    metadata_version: int


@dataclass(slots=True)
class TopicChanges:
    """What waits. `growing` are the topics that have more partitions at the primary, as the primary describes them."""

    growing: tuple[MirrorTopic, ...] = ()
    names: dict[UUID, str] = field(default_factory=dict)
    _drops: dict[UUID, Drop] = field(default_factory=dict)

    def follow(self, registry: Sequence[MirrorTopic]) -> None:
        """Forget drops that the primary's registry contradicts, and note what it calls each topic (INV-TH3).

        1. A region comes back with fewer partitions at the primary: a shrink waits for a tidemark. 2. The primary
           grows the topic.
        3. The tidemark is reached: carried out now, the shrink would take partitions away that the primary has.
        """
        self.names = {topic.topic_id: topic.name for topic in registry}
        for topic in registry:
            drop = self._drops.get(topic.topic_id)
            if drop is not None and drop.keeps < topic.partition_count:
                del self._drops[topic.topic_id]
        counts = {topic.topic_id: topic.partition_count for topic in registry}
        kept = self._drops.values()
        assert all(drop.keeps >= counts.get(drop.topic.topic_id, 0) for drop in kept), "INV-TH3"

    def delete(self, topics: Iterable[MirrorTopic], metadata_version: int) -> None:
        """The primary's registry of that version does not have these topics."""
        for topic in topics:
            known = self._drops.get(topic.topic_id)
            if known is None or known.keeps > 0:
                self._drops[topic.topic_id] = Drop(topic, 0, metadata_version)

    def shrink(self, topics: Iterable[MirrorTopic], metadata_version: int) -> None:
        """The primary's registry of that version has these topics with fewer partitions than the mirror."""
        for topic in topics:
            drop = Drop(topic, topic.partition_count, metadata_version)
            assert drop.keeps > 0, f"INV-TH2: {topic.name} would be deleted, not shrunk"
            known = self._drops.get(topic.topic_id)
            if known is None or known.keeps > drop.keeps:
                self._drops[topic.topic_id] = drop

    def due(self, metadata_version: int) -> tuple[Drop, ...]:
        """Return what may be dropped at a reached tidemark of M = `metadata_version` (INV-TH2)."""
        drops = self._drops.values()
        return tuple(drop for drop in drops if drop.metadata_version <= metadata_version)

    def waiting(self) -> list[UndoneChange]:
        """Return what waits: a takeover before its tidemark leaves these topics as they are here."""
        found = [
            UndoneChange(topic=topic.name, change=f"grown to {topic.partition_count} partitions")
            for topic in self.growing
        ]
        for drop in self._drops.values():
            change = f"shrunk to {drop.keeps} partitions" if drop.keeps else "deleted"
            found.append(UndoneChange(topic=drop.topic.name, change=change))
        return sorted(found, key=lambda undone: (undone.topic, undone.change))

    def done(self, drop: Drop) -> None:
        """Note that it was dropped."""
        self._drops.pop(drop.topic.topic_id, None)

    def grown(self, topic_id: UUID, partition_count: int) -> None:
        """Note that a topic has so many partitions now; one that has all waits no more."""
        self.growing = tuple(
            topic
            for topic in self.growing
            if topic.topic_id != topic_id or topic.partition_count > partition_count
        )

    def grown_at(self, named: Iterable[LogKey]) -> dict[UUID, int]:
        """Return how many partitions the growing topics have at a tidemark that names these logs."""
        limits = {topic.topic_id: topic.partition_count for topic in self.growing}
        counts: dict[UUID, int] = {}
        for key in named:
            limit = limits.get(key.topic_id)
            if limit is not None:
                counts[key.topic_id] = max(
                    counts.get(key.topic_id, 0), min(key.partition + 1, limit)
                )
        return counts
