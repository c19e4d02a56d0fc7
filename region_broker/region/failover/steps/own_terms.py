"""Under which leader epoch this region acts: each time under another one (T1, T19).

INV-OTM1 a leader epoch is acted in once. Where nodes are elected, whoever is to act again while it leads has itself elected anew: what
         it leads ends with that, and goes on from what is recorded (INV-FA3)
1. A node acts, and closes rounds. 2. The region stands still, as another one is taken for it (T36), or closes its history (T33). 3. It
acts again, and nobody was elected meanwhile. 4. Rounds are counted anew: those that were driven would be driven once more.

Not here: who is elected otherwise (`controller.cluster`), what ends and begins with it (`region.cluster.leadership`).
"""

import logging
from typing import Final, NoReturn

from idempotency import fencing
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch
from region_broker.controller.cluster.elections import elect
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import TakeLeaderEpoch
from region_broker.controller.refusals import CommandRefused
from region_broker.region.failover.record import until_cancelled
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.ports import Term

AGAIN_MS: Final = 100
COUNTERS_LEFT_WARNED: Final = 5_000
"""An operator is told once so few leader epochs are left."""
_log: Final = logging.getLogger("tidemark.failover")


class OwnTerms:
    """`take` one whenever this region is about to act."""

    def __init__(self, outlook: Outlook) -> None:
        """Nothing was taken in this life."""
        self._outlook = outlook
        self._metadata = outlook.parts.metadata
        self._taken: LeaderEpoch = NO_LEADER_EPOCH

    async def take(self, region_epoch: RegionEpoch) -> Term:
        """Take the next leader epoch of `region_epoch`, durably; where nodes are elected, the election has, and this may not return.

        T1: rounds of one leader epoch are driven once. T19: its counter begins anew with each region epoch, and
        grows only when this region acts, not with every start. Raises `EpochExhausted`.
        """
        leadership = self._metadata.image.leadership
        if leadership is None:
            return await self._counted(region_epoch)
        leader_epoch = leadership.leader_epoch
        if fencing.region_epoch_of(leader_epoch) != region_epoch:
            await (
                until_cancelled()
            )  # an election under the new region epoch follows, and ends this (ADR 47)
        if leader_epoch == self._taken:
            await self._have_elected(leadership, region_epoch)
        self._taken = leader_epoch
        return Term(region_epoch, leader_epoch, self._outlook.region)

    async def _have_elected(self, led: Leadership, region_epoch: RegionEpoch) -> NoReturn:
        """Lead under a new leader epoch (INV-OTM1); whoever asks is cancelled with the one that ends."""
        while True:
            image = self._metadata.image
            present = image.leadership
            if (
                present is None
                or present.leader is None
                or present.leader_epoch != led.leader_epoch
            ):
                await until_cancelled()
            assert present is not None
            assert present.leader is not None
            try:
                await self._metadata.apply(elect(image, region_epoch, present.leader))
            except (MetadataUnwritable, CommandRefused) as error:
                _log.warning("this node is not elected anew yet: %s", error)
                await self._outlook.parts.clock.sleep_ms(AGAIN_MS)

    async def _counted(self, region_epoch: RegionEpoch) -> Term:
        image = self._metadata.image
        known = [
            log.written_epoch for log in self._outlook.parts.role.logs()
        ]  # of a folder that did not count yet
        used = [
            fencing.leader_counter_of(epoch)
            for epoch in (image.last_leader_epoch, *known)
            if epoch >= 0 and fencing.region_epoch_of(epoch) == region_epoch
        ]
        counter = max((1 + counter for counter in used), default=fencing.FIRST_TERM_COUNTER)
        leader_epoch = fencing.leader_epoch(region_epoch, counter)
        if counter > fencing.LEADER_COUNTER_MAX - COUNTERS_LEFT_WARNED:
            _log.warning(
                "leader epoch %d of %d in this region epoch: switch to another region and back, each switch begins anew",
                counter,
                fencing.LEADER_COUNTER_MAX,
            )
        await self._metadata.apply(TakeLeaderEpoch(leader_epoch))
        return Term(region_epoch, leader_epoch, self._outlook.region)
