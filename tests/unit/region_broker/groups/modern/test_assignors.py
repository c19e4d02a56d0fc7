"""The assignors against values of Kafka's own tests.

From RangeAssignorTest, OptimizedUniformAssignmentBuilderTest and
UniformHeterogeneousAssignmentBuilderTest (group-coordinator of Kafka 4.0). Where Kafka's outcome hangs on
the order of a hash set of topic ids, the counts are compared instead.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from region_broker.groups.modern.assignors.assignment import (
    AssignmentQuestion,
    Assignor,
    Subscriber,
)
from region_broker.groups.modern.assignors.range_assignor import assign_range
from region_broker.groups.modern.assignors.uniform_assignor import assign_uniform

T1, T2, T3, T4 = (UUID(int=number) for number in range(1, 5))
Owned = Mapping[UUID, Any]


def question(
    counts: Mapping[UUID, int],
    members: Mapping[str, tuple[set[UUID], Owned]],
    instances: Mapping[str, str] | None = None,
) -> AssignmentQuestion:
    return AssignmentQuestion(
        {
            member_id: Subscriber(
                frozenset(topics),
                {topic_id: frozenset(parts) for topic_id, parts in owned.items()},
                (instances or {}).get(member_id),
            )
            for member_id, (topics, owned) in members.items()
        },
        counts,
    )


def assigned(assignor: Assignor, asked: AssignmentQuestion) -> dict[str, dict[UUID, set[int]]]:
    return {
        member_id: {topic_id: set(parts) for topic_id, parts in own.items()}
        for member_id, own in assignor(asked).items()
    }


@pytest.mark.parametrize("assignor", [assign_range, assign_uniform])
def test_nobody_gets_nothing(assignor: Assignor) -> None:
    assert assigned(assignor, question({T1: 3}, {})) == {}
    assert assigned(assignor, question({}, {"A": (set(), {})})) == {"A": {}}


# --- range --------------------------------------------------------------------------------------


def test_range_first_assignment_two_members_two_topics() -> None:
    both = {T1, T3}
    asked = question({T1: 3, T3: 2}, {"A": (both, {}), "B": (both, {})})
    assert assigned(assign_range, asked) == {
        "A": {T1: {0, 1}, T3: {0}},
        "B": {T1: {2}, T3: {1}},
    }


def test_range_first_assignment_three_members_three_topics_unequal_subscriptions() -> None:
    asked = question(
        {T1: 3, T2: 3, T3: 2}, {"A": ({T1, T2}, {}), "B": ({T3}, {}), "C": ({T2, T3}, {})}
    )
    assert assigned(assign_range, asked) == {
        "A": {T1: {0, 1, 2}, T2: {0, 1}},
        "B": {T3: {0}},
        "C": {T2: {2}, T3: {1}},
    }


def test_range_more_members_than_partitions() -> None:
    both = {T1, T3}
    asked = question({T1: 3, T3: 2}, {each: (both, {}) for each in "ABC"})
    assert assigned(assign_range, asked) == {
        "A": {T1: {0}, T3: {0}},
        "B": {T1: {1}, T3: {1}},
        "C": {T1: {2}},
    }


def test_range_static_members_first_by_instance_id_whatever_their_member_id() -> None:
    asked = question({T1: 5}, {each: ({T1}, {}) for each in "ABC"}, {"C": "i1", "B": "i2"})
    assert assigned(assign_range, asked) == {"C": {T1: {0, 1}}, "B": {T1: {2, 3}}, "A": {T1: {4}}}


# --- uniform, equal subscriptions ---------------------------------------------------------------


# Holds INV-NU2.
def test_uniform_more_members_than_partitions() -> None:
    asked = question({T3: 2}, {each: ({T3}, {}) for each in "ABC"})
    assert assigned(assign_uniform, asked) == {"A": {T3: {0}}, "B": {T3: {1}}, "C": {}}


def test_uniform_first_assignment_two_members_two_topics() -> None:
    both = {T1, T3}
    found = assigned(assign_uniform, question({T1: 3, T3: 2}, {"A": (both, {}), "B": (both, {})}))
    assert [sum(map(len, found[each].values())) for each in "AB"] == [3, 2]


def test_uniform_reassignment_given_an_unbalanced_one() -> None:
    both = {T1, T2}
    asked = question(
        {T1: 3, T2: 3},
        {"A": (both, {T1: {0, 1}, T2: {0, 1}}), "B": (both, {T1: {2}, T2: {2}})},
    )
    assert assigned(assign_uniform, asked) == {
        "A": {T1: {0, 1}, T2: {0}},
        "B": {T1: {2}, T2: {1, 2}},
    }


# Holds INV-NU3.
def test_uniform_reassignment_when_a_member_is_added() -> None:
    both = {T1, T2}
    asked = question(
        {T1: 3, T2: 3},
        {
            "A": (both, {T1: {0, 2}, T2: {0}}),
            "B": (both, {T1: {1}, T2: {1, 2}}),
            "C": (both, {}),
        },
    )
    assert assigned(assign_uniform, asked) == {
        "A": {T1: {0, 2}},
        "B": {T1: {1}, T2: {1}},
        "C": {T2: {0, 2}},
    }


def test_uniform_reassignment_when_a_member_is_gone() -> None:
    both = {T1, T2}
    asked = question(
        {T1: 3, T2: 3}, {"A": (both, {T1: {0}, T2: {0}}), "B": (both, {T1: {1}, T2: {1}})}
    )
    found = assigned(assign_uniform, asked)
    assert found["A"][T1] >= {0}
    assert found["A"][T2] >= {0}
    assert found["B"][T1] >= {1}
    assert found["B"][T2] >= {1}
    assert [sum(map(len, found[each].values())) for each in "AB"] == [3, 3]


def test_uniform_keeps_the_most_loaded_where_one_partition_is_left_over() -> None:
    """The difference from Kafka that the module names: B keeps two, nothing moves."""
    asked = question({T1: 3}, {"A": ({T1}, {T1: {0}}), "B": ({T1}, {T1: {1, 2}})})
    assert assigned(assign_uniform, asked) == {"A": {T1: {0}}, "B": {T1: {1, 2}}}


# --- uniform, unequal subscriptions -------------------------------------------------------------


def test_unequal_first_assignment_two_members_two_topics() -> None:
    asked = question({T1: 3, T3: 6}, {"A": ({T1, T3}, {}), "B": ({T3}, {})})
    assert assigned(assign_uniform, asked) == {
        "A": {T1: {0, 1, 2}, T3: {4}},
        "B": {T3: {0, 1, 2, 3, 5}},
    }


def test_unequal_more_members_than_partitions() -> None:
    asked = question({T3: 1, T1: 2}, {"A": ({T3}, {}), "B": ({T3}, {}), "C": ({T1}, {})})
    assert assigned(assign_uniform, asked) == {"A": {T3: {0}}, "B": {}, "C": {T1: {0, 1}}}


def test_unequal_reassignment_given_an_unbalanced_one() -> None:
    asked = question(
        {T1: 6, T2: 4, T3: 4},
        {
            "A": ({T1}, {T1: {0, 1, 2}}),
            "B": ({T1, T2}, {T1: {3}, T2: {0}}),
            "C": ({T1, T2, T3}, {T1: {4, 5}, T2: {1, 2, 3}, T3: {0, 1, 2, 3}}),
        },
    )
    assert assigned(assign_uniform, asked) == {
        "A": {T1: {0, 1, 2, 5}},
        "B": {T1: {3}, T2: {0, 1, 2, 3}},
        "C": {T1: {4}, T3: {0, 1, 2, 3}},
    }


def test_unequal_reassignment_when_partitions_are_added() -> None:
    asked = question(
        {T1: 6, T2: 5, T3: 3, T4: 3},
        {
            "A": ({T1, T3}, {T1: {0, 1, 2, 3}, T3: {0, 1}}),
            "B": ({T1, T2, T3, T4}, {T2: {0, 1, 2}, T4: {0, 1, 2}}),
        },
    )
    assert assigned(assign_uniform, asked) == {
        "A": {T1: {0, 1, 2, 3, 4, 5}, T3: {0, 1, 2}},
        "B": {T2: {0, 1, 2, 3, 4}, T4: {0, 1, 2}},
    }


def test_unequal_reassignment_when_a_member_and_partitions_are_added() -> None:
    asked = question(
        {T1: 6, T2: 7},
        {
            "A": ({T1}, {T1: {0, 2}, T2: {0}}),
            "B": ({T1, T2}, {T1: {1}, T2: {1, 2}}),
            "C": ({T1, T2}, {}),
        },
    )
    assert assigned(assign_uniform, asked) == {
        "A": {T1: {0, 2, 3, 4, 5}},
        "B": {T1: {1}, T2: {1, 2, 6}},
        "C": {T2: {0, 3, 4, 5}},
    }


def test_unequal_reassignment_when_a_member_is_gone() -> None:
    asked = question(
        {T1: 3, T2: 8, T3: 3},
        {
            "A": ({T1, T3}, {T1: {0, 1, 2}, T3: {0, 1}}),
            "B": ({T2}, {T2: {3, 4, 5, 6}}),
        },
    )
    assert assigned(assign_uniform, asked) == {
        "A": {T1: {0, 1, 2}, T3: {0, 1, 2}},
        "B": {T2: {0, 1, 2, 3, 4, 5, 6, 7}},
    }


def test_uniform_forgets_partitions_that_the_topic_does_not_have() -> None:
    members = {"A": ({T1}, {T1: {2}}), "B": ({T1}, {T1: {1}})}
    assert assigned(assign_uniform, question({T1: 2}, members)) == {"A": {T1: {0}}, "B": {T1: {1}}}


@pytest.mark.parametrize("others", [{T1}, {T1, T2}])
def test_INV_NU1_a_partition_that_several_members_have_is_left_to_one_of_them(
    others: set[UUID],
) -> None:
    """Both kept it, and another one was nobody's for as long as they stayed. With equal subscriptions, and with others."""
    members: dict[str, tuple[set[UUID], Owned]] = {
        "A": ({T1}, {T1: {0}}),
        "B": ({T1}, {T1: {0}}),
        "C": (others, {}),
    }
    given = assigned(assign_uniform, question({T1: 2, T2: 1}, members))
    held = sorted(each for own in given.values() for each in own.get(T1, set()))
    assert held == [0, 1]


def test_uniform_forgets_partitions_below_the_first_one() -> None:
    asked = question({T1: 2}, {"A": ({T1}, {T1: {-1, 0}})})
    assert assigned(assign_uniform, asked) == {"A": {T1: {0, 1}}}
