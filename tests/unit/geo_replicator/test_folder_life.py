"""What a folder says of itself: one history for life, and a chain of its starts."""

import pytest

from geo_replicator.folder_life import (
    INCARNATIONS_KEPT,
    LATE_MS,
    TWICE_MS,
    Birth,
    BirthVerdict,
    Chain,
    HeardLives,
    LifeVerdict,
    Shown,
    birth_of_older_folder,
    judge_births,
    judge_lives,
)
from idempotency.identity import RegionEpoch


def shows(birth_id: str) -> Shown:
    birth = Birth(birth_id=birth_id, region="eu", region_epoch=RegionEpoch(8), wall_ms=1)
    return Shown(folder_id="f", history=birth)


# Holds INV-FX3.
def test_a_chain_keeps_the_newest_starts_their_number_and_a_hash_over_all() -> None:
    chain, other = Chain(), Chain().with_start("elsewhere")
    for number in range(INCARNATIONS_KEPT + 10):
        chain, other = chain.with_start(f"i{number}"), other.with_start(f"i{number}")
    assert chain.newest == tuple(f"i{number}" for number in range(10, INCARNATIONS_KEPT + 10))
    assert chain.newest == other.newest
    assert (chain.count, other.count) == (INCARNATIONS_KEPT + 10, INCARNATIONS_KEPT + 11)
    assert chain.digest != other.digest


# Holds INV-FX1.
def test_T32_histories_of_two_births_are_told_apart() -> None:
    assert judge_births(shows("a"), shows("a")) is BirthVerdict.SAME
    assert judge_births(shows("a"), shows("b")) is BirthVerdict.OTHER
    assert judge_births(shows("a"), Shown(folder_id="f")) is BirthVerdict.NO_HISTORY
    assert judge_births(shows("a"), None) is BirthVerdict.SAME


def test_T32_all_regions_derive_one_birth_for_folders_of_an_older_version() -> None:
    here, there = (
        birth_of_older_folder("cluster", region, RegionEpoch(8)) for region in ("eu", "us")
    )
    assert here.birth_id == there.birth_id
    assert here.birth_id != birth_of_older_folder("another cluster", "eu", RegionEpoch(8)).birth_id


def life(names: str, *, count: int = 0, folder_id: str = "f") -> Shown:
    return Shown(
        folder_id=folder_id, incarnations=tuple(names), incarnation_count=count or len(names)
    )


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (life("abc"), life("abc"), LifeVerdict.SAME),
        (life("abc"), life("abcd"), LifeVerdict.LATER),
        (life("abc"), life("abcdef"), LifeVerdict.LATER),
        (life("abc"), life("abx"), LifeVerdict.PARTED),
        (life("abc"), life("abxyz"), LifeVerdict.PARTED),
        (life("abc"), life("ab"), LifeVerdict.PARTED),
        (life("abc"), life("xyz", count=3 + INCARNATIONS_KEPT), LifeVerdict.LATER),
        (life("abc"), life("xyz", count=2 + INCARNATIONS_KEPT), LifeVerdict.PARTED),
        (life("abc"), life("abcd", folder_id="g"), LifeVerdict.OTHER_FOLDER),
    ],
)
def test_T36_what_a_start_is_to_another(first: Shown, second: Shown, verdict: LifeVerdict) -> None:
    assert judge_lives(first, second) is verdict


@pytest.mark.parametrize("copy", [life("abx"), life("abcd"), life("ab")])
def test_INV_FX4_a_start_that_speaks_after_a_later_heard_one_shows_that_two_run(
    copy: Shown,
) -> None:
    lives = HeardLives()
    lives.hear("eu", life("abc"), 0)
    lives.hear("eu", copy, 500)
    assert not lives.twice(500), "it may have ended: a restart looks so, too"
    lives.hear("eu", life("abc"), 500 + LATE_MS)
    assert not lives.twice(500 + LATE_MS), "said before its end, perhaps"
    lives.hear("eu", life("abc"), 501 + LATE_MS)
    assert "region eu" in lives.twice(501 + LATE_MS)["eu"]
    assert not lives.twice(501 + TWICE_MS), "the copy is silent"


def test_INV_FX4_restarts_and_versions_that_do_not_tell_are_no_copies() -> None:
    lives = HeardLives()
    names = "abcdefghijklmnop"
    for at in range(len(names)):
        lives.hear("eu", life(names[: at + 1]), at * 100)
        lives.hear("eu", None, at * 100)
        lives.hear("us", life("abc"), at * 100)
    assert not lives.twice(len(names) * 100)


def test_INV_FX4_who_was_elected_after_another_one_is_no_second_node() -> None:
    lives, deposed = HeardLives(), life("abc")
    later = Shown(folder_id="f", incarnations=tuple("abcd"), incarnation_count=4, elected=True)
    for at in range(4):
        lives.hear("eu", (deposed, later)[at % 2], at * 2 * LATE_MS)
        lives.hear("us", (later, deposed)[at % 2], at * 2 * LATE_MS)
    assert not lives.twice(6 * LATE_MS), "the one does not know yet that it leads no more"
    parted = Shown(folder_id="f", incarnations=tuple("abce"), incarnation_count=4, elected=True)
    for at in range(4, 8):
        lives.hear("eu", (parted, later)[at % 2], at * 2 * LATE_MS)
    assert set(lives.twice(14 * LATE_MS)) == {"eu"}, "copies of all its folders run"
