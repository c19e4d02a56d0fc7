"""The judge of numbered values names each planted fault, and nothing in a sound history."""

from collections.abc import Sequence

import pytest

from chaos.judges.excuse import nothing_is_excused
from chaos.judges.numbered import NumberedHistory, judge_numbered
from chaos.story import Place, Sighting


def place(offset: int, number: int, partition: int = 0) -> Place:
    return Place("t", partition, offset, f"java-eu {number}")


def acked(offset: int, number: int) -> Sighting:
    return Sighting(1.0, "eu", place(offset, number), False)


# Number 1 was given up and is not there, 3 was given up and is; of 4 it was answered that it is there, not where.
THERE = frozenset([place(0, 0), place(1, 2), place(2, 3), place(3, 4)])
ACKED = [acked(0, 0), acked(1, 2), acked(-1, 4)]


def excused(_gone: Sighting, _alike: Sequence[Sighting]) -> bool:
    return True


def test_JNU_what_was_given_up_may_be_there_or_not() -> None:
    run = NumberedHistory(ACKED, {"eu": THERE, "us": THERE})
    assert judge_numbered(run, nothing_is_excused) == []


@pytest.mark.parametrize(
    ("there", "text"),
    [
        (THERE | {place(4, 4)}, "java-eu 4 is 2 times"),
        (THERE | {place(4, 1)}, "java-eu 1 at 0/4 of eu stands behind 4"),
        (THERE - {place(1, 2)}, "and gone: Place(topic='t', partition=0, offset=1"),
        (THERE - {place(3, 4)}, "and gone: Place(topic='t', partition=0, offset=-1"),
    ],
)
def test_JNU_each_planted_fault_is_named(there: frozenset[Place], text: str) -> None:
    [found] = judge_numbered(NumberedHistory(ACKED, {"eu": there}), nothing_is_excused)
    assert text in found


def test_JNU3_regions_that_differ_are_named() -> None:
    run = NumberedHistory(ACKED, {"eu": THERE, "us": THERE - {place(2, 3)}})
    [found] = judge_numbered(run, nothing_is_excused)
    assert "eu and us differ in" in found


def test_JNU2_a_word_may_take_what_was_acknowledged() -> None:
    assert judge_numbered(NumberedHistory(ACKED, {"eu": frozenset()}), excused) == []
