"""The judge of a soak names what is wrong, and nothing else; a seed always gives the same rounds."""

from itertools import islice

import pytest

from chaos.schedule import Kind, rounds
from chaos.soak_judge import (
    LostRange,
    Record,
    Shown,
    judge_losses,
    judge_plain,
    judge_shown,
)

STRICT, PIPELINED = "0.1", "1.1"
TOPIC = "plain"


def lost(first: int, last: int, *, region: str = "eu", topic: str = TOPIC) -> LostRange:
    return LostRange(region, 17, topic, 0, first, last)


def records(*values: str) -> list[Record]:
    return [Record(0, offset, value) for offset, value in enumerate(values)]


def test_what_was_acknowledged_and_is_there_is_right() -> None:
    there = records(f"{STRICT} 1", f"{STRICT} 2")
    acked: dict[str, tuple[int, int | None]] = {f"{STRICT} 1": (0, 0), f"{STRICT} 2": (0, None)}
    assert judge_plain(acked, there, [], TOPIC) == []


def test_an_acknowledged_record_may_only_be_gone_where_losses_name_its_offset() -> None:
    acked: dict[str, tuple[int, int | None]] = {f"{STRICT} 1": (0, 5)}
    assert judge_plain(acked, [], [lost(4, 6)], TOPIC) == []
    for elsewhere in ([], [lost(6, 9)], [lost(4, 6, topic="other")]):
        (anomaly,) = judge_plain(acked, [], elsewhere, TOPIC)
        assert "lost outside the losses" in anomaly


def test_what_was_acknowledged_without_an_offset_is_lost_only_with_the_next_of_its_producer() -> (
    None
):
    acked: dict[str, tuple[int, int | None]] = {
        f"{STRICT} 1": (0, None), f"{STRICT} 2": (0, 5), "0.11 9": (0, 7)
    }  # fmt: skip
    assert judge_plain(acked, [Record(0, 7, "0.11 9")], [lost(4, 6)], TOPIC) == []
    there = [Record(0, 5, f"{STRICT} 2"), Record(0, 7, "0.11 9")]
    (anomaly,) = judge_plain(acked, there, [lost(6, 9)], TOPIC)
    assert f"'{STRICT} 1'" in anomaly


def test_a_record_elsewhere_than_acknowledged_is_found() -> None:
    acked: dict[str, tuple[int, int | None]] = {f"{STRICT} 1": (0, 7)}
    (anomaly,) = judge_plain(acked, records(f"{STRICT} 1"), [], TOPIC)
    assert "elsewhere" in anomaly


@pytest.mark.parametrize("producer", [STRICT, PIPELINED])
def test_a_doubled_record_is_found_of_whichever_producer(producer: str) -> None:
    (anomaly,) = judge_plain({}, records(f"{producer} 1", f"{producer} 1"), [], TOPIC)
    assert "doubled" in anomaly


@pytest.mark.parametrize("producer", [STRICT, PIPELINED])
def test_records_of_one_producer_out_of_order_are_found(producer: str) -> None:
    (anomaly,) = judge_plain({}, records(f"{producer} 2", f"{producer} 1"), [], TOPIC)
    assert "out of order" in anomaly


def test_only_a_region_that_lost_may_take_back_and_only_what_it_lost() -> None:
    shown = [Shown(TOPIC, 0, 5, b"", b"x")]
    nothing: frozenset[Shown] = frozenset()
    sums = frozenset({"accounts"})
    assert judge_shown("eu", shown, frozenset(shown), [], transactional=sums) == []
    assert judge_shown("eu", shown, nothing, [lost(5, 5)], transactional=sums) == []
    assert judge_shown("us", shown, nothing, [lost(5, 5)], transactional=sums)
    assert judge_shown("eu", shown, nothing, [lost(6, 9)], transactional=sums)
    aborted = [Shown("accounts", 0, 1, b"", b"x")]
    assert judge_shown("eu", aborted, nothing, [lost(6, 9)], transactional=sums) == []
    assert judge_shown("us", aborted, nothing, [lost(6, 9)], transactional=sums)


def test_a_planned_switch_that_lost_anything_is_found() -> None:
    losses = {
        "region": "eu", "lineage_epoch": 17, "unexplained": [], "transaction_count": 1,
        "plain_record_count": 0,
    }  # fmt: skip
    assert judge_losses([losses], []) == []
    (anomaly,) = judge_losses([losses], [17])
    assert "planned switch lost" in anomaly
    assert judge_losses([{**losses, "cause": "divergence"}], [17]) == []
    (anomaly,) = judge_losses([{**losses, "unexplained": ["a commit"]}], [])
    assert "outside the loss statement" in anomaly


def test_a_seed_says_everything_and_every_kind_comes_before_any_comes_twice() -> None:
    count = len(Kind)
    first = list(islice(rounds(7), 2 * count))
    assert first == list(islice(rounds(7), 2 * count))
    assert first != list(islice(rounds(8), 2 * count))
    assert {each.kind for each in first[:count]} == set(Kind)
