"""What is drawn for a sequence."""

import pytest

from chaos.shuffle.plan import ACTIONS_MAX, ACTIONS_MIN, TOUCHING, Kind, draw

SEEDS = range(300)


@pytest.mark.parametrize("regions", [("eu", "us"), ("eu", "us", "ap")])
def test_INV_SHP1_a_seed_gives_the_same_actions_and_names_regions_that_there_are(
    regions: tuple[str, ...],
) -> None:
    for seed in SEEDS:
        actions = draw(seed, regions)
        assert actions == draw(seed, regions)
        assert ACTIONS_MIN <= len(actions) <= ACTIONS_MAX
        assert all({a.region, a.other} <= set(regions) and a.region != a.other for a in actions)


def test_INV_SHP2_each_sequence_touches_a_folder_or_orders_a_takeover() -> None:
    drawn = [{each.kind for each in draw(seed, ("eu", "us"))} for seed in SEEDS]
    assert all(kinds & (TOUCHING | {Kind.FAILOVER}) for kinds in drawn)
    assert set().union(*drawn) == set(Kind)


def test_only_what_was_copied_before_is_restored() -> None:
    for seed in SEEDS:
        copied = set()
        for action in draw(seed, ("eu", "us", "ap")):
            if action.kind is Kind.COPY:
                copied.add(action.region)
            assert action.kind is not Kind.RESTORE or action.region in copied
