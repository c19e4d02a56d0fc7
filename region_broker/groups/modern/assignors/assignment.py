"""What an assignor is given and what it returns: topics by id, partitions as sets.

An assignor is a pure function: the same question has the same answer, in every process.
Not here: the assignors (`range_assignor`, `uniform_assignor`), who asks them (`target`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id; a topic without partitions is absent."""

NOTHING: Partitions = {}


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member as an assignor sees it; `owned` is its target so far."""

    topics: frozenset[UUID]
    owned: Partitions = field(default_factory=dict)
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssignmentQuestion:
    """All members by id, and the partition count of every topic that one of them subscribes to."""

    members: Mapping[str, Subscriber]
    partition_counts: Mapping[UUID, int]

    @property
    def is_homogeneous(self) -> bool:
        """Return whether all members subscribe to the same topics."""
        subscriptions = iter(self.members.values())
        first = next(subscriptions, None)
        return first is None or all(each.topics == first.topics for each in subscriptions)


Assignor: TypeAlias = Callable[[AssignmentQuestion], dict[str, Partitions]]


def frozen(partitions: Mapping[UUID, Iterable[int]]) -> Partitions:
    """Return the same partitions, unchangeable, without empty topics, topics in order."""
    return {
        topic_id: frozenset(partitions[topic_id])
        for topic_id in sorted(partitions)
        if partitions[topic_id]
    }


def partition_count(partitions: Partitions) -> int:
    """Count the partitions of all topics."""
    return sum(len(each) for each in partitions.values())
