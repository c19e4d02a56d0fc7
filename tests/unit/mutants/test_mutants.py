"""Drawn mutants: each kind changes what it says and compiles, and a seed draws the same ones."""

import ast
import json
from pathlib import Path
from typing import cast

import pytest

from idempotency import sequence
from tests.mutants.draw import drawn, pure_modules
from tests.mutants.equivalent import EQUIVALENT, is_the_mutant
from tests.mutants.forks import Forks
from tests.mutants.judge import Judge
from tests.mutants.nearest import Nearest, Seen, lines_around
from tests.mutants.operators import OPERATORS, Mutant, is_one, mutants_of, proposed
from tests.mutants.runs import TIME_OUT

TREE = Path(__file__).resolve().parents[3]
SOURCE = '''"""é 1 < 2: words are left alone."""

LIMIT: Final[Literal[3]] = 4


@limited(5)
def judged(first: int, second: int) -> bool:
    """Return 6 < 7."""
    assert first < second, 8
    logger.info(first, second)
    _LOG.info(first, second)
    if first < second and compared(first, second):
        raise Refused(f"{first + 9}", 10)
    seen.add(first)
    return first == second
'''


@pytest.mark.parametrize(
    ("operator", "lines"),
    [
        ("compare", {"if first <= second and", "return (first != second)"}),
        ("and-or", {"if (first < second or compared(first, second)):"}),
        ("constant", {"= (3)", "= (5)"}),
        (
            "negated",
            {"if (not (first < second and compared(first, second))):", "not first < second"},
        ),
        ("dropped", {"    pass\n    return"}),
        ("arguments", {"compared(second, first)"}),
        ("returned", {"return None", "return not first == second"}),
        ("not-raised", {":\n        pass"}),
    ],
)
def test_INV_MU1_each_operator_changes_what_it_says_and_compiles(
    operator: str, lines: set[str]
) -> None:
    changed = [
        mutant.applied(SOURCE)
        for mutant in mutants_of("m.py", SOURCE)
        if mutant.operator == operator
    ]
    assert all(
        any(
            line.replace("(", "").replace(")", "") in text.replace("(", "").replace(")", "")
            for text in changed
        )
        for line in lines
    )
    assert all(ast.dump(ast.parse(text)) != ast.dump(ast.parse(SOURCE)) for text in changed)


def test_INV_MU2_assertions_words_annotations_and_logging_are_left_alone() -> None:
    kept = [line for line in SOURCE.splitlines() if any(
        word in line for word in ('"""', "@limited", "def ", "assert", "logger", "_LOG")
    )]  # fmt: skip
    for mutant in mutants_of("m.py", SOURCE):
        changed = mutant.applied(SOURCE)
        assert [line for line in kept if line not in changed] == []
        assert "Literal[3]" in changed
        assert mutant.operator == "not-raised" or 'f"{first + 9}", 10' in changed


def test_INV_MU3_a_seed_draws_the_same_mutants_of_every_kind() -> None:
    sources = {"m.py": SOURCE, "n.py": SOURCE}
    first, again, other = (drawn(sources, seed, 12) for seed in (7, 7, 8))
    assert first == again != other
    assert len(set(first)) == 12
    assert {mutant.operator for mutant in first} == set(OPERATORS)


def test_drivers_and_what_runs_in_spark_are_no_pure_modules() -> None:
    modules = pure_modules(TREE)
    assert "geo_replicator/directory.py" in modules
    assert "idempotency/window.py" in modules
    assert "region_broker/partitions/record_rules.py" in modules
    assert "region_broker/partitions/table.py" not in modules
    assert not {"txn_coordinator/driver.py", "geo_replicator/reconciliation/spark_job.py"} & set(
        modules
    )


def test_INV_MU6_asked_is_what_runs_a_changed_line_the_quick_ones_first() -> None:
    judged, other = 1 << 13, 1 << 14
    rows = [
        ("test_driver.py::quick", 0.1, True, judged),
        ("test_driver.py::slow", 9.0, True, judged),
        ("test_near.py::red", 0.1, False, judged),
        ("test_near.py::near", 0.9, True, judged | other),
        ("test_near.py::other", 0.1, True, other),
    ]
    seen = Seen.read(
        json.dumps({"test": test, "took_s": took_s, "passed": passed, "ran": {"m.py": hex(ran)}})
        for test, took_s, passed, ran in rows
    )
    seen.by_module["user.py"] = {"test_user.py::test": 2}
    seen.took_s["test_user.py::test"] = 0.1
    sources = {"m.py": SOURCE, "user.py": "from m import LIMIT"}
    mutants = mutants_of("m.py", SOURCE)
    inside = next(mutant for mutant in mutants if mutant.operator == "not-raised")
    outside = next(mutant for mutant in mutants if mutant.was(SOURCE) == "4")
    found = Nearest(seen, sources, 9.0).tests(inside, SOURCE)
    assert found == ["test_driver.py::quick", "test_near.py::near"]
    assert Nearest(seen, sources, 0.95).tests(inside, SOURCE) == ["test_driver.py::quick"]
    everything = Nearest(seen, sources, 9.0).tests(outside, SOURCE)
    assert set(everything) == {*found, "test_near.py::other", "test_user.py::test"}


def test_INV_MU6_a_test_that_ran_again_counts_as_it_did_then() -> None:
    rows = (
        {"test": "t", "took_s": 1, "passed": passed, "ran": {"m.py": "0x2"}}
        for passed in (True, False)
    )
    assert Seen.read(map(json.dumps, rows)).took_s == {}


def test_INV_MU6_the_lines_of_a_change_begin_with_its_statement_in_a_body() -> None:
    source = "@d(1)\ndef outer(a=2):\n    def inner():\n        return (\n            3\n        )\n    return 4\nfive = 5\n"
    numbers = [
        next(mutant for mutant in mutants_of("m.py", source) if mutant.was(source) == str(number))
        for number in range(2, 6)
    ]
    assert [lines_around(source, mutant) for mutant in numbers] == [
        None, range(4, 6), range(7, 8), None,
    ]  # fmt: skip


def test_what_is_called_equivalent_is_a_mutant_and_has_a_reason() -> None:
    for known in EQUIVALENT:
        source = (TREE / known.path).read_text("utf-8")
        found = [
            mutant
            for mutant in proposed(known.path, source)
            if is_the_mutant(known, mutant, source) and is_one(mutant, source)
        ]
        assert found, f"{known} applies nowhere: take it out"
        assert len(known.reason) > 20, known
    assert len(set(EQUIVALENT)) == len(EQUIVALENT)


class Timed:
    """Tests that do not end while their module has the endless loop, and those of a busy machine never."""

    def __init__(self, busy: bool) -> None:
        self.busy = busy

    def first_failure(self, _tests: list[str], mutant: Mutant | None, _source: str) -> str | None:
        endless = mutant is not None and mutant.replacement == "(n >= 0)"
        return TIME_OUT if endless or self.busy else None


@pytest.mark.parametrize("busy", [False, True])
def test_INV_MU5_a_test_that_ends_without_the_mutant_only_has_noticed(busy: bool) -> None:
    source = "def ends(n):\n    while n > 0:\n        n -= 1\n"
    endless, other = (
        next(each for each in mutants_of("m.py", source) if each.replacement == now)
        for now in ("(n >= 0)", "pass")
    )
    row = {"test": "test_m.py::test_ends", "took_s": 0.1, "passed": True, "ran": {"m.py": "0xe"}}
    judge = Judge(Nearest(Seen.read([json.dumps(row)]), {}, 1.0), lambda *_: Timed(busy))
    assert judge.killer(endless, source) == (None if busy else TIME_OUT)
    assert judge.killer(other, source) is None


def test_INV_MU8_a_mutant_is_in_its_child_only_and_whoever_holds_the_function_runs_it() -> None:
    path = "idempotency/sequence.py"
    source = (TREE / path).read_text("utf-8")
    held = sequence.distance
    mutant = next(
        each
        for each in mutants_of(path, source)
        if (each.operator, each.function(source)) == ("returned", "distance")
    )
    asked: list[object] = []

    class Item:
        """A test that fails where the function answers differently."""

        nodeid = "t"
        config = property(lambda self: self)
        hook = property(lambda self: self)

        def pytest_runtest_protocol(self, item: object, nextitem: object) -> None:
            assert held(1, 3) == 2

    class Session:
        items = (Item(),)

    def judge(forks: Forks) -> None:
        asked.extend((forks.takes(mutant, source), forks.first_failure(["t"], None, "")))
        asked.append(forks.first_failure(["t"], mutant, source))

    Forks(TREE, [path], 10.0, judge).pytest_runtestloop(cast("pytest.Session", Session()))
    assert asked == [True, None, "t"]
    assert held(1, 3) == 2
