"""The judge of transfers finds every anomaly that it names: a sound history, broken in each way once."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from chaos.checker import Kind, check
from chaos.history import Attempt, History, Outcome, Seen

COMMITTED, NOT, UNKNOWN = Outcome.COMMITTED, Outcome.NOT_COMMITTED, Outcome.UNKNOWN
Mutation = Callable[[History], History]

# Two tellers, one takeover after which a.3 (answered) and b.2 (never answered) are gone.
ATTEMPTS = [
    Attempt("a", 1, 0, 0, 1, 10, COMMITTED),
    Attempt("a", 2, 0, 1, 2, 20, COMMITTED),
    Attempt("a", 3, 0, 2, 0, 30, COMMITTED),
    Attempt("b", 1, 0, 0, 2, 5, NOT),
    Attempt("b", 2, 0, 0, 2, 6, UNKNOWN),
    Attempt("a", 4, 1, 0, 1, 40, COMMITTED),
    Attempt("b", 3, 1, 1, 2, 7, COMMITTED),
]
FINAL = [
    Seen(0, 0, "a.1", -10), Seen(1, 0, "a.1", 10),
    Seen(1, 2, "a.2", -20), Seen(2, 0, "a.2", 20),
    Seen(0, 4, "a.4", -40), Seen(1, 4, "a.4", 40),
    Seen(1, 6, "b.3", -7), Seen(2, 4, "b.3", 7),
]  # fmt: skip
SOUND = History(
    attempts=ATTEMPTS,
    final={"eu": FINAL, "us": FINAL},
    shown=FINAL[:3],
    listed={"a": 1, "b": 1},
    covered=frozenset({"a.1", "a.2"}),
    beyond=frozenset({"a.3"}),
)


def everywhere(change: Callable[[list[Seen]], Sequence[Seen]]) -> Mutation:
    """Change what both regions show."""

    def mutate(history: History) -> History:
        return replace(
            history, final={name: change(list(seen)) for name, seen in history.final.items()}
        )

    return mutate


def put(index: int, seen: Seen) -> Mutation:
    return everywhere(lambda records: [*records[:index], seen, *records[index + 1 :]])


MUTATIONS: list[tuple[str, Mutation, set[Kind]]] = [
    ("half of a.4 missing", everywhere(lambda r: [x for x in r if x != FINAL[5]]),
     {Kind.TORN, Kind.SUM}),
    ("a.4 appended again", everywhere(lambda r: [*r, Seen(0, 9, "a.4", -40), Seen(1, 9, "a.4", 40)]),
     {Kind.DUPLICATE}),
    ("one half of a.4 twice", everywhere(lambda r: [*r, Seen(0, 9, "a.4", -40)]),
     {Kind.DUPLICATE, Kind.SUM}),
    ("other amounts", everywhere(lambda r: [*r[:4], Seen(0, 4, "a.4", -41), Seen(1, 4, "a.4", 41),
                                            *r[6:]]), {Kind.WRONG}),
    ("a record of nobody", everywhere(lambda r: [*r, Seen(0, 9, "c.1", 0)]), {Kind.INVENTED}),
    ("an aborted one is read", everywhere(lambda r: [*r, Seen(0, 2, "b.1", -5), Seen(2, 2, "b.1", 5)]),
     {Kind.ABORTED_READ}),
    ("order turned", everywhere(lambda r: [x if x.partition != 0 else replace(x, offset=9 - x.offset)
                                           for x in r]), {Kind.OUT_OF_ORDER, Kind.TAKEN_BACK}),
    ("a covered one is lost", lambda h: replace(h, covered=h.covered | {"b.2"}), {Kind.COVERED_LOST}),
    ("one beyond is kept", lambda h: replace(h, beyond=h.beyond | {"a.2"}), {Kind.BEYOND_KEPT}),
    ("a.2 gone, a.3 there",
     lambda h: replace(
         everywhere(lambda r: [*(x for x in r if x.attempt != "a.2"),
                               Seen(2, 2, "a.3", -30), Seen(0, 2, "a.3", 30)])(h),
         covered=frozenset(), beyond=frozenset(), shown=()),
     {Kind.GAP}),
    ("a loss not listed", lambda h: replace(h, listed={"b": 1}), {Kind.UNLISTED}),
    ("a loss too many", lambda h: replace(h, listed={"a": 2, "b": 1}), {Kind.FALSE_LOSS}),
    ("shown and gone", lambda h: replace(h, shown=[*h.shown, Seen(2, 2, "a.3", -30)]),
     {Kind.TAKEN_BACK}),
    ("us shows less", lambda h: replace(h, final={"eu": FINAL, "us": FINAL[:6]}),
     {Kind.REGIONS_DIFFER}),
    ("us shows it elsewhere",
     lambda h: replace(h, final={"eu": FINAL, "us": [*FINAL[:7], Seen(2, 5, "b.3", 7)]}),
     {Kind.REGIONS_DIFFER}),
]  # fmt: skip


def test_a_sound_history_has_no_anomaly() -> None:
    assert check(SOUND) == []


def test_an_unanswered_commit_may_be_there() -> None:
    kept = everywhere(lambda r: [*r, Seen(0, 2, "b.2", -6), Seen(2, 2, "b.2", 6)])(SOUND)
    assert check(replace(kept, listed={"a": 1})) == []


@pytest.mark.parametrize(
    ("mutate", "expected"), [row[1:] for row in MUTATIONS], ids=[row[0] for row in MUTATIONS]
)
def test_each_mutation_is_found_under_its_name(mutate: Mutation, expected: set[Kind]) -> None:
    assert {anomaly.name for anomaly in check(mutate(SOUND))} == {kind.name for kind in expected}


def test_every_kind_has_a_mutation() -> None:
    assert set().union(*(row[2] for row in MUTATIONS)) == set(Kind)


def test_a_mutation_of_one_record_is_found() -> None:
    for index, record in enumerate(FINAL):
        assert check(put(index, replace(record, change=record.change + 1))(SOUND))
        assert check(put(index, replace(record, attempt="b.9"))(SOUND))
        assert check(everywhere(lambda r, i=index: [*r[:i], *r[i + 1 :]])(SOUND))  # type: ignore[misc]
