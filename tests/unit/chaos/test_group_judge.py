"""The judge of consumer groups names each planted fault, and nothing in a sound history."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos.judges.excuse import nothing_is_excused
from chaos.judges.groups import NEVER, GroupCommit, GroupHistory, OffsetSeen, Tenure, judge_group
from chaos.story import Place, Sighting

LOG = [(0, 0, "x"), (0, 1, "y"), (0, 2, "z")]
FIRST, SECOND = GroupCommit("a", 0, 1, 2.0, 2.1, "eu"), GroupCommit("b", 0, 2, 6.0, 6.1, "us")
SHOWN = [(0, "x"), (1, "y"), (2, "lost later")]
SOUND = GroupHistory(
    topic="t",
    tenures=[Tenure("a", 0, 1, 1.0, 4.0), Tenure("b", 0, 2, 5.0)],
    commits=[FIRST, SECOND],
    seen=[OffsetSeen(0, -1, 1.1, 1.2, "eu"), OffsetSeen(0, 1, 5.1, 5.2, "us")],
    processed=[Sighting(1.5, "eu", Place("t", 0, offset, value), True) for offset, value in SHOWN],
    log=LOG,
    committed={"eu": [2], "us": [2]},
    output={0: ["x", "y"]},
)


def excused(_gone: Sighting, _alike: Sequence[Sighting]) -> bool:
    return True


def test_JGR_a_group_that_hands_a_partition_on_is_right() -> None:
    assert judge_group(SOUND, nothing_is_excused) == []
    assert judge_group(replace(SOUND, output=None), nothing_is_excused) == []


def test_JGR4_a_commit_that_was_under_way_when_the_partition_went_is_right() -> None:
    late = replace(FIRST, sent_s=4.9, acked_s=5.05)
    assert judge_group(replace(SOUND, commits=[late, SECOND]), nothing_is_excused) == []


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (replace(SOUND, tenures=[Tenure("a", 0, 1, 1.0), Tenure("b", 0, 1, 5.0)]), "belongs to a and b in epoch 1"),
        (replace(SOUND, commits=[FIRST, SECOND, GroupCommit("a", 0, 2, 5.5, 5.6, "eu")]), "took the commit 2 of a"),
        (replace(SOUND, seen=[OffsetSeen(0, 0, 5.1, 5.2, "us")]), "the committed offset at us is 0 at 5.20 s"),
        (replace(SOUND, committed={"eu": [1]}, output={0: ["x"]}), "the committed offset at eu is 1 at the end"),
        (replace(SOUND, committed={"eu": [2], "us": [3]}), "at eu, [3] at us"),
        (replace(SOUND, committed={"eu": [3]}, output={0: ["x", "y", "z"]}), "(0, 2, 'z') is below"),
        (replace(SOUND, output={0: ["x"]}), "the output lacks {'y': 1}"),
        (replace(SOUND, output={0: ["x", "y", "y"]}), "too much {'y': 1}"),
    ],
)  # fmt: skip
def test_JGR_each_planted_fault_is_named(run: GroupHistory, text: str) -> None:
    found = judge_group(run, nothing_is_excused)
    assert len(found) == 1
    assert text in found[0]


def test_JGR5_a_word_may_wind_offsets_back_but_skips_no_record() -> None:
    back = replace(SOUND, committed={"eu": [1]}, output={0: ["x"]})
    assert judge_group(back, excused) == []
    assert judge_group(replace(SOUND, committed={"eu": [3]}, output=None), excused) != []


def test_JGR5_what_was_made_of_a_record_may_outlive_it_where_a_word_has_cost_it() -> None:
    outlives = replace(SOUND, output={0: ["x", "y", "lost later"]})
    assert judge_group(outlives, excused) == []
    (found,) = judge_group(outlives, nothing_is_excused)
    assert "too much {'lost later': 1}" in found
    (found,) = judge_group(replace(SOUND, output={0: ["x", "y", *["lost later"] * 2]}), excused)
    assert "too much {'lost later': 1}" in found
    (found,) = judge_group(replace(SOUND, output={0: ["x", "y", "y"]}), excused)
    assert "too much {'y': 1}" in found


def test_JGR5_a_commit_that_nobody_answered_counts_when_it_comes() -> None:
    late = GroupCommit("a", 0, 1, 1.5, NEVER, "eu")
    newer = GroupCommit("a", 0, 2, 2.0, 2.1, "eu")
    back = replace(SOUND, commits=[newer], seen=[OffsetSeen(0, 1, 3.0, 3.1, "eu")], output=None)
    assert judge_group(replace(back, unanswered=[late]), nothing_is_excused) == []
    for other in (
        replace(late, offset=0),
        replace(late, member="b"),
        replace(late, partition=1),
        replace(late, sent_s=2.5),
    ):
        (found,) = judge_group(replace(back, unanswered=[other]), nothing_is_excused)
        assert "the committed offset at eu is 1 at 3.10 s; eu took 2 of a" in found
