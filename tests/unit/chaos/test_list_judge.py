"""The judge of list-append transactions names each planted anomaly, and nothing in what Kafka may do."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos.history import Outcome
from chaos.judges.excuse import nothing_is_excused
from chaos.judges.lists import NEVER, Append, ListHistory, ListRead, ListTxn, judge_lists
from chaos.story import Sighting


def txn(
    name: str, began_s: float, ended_s: float, *appends: tuple[int, int],
    outcome: Outcome = Outcome.COMMITTED,
) -> ListTxn:  # fmt: skip
    """Append once to each (list, offset), a tenth of a second after the last; the commit is asked 0.1 s before its end."""
    asked_s = NEVER if outcome is Outcome.NOT_COMMITTED else ended_s - 0.1
    made = [
        Append(key, f"{name}/{number}", offset, began_s + 0.1 * (number + 1))
        for number, (key, offset) in enumerate(appends)
    ]
    return ListTxn(name, "eu", began_s, asked_s, ended_s, outcome, made)


def read(
    at_s: float, position: int, next_position: int, *shown: tuple[int, str], key: int = 0,
    within: str = "",
) -> ListRead:  # fmt: skip
    return ListRead("eu", key, at_s - 0.05, at_s, position, next_position, shown, within)


# a and b are open at once: in list 0 a is first, in list 1 it is b. The markers are at 2 and 3 of both.
A = txn("a", 1.0, 3.0, (0, 0), (1, 1))
B = txn("b", 1.0, 2.0, (0, 1), (1, 0))
C = txn("c", 4.0, 5.0, (0, 4), (0, 5))
D = txn("d", 4.5, 6.0, (1, 4), outcome=Outcome.NOT_COMMITTED)
LIST_0 = [(0, "a/0"), (1, "b/0"), (4, "c/0"), (5, "c/1")]
LIST_1 = [(0, "b/1"), (1, "a/1")]
READS = [
    read(3.5, 0, 4, (0, "a/0"), (1, "b/0")),
    read(5.5, 4, 7, (4, "c/0"), (5, "c/1")),
    read(4.6, 0, 4, (0, "b/1"), (1, "a/1"), key=1, within="d"),
    read(2.5, 0, 1, (0, "b/1"), key=1, within="c"),  # a was open: the LSO was in between
]
FINAL = {"eu": {0: LIST_0, 1: LIST_1}, "us": {0: LIST_0, 1: LIST_1}}
SOUND = ListHistory("t", [A, B, C, D], READS, FINAL)


def excused(_gone: Sighting, _alike: Sequence[Sighting]) -> bool:
    return True


def ends(list_0: list[tuple[int, str]], list_1: list[tuple[int, str]] = LIST_1) -> ListHistory:
    return ListHistory("t", SOUND.txns, [], {"eu": {0: list_0, 1: list_1}})


def with_read(extra: ListRead) -> ListHistory:
    return replace(SOUND, reads=[*READS, extra])


def with_txn(extra: ListTxn, *entries: tuple[int, str]) -> ListHistory:
    final = {"eu": {0: [*LIST_0, *entries], 1: LIST_1}}
    return ListHistory("t", [*SOUND.txns, extra], READS, final)


def test_JLI_what_kafka_may_do_is_right() -> None:
    assert judge_lists(SOUND, nothing_is_excused) == []


def test_JLI7_a_commit_without_an_answer_is_there_or_not() -> None:
    unknown = txn("e", 7.0, 9.0, (0, 8), outcome=Outcome.UNKNOWN)
    assert judge_lists(with_txn(unknown), nothing_is_excused) == []
    assert judge_lists(with_txn(unknown, (8, "e/0")), nothing_is_excused) == []


@pytest.mark.parametrize(
    ("history", "text"),
    [
        (with_read(read(5.0, 0, 5, (4, "d/0"), key=1)), "G1a: d/0 is shown, d was not"),
        (with_txn(txn("x", 8.0, 9.0, (0, 9), outcome=Outcome.NOT_COMMITTED), (9, "x/0")), "G1a: x/0 is shown"),
        (with_read(read(2.2, 0, 1, (0, "a/0"))), "before the commit of a was asked"),
        (with_read(read(5.5, 0, 4, (0, "a/0"))), "G1b: .* not shown b/0 at 1"),
        (with_read(read(5.5, 4, 7, (4, "c/0"))), "G1b: .* not shown c/1 at 5"),
        (with_read(read(5.5, 0, 1, (0, "b/0"))), "b/0 at 0/0, shown by eu"),
        (with_read(read(5.5, 4, 7, (5, "c/1"), (4, "c/0"))), "behind"),
        (ends([(0, "a/0"), (1, "b/0"), (2, "c/0"), (5, "c/1"), (6, "c/1")]), "c/1 is there twice"),
        (ends(LIST_0[:3]), "torn: of c"),
        (ends(LIST_0[:2]), "c/0 at 0/4, committed by eu"),
        (ends([*LIST_0, (7, "who")]), "who is shown, and nobody"),
        (ends([(4, "c/0"), (5, "c/1"), (6, "a/0"), (7, "b/0")]), "G0: in list 0 a/0 stands behind c/1"),
        (replace(SOUND, final={**FINAL, "us": {0: LIST_0[:2], 1: LIST_1}}), "list 0 differs between eu and us"),
        (with_read(read(4.7, 4, 6, within="c")), "beyond an open transaction"),
    ],
)  # fmt: skip
def test_JLI_each_planted_anomaly_is_named(history: ListHistory, text: str) -> None:
    found = judge_lists(history, nothing_is_excused)
    assert any(re.search(text, each) for each in found), found


def test_JLI5_transactions_that_were_shown_each_other_are_named() -> None:
    circle = [
        read(1.5, 0, 1, (0, "a/0"), within="b"),
        read(1.5, 0, 1, (0, "b/1"), key=1, within="a"),
    ]
    found = judge_lists(replace(SOUND, reads=circle), nothing_is_excused)
    assert any("G1c" in each and "a -> b -> a" in each for each in found), found


def test_JLI7_a_word_may_take_commits_but_never_half_of_one() -> None:
    assert judge_lists(ends(LIST_0[:2]), excused) == []
    assert judge_lists(ends(LIST_0[:3]), excused) == ["torn: of c only a part is there"]
