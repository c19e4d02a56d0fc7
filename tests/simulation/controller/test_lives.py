"""Regions of three nodes live through faults that seeds choose, and each rule that is taken out is missed."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import pytest
from msgspec import structs

from geo_replicator.folder_life import Shown
from region_broker.controller import (
    cluster_leadership,
    cluster_nodes,
    group_rows,
    metadata_commands,
    spread_leadership,
)
from region_broker.controller.cluster import core, elections, sessions, spreading
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member
from tests.simulation.controller.play import play
from tests.simulation.controller.world import Violated

pytestmark = pytest.mark.slow
SEEDS: Final = range(24)
SOONEST: Final = (8, 18, 40, 46)
"""Lives that show what few do: played first where a rule is taken out."""
SHOWN: Final = {
    "_in_sync_shrinks_by_fencing": 3, "_nobody_is_fenced": 3, "_failovers_do_not_gather": 6,
    "_anybody_changes_the_in_sync_set": 18, "_anybody_changes_the_set_of_a_data_group": 40,
    "_data_leaders_are_elected_from_the_main_set": 46, "_only_the_main_set_counts": 46,
    "_older_copies_register": 1, "_starts_are_only_counted": 1,
}  # fmt: skip
"""The life that showed that a rule was taken out, where others would be played in vain before it; another one does, too, if it no more does."""
lived: Final = lru_cache(len(SEEDS))(play)
Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", SEEDS)
def test_INV_MH1_INV_MH2_INV_MH3_INV_MH5_INV_SPR1_INV_SPR2_INV_SPR6_hold_whatever_happens_and_somebody_leads_afterwards(
    seed: int,
) -> None:
    world = lived(seed)
    assert world.acknowledged
    assert len(world.leaders) > 1


def test_lives_are_rich() -> None:
    """Older copies are put in place of folders, and refused, again and again; so are leaders spread, elected and gathered."""
    worlds = [lived(seed) for seed in SEEDS]
    assert sum(world.refused for world in worlds) > len(SEEDS)
    done = sum((world.done for world in worlds), Counter())
    assert done["SpreadLeaders"] > 2 * len(SEEDS)
    assert (
        min(done[kind] for kind in ("ChangeGroupInSync", "ElectGroupLeader", "GatherLeaders")) > 10
    )


def _leader_stays_when_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_nodes, "without_lost_leader", lambda image: image)


def _folders_do_not_count(patch: pytest.MonkeyPatch) -> None:
    """A node is in sync by its node id, whatever folder it has."""

    def by_node_id(image: MetadataImage, member: Member) -> NodeImage | None:
        return image.nodes.get(member.node_id)

    def candidates(image: MetadataImage, _preferred: int | None, *_: object) -> list[Member]:
        nodes = (
            {member.node_id for member in image.leadership.in_sync}
            if image.leadership
            else {*image.nodes}
        )
        return [
            image.nodes[one].member
            for one in sorted(nodes & image.nodes.keys())
            if image.nodes[one].is_eligible
        ]

    patch.setattr(MetadataImage, "node_of", by_node_id)
    patch.setattr(cluster_leadership, "_elected", _elected_from_anywhere)
    patch.setattr(elections, "candidates", candidates)


def _elected_from_anywhere(image: MetadataImage, command: Any) -> MetadataImage:
    in_sync = image.leadership.in_sync if image.leadership else ()
    everybody = tuple(sorted({*in_sync, command.leader}))
    return cluster_leadership._led(image, command, everybody, unclean=0)


def _anybody_is_elected(patch: pytest.MonkeyPatch) -> None:
    def candidates(image: MetadataImage, _preferred: int | None, *_: object) -> list[Member]:
        return sorted(node.member for node in image.nodes.values() if node.is_eligible)

    patch.setattr(elections, "candidates", candidates)
    patch.setattr(cluster_leadership, "_elected", _elected_from_anywhere)


def _elections_drop_the_fenced(patch: pytest.MonkeyPatch) -> None:
    elected = cluster_leadership._elected

    def shrunk(image: MetadataImage, command: Any) -> MetadataImage:
        return _without_fenced(elected(image, command))

    patch.setattr(cluster_leadership, "_elected", shrunk)


def _without_fenced(image: MetadataImage) -> MetadataImage:
    found = image.leadership
    if found is None or found.leader is None:
        return image
    eligible = {one for one in found.in_sync if (node := image.node_of(one)) and node.is_eligible}
    in_sync = tuple(sorted({*eligible, found.leader}))
    return (
        image
        if in_sync == found.in_sync
        else cluster_leadership._with(image, found, in_sync=in_sync)
    )


def _leader_epochs_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "next_leader_epoch", lambda image, _region: image.last_leader_epoch)
    patch.setattr(cluster_leadership, "judge_leader_epoch", lambda _image, _epoch: None)


def _nobody_is_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions.Sessions, "silent", lambda _self: [])


def _no_session_at_first(patch: pytest.MonkeyPatch) -> None:
    born = sessions.Sessions.__init__

    def without_session(
        self: sessions.Sessions, settings: Any, image: MetadataImage, now_ms: int
    ) -> None:
        born(self, settings, image, now_ms - settings.session_timeout_ms)

    patch.setattr(sessions.Sessions, "__init__", without_session)


def _silent_ones_are_let_in(patch: pytest.MonkeyPatch) -> None:
    def all_fenced(self: sessions.Sessions, _now_ms: int) -> list[NodeImage]:
        return [node for node in self._image.nodes.values() if node.fenced]

    patch.setattr(sessions.Sessions, "returned", all_fenced)


def _former_lives_are_heard(patch: pytest.MonkeyPatch) -> None:
    def session_of(self: sessions.Sessions, member: Member, _life: object) -> Any:
        return self._sessions.get(member.node_id)

    patch.setattr(sessions.Sessions, "_session_of", session_of)


def _stale_leaders_stay(patch: pytest.MonkeyPatch) -> None:
    """A failover asks for no election: the leader goes on under a former region epoch."""

    def due(image: MetadataImage, preferred: int | None, *ranks: Any) -> Any:
        is_led = image.leadership is not None and image.leadership.leader is not None
        return None if is_led else elections.due_election(image, preferred, *ranks)

    patch.setattr(core, "due_election", due)


def _only_the_main_set_counts(patch: pytest.MonkeyPatch) -> None:
    """Who is in sync in the main group leads, whatever the leader of a data group has said."""

    def in_main(image: MetadataImage) -> tuple[Member, ...]:
        return image.leadership.in_sync if image.leadership else ()

    for module in (cluster_leadership, elections, spreading):
        patch.setattr(module, "in_sync_in_all", in_main)


def _spreads_outlive_elections(patch: pytest.MonkeyPatch) -> None:
    led = cluster_leadership._led

    def still_spread(image: MetadataImage, *args: Any, **values: Any) -> MetadataImage:
        return structs.replace(led(image, *args, **values), spread=image.spread)

    patch.setattr(cluster_leadership, "_led", still_spread)


def _failovers_do_not_gather(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(metadata_commands, "refuse_while_spread", lambda _image, _what: None)


def _anybody_changes_the_set_of_a_data_group(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spread_leadership, "judge_version", lambda _found, _expected: None)
    patch.setattr(spread_leadership, "judge_leads", lambda _image, row, _leader, _leader_epoch: row)


def _data_leaders_are_elected_from_the_main_set(patch: pytest.MonkeyPatch) -> None:
    elected = spread_leadership._group_elected

    def from_the_main_set(image: MetadataImage, command: Any) -> MetadataImage:
        row, main = spread_leadership._row_of(image, command.group), image.leadership
        assert main is not None
        joined = structs.replace(row, in_sync=tuple(sorted({*row.in_sync, *main.in_sync})))
        return elected(group_rows.with_row(image, command.group, joined), command)

    def candidates(image: MetadataImage, _group: int) -> list[Member]:
        main = image.leadership
        assert main is not None
        able = (one for one in main.in_sync if (node := image.node_of(one)) and node.is_eligible)
        return [one for one in able if one != main.leader]

    patch.setattr(elections, "group_candidates", candidates)
    patch.setattr(spread_leadership, "_group_elected", from_the_main_set)


def _many_proposals(patch: pytest.MonkeyPatch) -> None:
    propose = core.ControllerCore._propose

    def without_waiting(
        self: core.ControllerCore, reign: Any, command: Any, *, is_order: bool
    ) -> None:
        propose(self, reign, command, is_order=is_order)
        reign.pending = None

    patch.setattr(core.ControllerCore, "_propose", without_waiting)


def _in_sync_shrinks_by_fencing(patch: pytest.MonkeyPatch) -> None:
    lost_leader = cluster_leadership.without_lost_leader
    patch.setattr(
        cluster_nodes, "without_lost_leader", lambda image: _without_fenced(lost_leader(image))
    )


def _anybody_changes_the_in_sync_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_leadership, "judge_version", lambda _found, _expected: None)
    patch.setattr(cluster_leadership, "_led_by", lambda image, _command: image.leadership)


def _older_copies_register(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_nodes, "is_wound_back", lambda _image, _incarnation, _starts: False)


def _starts_are_only_counted(patch: pytest.MonkeyPatch) -> None:
    """An older copy that was started more often since passes for one that continues."""

    def fewer(image: MetadataImage, incarnation: UUID, starts: Shown) -> bool:
        known = image.folders.get(incarnation)
        last = None if known is None else known.last_start
        return last is not None and starts.incarnation_count < last.incarnation_count

    patch.setattr(cluster_nodes, "is_wound_back", fewer)


MUTANTS: Final[dict[str, Patch]] = {
    patch.__name__: patch
    for patch in (
        _leader_stays_when_fenced, _folders_do_not_count, _anybody_is_elected, _elections_drop_the_fenced,
        _leader_epochs_are_not_counted, _nobody_is_fenced, _no_session_at_first, _silent_ones_are_let_in,
        _former_lives_are_heard, _stale_leaders_stay, _many_proposals, _in_sync_shrinks_by_fencing,
        _anybody_changes_the_in_sync_set, _only_the_main_set_counts, _spreads_outlive_elections,
        _failovers_do_not_gather, _anybody_changes_the_set_of_a_data_group, _data_leaders_are_elected_from_the_main_set, _older_copies_register, _starts_are_only_counted,
    )
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_that_is_taken_out_is_missed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises((Violated, AssertionError)):
        _play_all((SHOWN.get(mutant, SOONEST[0]), *SOONEST, *range(60)))


def _play_all(seeds: Iterable[int]) -> None:
    for seed in seeds:
        play(seed)
