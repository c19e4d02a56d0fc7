"""The `uniform` assignor: members get equally many partitions and keep what they have.

INV-NU1  every partition of a subscribed topic has exactly one owner, a subscriber of the topic, also where several have it
INV-NU2  with equal subscriptions, two members differ by at most one partition
INV-NU3  with equal subscriptions, no partition moves unless its owner is left with its fair share
INV-NU4  with unequal subscriptions, no move of one partition would make two subscribers of its
         topic more equal, unless `ROUNDS_MAX` ended the search
After Kafka's UniformHomogeneousAssignmentBuilder and UniformHeterogeneousAssignmentBuilder. One
difference: who may keep one more than the others is whoever has most already, so that a change of
members moves the fewest partitions; Kafka goes by the order of a hash map.
Not here: racks (Kafka ignores them too since 4.0).
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import AssignmentQuestion, Partitions, frozen

UNIFORM = "uniform"
ROUNDS_MAX: Final = 16  # Kafka's MAX_ITERATION_COUNT


def assign_uniform(question: AssignmentQuestion) -> dict[str, Partitions]:
    """Return the partitions of every member."""
    assigned = _assign_equal(question) if question.is_homogeneous else _assign_unequal(question)
    return {member_id: frozen(own) for member_id, own in assigned.items()}


def _owned(question: AssignmentQuestion, member_id: str) -> list[tuple[UUID, int]]:
    """Return what the member has and may keep, in order."""
    member = question.members[member_id]
    return [
        (topic_id, partition)
        for topic_id in sorted(member.topics.intersection(member.owned))
        for partition in sorted(member.owned[topic_id])
        if 0 <= partition < question.partition_counts[topic_id]
    ]


def _assign_equal(question: AssignmentQuestion) -> dict[str, dict[UUID, set[int]]]:
    owned = {member_id: _owned(question, member_id) for member_id in question.members}
    order = sorted(owned, key=lambda member_id: (-len(owned[member_id]), member_id))
    if not order:
        return {}
    topics = sorted(question.members[order[0]].topics)
    total = sum(question.partition_counts[topic_id] for topic_id in topics)
    share, extra = divmod(total, len(order))
    kept: dict[str, list[tuple[UUID, int]]] = {}
    taken: set[tuple[UUID, int]] = set()
    for place, member_id in enumerate(order):
        own = [each for each in owned[member_id] if each not in taken]
        kept[member_id] = own[: share + (1 if place < extra else 0)]
        taken.update(kept[member_id])
    free = iter(
        (topic_id, partition)
        for topic_id in topics
        for partition in range(question.partition_counts[topic_id])
        if (topic_id, partition) not in taken
    )
    assigned: dict[str, dict[UUID, set[int]]] = {}
    for place, member_id in enumerate(order):
        missing = share + (1 if place < extra else 0) - len(kept[member_id])
        assigned[member_id] = _by_topic([*kept[member_id], *_take(free, missing)])
    return assigned


def _take(free: Iterable[tuple[UUID, int]], count: int) -> list[tuple[UUID, int]]:
    return [each for _, each in zip(range(count), free, strict=False)]


def _by_topic(partitions: Iterable[tuple[UUID, int]]) -> dict[UUID, set[int]]:
    found: dict[UUID, set[int]] = {}
    for topic_id, partition in partitions:
        found.setdefault(topic_id, set()).add(partition)
    return found


@dataclass(slots=True)
class _Search:
    """Who owns what while unequal subscriptions are balanced; members are numbers in order."""

    question: AssignmentQuestion
    members: list[str]
    subscribers: dict[UUID, list[int]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    owners: dict[UUID, list[int | None]] = field(default_factory=dict)

    def give(self, topic_id: UUID, partition: int, receiver: int) -> None:
        owner = self.owners[topic_id][partition]
        if owner is not None:
            self.sizes[owner] -= 1
        self.owners[topic_id][partition] = receiver
        self.sizes[receiver] += 1

    def topics_in_order(self) -> list[UUID]:
        """Return the topics, those with the most partitions per subscriber first."""

        def rank(topic_id: UUID) -> tuple[float, int, UUID]:
            count = len(self.subscribers[topic_id])
            return -self.question.partition_counts[topic_id] / count, count, topic_id

        return sorted(self.subscribers, key=rank)

    def by_load(self, topic_id: UUID) -> list[int]:
        return sorted(self.subscribers[topic_id], key=lambda member: (self.sizes[member], member))


def _assign_unequal(question: AssignmentQuestion) -> dict[str, dict[UUID, set[int]]]:
    search = _begin(question)
    topics = search.topics_in_order()
    for topic_id in topics:
        _assign_free(search, topic_id)
    shared = [topic_id for topic_id in topics if len(search.subscribers[topic_id]) > 1]
    for _ in range(ROUNDS_MAX):
        moved = [_balance(search, topic_id) for topic_id in shared]
        if not any(moved):
            break
    assigned: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in search.members}
    for topic_id, owners in search.owners.items():
        for partition, owner in enumerate(owners):
            assert owner is not None, (topic_id, partition)
            assigned[search.members[owner]].setdefault(topic_id, set()).add(partition)
    return assigned


def _begin(question: AssignmentQuestion) -> _Search:
    search = _Search(question, sorted(question.members))
    search.sizes = [0] * len(search.members)
    for number, member_id in enumerate(search.members):
        for topic_id in question.members[member_id].topics:
            search.subscribers.setdefault(topic_id, []).append(number)
    for topic_id in search.subscribers:
        search.owners[topic_id] = [None] * question.partition_counts[topic_id]
    for number, member_id in enumerate(search.members):
        for topic_id, partition in _owned(question, member_id):
            search.give(topic_id, partition, number)
    return search


def _assign_free(search: _Search, topic_id: UUID) -> None:
    """Give each partition without an owner to the least loaded subscriber."""
    order = search.by_load(topic_id)
    heap = [(search.sizes[member], place) for place, member in enumerate(order)]
    for partition, owner in enumerate(search.owners[topic_id]):
        if owner is None:
            size, place = heap[0]
            search.give(topic_id, partition, order[place])
            heapq.heapreplace(heap, (size + 1, place))


def _balance(search: _Search, topic_id: UUID) -> bool:
    """Move partitions from the most to the least loaded subscribers; tell whether one moved."""
    order = search.by_load(topic_id)
    if search.sizes[order[-1]] - search.sizes[order[0]] <= 1:
        return False
    givable: dict[int, list[int]] = {}
    for partition, owner in enumerate(search.owners[topic_id]):
        if owner is not None:
            givable.setdefault(owner, []).append(partition)
    receivers = [(search.sizes[member], place) for place, member in enumerate(order)]
    givers = [
        (-search.sizes[member], -place) for place, member in enumerate(order) if member in givable
    ]
    heapq.heapify(givers)
    moved = False
    while givers:
        giver = order[-givers[0][1]]
        size, place = receivers[0]
        if search.sizes[order[place]] != size:  # it gave since
            heapq.heapreplace(receivers, (search.sizes[order[place]], place))
            continue
        if search.sizes[giver] - size <= 1:
            break
        search.give(topic_id, givable[giver].pop(), order[place])
        moved = True
        heapq.heapreplace(receivers, (size + 1, place))
        if givable[giver]:
            heapq.heapreplace(givers, (-search.sizes[giver], givers[0][1]))
        else:
            heapq.heappop(givers)
    return moved
