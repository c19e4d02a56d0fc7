"""What a group shall have: the topics it subscribes to, its epoch, its target assignment.

The assignment epoch never goes above the group epoch, and a target is computed for the group epoch alone. Every change
is a record; a `Draft` shows what the group will be once they are written.
INV-NN3  of what the patterns of a group stand for a heartbeat writes as many as fit one batch of records, at least one, and the next one goes on: no
         topic that comes ends a group
Not here: who asks (`heartbeat`), the assignors.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import (
    AssignmentQuestion,
    Assignor,
    Subscriber,
)
from region_broker.groups.modern.assignors.range_assignor import RANGE, assign_range
from region_broker.groups.modern.assignors.uniform_assignor import UNIFORM, assign_uniform
from region_broker.groups.modern.records import (
    GroupEpoch,
    ModernValue,
    PartitionMetadata,
    ResolvedRegex,
    Target,
    TargetEpoch,
    TopicShape,
)
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.ports import Topic
from region_broker.groups.records import ModernKey, ModernKind
from region_broker.limits import GROUP_RESOLVED_BYTES_MAX

ASSIGNORS: Final[Mapping[str, Assignor]] = {UNIFORM: assign_uniform, RANGE: assign_range}
DEFAULT_ASSIGNOR: Final = UNIFORM

Change = tuple[ModernKey, ModernValue | None]


@dataclass(frozen=True, slots=True)
class TopicView:
    """The topics as of one version of the metadata, and the patterns resolved at it.

    `is_news` is False when the group has been compared with these very topics before; `as_of` is what that is remembered by.
    """

    topics: Mapping[str, Topic]
    version: int
    resolved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wall_ms: int = 0
    is_news: bool = True
    as_of: object = None


@dataclass(slots=True)
class Draft:
    """A group on its way to its next records; the group itself is not touched."""

    group: ConsumerGroup
    changes: list[Change] = field(default_factory=list)

    @classmethod
    def of(cls, group: ConsumerGroup) -> "Draft":
        """Begin with nothing changed."""
        return cls(group.draft())

    def put(self, kind: ModernKind, value: ModernValue | None, name: str = "") -> None:
        """Write one record, None for its tombstone."""
        key = ModernKey(kind, self.group.group_id, name)
        self.group.apply(key, value)
        self.changes.append((key, value))

    def remove_member(self, member_id: str) -> None:
        """Write the tombstones of one member."""
        for kind in (ModernKind.CURRENT, ModernKind.TARGET, ModernKind.MEMBER):
            self.put(kind, None, member_id)

    def bump_epoch(self) -> None:
        """Begin the next group epoch: whoever comes next gets a new target."""
        self.put(ModernKind.GROUP_EPOCH, GroupEpoch(self.group.group_epoch + 1))


def shapes(names: Collection[str], view: TopicView) -> dict[str, TopicShape]:
    """Return those of the topics that exist."""
    known = sorted(name for name in names if name in view.topics)  # a group may name 100,000 others
    found = ((name, view.topics.get(name)) for name in known)
    return {
        name: TopicShape(topic.topic_id, topic.partition_count)
        for name, topic in found
        if topic is not None
    }


def topics_changed(group: ConsumerGroup, view: TopicView) -> bool:
    """Return whether the group's topics are others than it last saw."""
    return any(_is_resolved_anew(group, each, view) for each in group.patterns()) or (
        group.topics != shapes(group.all_subscribed_names(), view)
    )


def _is_resolved_anew(group: ConsumerGroup, pattern: str, view: TopicView) -> bool:
    known = group.regexes.get(pattern)
    return known is None or known.topic_names != view.resolved[pattern]


def refresh_topics(draft: Draft, view: TopicView) -> bool:
    """Write what patterns stand for, as far as it fits (INV-NN3), and the subscribed topics; tell whether anything changed."""
    anew = list(_that_fit(patterns_left(draft.group, view), view))
    for pattern in anew:
        value = ResolvedRegex(view.resolved[pattern], view.version, view.wall_ms)
        draft.put(ModernKind.REGEX, value, pattern)
    return write_topics(draft, view) or bool(anew)


def patterns_left(group: ConsumerGroup, view: TopicView) -> list[str]:
    """Return the patterns that stand for others than the group has of them, and first of all those that it has nothing of: a member has just come."""
    left = (each for each in group.patterns() if _is_resolved_anew(group, each, view))
    return sorted(left, key=lambda each: (each in group.regexes, each))


def _that_fit(patterns: Iterable[str], view: TopicView) -> Iterator[str]:
    """Yield the first of these that fit one batch; one alone always does."""
    size_bytes = 0
    for pattern in patterns:
        more_bytes = sum(map(len, view.resolved[pattern]))
        if size_bytes and size_bytes + more_bytes > GROUP_RESOLVED_BYTES_MAX:
            return
        size_bytes += more_bytes
        yield pattern


def write_topics(draft: Draft, view: TopicView) -> bool:
    """Forget unused patterns and write the subscribed topics; tell whether these changed."""
    group = draft.group
    for pattern in sorted(set(group.regexes) - group.patterns()):
        draft.put(ModernKind.REGEX, None, pattern)
    topics = shapes(group.all_subscribed_names(), view)
    if topics == group.topics:
        return False
    draft.put(ModernKind.PARTITION_METADATA, PartitionMetadata(topics))
    return True


def update_target(draft: Draft) -> None:
    """Compute the target of the group epoch if the one there is older."""
    group = draft.group
    if group.group_epoch <= group.assignment_epoch:
        return
    assignor = ASSIGNORS[group.preferred_assignor(DEFAULT_ASSIGNOR)]
    targets = assignor(_question(group))
    for member_id in sorted(group.metadata):
        partitions = targets[member_id]
        if group.target.get(member_id) != partitions:
            draft.put(ModernKind.TARGET, Target(partitions), member_id)
    draft.put(ModernKind.TARGET_EPOCH, TargetEpoch(group.group_epoch))


def _question(group: ConsumerGroup) -> AssignmentQuestion:
    known: dict[tuple[tuple[str, ...], str | None], frozenset[UUID]] = {}
    members: dict[str, Subscriber] = {}
    for member_id, member in group.metadata.items():
        subscription = (member.topic_names, member.topic_regex)
        if subscription not in known:
            names = group.subscribed_names(member_id)
            known[subscription] = frozenset(
                group.topics[name].topic_id for name in names if name in group.topics
            )
        members[member_id] = Subscriber(
            known[subscription], group.target_of(member_id), member.instance_id
        )
    counts = {shape.topic_id: shape.partition_count for shape in group.topics.values()}
    return AssignmentQuestion(members, counts)
