"""How `tests.compat.run` judges what the programs in other languages print (no download, no broker)."""

from tests.compat.run import Outcome, outcomes_of, table


def test_a_line_per_check_is_an_outcome() -> None:
    printed = "ok\tproduce\t\nsome warning\nFAIL\tread\texpected 3, found 2\n"
    assert outcomes_of(printed, 1) == [
        Outcome("produce", passed=True, reason=""),
        Outcome("read", passed=False, reason="expected 3, found 2"),
    ]


def test_what_a_suite_skips_is_neither_passed_nor_failed() -> None:
    outcomes = outcomes_of("ok\ta\t\nskip\tb\tneeds TLS\n", 0)
    assert [(o.check, o.word, o.reason) for o in outcomes] == [
        ("a", "passed", ""),
        ("b", "skipped", "needs TLS"),
    ]
    assert table({("js", "one"): outcomes}).splitlines()[-1].endswith("| b | skipped | needs TLS |")


def test_a_program_that_checked_nothing_has_failed() -> None:
    assert [outcome.passed for outcome in outcomes_of("", 0)] == [False]


def test_a_program_that_fell_over_after_its_checks_has_failed() -> None:
    assert [outcome.passed for outcome in outcomes_of("ok\tproduce\t\n", 134)] == [True, False]


def test_the_table_names_each_check_once_with_a_result_for_each_place() -> None:
    found = {
        ("java", "one"): [Outcome("produce", passed=True, reason="")],
        ("java", "mirror"): [
            Outcome("produce", passed=False, reason="a|b"),
            Outcome("the region lives on", passed=False, reason="ended"),
        ],
    }
    rows = table(found).splitlines()[2:]
    assert [row.split(" | ")[2:] for row in rows] == [
        ["produce", "passed", "failed", "a\\|b |"],
        ["the region lives on", "not run", "failed", "ended |"],
    ]
