"""The judge of several requests in flight names each planted fault, and nothing in a sound history."""

from dataclasses import replace

import pytest

from chaos.history import Outcome
from chaos.judges.excuse import nothing_is_excused
from chaos.judges.pipelined import PipelinedHistory, Transaction, judge_pipelined
from chaos.story import Place, Sighting

OLD, NEW, IN_TRANSACTIONS = "java-eu/17/0", "java-eu/17/1", "java-tx-eu"


def log(*values: str) -> frozenset[Place]:
    return frozenset(Place("t", 0, offset, value) for offset, value in enumerate(values))


def transaction(outcome: Outcome, *numbers: int) -> Transaction:
    written = frozenset((0, f"{IN_TRANSACTIONS} {number}") for number in numbers)
    return Transaction(f"transaction of {numbers[0]}", outcome, written)


# 2 to 4 were in flight when 2 was given up; 3 was refused as 2 is not there, and 3 and 4 were sent as epoch 1.
LOG = (
    f"{OLD} 0",
    f"{OLD} 1",
    f"{IN_TRANSACTIONS} 0",
    f"{IN_TRANSACTIONS} 1",
    f"{NEW} 3",
    f"{NEW} 4",
)
SOUND = PipelinedHistory(
    acked=[
        Sighting(1.0, "eu", Place("t", 0, 1, f"{OLD} 1"), False),
        Sighting(1.0, "eu", Place("t", 0, -1, f"{NEW} 3"), False),
    ],
    final={"eu": log(*LOG), "us": log(*LOG)},
    sent={(0, OLD): dict(enumerate(range(5))), (0, NEW): {0: 3, 1: 4, 2: 5}},
    refused={(0, f"{OLD} 3")},
    transactions=[
        transaction(Outcome.COMMITTED, 0, 1),
        transaction(Outcome.NOT_COMMITTED, 2),
        transaction(Outcome.UNKNOWN, 3, 4),
    ],
)


def faults(*values: str, run: PipelinedHistory = SOUND) -> list[str]:
    return judge_pipelined(replace(run, final={"eu": log(*values)}), nothing_is_excused)


def test_JPL_what_was_given_up_may_be_there_or_not() -> None:
    assert judge_pipelined(SOUND, nothing_is_excused) == []
    assert faults(*LOG[:2], f"{OLD} 2", *LOG[2:]) == []


def test_JPL4_what_was_given_up_with_all_behind_it_may_be_there_in_both_epochs() -> None:
    unanswered = replace(SOUND, refused=set())
    both = (f"{OLD} 2", f"{OLD} 3", f"{OLD} 4")
    assert faults(*LOG[:2], *both, *LOG[2:], run=unanswered) == []


def test_JPL1_a_word_allows_one_gap_of_what_was_acknowledged() -> None:
    after_a_word = replace(SOUND, words=1)
    gap = f"{NEW} 4 has sequence 1 for 0, without [3]"
    assert not any(gap in found for found in faults(*LOG[:4], LOG[5], run=after_a_word))
    two_gaps = (LOG[0], f"{OLD} 2", *LOG[2:4], LOG[5])
    assert any(gap in found for found in faults(*two_gaps, run=after_a_word))


def test_JPL1_what_was_never_acknowledged_may_be_missing_before_what_came_behind_it() -> None:
    assert faults(*LOG[:2], f"{OLD} 3", *LOG[2:], run=replace(SOUND, refused=set())) == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((*LOG, f"{NEW} 4"), f"{NEW} 4 has sequence 1 for 2"),
        ((*LOG[:4], LOG[5], LOG[4]), f"{NEW} 3 has sequence 0 for 2"),
        ((*LOG[:4], LOG[5]), f"{NEW} 4 has sequence 1 for 0, without [3]"),
        ((*LOG, f"{NEW} 9"), f"{NEW} 9 has sequence -1 for 2"),
        ((*LOG, f"{OLD} 2"), f"{OLD} 2 stands behind epoch 1"),
        ((*LOG[:2], f"{OLD} 2", f"{OLD} 3", *LOG[2:]), f"{OLD} 3 was refused and is in"),
        ((*LOG, f"{OLD} 2"), "java-eu 2 stands behind 4"),
        ((*LOG, f"{IN_TRANSACTIONS} 1"), f"{IN_TRANSACTIONS} 1 is 2 times"),
        ((*LOG[:2], LOG[3], LOG[2], *LOG[4:]), f"{IN_TRANSACTIONS} 0 stands behind 1"),
        ((*LOG[:3], *LOG[4:]), "transaction of 0 lacks"),
        ((*LOG, f"{IN_TRANSACTIONS} 2"), "transaction of 2 was not committed, and shows"),
        ((*LOG, f"{IN_TRANSACTIONS} 4"), "transaction of 3 lacks"),
        ((LOG[0],), "and gone: Place(topic='t', partition=0, offset=1"),
    ],
)  # fmt: skip
def test_JPL_each_planted_fault_is_named(values: tuple[str, ...], text: str) -> None:
    assert any(text in found for found in faults(*values))
