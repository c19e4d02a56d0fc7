"""Drawn mutants: each kind changes what it says and compiles, and a seed draws the same ones."""

import ast
import json
from pathlib import Path

import pytest

from tests.mutants.draw import drawn, pure_modules
from tests.mutants.equivalent import EQUIVALENT, is_the_mutant
from tests.mutants.nearest import Seen, function_at, nearest_tests
from tests.mutants.operators import OPERATORS, mutants_of
from tests.mutants.scratch import TIME_OUT, Scratch

TREE = Path(__file__).resolve().parents[3]
SOURCE = '''"""é 1 < 2: words are left alone."""

LIMIT: Final[Literal[3]] = 4


@limited(5)
def judged(first: int, second: int) -> bool:
    """Return 6 < 7."""
    assert first < second, 8
    logger.info(first, second)
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
        word in line for word in ('"""', "@limited", "def ", "assert", "logger")
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
    assert not {"txn_coordinator/driver.py", "geo_replicator/reconciliation/spark_job.py"} & set(
        modules
    )


def test_INV_MU6_asked_is_what_runs_the_changed_function_whoever_calls_it(tmp_path: Path) -> None:
    importing = tmp_path / "test_near.py"
    importing.write_text("import m")
    (tmp_path / "test_driver.py").write_text("import driver")
    judged, other = ["m.py", 6], ["m.py", 90]
    rows = [
        ("test_driver.py::quick", 0.1, True, [judged]),
        ("test_driver.py::slow", 9.0, True, [judged]),
        ("test_near.py::red", 0.1, False, [judged]),
        ("test_near.py::near", 0.9, True, [judged]),
        ("test_near.py::other", 0.1, True, [other]),
    ]
    seen = Seen.read(
        json.dumps({"test": test, "took_s": took_s, "passed": passed, "ran": ran})
        for test, took_s, passed, ran in rows
    )
    inside, outside = (
        next(mutant for mutant in mutants_of("m.py", SOURCE) if mutant.was(SOURCE) == was)
        for was in ("first == second", "4")
    )
    found = nearest_tests(tmp_path, seen, inside, SOURCE, 9.0)
    assert found == ["test_near.py::near", "test_driver.py::quick"]
    assert nearest_tests(tmp_path, seen, inside, SOURCE, 0.95) == ["test_near.py::near"]
    everything = nearest_tests(tmp_path, seen, outside, SOURCE, 9.0)
    assert set(everything) == {*found, "test_near.py::other"}


def test_a_place_is_in_the_innermost_function_whose_body_holds_it() -> None:
    source = "@d(1)\ndef outer(a=2):\n    def inner():\n        return 3\n    return 4\nfive = 5\n"
    assert [function_at(source, source.index(str(n))) for n in range(1, 6)] == [
        None, None, 3, 1, None,
    ]  # fmt: skip


def test_what_is_called_equivalent_is_a_mutant_and_has_a_reason() -> None:
    for known in EQUIVALENT:
        source = (TREE / known.path).read_text("utf-8")
        found = [
            mutant
            for mutant in mutants_of(known.path, source)
            if is_the_mutant(known, mutant, source)
        ]
        assert found, f"{known} applies nowhere: take it out"
        assert len(known.reason) > 20, known
    assert len(set(EQUIVALENT)) == len(EQUIVALENT)


class Timed(Scratch):
    """A copy whose tests do not end while its module has the endless loop, and those of a busy machine never."""

    busy = False

    def _run(self, *_asked: object) -> tuple[int, str] | None:
        endless = "while n > 0" not in (self.root / "m.py").read_text()
        return None if endless or self.busy else (0, "")


@pytest.mark.parametrize("busy", [False, True])
def test_INV_MU5_a_test_that_ends_without_the_mutant_only_has_noticed(
    tmp_path: Path, busy: bool
) -> None:
    source = "def ends(n):\n    while n > 0:\n        n -= 1\n"
    endless, other = (
        next(each for each in mutants_of("m.py", source) if each.replacement == now)
        for now in ("(n >= 0)", "pass")
    )
    scratch = Timed(tmp_path, 1.0)
    scratch.busy = busy
    row = {"test": "test_m.py::test_ends", "took_s": 0.1, "passed": True, "ran": [["m.py", 1]]}
    scratch.seen = Seen.read([json.dumps(row)])
    (tmp_path / "test_m.py").write_text("import m")
    assert scratch.killer(endless, source) == (None if busy else TIME_OUT)
    assert scratch.killer(other, source) is None
