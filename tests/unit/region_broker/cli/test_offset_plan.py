"""Where reset offsets go; the words and their meaning are those of KIP-122."""

import pytest

from region_broker.cli.admin.offset_plan import (
    Move,
    PlanError,
    Standing,
    Target,
    To,
    parse_datetime,
    parse_duration,
    parse_topics,
    plan,
)


def standing(committed: int | None = 50, at_time: int | None = None) -> Standing:
    return Standing(
        topic="t", partition=1, log_start=10, log_end=100, committed=committed, at_time=at_time
    )


@pytest.mark.parametrize(
    ("target", "after", "noted"),
    [
        (Target(To.EARLIEST), 10, False),
        (Target(To.LATEST), 100, False),
        (Target(To.OFFSET, 10), 10, False),
        (Target(To.OFFSET, 100), 100, False),
        (Target(To.OFFSET, 9), 10, True),
        (Target(To.OFFSET, 101), 100, True),
        (Target(To.SHIFT, 7), 57, False),
        (Target(To.SHIFT, -7), 43, False),
        (Target(To.SHIFT, -41), 10, True),
        (Target(To.SHIFT, 51), 100, True),
    ],
)
def test_an_offset_goes_where_it_is_told_and_never_leaves_its_log(
    target: Target, after: int, noted: bool
) -> None:
    move = plan(target, standing())
    assert (move.before, move.after, bool(move.note)) == (50, after, noted)


def test_a_clamped_offset_says_what_it_would_have_been() -> None:
    assert plan(Target(To.SHIFT, -41), standing()) == Move(
        topic="t", partition=1, before=50, after=10, note="9 is below the log's start"
    )
    assert plan(Target(To.OFFSET, 101), standing()).note == "101 is beyond the log's end"


def test_a_time_is_its_first_record_or_else_the_end() -> None:
    assert plan(Target(To.TIME, 1), standing(at_time=20)).after == 20
    late = plan(Target(To.TIME, 1), standing(at_time=None))
    assert late.after == 100
    assert "no record is that late" in late.note


def test_without_an_offset_nothing_is_shifted_but_the_rest_works() -> None:
    with pytest.raises(PlanError, match="t-1"):
        plan(Target(To.SHIFT, 1), standing(committed=None))
    assert plan(Target(To.OFFSET, 11), standing(committed=None)).before is None


def test_topics_name_all_partitions_or_some() -> None:
    assert parse_topics(["a", "b:3", "c:0,2", "c:1", "d:1", "d"]) == {
        "a": None,
        "b": {3},
        "c": {0, 1, 2},
        "d": None,
    }


@pytest.mark.parametrize("word", ["", ":1", "a:", "a:x", "a:1,", "a:-1", "a:1:2", "a:²"])
def test_nonsense_is_no_topic(word: str) -> None:
    with pytest.raises(PlanError, match="orders:3"):
        parse_topics([word])


@pytest.mark.parametrize(
    ("text", "wall_ms"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("2001-09-09T01:46:40", 1_000_000_000_000),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, wall_ms: int) -> None:
    assert parse_datetime(text) == wall_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1H", 3_600_000),
        ("pt1h", 3_600_000),
        ("P7D", 604_800_000),
        ("P1W", 604_800_000),
        ("P1DT12H30M", 131_400_000),
        ("PT0.25S", 250),
        ("PT90M", 5_400_000),
    ],
)
def test_durations_of_iso_8601(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1H", "P1M", "P1Y", "PT1H2", "-PT1H", "P1DT", "PT1D"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="PT1H"):
        parse_duration(text)


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(PlanError, match="2026-01-31T13:00:00Z"):
        parse_datetime("yesterday")
