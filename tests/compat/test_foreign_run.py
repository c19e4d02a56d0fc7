"""How `tests.compat.run` judges what the programs in other languages print (no download, no broker)."""

import pytest

from tests.compat.kafka_dump import names_topic, not_understood
from tests.compat.run import DOCUMENT, Outcome, outcomes_of, table, written
from tests.compat.through_failover import judged


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


def test_what_was_not_run_here_stays_in_the_table() -> None:
    found = {
        ("java", "one"): [Outcome("produce", passed=True, reason="")],
        ("java", "nodes"): [Outcome("produce", passed=False, reason="a|b")],
        ("js", "mirror"): [Outcome("b", passed=True, reason="needs TLS", skipped=True)],
    }
    assert written(table(found)) == found
    text = DOCUMENT.read_text("utf-8")
    told = {line for line in text.splitlines() if line.startswith("| Java (")}
    assert told
    assert told <= set(table(written(text)).splitlines())


# As Kafka 4.1.1 prints them.
BATCH = "baseOffset: 1 lastOffset: 2 count: 2 magic: 2 compresscodec: none crc: 2673522999 isvalid: true"
OFFSET = '| offset: 1 payload: {"version":"4","data":{"offset":5,"commitTimestamp":7,"topicId":"nylzcFJTQIOAySuRCVNzzw"}}'
TOMBSTONE = "| offset: 2 keySize: 9 valueSize: -1 payload: <DELETE>"
ROUND = "| offset: 0 keySize: 2 valueSize: 14 key: Unknown record type 21072 at offset 0, skipping."


def test_what_kafka_reads_from_a_ledger_is_understood_or_named() -> None:
    assert not_understood(["Log starting offset: 0", BATCH, OFFSET, TOMBSTONE, ROUND]) == []
    topic_folder = "9f2973705253408380c92b91095373cf"
    assert names_topic([BATCH, OFFSET, TOMBSTONE], topic_folder)
    assert not names_topic([BATCH, OFFSET.replace("nylz", "AAAA")], topic_folder)
    assert not names_topic([BATCH, TOMBSTONE], topic_folder)


@pytest.mark.parametrize(
    "wrong",
    [
        BATCH.replace("true", "false"),
        ROUND.replace("21072", "99"),
        "| Exception in thread main java.lang.IllegalStateException",
    ],
)
def test_what_kafka_cannot_read_in_a_ledger_is_told(wrong: str) -> None:
    assert not_understood([BATCH, OFFSET, wrong]) == [wrong]
    assert not_understood([]) != []


def test_what_a_client_saw_through_a_failover_is_held_against_the_log() -> None:
    acknowledged = list(range(60))

    def read(*lost: int) -> list[str]:
        return 2 * [str(number) for number in acknowledged if number not in lost]

    assert judged(acknowledged, read()) == []
    assert judged(acknowledged, read(18, 19)) == [], "the end of what the primary had acknowledged"
    assert judged(acknowledged, [*read(), "77", "77"]) == [], "committed, and the answer was lost"
    for wrong in (read(3, 19), read(59), read()[1:], [*read(), "7"]):
        assert judged(acknowledged, wrong), wrong
