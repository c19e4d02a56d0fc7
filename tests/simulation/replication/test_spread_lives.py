"""Regions whose leaders are spread and gathered, again and again, under faults: what `spread_lives` says must hold."""

from collections import Counter

import pytest

from tests.simulation.replication.spread_lives import play

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

SEEDS = 16
WANTED = (
    "write data", "write main", "acknowledged", "unknown outcome", "group elected", "gathered", "kill", "cut", "hold", "fence", "doubt",
)  # fmt: skip


def test_INV_RPG1_INV_RPG2_INV_RPG3_INV_RPG4_INV_RPG5_hold_in_every_life() -> None:
    seen = Counter[str]()
    for seed in range(1, SEEDS + 1):
        played = play(seed)
        assert not played.violation, (seed, played.violation)
        seen += played.seen
    assert not {name for name in WANTED if seen[name] < 3}, seen


def test_a_life_is_its_seed() -> None:
    assert play(3) == play(3)
