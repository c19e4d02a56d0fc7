"""When the leaders of a region are spread, and when they are gathered: a function of images, facts and time (ADR 53).

INV-SPK1  leaders are spread only where an operator wants it, the region acts and this node leads it, nothing is in trouble here, and for
          `steady_ms` the same nodes, at least two and all that may lead, have been in sync
INV-SPK2  they are gathered where that is not wanted any more; at once where a log here has stopped or is damaged, or who leads a group is
          about to stop and nobody may be elected in its place; and behind a while where too few are in sync in all groups, where the sets
          differ, where a group has no leader and nobody may be elected, where there are more or fewer nodes than groups, and where the list
          of topics is not what it would be
INV-SPK3  each spread that ends in less than `forgiven_ms` doubles the pause before the next one, up to `pause_max_ms`, unless nobody wanted
          it any more: each takes leader epochs, of which there are 65,535 in a region epoch
INV-SPK4  a data group goes back to its preferred node when that one may lead it, and has been in sync for `preferred_ms`
INV-SPK5  a command is asked for again only behind another image, or `retry_ms`

Not here: what the commands change and when they are refused (`spread_leadership`), elections where nobody leads (`elections`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from uuid import UUID

from idempotency.fencing import EpochExhausted
from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster.elections import (
    candidates,
    elect,
    elect_in,
    group_candidates,
)
from region_broker.controller.cluster_commands import (
    ElectGroupLeader,
    ElectLeader,
    GatherLeaders,
    SpreadLeaders,
)
from region_broker.controller.cluster_image import Leadership, NodeImage, Spread
from region_broker.controller.feature_levels import since_type
from region_broker.controller.group_rows import groups_of, in_sync_in_all
from region_broker.controller.leadership_rules import is_kept_for_main
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member
from region_broker.controller.spread_leadership import failover_number_of, may_be_spread

Gathering: TypeAlias = GatherLeaders | ElectLeader
KeeperCommand: TypeAlias = SpreadLeaders | ElectGroupLeader | Gathering
LEAST: Final = 2
"""So many nodes make a spread, and are in sync in all groups of one that goes on."""


@dataclass(frozen=True, slots=True)
class SpreadSettings:
    """Times in ms, each for how long what it is named after has been so."""

    steady_ms: int = 10_000
    """The region acts, and the same nodes are in sync: leaders are spread."""
    common_ms: int = 3_000
    """Fewer than two are in sync in all groups, or the main leader is not, or nobody may lead a group: gathered."""
    differ_ms: int = 60_000
    """Not the same are in sync in all groups: gathered."""
    count_ms: int = 30_000
    """There are more or fewer nodes than groups, or other topics than are spread: gathered."""
    preferred_ms: int = 10_000
    """The preferred node of a group may lead it: it does."""
    pause_ms: int = 10_000
    pause_max_ms: int = 600_000
    forgiven_ms: int = 600_000
    retry_ms: int = 1_000
    forwarded_ms: int = 600_000
    """So long leaders are gathered behind a write that another region has forwarded (INV-SPD3)."""

    def __post_init__(self) -> None:
        """Refuse times that do not fit together."""
        assert 0 < self.common_ms < self.count_ms <= self.differ_ms <= self.forgiven_ms
        assert 0 < self.pause_ms <= self.pause_max_ms
        assert min(self.steady_ms, self.preferred_ms, self.retry_ms, self.forwarded_ms) > 0


@dataclass(frozen=True, slots=True)
class SpreadFacts:
    """What a node knows that its image does not.

    `idle`: why it does not lead a region that takes writes, and has its readers back; empty where it does. `trouble`: what is wrong with
    logs here; None where nothing is. Both as people read them.
    """

    me: Member
    idle: str = ""
    trouble: str | None = None


def gathering(image: MetadataImage) -> Gathering | None:
    """Return what has one node lead all logs again; None where one does, or nobody is able to.

    The main leader is elected anew, or, where it lacks what a data group has committed, another one. Raises `EpochExhausted`.
    """
    main = image.leadership
    if image.spread is None or main is None or main.leader is None:
        return None  # whoever is elected leads all
    if main.leader in in_sync_in_all(image):
        return GatherLeaders(main.version)
    able = candidates(image, None)
    return elect(image, image.main_domain.region_epoch, able[0]) if able else None


def leads_a_data_group(image: MetadataImage, me: Member) -> bool:
    """Return whether a member is named as leader of a data group."""
    return image.spread is not None and any(
        row.leader == me for row in image.spread.groups.values()
    )


class SpreadKeeping:
    """Of one node: given each image and the time; it decides only where its node leads the main group."""

    def __init__(self, settings: SpreadSettings) -> None:
        """Nothing was seen yet."""
        self._settings = settings
        self._since: dict[object, int] = {}
        """What is so, and since when."""
        self._seen: tuple[LeaderEpoch, int] | None = None
        """Under which leader epoch of the main group leaders are spread, and since when."""
        self._pause_ms = settings.pause_ms
        self._next_ms = 0
        self._asked: tuple[int, int] | None = None
        """Behind which image something was asked for, and when."""
        self.reason = ""
        """Why the last command was returned, as people read it."""

    def step(self, image: MetadataImage, facts: SpreadFacts, now_ms: int) -> KeeperCommand | None:
        """Return what to propose now."""
        self._watch(image, now_ms)
        main = image.leadership
        held: set[object] = set()
        command: KeeperCommand | None = None
        if main is not None and main.leader == facts.me:
            try:
                if image.spread is None:
                    command = self._spread(image, main, facts, held, now_ms)
                else:
                    command = self._kept(image, image.spread, facts, held, now_ms)
            except EpochExhausted:
                command = None  # the controller says so loudly (INV-CK5)
        self._since = {what: since for what, since in self._since.items() if what in held}
        if command is None or self._is_asked(image, now_ms):
            return None
        self._asked = image.version, now_ms
        return command

    def _is_asked(self, image: MetadataImage, now_ms: int) -> bool:
        """Return whether to wait for what was asked for (INV-SPK5)."""
        if self._asked is None:
            return False
        version, asked_ms = self._asked
        return version == image.version and now_ms - asked_ms < self._settings.retry_ms

    def _watch(self, image: MetadataImage, now_ms: int) -> None:
        """Note when a spread begins and ends, whoever leads (INV-SPK3): each lives under one leader epoch of the main group."""
        main = image.leadership
        present = None if image.spread is None or main is None else main.leader_epoch
        if self._seen is not None and self._seen[0] != present:
            lasted_ms, self._seen = now_ms - self._seen[1], None
            if image.spread_wanted:
                self._end(lasted_ms, now_ms)
        if present is not None and self._seen is None:
            self._seen = present, now_ms

    def _end(self, lasted_ms: int, now_ms: int) -> None:
        if lasted_ms >= self._settings.forgiven_ms:
            self._pause_ms = self._settings.pause_ms
        self._next_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, self._settings.pause_max_ms)

    def _has_lasted(self, what: object, ms: int, held: set[object], now_ms: int) -> bool:
        """Return whether `what`, which is so now, has been so for `ms`."""
        held.add(what)
        return now_ms - self._since.setdefault(what, now_ms) >= ms

    # --- while one node leads all ---

    def _spread(
        self, image: MetadataImage, main: Leadership, facts: SpreadFacts, held: set[object], now_ms: int
    ) -> SpreadLeaders | None:  # fmt: skip
        nodes = _eligible(image)
        if not image.spread_wanted or self._in_the_way(image, main, facts):
            return None
        # Who was in sync for a while goes on being it: a set that changes begins the time anew (INV-SPK1).
        situation = "steady", main.leader_epoch, main.in_sync, tuple(node.member for node in nodes)
        is_steady = self._has_lasted(situation, self._settings.steady_ms, held, now_ms)
        if not is_steady or now_ms < self._next_ms:
            return None
        others = [node.node_id for node in nodes if node.member != facts.me]
        self.reason = (
            f"the region has acted steadily with nodes {sorted({facts.me.node_id, *others})}"
        )
        return SpreadLeaders(
            leader=facts.me,
            leader_epoch=main.leader_epoch,
            preferred=(facts.me.node_id, *others),
            topics=_spreadable(image),
            expected_version=main.version,
            failover_number=failover_number_of(image),
        )

    def waits_for(self, image: MetadataImage, facts: SpreadFacts) -> str:
        """Return why leaders are not spread though they are to be, empty where they are, or are not to be."""
        main = image.leadership
        if image.spread is not None or not image.spread_wanted or main is None:
            return ""
        steady_s = self._settings.steady_ms // 1000
        return self._in_the_way(image, main, facts) or (
            f"the region is to act steadily for {steady_s} s, and longer where a spread has ended soon"
        )

    def _in_the_way(self, image: MetadataImage, main: Leadership, facts: SpreadFacts) -> str:
        """Return what keeps leaders from being spread now, whatever was before (INV-SPK1); empty where nothing does."""
        nodes = _eligible(image)
        behind = [node.node_id for node in nodes if node.member not in main.in_sync]
        if image.feature_level < since_type(SpreadLeaders):
            return f"feature level {since_type(SpreadLeaders)} is not finalized: tidemark cluster upgrade --finalize"
        if facts.idle:
            return facts.idle
        if facts.trouble is not None:
            return facts.trouble
        if len(nodes) < LEAST:
            return "fewer than two nodes run"
        if behind or facts.me not in {node.member for node in nodes}:
            return f"not in sync: nodes {behind or [facts.me.node_id]}"
        if is_kept_for_main(LeaderEpoch(image.last_leader_epoch + len(nodes))):
            return "few leader epochs are left in this region epoch: they are kept for elections; a planned switch begins another one"
        return ""

    # --- while leaders are spread ---

    def _kept(
        self, image: MetadataImage, spread: Spread, facts: SpreadFacts, held: set[object], now_ms: int
    ) -> KeeperCommand | None:  # fmt: skip
        due = [
            what
            for what, ms in self._troubles(image, spread, facts)
            if self._has_lasted(what, ms, held, now_ms)
        ]
        back = self._to_preferred(image, spread, held, now_ms)
        if due:
            self.reason = due[0]
            return gathering(image)
        return back

    def _troubles(
        self, image: MetadataImage, spread: Spread, facts: SpreadFacts
    ) -> Iterator[tuple[str, int]]:
        """Yield why to gather, and for how long that is to be so (INV-SPK2)."""
        times, nodes = self._settings, _eligible(image)
        if not image.spread_wanted:
            yield "leaders are not to be spread any more", 0
        if facts.trouble is not None:
            yield f"trouble with a log of the leader: {facts.trouble}", 0
        common = in_sync_in_all(image)
        able = [node for node in nodes if node.member in common]
        if len(able) < LEAST <= len(nodes):
            yield "fewer than two nodes are in sync in all groups", times.common_ms
        if facts.me not in common:
            yield "the leader of the main group is not in sync in a data group", times.common_ms
        yield from self._without_leaders(image, spread)
        if len({row.in_sync for row in groups_of(image).values()}) > 1:
            yield "not the same nodes are in sync in all groups", times.differ_ms
        if {node.node_id for node in nodes} != set(spread.preferred):
            yield "other nodes may lead than there are groups for", times.count_ms
        if _spreadable(image) != spread.topics:
            yield "other topics are to be spread", times.count_ms

    def _without_leaders(self, image: MetadataImage, spread: Spread) -> Iterator[tuple[str, int]]:
        """Yield each group that nobody leads, or soon, and nobody may be elected in.

        1. Of the leader epochs only those are left that are kept for the main group. 2. A data leader starts anew, and is in sync. 3. No
        election gives it the group back (INV-SPR5): nobody would lead it for as long as leaders are spread.
        """
        for number, row in sorted(spread.groups.items()):
            if group_candidates(image, number) and not _has_no_epoch(image):
                continue
            leader = None if row.leader is None else image.node_of(row.leader)
            if leader is None:
                yield f"nobody else may lead data group {number}", self._settings.common_ms
            elif leader.draining:
                yield (
                    f"node {row.leader} is about to stop, and nobody else may lead data group {number}",
                    0,
                )

    def _to_preferred(
        self, image: MetadataImage, spread: Spread, held: set[object], now_ms: int
    ) -> ElectGroupLeader | None:
        """Return the election of a group's preferred node that could lead it, and does not (INV-SPK4)."""
        due = None
        for number, row in sorted(spread.groups.items()):
            able = group_candidates(image, number)
            if not able or able[0].node_id != spread.preferred[number] or able[0] == row.leader:
                continue
            what = "preferred", number, able[0]
            if self._has_lasted(what, self._settings.preferred_ms, held, now_ms) and due is None:
                due = elect_in(image, number, able[0])
                self.reason = f"node {able[0]} may lead data group {number} again"
        return None if due is None or is_kept_for_main(due.leader_epoch) else due


def _has_no_epoch(image: MetadataImage) -> bool:
    """Return whether no leader epoch is left for the election of a data group (INV-SPR5)."""
    return is_kept_for_main(LeaderEpoch(image.last_leader_epoch + 1))


def _eligible(image: MetadataImage) -> list[NodeImage]:
    return [node for _, node in sorted(image.nodes.items()) if node.is_eligible]


def _spreadable(image: MetadataImage) -> tuple[UUID, ...]:
    return tuple(sorted(each.topic_id for each in image.topics.values() if may_be_spread(each)))
