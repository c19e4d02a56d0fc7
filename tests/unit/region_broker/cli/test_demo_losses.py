"""The demo's losses: what was stated, what quarantine holds and what is not there must be one and the same."""

from collections.abc import Sequence
from typing import Any

import pytest

from region_broker.cli.demo.losses import Asked, Comparison, compare
from region_broker.workbench.dataset import Transfer
from region_broker.workbench.workload import Ack, partition_of

JFK_LAX, EWR_MIA = Transfer("1", "JFK", "LAX", 2475), Transfer("2", "EWR", "MIA", 1085)
ROWS = [
    JFK_LAX, EWR_MIA, Transfer("3", "JFK", "LAX", 2475), Transfer("4", "EWR", "MIA", 1085),
    Transfer("5", "JFK", "LAX", 2475),
]  # fmt: skip
COPIED_END = 200


def commit(offset: int, transfer: Transfer, worker: int = 0) -> dict[str, Any]:
    """A commit decision of shard 1, as a statement and a quarantine list it."""
    accounts = {f"accounts-{partition_of(name)}" for name in (transfer.source, transfer.target)}
    return {
        "transactional_id": f"demo-{worker}",
        "decision": {"shard": 1, "leader_epoch": 8, "offset": offset, "stamp": 3},
        "partitions": sorted({"__consumer_offsets-7", *accounts}),
    }


def state(*named: dict[str, Any]) -> dict[str, Any]:
    bounds = [
        {"topic": "__transaction_state", "partition": 1, "cut": 100, "copied_end": COPIED_END},
        {"topic": "__consumer_offsets", "partition": 1, "cut": 0, "copied_end": 9_999},
    ]
    return {
        "region_epoch": 17, "bounds": bounds, "transactions": list(named),
        "transaction_count": len(named),
    }  # fmt: skip


def returned(stated: dict[str, Any], *tail: dict[str, Any], **other: Any) -> dict[str, Any]:
    found = {
        "region": "eu", "lineage_epoch": 17, "exact": True, "transactions": list(tail),
        "transaction_count": len(tail), "statement": stated, "unexplained": [],
    }  # fmt: skip
    return found | other


def judge(
    statement: dict[str, Any],
    losses: Sequence[dict[str, Any]],
    *,
    acked: Sequence[tuple[str, str]] = (),
    unanswered: Sequence[tuple[str, str]] = (),
    there: Sequence[str] = (),
) -> Comparison:
    asked = Asked([Ack(*each, 0.0) for each in acked], [Ack(*each, 0.0) for each in unanswered])
    return compare(statement, losses, asked, there, ROWS)


def test_lost_is_what_was_named_and_what_had_not_arrived() -> None:
    statement = state(commit(150, JFK_LAX))
    tail = commit(150, JFK_LAX), commit(COPIED_END, EWR_MIA), commit(230, JFK_LAX)
    result = judge(
        statement, [returned(statement, *tail)],
        acked=[("5", "0.1.8"), ("1", "0.1.9"), ("2", "0.1.10"), ("1", "3.1.1")],
        unanswered=[("3", "0.1.11"), ("4", "0.1.12")],
        there=["0.1.8", "3.1.1"],
    )  # fmt: skip
    assert result.differences == []
    assert [(lost.attempt, lost.named, lost.answered) for lost in result.lost] == [
        ("0.1.9", True, True), ("0.1.10", False, True), ("0.1.11", False, False),
    ]  # fmt: skip
    assert (result.named_count, result.not_arrived_count) == (1, 2)
    assert "named beforehand" in str(result.lost[0])
    assert "not arrived" in str(result.lost[1])
    assert "never answered" in str(result.lost[2])


def test_nothing_lost_is_equal_to_a_statement_that_names_nothing() -> None:
    result = judge(
        state(), [], acked=[("1", "0.1.1")], unanswered=[("2", "1.1.1")], there=["0.1.1"]
    )
    assert result == Comparison()


def test_an_attempt_without_answer_may_have_been_decided_or_not_in_the_middle_too() -> None:
    """A worker began anew after 0.1.2 and went on: only the partitions say which commit was decided."""
    statement = state(commit(150, EWR_MIA), commit(160, JFK_LAX))
    tail = commit(150, EWR_MIA), commit(160, JFK_LAX)
    result = judge(
        statement, [returned(statement, *tail)],
        acked=[("2", "0.1.1"), ("3", "0.2.1")], unanswered=[("4", "0.1.2")],
    )  # fmt: skip
    assert [lost.attempt for lost in result.lost] == ["0.1.1", "0.2.1"]
    assert result.differences == []


@pytest.mark.parametrize(
    ("named", "tail", "acked", "there", "expected"),
    [
        ([150], [], [], [], "named beforehand, but not in the returned region's tail: ledger shard 1"),
        ([], [150], ["0.1.1"], [], "lost, had arrived, and was not named: ledger shard 1"),
        ([COPIED_END], [COPIED_END], ["0.1.1"], [], "named, though it had not arrived"),
        ([], [], ["0.1.1"], [], "demo-0: 0 commits are in the returned region's tail; not there are 0.1.1"),
        ([], [210], [], [], "demo-0: 1 commits are in the returned region's tail; not there are none"),
        ([150], [150], ["0.1.1"], ["0.1.1"], "demo-0: 1 commits are in the returned region's tail"),
    ],
    ids=["named in vain", "unnamed", "named too early", "unlisted", "nobody's", "named and there"],
)  # fmt: skip
def test_every_difference_is_found(
    named: list[int], tail: list[int], acked: list[str], there: list[str], expected: str
) -> None:
    statement = state(*(commit(offset, JFK_LAX) for offset in named))
    losses = returned(statement, *(commit(offset, JFK_LAX) for offset in tail))
    result = judge(statement, [losses], acked=[("1", each) for each in acked], there=there)
    (difference,) = result.differences
    assert difference.startswith(expected)


def test_a_commit_over_other_partitions_is_not_the_attempt() -> None:
    statement = state(commit(150, EWR_MIA))
    losses = [returned(statement, commit(150, EWR_MIA))]
    result = judge(statement, losses, acked=[("1", "0.1.1")])
    assert len(result.differences) == 1
    assert result.lost == []


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"lineage_epoch": 24}, "another takeover"),
        ({"exact": False}, "not a complete list"),
        ({"transaction_count": 3}, "not a complete list"),
        ({"statement": None}, "another statement"),
        ({"unexplained": ["plain records"]}, "plain records"),
    ],
)
def test_losses_that_do_not_belong_here_are_refused(other: dict[str, Any], expected: str) -> None:
    statement = state()
    result = judge(statement, [returned(statement, **other)])
    (difference,) = result.differences
    assert expected in difference


def test_a_statement_must_name_all_that_it_counts() -> None:
    statement = state(commit(150, JFK_LAX)) | {"transaction_count": 2}
    losses = [returned(statement, commit(150, JFK_LAX))]
    result = judge(statement, losses, acked=[("1", "0.1.1")])
    assert result.differences == ["the statement names fewer transactions than it counts"]
