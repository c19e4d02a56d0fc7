"""That the watch over access sees what is gone, what came back, and what a word may give up."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_replicator.lineage import TidemarkPoint
from idempotency.identity import RegionEpoch
from region_broker.security.access import NO_ACCESS, Access, changed
from tests.simulation.regions_swarm.access import (
    KEPT,
    AccessWatch,
    Change,
    change_of,
    numbers_in,
    wrong_at,
)
from tests.simulation.regions_swarm.stage import Stage


def point(number: int, epoch: int = 1) -> TidemarkPoint:
    return TidemarkPoint(RegionEpoch(epoch), number)


def change(number: int, behind: TidemarkPoint | None) -> Change:
    return Change(number, 1, behind)


def access_of(*numbers: int) -> Access:
    access = NO_ACCESS
    for number in numbers:
        access = changed(access, change_of(number))
    return access


def test_what_is_there_names_the_changes_that_were_made() -> None:
    numbers = range(KEPT, 3 * KEPT)
    assert numbers_in(access_of(*numbers)) == frozenset(range(2 * KEPT, 3 * KEPT))


def test_INV_RGA2_what_was_answered_is_there_where_a_tidemark_behind_it_was_reached() -> None:
    changes = [change(9, point(3)), change(10, point(5)), change(11, None)]
    assert not list(wrong_at(changes, frozenset({9}), point(4)))
    assert "change 10 was answered" in next(wrong_at(changes, frozenset({9}), point(5)))
    assert not list(wrong_at(changes, frozenset({9, 10, 11}), point(5))), "more may be there"


def test_INV_RGA2_what_was_removed_is_not_there() -> None:
    changes = [change(number, point(number)) for number in range(KEPT, 2 * KEPT + 1)]
    there = frozenset(range(KEPT, 2 * KEPT + 1))
    assert "has removed 9" in next(wrong_at(changes, there, point(50)))
    assert not list(wrong_at(changes, there - {KEPT}, point(50)))


class World:
    """Two regions, and who leads each."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.words: list[str] = []
        self.leaders = {name: self._leader(name) for name in ("eu", "us")}
        regions = {name: SimpleNamespace(leader=each) for name, each in self.leaders.items()}
        stage = SimpleNamespace(regions=regions, blame=self.found.append, story=SimpleNamespace(words=self.words))  # fmt: skip
        self.watch = AccessWatch(cast("Stage", stage))

    def _leader(self, region: str) -> Any:
        role, config = SimpleNamespace(acting=False, region_epoch=0), SimpleNamespace(region=region)
        tidemarks: Any = SimpleNamespace(point=point(0))
        tidemarks.claim = lambda: tidemarks
        image = SimpleNamespace(access=NO_ACCESS)
        storage = SimpleNamespace(metadata=SimpleNamespace(image=image))
        node = SimpleNamespace(role=role, config=config, tidemarks=tidemarks, storage=storage)
        return SimpleNamespace(name=f"{region}-1", died=False, node=node)

    def stands(self, region: str, access: Access, number: int, *, acts_in: int = 0, epoch: int = 0) -> None:  # fmt: skip
        node = self.leaders[region].node
        node.role.acting, node.role.region_epoch = acts_in > 0, acts_in
        node.storage.metadata.image.access = access
        node.tidemarks.point = point(number, epoch or max(1, acts_in))


@pytest.fixture
def world() -> World:
    """eu acts, and was answered 9 and 10; us has reached what is behind 9."""
    world = World()
    world.stands("eu", access_of(9, 10), 8, acts_in=1)
    world.stands("us", access_of(9), 4)
    world.watch.look()
    world.watch.changes += [change(9, point(3)), change(10, point(6))]
    world.watch.look()
    assert not world.found
    return world


def test_INV_RGA1_a_switch_loses_nothing(world: World) -> None:
    world.stands("us", access_of(9), 5, acts_in=2, epoch=1)
    world.watch.look()
    assert "change 10 was answered" in world.found[0]
    assert "goes on under 2 now" in world.found[0]


def test_INV_RGA2_a_word_gives_up_what_its_tidemark_did_not_hold_and_nothing_more(world: World) -> None:  # fmt: skip
    world.words.append("failover")
    world.stands("us", access_of(9), 5, acts_in=2)
    world.watch.look()
    assert not world.found
    world.stands("us", NO_ACCESS, 6, acts_in=2)
    world.watch.look()
    assert "change 9 was answered" in world.found[0]


def test_INV_RGA2_who_takes_over_has_tidemarks_of_its_own_before_it_acts(world: World) -> None:
    """Found by seed 70009: the watch held against it what its word had given up."""
    world.words.append("failover")
    world.stands("us", access_of(9), 5, epoch=2)
    world.watch.look()
    world.stands("us", access_of(9), 5, acts_in=2)
    world.watch.look()
    assert not world.found


def test_INV_RGA2_a_mirror_that_shows_a_tidemark_without_its_access_is_seen(world: World) -> None:
    world.stands("us", access_of(9), 6)
    world.watch.look()
    assert "change 10 was answered" in world.found[0]


def test_INV_RGA3_regions_that_differ_once_all_is_well_are_seen(world: World) -> None:
    found = world.watch.differing()
    assert "the access of us-1 is not that of eu-1" in found
    assert any("change 10 was answered" in each for each in found)
    world.stands("us", access_of(9, 10), 8)
    assert not world.watch.differing()
