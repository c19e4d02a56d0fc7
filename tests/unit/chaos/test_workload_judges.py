"""The judges of single workloads name each planted fault, and nothing in a sound history."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from chaos.judges.compaction import Compaction, KeyedRecord, KeyedWrite, judge_compaction
from chaos.judges.excuse import nothing_is_excused
from chaos.judges.growth import Growth, judge_growth
from chaos.judges.trims import Deletion, Reading, Trims, judge_trims
from chaos.story import Place, Sighting

TOPIC = "t"


def excused(_gone: Sighting, _alike: Sequence[Sighting]) -> bool:
    return True


def place(offset: int, partition: int = 0) -> Place:
    return Place(TOPIC, partition, offset, f"eu.0 {offset}")


def acked(offset: int, partition: int = 0) -> Sighting:
    return Sighting(1.0, "eu", place(offset, partition), False)


def only(found: list[str], text: str) -> None:
    assert len(found) >= 1
    assert all(text in each for each in found), found


# --- DeleteRecords --------------------------------------------------------------------------------

TRIMS = Trims(
    topic=TOPIC,
    deletions=(Deletion("eu", 0, 2, 1.0, 1.1, 2), Deletion("eu", 0, 4, 5.0)),
    readings=(
        Reading("eu", 0, 0.5, 0, 0, (0,)),
        Reading("eu", 0, 2.0, 1, 2, refused=True),
        Reading("eu", 0, 2.1, 2, 2, (2, 3, 4)),
        Reading("us", 0, 2.2, 0, 0, (0, 1, 2)),
    ),
    acked=[acked(offset) for offset in range(5)],
    starts={"eu": [2], "us": [2]},
    final=dict.fromkeys(("eu", "us"), frozenset(place(offset) for offset in (2, 3, 4))),
    undisturbed=True,
)


def trims_with(reading: Reading) -> Trims:
    return replace(TRIMS, readings=(*TRIMS.readings, reading))


def test_JTR_a_log_start_that_moves_as_asked_is_right() -> None:
    assert judge_trims(TRIMS, nothing_is_excused) == []


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (trims_with(Reading("eu", 0, 4.0, 4, 4, (4,))), "nobody asked for"),
        (trims_with(Reading("eu", 0, 4.0, 3, 2, refused=True)), "refused, though"),
        (trims_with(Reading("eu", 0, 4.0, 1, 2, (1, 2))), "answered below"),
        (trims_with(Reading("eu", 0, 4.0, 2, 2, (3, 4))), "not every record"),
        (trims_with(Reading("eu", 0, 4.0, 2, 2, (2, 4))), "not every record"),
        (trims_with(Reading("eu", 0, 4.0, 0, 0, (0, 1))), "started at 2"),
        (replace(TRIMS, starts={"eu": [2], "us": [0]}), "in us"),
        (replace(TRIMS, starts={"eu": [5], "us": [5]}), "nobody asked for"),
        (replace(TRIMS, starts={"eu": [1]}, final={"eu": frozenset(map(place, (1, 2, 3, 4)))}), "below 2 all was deleted"),
        (replace(TRIMS, final={"eu": frozenset({place(2), place(4)})}), "not deleted, and gone"),
    ],
)  # fmt: skip
def test_JTR_each_planted_fault_is_named(run: Trims, text: str) -> None:
    only(judge_trims(run, nothing_is_excused), text)


def test_JTR2_a_word_may_bring_deleted_records_back_and_take_others() -> None:
    back = replace(TRIMS, starts={"eu": [1]}, final={"eu": frozenset({place(2)})})
    assert judge_trims(back, nothing_is_excused)
    assert judge_trims(back, excused) == []


# --- growth ---------------------------------------------------------------------------------------

GROWTH = Growth(
    TOPIC, (1, 2, 3), [Sighting(1.0, "eu", Place(TOPIC, 2, -1, ""), False)], [acked(0), acked(0, 1)],
    {"eu": 2, "us": 2}, dict.fromkeys(("eu", "us"), frozenset({place(0), place(0, 1)})),
)  # fmt: skip


def test_JGR_a_topic_that_grew_as_answered_is_right() -> None:
    assert judge_growth(GROWTH, nothing_is_excused) == []
    assert judge_growth(replace(GROWTH, counts={"eu": 3, "us": 3}), nothing_is_excused) == []


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (replace(GROWTH, counts={"eu": 2, "us": 3}), "2 partitions in eu, 3 in us"),
        (replace(GROWTH, counts={"eu": 4, "us": 4}), "nobody asked for so many"),
        (replace(GROWTH, counts={"eu": 1, "us": 1}), "had answered 2"),
        (replace(GROWTH, final={"us": frozenset({place(0)})}), "gone from us"),
    ],
)
def test_JGR_each_planted_fault_is_named(run: Growth, text: str) -> None:
    only(judge_growth(run, nothing_is_excused), text)


def test_JGR1_a_word_may_take_a_partition_back() -> None:
    back = replace(GROWTH, counts={"eu": 1, "us": 1}, final={"us": frozenset({place(0)})})
    assert judge_growth(back, excused) == []


# --- compaction -----------------------------------------------------------------------------------


def write(key: str, number: int, *, tombstone: bool = False, answered: bool = True) -> KeyedWrite:
    said = Sighting(1.0, "eu", Place(TOPIC, 0, number, key), False) if answered else None
    return KeyedWrite(key, number, tombstone, said)


WRITES = (
    write("a", 0), write("b", 1), write("a", 2), write("b", 3, tombstone=True), write("c", 4),
    write("c", 5, answered=False),
)  # fmt: skip
PRIMARY = [KeyedRecord(0, "a", 0), KeyedRecord(2, "a", 2), KeyedRecord(3, "b", None), KeyedRecord(4, "c", 4)]  # fmt: skip
CLEANED = [KeyedRecord(2, "a", 2), KeyedRecord(4, "c", 4)]
A_BEHIND, A_STALE = KeyedRecord(9, "a", 0), [KeyedRecord(0, "a", 0), KeyedRecord(4, "c", 4)]


def test_JCP_what_is_newest_may_be_cleaned_differently() -> None:
    run = Compaction(WRITES, {"eu": PRIMARY, "us": CLEANED})
    assert judge_compaction(run, nothing_is_excused) == []
    unanswered = [*CLEANED, KeyedRecord(5, "c", 5)]
    assert judge_compaction(Compaction(WRITES, {"eu": unanswered}), nothing_is_excused) == []


@pytest.mark.parametrize(
    ("records", "text"),
    [
        (A_STALE, "shows 0 as the newest of key a: number 2 was"),
        ([KeyedRecord(4, "c", 4)], "shows nothing as the newest of key a"),
        ([*CLEANED, KeyedRecord(7, "b", None), KeyedRecord(8, "b", 1)], "number 3 was acknowledged"),
        ([KeyedRecord(2, "a", None), KeyedRecord(4, "c", 4)], "shows a tombstone as the newest of key a"),
        ([*CLEANED, KeyedRecord(9, "d", 9)], "key d, which nobody wrote"),
        ([*CLEANED, KeyedRecord(9, "a", 8)], "number 8 of key a, which nobody wrote"),
        ([KeyedRecord(3, "a", 2), KeyedRecord(3, "c", 4)], "offset 3 behind 3"),
        ([KeyedRecord(1, "a", 2), KeyedRecord(2, "a", 2), KeyedRecord(4, "c", 4)], "behind number 2"),
    ],
)  # fmt: skip
def test_JCP_each_planted_fault_is_named(records: list[KeyedRecord], text: str) -> None:
    only(judge_compaction(Compaction(WRITES, {"eu": records}), nothing_is_excused), text)


def test_JCP2_regions_that_show_other_newest_values_are_named() -> None:
    unanswered = [*CLEANED, KeyedRecord(5, "c", 5)]
    run = Compaction(WRITES, {"eu": CLEANED, "us": unanswered})
    only(judge_compaction(run, nothing_is_excused), "of key c eu shows 4, us 5")


def test_JCP1_a_word_may_wind_a_key_back() -> None:
    assert judge_compaction(Compaction(WRITES, {"eu": A_STALE}), excused) == []
