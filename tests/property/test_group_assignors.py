"""Assignors (INV-NU1 to INV-NU4, INV-NR1) over random groups that change again and again."""

from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from region_broker.groups.modern.assignors.assignment import (
    AssignmentQuestion,
    Partitions,
    Subscriber,
    partition_count,
)
from region_broker.groups.modern.assignors.range_assignor import assign_range
from region_broker.groups.modern.assignors.uniform_assignor import assign_uniform

TOPICS = [UUID(int=number) for number in range(1, 6)]
COUNTS = st.fixed_dictionaries({topic_id: st.integers(1, 9) for topic_id in TOPICS})
MEMBER_IDS = st.lists(st.sampled_from("ABCDEFG"), min_size=1, max_size=6, unique=True)
SUBSCRIPTION = st.frozensets(st.sampled_from(TOPICS), min_size=1)


@st.composite
def questions(draw: st.DrawFn, *, equal: bool) -> AssignmentQuestion:
    """Draw a group whose members keep what a former assignment gave them."""
    counts = draw(COUNTS)
    common = draw(SUBSCRIPTION)
    before = draw(MEMBER_IDS)
    taken = {member_id: Subscriber(common if equal else draw(SUBSCRIPTION)) for member_id in before}
    owned = assign_range(AssignmentQuestion(taken, counts))
    members = {}
    for member_id in draw(MEMBER_IDS):
        topics = common if equal else draw(SUBSCRIPTION)
        members[member_id] = Subscriber(topics, owned.get(member_id, {}))
    grown = {topic_id: count + draw(st.integers(0, 3)) for topic_id, count in counts.items()}
    return AssignmentQuestion(members, grown)


def owners(assigned: dict[str, Partitions]) -> dict[tuple[UUID, int], str]:
    found: dict[tuple[UUID, int], str] = {}
    for member_id, own in assigned.items():
        for topic_id, partitions in own.items():
            for partition in partitions:
                assert (topic_id, partition) not in found, "two owners"
                found[topic_id, partition] = member_id
    return found


def wanted(asked: AssignmentQuestion) -> set[tuple[UUID, int]]:
    subscribed = {topic_id for member in asked.members.values() for topic_id in member.topics}
    return {(each, part) for each in subscribed for part in range(asked.partition_counts[each])}


@settings(deadline=None)
@given(st.one_of(questions(equal=True), questions(equal=False)))
def test_every_partition_has_one_owner_who_subscribes(asked: AssignmentQuestion) -> None:
    for assignor in (assign_range, assign_uniform):
        found = owners(assignor(asked))
        assert set(found) == wanted(asked)
        for (topic_id, _), member_id in found.items():
            assert topic_id in asked.members[member_id].topics


@settings(deadline=None)
@given(questions(equal=True))
def test_uniform_is_balanced_and_moves_as_little_as_can_be(asked: AssignmentQuestion) -> None:
    assigned = assign_uniform(asked)
    sizes = sorted(partition_count(own) for own in assigned.values())
    assert sizes[-1] - sizes[0] <= 1
    kept = sum(
        len(own.get(topic_id, frozenset()) & asked.members[member_id].owned.get(topic_id, set()))
        for member_id, own in assigned.items()
        for topic_id in TOPICS
    )
    share, extra = divmod(len(wanted(asked)), len(assigned))
    had = sorted((partition_count(each.owned) for each in asked.members.values()), reverse=True)
    # The most that any balanced assignment could leave in place: the fullest keep the extra ones.
    most = sum(min(size, share + (place < extra)) for place, size in enumerate(had))
    assert kept == most


@settings(deadline=None)
@given(questions(equal=False))
def test_uniform_leaves_no_single_move_that_would_help(asked: AssignmentQuestion) -> None:
    assigned = assign_uniform(asked)
    sizes = {member_id: partition_count(own) for member_id, own in assigned.items()}
    for member_id, own in assigned.items():
        for topic_id in own:
            for other_id, other in asked.members.items():
                if topic_id in other.topics:
                    assert sizes[member_id] - sizes[other_id] <= 1


@settings(deadline=None)
@given(st.one_of(questions(equal=True), questions(equal=False)))
def test_uniform_has_nothing_to_move_when_asked_again(asked: AssignmentQuestion) -> None:
    assigned = assign_uniform(asked)
    again = {
        member_id: Subscriber(member.topics, assigned[member_id])
        for member_id, member in asked.members.items()
    }
    assert assign_uniform(AssignmentQuestion(again, asked.partition_counts)) == assigned


@settings(deadline=None)
@given(questions(equal=True))
def test_range_gives_stretches_that_line_up_over_topics(asked: AssignmentQuestion) -> None:
    assigned = assign_range(asked)
    for own in assigned.values():
        for topic_id, partitions in own.items():
            assert partitions == frozenset(range(min(partitions), max(partitions) + 1))
            for other_id, others in own.items():
                if asked.partition_counts[other_id] == asked.partition_counts[topic_id]:
                    assert others == partitions
