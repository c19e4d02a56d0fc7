"""The topics of a domain, as the replicator sees them.

Everything that is copied is keyed by topic id; names are for people and for clients.

INV-TY1  a topic is in one list of a difference only, apart from its configs; what goes is not in the registry

Not here: where regions are met (addresses, the node's configuration), who acts (`lineage`, `directory`).
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from geo_replicator.lineage import LogKey


@dataclass(frozen=True, slots=True)
class LedgerTopics:
    """The topic ids of a domain's two ledgers that have no D: decisions (L) and the tidemarks."""

    transactions: UUID
    tidemarks: UUID

    def shard_key(self, shard: int) -> LogKey:
        """Return the log of ledger shard `shard`."""
        return LogKey(self.transactions, shard)

    @property
    def tidemark_key(self) -> LogKey:
        """Return the one log of `__tidemarks`."""
        return LogKey(self.tidemarks, 0)

    def has_cut_offset(self, key: LogKey) -> bool:
        """Return whether `key` has a D: every log but the two ledgers' has (T10)."""
        return key.topic_id not in (self.transactions, self.tidemarks)


@dataclass(frozen=True, slots=True)
class MirrorTopic:
    """One topic of the domain's registry, as the primary describes it."""

    topic_id: UUID
    name: str
    partition_count: int
    domain: str = "main"
    internal: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)

    def logs(self) -> tuple[LogKey, ...]:
        """Return the logs of this topic."""
        return tuple(LogKey(self.topic_id, number) for number in range(self.partition_count))


@dataclass(frozen=True, slots=True)
class TopicDifference:
    """What a mirror must change to follow a registry; `gone`, `grown`, `shrunk` wait for a tidemark (T15).

    `grown` and `shrunk` are as the primary describes them. A topic shrinks where the primary's growth was lost in a
    failover.
    """

    created: tuple[MirrorTopic, ...]
    reconfigured: tuple[MirrorTopic, ...]
    gone: tuple[MirrorTopic, ...]
    grown: tuple[MirrorTopic, ...] = ()
    shrunk: tuple[MirrorTopic, ...] = ()
    before: tuple[MirrorTopic, ...] = ()


def topic_difference(
    mirrored: Iterable[MirrorTopic], registry: Iterable[MirrorTopic]
) -> TopicDifference:
    """Return what separates the topics of a mirror from the primary's registry, each list in name order."""
    have = {topic.topic_id: topic for topic in mirrored}
    want = {topic.topic_id: topic for topic in registry}
    by_name = sorted(want.values(), key=lambda topic: topic.name)
    found = TopicDifference(
        created=tuple(topic for topic in by_name if topic.topic_id not in have),
        reconfigured=tuple(
            topic
            for topic in by_name
            if topic.topic_id in have and dict(have[topic.topic_id].configs) != dict(topic.configs)
        ),
        gone=tuple(
            topic
            for topic in sorted(have.values(), key=lambda topic: topic.name)
            if topic.topic_id not in want
        ),
        grown=tuple(topic for topic in by_name if _growth(topic, have.get(topic.topic_id)) > 0),
        shrunk=tuple(topic for topic in by_name if _growth(topic, have.get(topic.topic_id)) < 0),
        before=tuple(have.values()),
    )
    assert not any(topic.topic_id in want for topic in found.gone), f"INV-TY1: {found.gone}"
    moved = [t.topic_id for t in (*found.created, *found.gone, *found.grown, *found.shrunk)]
    assert len(set(moved)) == len(moved), f"INV-TY1: {found}"
    return found


def unnamed_absences(
    difference: TopicDifference, deleted: Container[UUID], holds_records: Callable[[LogKey], bool]
) -> tuple[LogKey, ...]:
    """Return the logs with records here that the primary has no more, and that no deletion names (T34).

    A log without records may go: what it held was never here, or a lineage entry has cut it off (T25).
    """
    have = {topic.topic_id: topic for topic in difference.before}
    lost = [
        key for topic in difference.gone if topic.topic_id not in deleted for key in topic.logs()
    ]
    for topic in difference.shrunk:
        lost += have[topic.topic_id].logs()[topic.partition_count :]
    return tuple(key for key in lost if holds_records(key))


def _growth(wanted: MirrorTopic, mirrored: MirrorTopic | None) -> int:
    return 0 if mirrored is None else wanted.partition_count - mirrored.partition_count
