"""What may be there of users, ACLs and quotas after failovers, from what was ordered, answered and marked."""

import pytest
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType

from chaos.access.judge import ABSENT, Change, judge_access
from chaos.nodes.clients import grants

A, B = "user a", "acl b"


def change(number: int, value: str, *, term: int = 0, thing: str = A, answered: bool = True) -> Change:  # fmt: skip
    return Change(number, term, thing, value, answered)


def wrong(
    changes: list[Change], value: str, *, term: int = 0, markers: tuple[tuple[int, int], ...] = (), before: str = ABSENT,
) -> list[str]:  # fmt: skip
    return judge_access(changes, markers, term, {A: before}, {A: value} if value else {})


def test_INV_DRA2_what_was_answered_in_the_term_that_goes_on_is_there() -> None:
    assert not wrong([change(1, "x")], "x")
    assert wrong([change(1, "x")], ABSENT) == ["user a is not there, and must be x"]
    assert wrong([change(1, "x"), change(2, ABSENT)], "x")
    assert not wrong([change(1, "x"), change(2, ABSENT)], ABSENT)


def test_INV_DRA2_of_an_ended_term_what_was_answered_before_a_marker_that_is_there_is_there() -> None:  # fmt: skip
    ended = [change(1, "x"), change(2, "y")]
    for value in ("", "x", "y"):
        assert not wrong(ended, value, term=1), "no marker is there: all of it may be lost"
    assert wrong(ended, ABSENT, term=1, markers=((0, 1),))
    assert not wrong(ended, "x", term=1, markers=((0, 1),))
    assert wrong(ended, "x", term=1, markers=((0, 1), (0, 2)))


def test_INV_DRA2_a_marker_of_a_later_term_says_nothing_of_what_an_ended_one_lost() -> None:
    changes = [change(1, "x"), change(2, "there", term=1, thing=B)]
    assert not judge_access(changes, [(1, 2)], 1, {}, {B: "there"})
    assert judge_access(changes, [(1, 2)], 1, {}, {A: "x"}) == ["acl b is not there, and must be there"]  # fmt: skip


@pytest.mark.parametrize(("value", "is_wrong"), [("x", False), ("y", False), ("z", True), (ABSENT, True)])  # fmt: skip
def test_INV_DRA3_what_was_not_answered_is_there_or_not(value: str, is_wrong: bool) -> None:
    assert bool(wrong([change(1, "x"), change(2, "y", answered=False)], value)) is is_wrong


def test_INV_DRA3_what_nobody_ordered_is_not_there() -> None:
    assert judge_access([], [], 0, {}, {A: "x"})
    assert judge_access([], [], 0, {A: "x"}, {})
    assert not judge_access([], [], 0, {A: "x"}, {A: "x"})


def test_INV_DRA1_clients_of_a_drill_may_do_what_they_do_and_nothing_on_the_cluster() -> None:
    given = grants()
    assert {may for _, _, _, _, may in given} == {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE}  # fmt: skip
    assert all(name not in ("", "*") for _, _, name, _, _ in given)
    assert not {kind for _, kind, _, _, _ in given} & {ResourceType.ANY, ResourceType.BROKER}
