"""Drawn mutants: each kind changes what it says and compiles, and a seed draws the same ones."""

import ast
from pathlib import Path

import pytest

from tests.mutants.draw import drawn, pure_modules
from tests.mutants.nearest import nearest_tests
from tests.mutants.operators import OPERATORS, mutants_of

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


def test_the_tests_of_a_module_come_first() -> None:
    asked = nearest_tests(TREE, "geo_replicator/directory.py")
    assert asked[0] == "tests/unit/geo_replicator/test_directory.py"
    assert "tests/unit/geo_replicator/test_lineage.py" in asked
    assert not [path for path in asked if "region_broker" in path]
