"""The `range` assignor: every topic is cut into one stretch per subscriber.

INV-NR1  members are served in one order for all topics, so that equal subscriptions get the same
         stretch of every topic (co-partitioning)
After Kafka's RangeAssignor (group-coordinator/.../assignor): static members first, by instance id,
then dynamic ones by member id; the first members get the partitions that are left over.
Not here: stickiness; a range follows from who is there (`uniform_assignor` is sticky).
"""

from collections import Counter
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import AssignmentQuestion, Partitions

RANGE = "range"


def assign_range(question: AssignmentQuestion) -> dict[str, Partitions]:
    """Return the partitions of every member."""
    subscriber_counts = Counter(
        topic_id for member in question.members.values() for topic_id in member.topics
    )
    served: Counter[UUID] = Counter()
    assigned: dict[str, Partitions] = {}
    for member_id in _in_order(question):
        own: dict[UUID, frozenset[int]] = {}
        for topic_id in sorted(question.members[member_id].topics):
            count = question.partition_counts[topic_id]
            share, extra = divmod(count, subscriber_counts[topic_id])
            place = served[topic_id]
            start = place * share + min(place, extra)
            end = start + share + (1 if place < extra else 0)
            served[topic_id] += 1
            if start < end:
                own[topic_id] = frozenset(range(start, end))
        assigned[member_id] = own
    return assigned


def _in_order(question: AssignmentQuestion) -> list[str]:
    def rank(member_id: str) -> tuple[bool, str]:
        instance_id = question.members[member_id].instance_id
        return instance_id is None, member_id if instance_id is None else instance_id

    return sorted(question.members, key=rank)
