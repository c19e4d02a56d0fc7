"""The `range` assignor: every topic is cut into one stretch per subscriber.

INV-NR1  members are served in one order for all topics, so that equal subscriptions get the same
         stretch of every topic (co-partitioning)
After Kafka's RangeAssignor (group-coordinator/.../assignor): static members first, by instance id,
then dynamic ones by member id; the first members get the partitions that are left over.
Not here: stickiness; a range follows from who is there (`uniform_assignor` is sticky).
"""

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import AssignmentQuestion, Partitions

RANGE = "range"


@dataclass(slots=True)
class _Cut:
    """One topic on its way into stretches: `served` members have had theirs."""

    share: int
    extra: int
    served: int = 0

    def next_stretch(self) -> range:
        place = self.served
        self.served += 1
        start = place * self.share + min(place, self.extra)
        return range(start, start + self.share + (1 if place < self.extra else 0))


def assign_range(question: AssignmentQuestion) -> dict[str, Partitions]:
    """Return the partitions of every member."""
    subscriber_counts: Counter[UUID] = Counter()
    for topics, count in Counter(member.topics for member in question.members.values()).items():
        for topic_id in topics:
            subscriber_counts[topic_id] += count
    cuts = {
        topic_id: _Cut(*divmod(question.partition_counts[topic_id], count))
        for topic_id, count in subscriber_counts.items()
    }
    plans = {
        topics: [(topic_id, cuts[topic_id]) for topic_id in sorted(topics)]
        for topics in {member.topics for member in question.members.values()}
    }
    assigned: dict[str, Partitions] = {}
    for member_id in _in_order(question):
        stretches = [
            (topic_id, cut.next_stretch())
            for topic_id, cut in plans[question.members[member_id].topics]
        ]
        assigned[member_id] = {
            topic_id: frozenset(stretch) for topic_id, stretch in stretches if stretch
        }
    return assigned


def _in_order(question: AssignmentQuestion) -> list[str]:
    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = question.members[member_id].instance_id
        return instance_id is None, member_id if instance_id is None else instance_id

    return sorted(question.members, key=rank)
