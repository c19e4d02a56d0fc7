"""Error codes are found wherever an answer carries them."""

from collections.abc import Iterator
from typing import Any

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answered_errors import (
    ROWS_MAX,
    any_without_error,
    error_names,
)


def test_codes_of_the_answer_its_topics_and_its_partitions_are_found() -> None:
    answer = {
        "error_code": ErrorCode.none,
        "responses": [
            {
                "topic": "t",
                "partition_responses": [
                    {"index": 0, "error_code": ErrorCode.not_leader_or_follower},
                    {"index": 1, "error_code": 0},
                    {"index": 2, "error_code": 45},
                ],
            }
        ],
    }
    assert sorted(error_names(answer)) == ["not_leader_or_follower", "out_of_order_sequence_number"]


def test_the_answer_itself_and_codes_of_other_names_count() -> None:
    assert error_names({"error_code": 16}) == ["not_coordinator"]
    assert error_names({"results": ({"partition_error_code": 3},)}) == [
        "unknown_topic_or_partition"
    ]


def test_lists_of_plain_values_and_unknown_codes_do_no_harm() -> None:
    assert error_names({"ids": [1, 2], "names": ["a"], "error_code": 9_999}) == ["9999"]
    assert error_names({}) == []


def test_of_an_answer_with_very_many_rows_so_many_are_looked_at_and_taken() -> None:
    taken = 0

    class Rows(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            nonlocal taken
            for row in super().__iter__():
                taken += 1
                yield row

    names = error_names({"rows": Rows([{"error_code": 3}] * 3 * ROWS_MAX)})
    assert len(names) == ROWS_MAX - 1, "the answer itself is a row"
    assert taken <= ROWS_MAX


def test_INV_DAR2_a_part_is_done_where_a_row_without_rows_of_its_own_has_no_error() -> None:
    """What stands above them says that the request was read, as in DeleteRecords and DeleteGroups."""
    refused, done = {"error_code": 29}, {"error_code": ErrorCode.none}
    assert not any_without_error({"error_code": 0, "topics": [{**done, "rows": [refused]}]})
    assert any_without_error({"error_code": 0, "topics": [{**done, "rows": [refused, done]}]})
    assert any_without_error({"error_code": 0, "topics": []})
    assert not any_without_error({"topics": [{"name": "t", "rows": [refused]}]})
