"""What a folder says of itself: one history for life, and a chain of its starts."""

from geo_replicator.folder_life import (
    INCARNATIONS_KEPT,
    Birth,
    BirthVerdict,
    Chain,
    Shown,
    birth_of_older_folder,
    judge_births,
)


def shows(birth_id: str) -> Shown:
    birth = Birth(birth_id=birth_id, region="eu", region_epoch=8, wall_ms=1)
    return Shown(folder_id="f", history=birth)


def test_a_chain_keeps_the_newest_starts_their_number_and_a_hash_over_all() -> None:
    chain, other = Chain(), Chain().with_start("elsewhere")
    for number in range(INCARNATIONS_KEPT + 10):
        chain, other = chain.with_start(f"i{number}"), other.with_start(f"i{number}")
    assert chain.newest == tuple(f"i{number}" for number in range(10, INCARNATIONS_KEPT + 10))
    assert chain.newest == other.newest
    assert (chain.count, other.count) == (INCARNATIONS_KEPT + 10, INCARNATIONS_KEPT + 11)
    assert chain.digest != other.digest


def test_T32_histories_of_two_births_are_told_apart() -> None:
    assert judge_births(shows("a"), shows("a")) is BirthVerdict.SAME
    assert judge_births(shows("a"), shows("b")) is BirthVerdict.OTHER
    assert judge_births(shows("a"), Shown(folder_id="f")) is BirthVerdict.NO_HISTORY
    assert judge_births(shows("a"), None) is BirthVerdict.SAME


def test_T32_all_regions_derive_one_birth_for_folders_of_an_older_version() -> None:
    here, there = (birth_of_older_folder("cluster", region, 8) for region in ("eu", "us"))
    assert here.birth_id == there.birth_id
    assert here.birth_id != birth_of_older_folder("another cluster", "eu", 8).birth_id
