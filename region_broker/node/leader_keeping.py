"""What a node does about leaderships by itself, joined together: it spreads and gathers leaders, and gives up what it cannot prove.

Not here: when (`region.cluster.spread_keeper`, `region.cluster.giving_up`), what leads and follows (`replication`).
"""

from collections.abc import Callable

from idempotency.identity import LeaderEpoch
from idempotency.ports import Clock
from region_broker.controller.cluster_image import MAIN_GROUP, GroupNumber
from region_broker.node.cluster_parts import ClusterParts
from region_broker.node.storage import Storage
from region_broker.region.cluster.giving_up import GivingUp, GivingUpParts, LedGroup
from region_broker.region.cluster.leadership import LeadershipDriver
from region_broker.region.cluster.region_groups import RegionGroups
from region_broker.region.cluster.spread_keeper import SpreadKeeper, SpreadParts, idle_because
from region_broker.region.role import RegionRole


class LeaderKeeping:
    """`giving_up.run`, and `spread_keeper.look` now and then, for as long as the node runs."""

    def __init__(
        self, cluster: ClusterParts, storage: Storage, clock: Clock, groups: RegionGroups,
        leadership: LeadershipDriver,
    ) -> None:  # fmt: skip
        """Join `groups`, of which `leadership` moves the main one."""
        self._groups = groups
        self._leadership = leadership
        metadata = self._metadata = storage.metadata
        self._me = cluster.member
        self._clock = clock
        self.giving_up = GivingUp(
            GivingUpParts(
                me=cluster.member,
                clock=clock,
                image=lambda: metadata.image,
                led=self._led,
                leading_of=self._leading_of,
                give_up=self._give_up,
                hears_quorum=lambda: metadata.quorum.leader is not None,
                apply=metadata.apply,
            )
        )

    def spread_keeper(self, role: RegionRole, trouble: Callable[[], str | None]) -> SpreadKeeper:
        """Return what spreads and gathers; `trouble`: see `SpreadParts`."""
        metadata, leadership = self._metadata, self._leadership
        return SpreadKeeper(
            SpreadParts(
                me=self._me,
                image=lambda: metadata.image,
                apply=metadata.apply,
                idle=lambda: idle_because(
                    leads=leadership.leads is not None,
                    acts=role.acting,
                    awaits_readers=role.awaits_readers,
                ),
                trouble=trouble,
                clock=self._clock,
            )
        )

    def _led(self) -> dict[GroupNumber, LeaderEpoch]:
        led = {number: group.leads for number, group in self._groups.led().items()}
        led[MAIN_GROUP] = self._leadership.leads
        return {number: leads for number, leads in led.items() if leads is not None}

    def _leading_of(self, group: GroupNumber) -> LedGroup:
        return self._groups.leading if group == MAIN_GROUP else self._groups.led()[group].leading

    def _give_up(self, group: GroupNumber, leader_epoch: LeaderEpoch) -> None:
        if group == MAIN_GROUP:
            self._leadership.give_up(leader_epoch)
        else:
            self._groups.give_up(group, leader_epoch)
